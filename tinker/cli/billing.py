"""``tinker billing``: what was used."""

from __future__ import annotations

import click

from tinker.cli.lazy import Entry, LazyGroup

COMMANDS = {
    "checkpoint-storage": Entry("tinker.cli.billing_show:checkpoint_storage", "How much checkpoints take now."),
    "usage": Entry("tinker.cli.billing_show:usage", "What was used, by the hour."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def billing() -> None:
    """What was used and what it costs, for those who may see the bills of their organization."""
