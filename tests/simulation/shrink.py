"""Make a failing episode smaller: leave out operations, then faults, as long as it fails in the
same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from simulation.world import Plan, run_episode

T = TypeVar("T")
MAX_ATTEMPTS = 400


def shrink(plan: Plan, failure: str) -> Plan:
    """Return a smaller plan that breaks the same invariant."""
    rule, left = failure.partition(":")[0], MAX_ATTEMPTS

    def fails(candidate: Plan) -> bool:
        nonlocal left
        left -= 1
        found = run_episode(candidate, Counter()).failure if left > 0 else None
        return found is not None and found.partition(":")[0] == rule

    operations = reduce(plan.operations, lambda kept: fails(plan._replace(operations=tuple(kept))))
    plan = plan._replace(operations=tuple(operations))
    met = run_episode(plan, Counter()).met
    kept = reduce(met, lambda kept: fails(plan._replace(skipped=frozenset(met) - frozenset(kept))))
    return plan._replace(skipped=frozenset(met) - frozenset(kept))


def reduce(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Leave out pieces, each half as large as the last, as long as what remains fails."""
    size = len(items) // 2
    while size:
        start = 0
        while start < len(items):
            fewer = [*items[:start], *items[start + size :]]
            if fails(fewer):
                items = fewer
            else:
                start += size
        size //= 2
    return items
