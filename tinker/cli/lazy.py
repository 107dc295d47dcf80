"""Groups whose commands are imported when they are run or asked for help, so that ``tinker --help`` is quick."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from tinker.cli.help_examples import example_text
from tinker.cli.options import accept_global_options

_OTHER_WORDS = {
    "complete": "sample",
    "describe": "info",
    "finetune": "train",
    "generate": "sample",
    "get": "info",
    "ls": "list",
    "remove": "delete",
    "rm": "delete",
    "show": "info",
}


class Entry(NamedTuple):
    """The place of a command, ``module:name``, and its line in the help of its group."""

    home: str
    help: str


class LazyGroup(click.Group):
    """A group of such commands."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.entries:
            return None
        module, _, name = self.entries[cmd_name].home.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        accept_global_options(command, ctx.find_root().command)
        command.epilog = command.epilog or example_text(self.entries[cmd_name].home)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a name that is none is refused with those that it resembles."""
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            word = _OTHER_WORDS.get(args[0], "")
            close = [word] if word in self.entries else difflib.get_close_matches(args[0], self.entries, 2)
            hint = f" Did you mean {' or '.join(close)}?" if close else f" There are: {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(f"No such command '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.entries[name].help) for name in self.list_commands(ctx)])
