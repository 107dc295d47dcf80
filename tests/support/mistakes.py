"""Tables of first mistakes: what somebody writes, and the whole text that answers it."""

from __future__ import annotations

import re
from pathlib import Path

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def read_mistakes(table: Path, prompt: str) -> list[tuple[str, str]]:
    """Read what is written behind the prompt, with lines of ``...`` that continue it, and the text
    up to the next blank line.
    """
    found: list[tuple[str, str]] = []
    for block in table.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.strip().splitlines() if not line.startswith("## ")]
        written = [
            line[4:] if line.startswith("... ") else line
            for line in lines
            if line.startswith((prompt, "... "))
        ]
        if written:
            found.append(
                ("\n".join(written).removeprefix(prompt), "\n".join(lines[len(written) :]))
            )
    return found


def name_ids(text: str) -> str:
    """Replace what differs from run to run: ids, and whether a result is there yet."""
    return re.sub(r"(<APIFuture \w+), done>", r"\1, pending>", _ID.sub("ID", text))
