"""What was said before the command: the form of the output, the server, and how long to try."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import click

Format: TypeAlias = Literal["table", "json"]

PATIENCE_SECONDS = 10.0  # somebody waits at a prompt


class Options(NamedTuple):
    """The options of ``tinker`` itself."""

    format: Format = "table"
    base_url: str | None = None
    patience_seconds: float = PATIENCE_SECONDS


pass_options = click.make_pass_decorator(Options, ensure=True)
