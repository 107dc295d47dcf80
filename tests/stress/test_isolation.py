"""Clients in one process do not slow, see or break each other, and no order of their creation
deadlocks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tinker
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine
from tinker.testing import FaultyServer, SteppedClock, toy_server

PROMPT, PARAMS, ADAM = (
    tinker.ModelInput.from_ints([104, 105]),
    tinker.SamplingParams(max_tokens=2),
    tinker.AdamParams(),
)
SAMPLES = 100


@pytest.fixture
def clock() -> SteppedClock:
    """Simulated time, which both clients share."""
    return SteppedClock()


@pytest.fixture
def wires(clock: SteppedClock, tmp_path: Path) -> Iterator[tuple[FaultyServer, FaultyServer]]:
    """Two wires to one server, each with separate faults."""
    state = State(ToyEngine, Settings(data_dir=tmp_path, hold_seconds=0.2))
    app = create_app(state)
    pair = FaultyServer(app, clock=clock), FaultyServer(app, clock=clock)
    yield pair
    for wire in pair:
        wire.close()
    state.close()


def work(service: tinker.ServiceClient) -> tuple[tinker.TrainingClient, list[Any]]:
    """Return a training client and a hundred samples at once."""
    training = service.create_lora_training_client("tinker/toy", rank=2)
    sampling = service.create_sampling_client(base_model="tinker/toy").result(30)
    steps = [training.optim_step(ADAM) for _ in range(5)]
    return training, steps + [sampling.sample(PROMPT, 1, PARAMS) for _ in range(SAMPLES)]


def test_two_keys_do_not_share_anything(
    wires: tuple[FaultyServer, FaultyServer], clock: SteppedClock
) -> None:
    """While one key is slowed down for a minute the other one's work is done at once; each sends
    its key only.
    """
    slowed, free = wires
    first, second = slowed.service(api_key="tml-one"), free.service(api_key="tml-two")
    for service in (first, second):
        service.get_server_capabilities()
    slowed.fail_next("asample", 429, headers={"retry-after": "60"})
    with clock.busy():
        _, waiting = work(first)
        slowed.wait_for("asample")
        began = clock.now
        _, done = work(second)
    assert all(future.exception(30) is None for future in done + waiting)
    sent = [
        exchange.at
        for name in ("optim_step", "asample", "retrieve_future")
        for exchange in free.requests(name)
    ]
    assert max(sent) - began < 1
    again = [exchange.at for exchange in slowed.requests("asample")[1:]]
    assert len(again) == SAMPLES
    assert min(again) - began >= 60
    for wire, key in ((slowed, "tml-one"), (free, "tml-two")):
        assert {exchange.headers["x-api-key"] for exchange in wire.exchanges} == {key}


def test_one_key_slows_down_everywhere(
    wires: tuple[FaultyServer, FaultyServer], clock: SteppedClock
) -> None:
    """Two clients of one key in a process share the rate limit that the server sends to one of
    them.
    """
    slowed, other = wires
    services = [
        wire.service(api_key="tml-one", clock=msgspec.structs.replace(clock.clock()))
        for wire in wires
    ]
    clients = [
        service.create_sampling_client(base_model="tinker/toy").result(30) for service in services
    ]
    slowed.fail_next("asample", 429, headers={"retry-after": "60"})
    with clock.busy():
        first = clients[0].sample(PROMPT, 1, PARAMS)
        slowed.wait_for("asample")
        second = clients[1].sample(PROMPT, 1, PARAMS)
        # asked later, answered: a sample that did not wait would have been sent by now
        services[1].get_server_capabilities()
        assert other.requests("asample") == []
    assert (first.exception(30), second.exception(30)) == (None, None)
    assert len(other.requests("asample")) == 1


def test_a_broken_client_does_not_break_its_neighbour(
    wires: tuple[FaultyServer, FaultyServer],
) -> None:
    """Failing requests of one run, or a refused key, do not affect another client."""
    broken, well = wires
    first, second = broken.service(api_key="tml-one"), well.service(api_key="tml-two")
    ours, theirs = (
        service.create_lora_training_client("tinker/toy").result(30) for service in (first, second)
    )
    broken.fail_next("*", 401, times=1000)
    results = [training.optim_step(ADAM) for _ in range(10) for training in (ours, theirs)]
    errors = [future.exception(30) for future in results]
    assert isinstance(errors[0], tinker.AuthenticationError)
    assert all(isinstance(error, tinker.PrecedingRequestFailed) for error in errors[2::2])
    assert errors[1::2] == [None] * 10


# Creations

Kind = Callable[[tinker.ServiceClient, tinker.TrainingClient, str], Any]
CREATIONS: dict[str, Kind] = {
    "lora": lambda service, _, __: service.create_lora_training_client("tinker/toy", rank=2),
    "from state": lambda service, _, path: service.create_training_client_from_state(path),
    "with optimizer": lambda service, _, path: (
        service.create_training_client_from_state_with_optimizer(path)
    ),
    "sampler": lambda service, _, __: service.create_sampling_client(base_model="tinker/toy"),
    "of weights": lambda _, training, __: training.save_weights_and_get_sampling_client(),
    "rest": lambda service, _, __: service.create_rest_client().get_server_capabilities(),
}


@pytest.mark.parametrize(
    ("one", "other"), list(itertools.combinations_with_replacement(CREATIONS, 2))
)
def test_creations_at_once_do_not_deadlock(one: str, other: str, tmp_path: Path) -> None:
    """Any two clients can be created at the same time, from two threads each, on a service that has
    not begun.
    """
    with toy_server(tmp_path, clock=SteppedClock()) as server, ExitStack() as stack:
        saved = (
            server.service()
            .create_lora_training_client("tinker/toy", rank=2)
            .save_state("start")
            .result(30)
            .path
        )
        service = stack.enter_context(server.service())
        training = service.create_lora_training_client("tinker/toy", rank=2)
        barrier, results = threading.Barrier(4), list[Future[Any]]()

        def create(kind: str) -> None:
            barrier.wait(10)
            results.append(CREATIONS[kind](service, training, saved))

        threads = [
            threading.Thread(target=create, args=(kind,)) for kind in (one, other, one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert [result.exception(30) for result in results] == [None] * 4


def test_creation_within_creation_does_not_deadlock(tmp_path: Path) -> None:
    """Clients are made from clients that are not there yet, and from callbacks of others, on the
    loop's own thread.
    """
    with toy_server(tmp_path, clock=SteppedClock()) as server:
        service, made = server.service(), Future[Any]()
        training = service.create_lora_training_client("tinker/toy", rank=2)
        training.add_done_callback(
            lambda _: made.set_result(service.create_sampling_client(base_model="tinker/toy"))
        )
        sampling = training.save_weights_and_get_sampling_client()
        assert sampling.sample(PROMPT, 1, PARAMS).result(30).sequences
        assert made.result(30).sample(PROMPT, 1, PARAMS).result(30).sequences
