"""What causes are called in a report, and which of them are told as one finding."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from tinker.testing.conformance.outcome import Observation


@cache
def _read() -> dict[str, dict[str, str]]:
    return tomllib.loads(files("tinker.testing.conformance").joinpath("causes.toml").read_text(encoding="utf-8"))


@cache
def read_causes() -> dict[str, tuple[str, str]]:
    """Return the title of each cause that many checks meet, and what its author can do, from `causes.toml`."""
    return {cause: (about["title"], about["advice"]) for cause, about in _read().items() if "title" in about}


def read_groups() -> dict[str, str]:
    """Return the causes and kinds of causes that are told together where nothing else is blocked by them."""
    return _read()["groups"]


def group_of(one: Observation, check: str, blocking: frozenset[str]) -> str:
    """Return what an observation is grouped by: its cause (with its kind where that blocks nothing), else its check."""
    if not one.cause:
        return f"check: {check}"
    kind = read_groups().get(one.cause.partition(": ")[0])
    return one.cause if kind is None or one.cause in blocking else kind
