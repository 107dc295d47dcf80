"""The options of ``tinker`` itself: the format of the output, the server, and how long to retry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

import click
from click.core import ParameterSource

P = ParamSpec("P")
R = TypeVar("R")
Format: TypeAlias = Literal["table", "json"]

PATIENCE_SECONDS = 10.0  # somebody waits at a prompt


class GlobalOptions(NamedTuple):
    """The options of ``tinker`` itself."""

    format: Format = "table"
    base_url: str | None = None
    patience_seconds: float = PATIENCE_SECONDS

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> GlobalOptions:
        """Take the options from the parameters of ``tinker``."""
        return cls(params["format"], params["base_url"], params["patience"])


ACCESS_SCOPE = click.option(
    "--access-scope",
    type=click.Choice(["owned", "accessible"]),
    default="owned",
    show_default=True,
    help="Only your own, or everything you can access.",
)
OFFSET = click.option("--offset", type=click.IntRange(min=0), default=0, help="Number of items to skip.")

_NUMBERED_LENGTH = 7  # of the number of a step behind the name, as in final-000012
LONGEST_NAME = 255 - _NUMBERED_LENGTH  # no server is known to take more than 255


def check_checkpoint_name(context: click.Context, parameter: click.Parameter, name: str) -> str:
    """Return the name that an option gives to checkpoints. BadParameter for one under which nothing could be saved."""
    from tinker._validate import check_name

    try:
        check_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    if len(name.encode()) > LONGEST_NAME:
        told = f"a checkpoint name has at most {LONGEST_NAME} bytes, got {len(name.encode())}"
        raise click.BadParameter(told, context, parameter)
    return name


def check_chart_file(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    """Return the file that an option names for a chart. UsageError for a name of another kind of picture."""
    if file is not None and file.suffix.lower() not in ("", ".svg"):
        raise click.UsageError(f"the chart is an SVG file: name it {file.with_suffix('.svg')}", context)
    return file


def pass_options(command: Callable[Concatenate[GlobalOptions, P], R]) -> Callable[P, R]:
    """Give a command the options of ``tinker`` as its first argument."""
    return click.make_pass_decorator(GlobalOptions, ensure=True)(command)


def accept_global_options(command: click.Command, main: click.Command) -> None:
    """Let a command take the options of ``main`` too, except those that it has itself. Its help does not repeat them."""
    known = {name for parameter in command.params for name in parameter.opts}
    for option in main.params:
        if isinstance(option, click.Option) and not option.is_eager and known.isdisjoint(option.opts):
            command.params.append(_repeat(option))


def _repeat(option: click.Option) -> click.Option:
    return click.Option(
        [*option.opts, str(option.name)],
        type=option.type,
        is_flag=option.is_flag,
        metavar=option.metavar,
        hidden=True,
        expose_value=False,
        callback=_overrule,
    )


def _overrule(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Let an option that is given after the command take the place of the one before it."""
    name = str(parameter.name)
    if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        main = context.find_root()
        main.params[name] = value
        main.obj = context.obj = GlobalOptions.from_params(main.params)
