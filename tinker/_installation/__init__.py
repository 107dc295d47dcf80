"""What is installed: versions, extras, and whether files of two distributions are mixed."""

from __future__ import annotations

from tinker._installation.check import inspect_installation
from tinker._installation.extras import install_command

__all__ = [
    "inspect_installation",
    "install_command",
]
