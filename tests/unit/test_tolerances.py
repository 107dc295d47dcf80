"""Tolerances of numeric tests: rounding is within them, a fault is not; no test has its own."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from support.tolerances import FLOAT64, assert_near, near, share, tolerance

TESTS = Path(__file__).parents[1]
COMPARISONS = {"approx", "allclose", "assert_allclose", "isclose", "assert_close"}


def sums(terms: np.ndarray[tuple[int], np.dtype[np.float32]]) -> list[float]:
    """Return a float32 sum as processors take it, in several orders and by lanes."""
    found = [float(np.cumsum(order)[-1]) for order in (terms, terms[::-1], np.sort(terms))]
    for lanes in (4, 16):
        padded = np.concatenate([terms, np.zeros(-len(terms) % lanes, np.float32)]).reshape(
            -1, lanes
        )
        found.append(float(np.cumsum(np.cumsum(padded, axis=0)[-1])[-1]))
    return [*found, float(terms.sum())]


@pytest.mark.numeric
@pytest.mark.parametrize("count", [2, 30, 1000, 14_000])
@pytest.mark.parametrize("seed", range(5))
def test_rounding_is_within_the_tolerance_and_a_missing_term_is_not(count: int, seed: int) -> None:
    """However a sum is taken, it is near the exact one, and a fault in it is not."""
    terms = np.random.default_rng(seed).uniform(0.9, 1.1, count).astype(np.float32)
    exact = float(terms.astype(np.float64).sum())
    assert sums(terms) == [near(exact, count)] * 6
    assert all(found != near(exact, count) for found in sums(terms[1:]))
    assert all(found * 1.001 != near(exact, count) for found in sums(terms))


@pytest.mark.numeric
@pytest.mark.parametrize("seed", range(5))
def test_terms_that_cancel_are_measured_by_their_size(seed: int) -> None:
    """A sum near zero is held to the size of its terms, and a wrong sign is found."""
    terms = np.random.default_rng(seed).normal(0, 1, 1000).astype(np.float32)
    exact, size = float(terms.astype(np.float64).sum()), float(np.abs(terms).sum())
    assert_near(sums(terms), [exact] * 6, 1000, size)
    largest = int(np.abs(terms).argmax())
    terms[largest] *= -1
    with pytest.raises(AssertionError):
        assert_near(sums(terms), [exact] * 6, 1000, size)


def test_float64_is_held_to_float64() -> None:
    """A number that was rounded to float32 on the way is not one of float64."""
    assert float(np.float32(0.1)) == near(0.1)
    assert float(np.float32(0.1)) != near(0.1, unit=FLOAT64)
    assert sum([0.1] * 10) == near(1.0, 10, unit=FLOAT64)
    assert tolerance(1000, 1.0) < 2e-5


def test_a_share_of_draws() -> None:
    """Of 2,000 draws, a share off by a tenth is found, and one off by a hundredth is not."""
    assert share(0.3, 2000) == 0.31
    assert share(0.3, 2000) != 0.4


def test_no_test_states_a_tolerance_of_its_own() -> None:
    """Comparisons that allow for rounding are made in `support/tolerances.py` only."""
    stated = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        # scripts that run where the tests are not
        if path.name != "tolerances.py" and "compat" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) in COMPARISONS
    ]
    assert not stated
