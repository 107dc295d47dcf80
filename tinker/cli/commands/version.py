"""``tinker version``."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping

import click
from tinker_wire import CONTRACT_VERSION

from tinker._version import DISTRIBUTION_VERSION
from tinker.cli.options import GlobalOptions, pass_options
from tinker.cli.output import show

_PACKAGES = ("torch", "transformers", "huggingface_hub", "zstandard", "starlette")


@click.command()
@click.option("--deps", is_flag=True, help="Also print the versions of Python and of the optional packages.")
@pass_options
def version(options: GlobalOptions, deps: bool) -> None:
    """Print the version of this package."""
    found = {"Python": platform.python_version(), **list_packages()} if deps else {}
    value: dict[str, object] = {"version": DISTRIBUTION_VERSION, "contract": CONTRACT_VERSION}
    lines = [f"tinker {DISTRIBUTION_VERSION}", *(f"{name} {found[name]}" for name in found)]
    show(options, value | ({"dependencies": found} if deps else {}), lambda: click.echo("\n".join(lines)))


def list_packages() -> Mapping[str, str]:
    """Return the version of each optional package by its name, "missing" where it is not installed."""
    return {name: find_version(name) or "missing" for name in _PACKAGES}


def find_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
