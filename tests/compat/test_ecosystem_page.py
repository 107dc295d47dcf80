"""The report of `nox -s compat -- ecosystem`: every difference has a reason, and all are used."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from compat.ecosystem import page

PACKAGES = tomllib.loads((Path(page.__file__).parent / "packages.toml").read_text())


def result(official: dict[str, bool], ours: dict[str, bool], **entry: Any) -> dict[str, Any]:
    """Results as a run keeps them, by which steps passed."""
    clients = {"official": official, "ours": ours}
    steps = {
        client: {
            step: {"passed": good, "why": "" if good else "broken"} for step, good in found.items()
        }
        for client, found in clients.items()
    }
    return {
        "version": "1.0",
        "requires": "tinker<0.19",
        "official": "tinker==0.38.0",
        "what": "A test",
        "steps": steps,
        **entry,
    }


def test_a_difference_needs_a_reason() -> None:
    """A step that only one client passes is named until packages.toml says why."""
    found = result({"a": True, "b": True}, {"a": False})
    assert list(page.problems("one", found)) == [
        "one: a: no reason in differences: broken",
        "one: b: no reason in differences: did not run",
    ]
    found["differences"] = [{"steps": ["^[ab]$"], "why": "known"}]
    assert list(page.problems("one", found)) == []


def test_a_failure_with_both_needs_a_reason() -> None:
    """So does a step that passes with neither."""
    found = result({"a": False}, {"a": False})
    assert list(page.problems("one", found)) == [
        "one: a: no reason in fails_with_both: broken / broken"
    ]
    found["fails_with_both"] = [{"steps": ["a"], "why": "known"}]
    assert list(page.problems("one", found)) == []


def test_an_idle_reason_is_a_problem() -> None:
    """A reason that nothing needs any more must go, and so must a run of nothing."""
    idle = result({"a": True}, {"a": True}, differences=[{"steps": ["^a$"], "why": "was so"}])
    assert list(page.problems("one", idle)) == ["one: differences: nothing is like '^a$' any more"]
    assert list(page.problems("one", result({}, {}))) == ["one: nothing ran"]


def test_the_page_says_who_passed_and_why_not() -> None:
    """The row counts, and the section names the step, the client that passes it and the reason."""
    found = result(
        {"a": True, "tests.b.c": True},
        {"a": False, "tests.b.c": True},
        differences=[{"steps": ["^a$"], "why": "known"}],
    )
    text = page.whole({"one": found})
    assert "| one 1.0 | 0.38.0 | 2 of 2 | 1 of 2 | 1 |" in text
    assert "A test. Run: 1 of its own tests; a." in text
    assert "- `a` passes only with the official client: known." in text
    assert "| one 1.0 | `tinker<0.19` | this client | its steps, as above |" in text


@pytest.mark.parametrize("name", PACKAGES)
def test_entries_are_whole(name: str) -> None:
    """Every package has its versions and something to run, and every reason a sentence."""
    entry = PACKAGES[name]
    assert {"version", "requires", "official", "what", "cookbook", "requirements"} <= set(entry)
    assert {"script", "tests", "tests_listed"} & set(entry)
    assert (Path(page.__file__).parent / "steps" / entry.get("script", "")).exists()
    assert all(
        one["why"] and one["steps"]
        for kind in ("differences", "fails_with_both")
        for one in entry.get(kind, [])
    )
