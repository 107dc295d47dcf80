"""The commands of the command line, as tests go through them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tinker.cli.app import LazyGroup


def list_commands(group: LazyGroup, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command and group below this one, after its words."""
    for name in group.entries:
        command = group.get_command(click.Context(group), name)
        assert command is not None, name
        yield (*path, name), command
        if isinstance(command, LazyGroup):
            yield from list_commands(command, *path, name)
