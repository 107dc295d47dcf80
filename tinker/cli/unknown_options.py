"""What is said of an option that a command does not have: it goes before the command, or another one was meant."""

from __future__ import annotations

import difflib
from collections.abc import Generator
from contextlib import contextmanager

import click

_CLOSE = 0.75  # of 1: --epoch is close to --epochs, --base-url is not to --schedule


@contextmanager
def explain_unknown_options() -> Generator[None]:
    """Say more about an option that click refuses in the block."""
    try:
        yield
    except click.NoSuchOption as error:
        context = error.ctx
        if context is None:
            raise
        raise click.UsageError(_explain(error.option_name, context), context) from None


def _explain(name: str, context: click.Context) -> str:
    misplaced = next((one for one in _global_options(context) if name in one.opts), None)
    if misplaced is not None:
        return f"{name} goes before the command: {_show_place(name, misplaced, context)}"
    known = [option for one in context.command.get_params(context) for option in one.opts]
    close = difflib.get_close_matches(name, known, 2, _CLOSE)
    return f"No such option '{name}'." + (f" Did you mean {' or '.join(close)}?" if close else "")


def _global_options(context: click.Context) -> list[click.Option]:
    """Return the options of ``tinker`` itself, but those that print something and end."""
    root = context.find_root()
    if root is context:
        return []
    return [one for one in root.command.params if isinstance(one, click.Option) and not one.is_eager]


def _show_place(name: str, option: click.Option, context: click.Context) -> str:
    """Return the command line with the option where it belongs."""
    program, _, command = context.command_path.partition(" ")
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    return f"{program} {name}{value} {command} ..."
