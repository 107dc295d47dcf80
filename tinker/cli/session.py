"""``tinker session``."""

from __future__ import annotations

import click

from tinker.cli.lazy import Entry, LazyGroup

COMMANDS = {"export-trace": Entry("tinker.cli.session_trace:export_trace", "Save what ran when, to look at in Perfetto.")}


@click.group(cls=LazyGroup, entries=COMMANDS)
def session() -> None:
    """What the server knows about a session."""
