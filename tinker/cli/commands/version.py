"""``tinker version``."""

from __future__ import annotations

import click

from tinker._version import DISTRIBUTION_VERSION


@click.command()
def version() -> None:
    """Print the version of this package."""
    click.echo(f"tinker {DISTRIBUTION_VERSION}")
