"""Suggestions for unknown commands, options and keys of files, from `hints.toml`."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any


@cache
def read_hints() -> dict[str, Any]:
    """Return the tables of `hints.toml`."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("hints.toml").read_text(encoding="utf-8"))


def suggest(name: str, known: Collection[str]) -> str:
    """Return a hint about an unknown command or option: what is meant by it among the known ones.
    Empty without an idea.
    """
    plain, hints = name.replace("_", "-"), read_hints()  # TRL spells its options with underscores
    close = [one for one, others in hints["others"].items() if plain in others and one in known]
    explanation = next((one["text"] for one in hints["explained"] if plain in one["names"]), None)
    if not close and explanation is not None:
        return str(explanation)
    from tinker_records import ABSENT, LIKENESS

    if not close and (why := ABSENT.get(plain.strip("-").replace("-", "_"))):
        return f"{why[0].upper()}{why[1:]}."
    close = close or difflib.get_close_matches(
        plain, known, 2, LIKENESS if plain.startswith("-") else 0.6
    )
    return f"Did you mean {' or '.join(close)}?" if close else ""
