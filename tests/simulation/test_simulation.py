"""The simulation: a few episodes hold, those that once failed too, and the same seed is the same
run.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.calls import datum
from simulation.effects import EffectLog
from simulation.loop import simulated_loop
from simulation.network import ORIGIN, Network, SimulatedEngine
from simulation.server import SimulatedServer
from simulation.shrink import reduce
from simulation.world import WORLDS, make_plan, run_episode
from tinker._http.messages import ExchangeFailed, PreparedRequest

LINES = Path(__file__).with_name("seeds.txt").read_text().splitlines()
ONCE_FAILED = [(seed, int(count)) for seed, count, *_ in map(str.split, LINES) if seed != "#"]


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Keep no record of the log, which would hold the frames of its errors, and with them the
    clients.
    """
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("seed", "count"), [*ONCE_FAILED, ("test/0", 100), ("test/1", 100)])
def test_an_episode_holds(seed: str, count: int) -> None:
    """Client and server keep every promise, whatever happens to them, and leave
    nothing in memory.
    """
    outcome = run_episode(make_plan(seed, count), Counter())
    assert outcome.failure is None, (
        f"nox -s simulate -- --seed {seed.replace('/', ' --episode ')}: {outcome.failure}"
    )
    gc.collect()
    assert not WORLDS


@pytest.mark.parametrize("seed", ["853779273/0", "test/12"])
def test_the_same_seed_is_the_same_run(seed: str) -> None:
    """Two runs of one episode do the same things at the same times, also if what they send was made
    before.
    """
    first, second = list[str](), list[str]()
    datum.cache_clear()
    for lines in (first, second):
        run_episode(make_plan(seed, 100), Counter(), lines.append)
    assert len(first) > 50
    assert first == second


def test_only_what_has_arrived_is_doubled(tmp_path: Path) -> None:
    """A request that finds no server was not sent, so no copy of it arrives when there is one; of
    others, a copy arrives.
    """
    with simulated_loop("doubled") as loop:
        server = SimulatedServer(loop, tmp_path, EffectLog())
        network, lines = Network(loop, server, Counter()), list[str]()
        network.rate, network.faults, network.trace = 1.0, ["twice"], lines.append
        request = PreparedRequest(method="GET", url=f"{ORIGIN}/api/v1/healthz", headers={})

        async def send() -> None:
            with pytest.raises(ExchangeFailed, match="refused"):
                await SimulatedEngine(network).send(request)
            await server.start()
            await asyncio.sleep(60.0)
            await SimulatedEngine(network).send(request)
            await asyncio.sleep(60.0)

        loop.run_until_complete(send())
        server.kill()
    assert [line.split()[1:] for line in lines if "arrives" in line] == [
        [f"#{number}", "arrives"] for number in (1, 2, 2)
    ]


def test_a_plan_becomes_smaller() -> None:
    """Only what a failure needs is left of a plan."""
    assert reduce(range(100), lambda kept: {13, 77} <= set(kept)) == [13, 77]
