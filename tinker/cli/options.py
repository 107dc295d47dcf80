"""The options before the command: the format of the output, the server, and how long to retry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

import click

P = ParamSpec("P")
R = TypeVar("R")
Format: TypeAlias = Literal["table", "json"]

PATIENCE_SECONDS = 10.0  # somebody waits at a prompt


class GlobalOptions(NamedTuple):
    """The options of ``tinker`` itself."""

    format: Format = "table"
    base_url: str | None = None
    patience_seconds: float = PATIENCE_SECONDS


ACCESS_SCOPE = click.option(
    "--access-scope",
    type=click.Choice(["owned", "accessible"]),
    default="owned",
    show_default=True,
    help="Only your own, or everything you can access.",
)
OFFSET = click.option("--offset", type=click.IntRange(min=0), default=0, help="Number of items to skip.")


def pass_options(command: Callable[Concatenate[GlobalOptions, P], R]) -> Callable[P, R]:
    """Give a command the options of ``tinker`` as its first argument."""
    return click.make_pass_decorator(GlobalOptions, ensure=True)(command)
