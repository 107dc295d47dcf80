"""How far two computed numbers may be apart that are equal but for rounding: the only tolerances of
the numeric tests.

A processor decides in which order a sum is taken, in how many parts, and whether a product is
rounded before it is added. So no test states a tolerance: it says how many terms a number is made
of and how large they are, and this module says what follows.

Each of ``n`` roundings is off by at most ``u`` times the size of the terms, up or down: ``u`` is
2**-24 (6e-8) in float32. The two numbers of a comparison are made by ``2 n`` of them. By
Hoeffding's inequality their sum exceeds ``s sqrt(2 n) u`` times that size with a probability of at
most ``2 exp(-s**2 / 2)``, which is 3e-8 for the ``s`` used here, 6 (Higham and Mary, "A new
approach to probabilistic rounding error analysis", 2019). The bound that always holds, ``2 n u``,
is ten times as wide for a pass through a small model, and finds less.

What is still found: of a sum of ``n`` equal terms, a missing one, as long as there are fewer than
15,000; a factor of 1.001, as long as there are fewer than a million.
``tests/unit/test_tolerances.py`` holds that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

FLOAT32, FLOAT64 = 2.0**-24, 2.0**-53
BFLOAT16, FLOAT16 = 2.0**-8, 2.0**-11
DEVIATIONS = 6.0


def tolerance(terms: int, magnitude: float, unit: float = FLOAT32) -> float:
    """Return how far two numbers may be apart that are each the sum of these terms, rounded to the
    unit.

    ``terms``: how many roundings lie between what both sides have in common and the number. A
    product and its sum count as one; a term that is a sum itself adds its own. ``magnitude``: the
    sum of the sizes of the terms, which is that of the number where all have one sign, and more
    where they cancel.
    """
    return DEVIATIONS * math.sqrt(2 * terms) * unit * magnitude


def near(expected: Any, terms: int = 1, magnitude: float = 0.0, unit: float = FLOAT32) -> Any:
    """Return what equals a number, a sequence or a mapping of them but for rounding; without a
    magnitude, each has its own.
    """
    return pytest.approx(
        expected, rel=tolerance(terms, 1.0, unit), abs=tolerance(terms, magnitude, unit)
    )


def assert_near(
    actual: Any,
    expected: Any,
    terms: int = 1,
    magnitude: float | None = None,
    unit: float = FLOAT32,
    name: str = "",
) -> None:
    """Assert that arrays or tensors are equal but for rounding; without a magnitude it is the
    largest number that is expected.
    """
    found, wanted = _array(actual), _array(expected)
    if magnitude is None:
        magnitude = float(np.nanmax(np.abs(wanted))) if wanted.size else 0.0
    np.testing.assert_allclose(
        found, wanted, rtol=0, atol=tolerance(terms, magnitude, unit), err_msg=name
    )


def _array(values: Any) -> Any:
    plain = np.asarray(values.detach() if hasattr(values, "detach") else values)
    return plain.astype(np.float64)


def terms_of_pass(
    length: int, layers: int = 2, hidden: int = 32, inner: int = 48, head: int = 8
) -> int:
    """Return how many terms a log-probability is made of: the sums that follow each other in a pass
    of a model over a text.

    Those of a layer are two norms, the products into and out of attention and MLP, the scores,
    their softmax and the values; after the layers come a norm and the head. The sum over the
    vocabulary is relative to itself, and adds a fraction of a term. The sizes are those of the
    small models of ``tiny_models`` and ``families``.
    """
    return layers * (5 * hidden + inner + head + 2 * length) + 2 * hidden


def terms_of_gradient(length: int, tokens: int) -> int:
    """Return how many terms an element of a gradient is made of: a pass, the pass back, and the sum
    over all tokens.
    """
    return 2 * terms_of_pass(length) + tokens


def near_slope(expected: Any, step: float, terms: int = 1, magnitude: float = 1.0) -> Any:
    """Return what equals a derivative, as a central difference of a function that is summed in
    float64.

    Both values round, and half of their difference is divided by the step; the curve adds the
    square of the step times a sixth of the third derivative. ``magnitude`` is the size of the
    function, and is taken for that derivative too.
    """
    return pytest.approx(
        expected,
        rel=0,
        abs=tolerance(terms, abs(magnitude), FLOAT64) / step + abs(magnitude) * step**2,
    )


def share(probability: float, draws: int) -> Any:
    """Return what equals a probability, as the share of so many draws: within five standard
    deviations of it.
    """
    return pytest.approx(probability, abs=5 * math.sqrt(probability * (1 - probability) / draws))
