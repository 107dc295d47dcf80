"""The simulation: a few episodes hold, those that once failed too, and the same seed is the same run."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.shrink import reduce
from simulation.world import WORLDS, make_plan, run_episode

LINES = Path(__file__).with_name("seeds.txt").read_text().splitlines()
ONCE_FAILED = [(seed, int(count)) for seed, count, *_ in map(str.split, LINES) if seed != "#"]


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Keep no record of the log, which would hold the frames of its errors, and with them the clients."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("seed", "count"), [*ONCE_FAILED, ("test/0", 100), ("test/1", 100)])
def test_an_episode_holds(seed: str, count: int) -> None:
    """Client and server keep every promise, whatever happens to them, and leave nothing in memory."""
    outcome = run_episode(make_plan(seed, count), Counter())
    assert outcome.failure is None, f"nox -s simulate -- --seed {seed.replace('/', ' --episode ')}: {outcome.failure}"
    gc.collect()
    assert not WORLDS


def test_the_same_seed_is_the_same_run() -> None:
    """Two runs of one episode do the same things at the same times."""
    first, second = list[str](), list[str]()
    for lines in (first, second):
        run_episode(make_plan("853779273/0", 100), Counter(), lines.append)
    assert len(first) > 50
    assert first == second


def test_a_plan_becomes_smaller() -> None:
    """Only what a failure needs is left of a plan."""
    assert reduce(range(100), lambda kept: {13, 77} <= set(kept)) == [13, 77]
