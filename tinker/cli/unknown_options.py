"""What is said of an option that a command does not have: which one may be meant."""

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
    known = [option for one in context.command.get_params(context) for option in one.opts]
    close = difflib.get_close_matches(name, known, 2, _CLOSE)
    return f"No such option '{name}'." + (f" Did you mean {' or '.join(close)}?" if close else "")
