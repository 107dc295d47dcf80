"""``tinker run``: training runs."""

from __future__ import annotations

import click

from tinker.cli.lazy import Entry, LazyGroup

COMMANDS = {
    "info": Entry("tinker.cli.run_show:info", "Show one training run."),
    "list": Entry("tinker.cli.run_show:list_runs", "List training runs."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def run() -> None:
    """List and show training runs."""
