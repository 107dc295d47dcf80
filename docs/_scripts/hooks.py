"""What the site's build fills in: the commands of the command line, from the code."""

from __future__ import annotations

import inspect
import re
from typing import Any

import click

_MARK = re.compile(r"<!-- every command .*? -->", re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called for each page."""
    return _MARK.sub(lambda _: commands(), markdown)


def commands() -> str:
    """Every command, one heading each, groups unfolded."""
    from tinker.cli import main

    return "\n\n".join(_shown(click.Context(main, info_name="tinker")))


def _shown(context: click.Context) -> list[str]:
    command = context.command
    if not isinstance(command, click.Group):
        return [_one(context)]
    found = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None, name
        found += _shown(click.Context(child, info_name=name, parent=context))
    return found


def _one(context: click.Context) -> str:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    shown = [one for one in command.get_params(context) if isinstance(one, click.Option) and "--help" not in one.opts]
    options = [record for one in shown if (record := one.get_help_record(context))]
    lines = [f"### {context.command_path}", f"```text\n{context.command_path} {usage}\n```", _text(command.help or "")]
    if options:
        rows = [f"| `{names}` | {_cell(text)} |" for names, text in options]
        lines.append("\n".join(["| option | |", "|---|---|", *rows]))
    return "\n\n".join(lines)


def _text(help_text: str) -> str:
    """Paragraphs that click leaves as they are become blocks."""
    paragraphs = inspect.cleandoc(help_text).split("\n\n")
    return "\n\n".join(f"```text\n{one[2:]}\n```" if one.startswith("\b\n") else one for one in paragraphs)


def _cell(text: str) -> str:
    """Text that does not end its cell; inside code a bar does not."""
    return text.replace("|", "\\|").replace("\n", " ")
