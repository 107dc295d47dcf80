"""Weights that change from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import attrs

from tinker._checks import check_count, check_field

WeightSchedule: TypeAlias = Callable[[int], float]
"""From the step of the loss, 0 at first, to the weight of a term."""


def check_weight(what: str, value: object) -> float:
    """Return a weight as a number; TypeError or ValueError unless it is finite and not negative."""
    if isinstance(value, bool) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{what} must be a number, got {value!r}")
    found = float(value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportUnknownArgumentType]
    if not math.isfinite(found) or found < 0:
        raise ValueError(f"{what} must be finite and not negative, got {value!r}")
    return found


_WEIGHT, _STEPS = check_field(check_weight), check_field(check_count)


@attrs.frozen
class ConstantWeight:
    """Constant weight; the same as passing the number.

    Attributes:
        weight: The weight, 0 or more.
    """

    weight: float = attrs.field(validator=_WEIGHT)

    def __call__(self, step: int) -> float:
        """Return the weight."""
        return self.weight


@attrs.frozen
class LinearWeight:
    """Weight that moves linearly from one value to another, and stays there.

    Attributes:
        start: The weight at step 0.
        end: The weight from step ``steps`` on.
        steps: The number of steps from one to the other, 1 or more.

    >>> [LinearWeight(1.0, 0.0, steps=4)(step) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """

    start: float = attrs.field(validator=_WEIGHT)
    end: float = attrs.field(validator=_WEIGHT)
    steps: int = attrs.field(validator=_STEPS)

    def __call__(self, step: int) -> float:
        """Return the weight at a step."""
        share = min(step / self.steps, 1.0)
        return self.start * (1.0 - share) + self.end * share


@attrs.frozen
class WarmUpWeight:
    """Weight that rises linearly from 0, and stays there.

    Attributes:
        weight: The weight from step ``steps`` on.
        steps: The number of steps until then, 1 or more.

    >>> [WarmUpWeight(0.5, steps=10)(step) for step in (0, 5, 10, 11)]
    [0.0, 0.25, 0.5, 0.5]
    """

    weight: float = attrs.field(validator=_WEIGHT)
    steps: int = attrs.field(validator=_STEPS)

    def __call__(self, step: int) -> float:
        """Return the weight at a step."""
        return self.weight * min(step / self.steps, 1.0)


@attrs.frozen
class DecayWeight:
    """Weight that is halved repeatedly, down to a floor.

    Attributes:
        weight: The weight at step 0.
        half_life_steps: The number of steps in which what is above the floor halves, 1 or more.
        floor: The weight that is approached.

    >>> [DecayWeight(1.0, half_life_steps=10)(step) for step in (0, 10, 20)]
    [1.0, 0.5, 0.25]
    """

    weight: float = attrs.field(validator=_WEIGHT)
    half_life_steps: int = attrs.field(validator=_STEPS)
    floor: float = attrs.field(default=0.0, validator=_WEIGHT)

    def __call__(self, step: int) -> float:
        """Return the weight at a step."""
        return self.floor + (self.weight - self.floor) * math.pow(0.5, step / self.half_life_steps)
