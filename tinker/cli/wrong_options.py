"""What is said of an option that a command does not have, which one may be meant; and of a value that is no number in range."""

from __future__ import annotations

import difflib
from collections.abc import Generator
from contextlib import contextmanager

import click
from click.types import FloatParamType, IntParamType

_CLOSE = 0.75  # of 1: --epoch is close to --epochs, --base-url is not to --schedule
_REFUSALS = (" is not a valid ", " is not in the range ")  # click's own words, behind the value


@contextmanager
def explain_wrong_options() -> Generator[None]:
    """Say more about an option that click refuses in the block, and in plain words which numbers one takes."""
    try:
        yield
    except click.NoSuchOption as error:
        context = error.ctx
        if context is None:
            raise
        raise click.UsageError(_explain(error.option_name, context), context) from None
    except click.BadParameter as error:
        rule = None if error.param is None else _describe_numbers(error.param.type)
        refusal = next((words for words in _REFUSALS if words in error.message), None)
        if rule is None or refusal is None:
            raise
        told = f"must be {rule}, got {error.message.rpartition(refusal)[0]}"
        raise click.BadParameter(told, error.ctx, error.param, error.param_hint) from None


def _explain(name: str, context: click.Context) -> str:
    options = [one for one in context.command.get_params(context) if isinstance(one, click.Option)]
    known = [known_name for option in options for known_name in option.opts]
    close = difflib.get_close_matches(name, known, 2, _CLOSE)
    return f"No such option '{name}'." + (f" Did you mean {' or '.join(close)}?" if close else "")


def _describe_numbers(kind: object) -> str | None:
    """Return which numbers the type of an option takes, such as ``a number from 0 to 2``; None for other types."""
    if not isinstance(kind, (IntParamType, FloatParamType)):
        return None
    noun = "an integer" if isinstance(kind, IntParamType) else "a number"
    if not isinstance(kind, (click.IntRange, click.FloatRange)):
        return noun
    least = None if kind.min is None else f"{kind.min:g}"
    most = None if kind.max is None else f"{kind.max:g}"
    if least is not None and most is not None and not kind.min_open and not kind.max_open:
        return f"{noun} from {least} to {most}"
    above = [] if least is None else [f"above {least}" if kind.min_open else f"of at least {least}"]
    below = [] if most is None else [f"below {most}" if kind.max_open else f"of at most {most}"]
    return f"{noun} {' and '.join([*above, *below])}"
