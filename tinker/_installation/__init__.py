"""What is installed: versions, extras, and whether files of two distributions are mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker._installation.extras import EXTRAS, PATCHING_PACKAGES, install_command

if TYPE_CHECKING:
    from tinker._installation.check import Installation


def inspect_installation() -> Installation:
    """Read from the metadata beside this package which distributions own its files."""
    from tinker._installation import check  # which no client needs

    return check.inspect_installation()


__all__ = ["EXTRAS", "PATCHING_PACKAGES", "inspect_installation", "install_command"]
