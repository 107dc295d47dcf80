"""The commands of the command line, as tests go through them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tinker.cli.lazy import LazyGroup


def command_paths(group: LazyGroup, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and group below this one."""
    for name in group.entries:
        yield (*path, name)
        command = group.get_command(click.Context(group), name)
        if isinstance(command, LazyGroup):
            yield from command_paths(command, *path, name)
