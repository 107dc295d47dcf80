"""Write first_seen.json: the release of the official SDK in which each path, field and listed value
first appears.

pip download --no-deps --only-binary :all: -d FOLDER tinker==VERSION     # for each release
PYTHONPATH=. python tests/contract/official/first_seen.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from codegen.wheel_facts import read_facts


def names(facts: dict[str, Any]) -> Iterator[str]:
    """Yield `POST /api/v1/path`, `Class.field`, `Choice value`, `message Message.field`."""
    yield from facts["paths"]
    yield from (f"{name}.{field}" for name, fields in facts["classes"].items() for field in fields)
    yield from (f"{name} {value}" for name, values in facts["values"].items() for value in values)
    yield from (
        f"message {name}.{field}" for name, fields in facts["messages"].items() for field in fields
    )


def first_seen(releases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the versions that were read, and for each name the first one that has it."""
    first: dict[str, str] = {}
    for facts in releases:
        for name in names(facts):
            first.setdefault(name, facts["version"])
    return {
        "versions": [facts["version"] for facts in releases],
        "first": dict(sorted(first.items())),
    }


def number(facts: dict[str, Any]) -> list[int]:
    return [int(part) for part in facts["version"].split(".")]


if __name__ == "__main__":
    found = first_seen(sorted(map(read_facts, Path(sys.argv[1]).glob("tinker-*.whl")), key=number))
    text = json.dumps(found, indent=1) + "\n"
    Path(__file__).with_name("first_seen.json").write_text(text, encoding="utf-8")
