"""Tests of many cases, which fail with all cases that break the rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.cases import for_each


def make_test(cases: list[Any]) -> Callable[..., None]:
    @for_each("number, limit", cases)
    def test_numbers(number: int, limit: int, unit: str) -> None:
        assert number < limit, f"{number} {unit} are too many"

    return test_numbers


def test_every_problem_is_listed() -> None:
    """The failure lists each case that breaks the rule, with the reason, and how many."""
    with pytest.raises(AssertionError) as caught:
        make_test([(1, 2), (5, 2), (7, 3)])(unit="bytes")
    assert "2 of 3 cases" in str(caught.value)
    assert "(5, 2)" in str(caught.value)
    assert "7 bytes are too many" in str(caught.value)


def test_cases_that_hold_pass() -> None:
    """A rule that holds for every case passes."""
    make_test([(1, 2), (2, 3)])(unit="bytes")


def test_no_case_is_a_failure() -> None:
    """A rule without a case fails, since it would check nothing."""
    with pytest.raises(AssertionError, match="there is no case"):
        make_test([])(unit="bytes")


@for_each("number", [1, 2])
def test_other_arguments_are_fixtures(number: int, request: pytest.FixtureRequest) -> None:
    """Arguments that do not receive a case are fixtures."""
    assert request.node.name == "test_other_arguments_are_fixtures"
