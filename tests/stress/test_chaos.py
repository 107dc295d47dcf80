"""The soak in short: a few seeds in simulated time, where hours of outages pass in seconds, and one
on real sockets.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos import Outcome, Recorder, run
from workload import SECRET, Before, Keeper, Plan, Work

from tinker._loop import loop_thread
from tinker.local import Settings, State, create_app
from tinker.testing import FaultyServer, SteppedClock

PLAN = Plan(url="http://server", training_clients=3, samplers=60, steps=8, samples=2)


async def restart_twice(server: FaultyServer, clock: SteppedClock) -> None:
    for _ in range(2):
        await clock.elapse(20)
        server.go_down()
        await clock.elapse(5)
        server.come_up()


def simulated(seed: int, rate: float, folder: Path, keeper: Keeper) -> Outcome:
    """One seed in this process; connections that hang do so until the client gives them up."""
    engine, clock, before = Recorder(), SteppedClock(random=0.5), Before()
    state = State(lambda: engine, Settings(data_dir=folder, hold_seconds=0.05))
    server = FaultyServer(create_app(state), clock=clock, keep=False)
    services = [server.service(api_key=f"{SECRET}-{i}") for i in range(2)]
    for service in services:
        service.get_server_capabilities()
    server.fail_randomly(rate, seed=seed, longest_seconds=50)
    thread = loop_thread()
    thread.call(lambda: thread.background(restart_twice(server, clock), "restarts"))
    work = Work(PLAN, services)
    work.run()
    result: dict[str, Any] = {
        "seconds": clock.now - 1000,
        "records": [dataclasses.asdict(record) for record in work.records],
        "left_behind": before.left(services) if state.close() is None else {},
        "secrets": [line for line in [*keeper.lines, *work.texts] if SECRET in line],
    }
    return Outcome(seed, rate, server.totals, result, dict(engine.applied))


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    """Everything that the client logs."""
    keeper, logger = Keeper(), logging.getLogger("tinker")
    level = logger.level
    logger.addHandler(keeper)
    logger.setLevel(logging.DEBUG)
    yield keeper
    logger.removeHandler(keeper)
    logger.setLevel(level)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(("seed", "rate"), [(1, 0.1), (2, 0.1), (3, 0.3)])
def test_chaos_in_simulated_time(seed: int, rate: float, tmp_path: Path, keeper: Keeper) -> None:
    """Whatever fails, every future ends, no step is lost or doubled, nothing is left behind and no
    secret is logged.
    """
    outcome = simulated(seed, rate, tmp_path, keeper)
    assert outcome.complaints() == []
    assert outcome.summary()["resolved"] > 100
    assert outcome.summary()["faults"] > 30
    assert keeper.lines


@pytest.mark.parametrize(
    "protocol", [*(pytest.param(one, marks=pytest.mark.soak) for one in (None, "http/1.1")), "h2"]
)
def test_chaos_on_sockets(protocol: str | None) -> None:
    """The same on a port, in real time, with two restarts, in the clear and with TLS."""
    outcome = run(7, 0.1, seconds=2.0, samplers=40, protocol=protocol)
    assert outcome.complaints() == []
    assert outcome.summary()["resolved"] > 20
    assert outcome.totals["restarts"] == 2


@pytest.mark.parametrize("protocol", [None, "h2"])
def test_interrupts(protocol: str | None) -> None:
    """A caller that is interrupted repeatedly loses only the interrupted calls."""
    plan = {"seconds": 1.0, "samplers": 5, "training_clients": 1}
    outcome = run(3, 0.0, **plan, restarts=0, interrupted_with=3, protocol=protocol)
    assert outcome.complaints() == []
    assert outcome.result["interrupts"] > 10
    assert outcome.summary()["failed with a typed error"] == 0
