"""The list of accepted linter findings: any other finding fails the session, and so does an unused
entry.
"""

from __future__ import annotations

import tomllib

from linters import ACCEPTED, DOCUMENTS, Finding, compare

FINDING = Finding(
    "spectral", "openapi.yaml", "array-items", "components/schemas/TokenLogprob", "no items"
)
ENTRY = {
    "tool": "spectral",
    "document": "openapi.yaml",
    "rule": "array-items",
    "place": "components/schemas/TokenLogprob",
}


def test_what_is_accepted_is_no_problem() -> None:
    """A finding of an entry's tool, document, rule and place passes."""
    assert compare([FINDING], [ENTRY]) == []


def test_what_is_not_accepted_is_one() -> None:
    """Another rule, another document or another place is named."""
    for changed in (
        {"rule": "other"},
        {"document": "openapi.portable.yaml"},
        {"place": "components/schemas/Other"},
    ):
        (unexpected, stale) = compare([FINDING._replace(**changed)], [ENTRY])
        assert "no items" in unexpected
        assert stale.startswith("accepted and not found any more")


def test_every_entry_has_a_reason() -> None:
    """Nothing is accepted without a sentence."""
    entries = tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))["accepted"]
    assert {entry["tool"] for entry in entries} <= {"spectral", "redocly"}
    assert {entry["document"] for entry in entries} <= set(DOCUMENTS)
    assert [entry for entry in entries if not entry["reason"].endswith(".")] == []
