"""Heartbeat settings: the interval, the warning, when a session counts as lost, and which observers
are notified.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tinker
from tinker._loop import loop_thread
from tinker.errors import SessionSilentError
from tinker.observing import Event, SessionLost
from tinker.testing import FaultyServer, SteppedClock, toy_server

ADAM = tinker.AdamParams()


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def server(clock: SteppedClock) -> Iterator[FaultyServer]:
    with toy_server(clock=clock) as server:
        yield server


class Told:
    """An observer that lets a test wait for the loss of a session."""

    def __init__(self) -> None:
        self.lost: list[SessionLost] = []
        self._told = threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, SessionLost):
            self.lost.append(event)
            self._told.set()

    def wait(self) -> SessionLost:
        assert self._told.wait(10)
        return self.lost[-1]


def connect(
    server: FaultyServer, told: Callable[[Event], object], **settings: Any
) -> tinker.ServiceClient:
    config = tinker.Config.load(base_url="http://server", api_key="tml-a", **settings)
    return server.service(config=config, observers=[told])


def test_heartbeat_interval(server: FaultyServer, clock: SteppedClock) -> None:
    """Heartbeats are sent at the interval of the settings."""
    service = connect(server, Told(), heartbeat_seconds=60)
    service.create_lora_training_client("tinker/toy", rank=2).result(10)
    clock.advance(600)
    server.wait_for("session_heartbeat", 10)
    times = [request.at for request in server.requests("session_heartbeat")]
    assert 60 <= min(later - earlier for earlier, later in itertools.pairwise(times)) < 61


def test_a_silent_session_counts_as_lost(
    server: FaultyServer, clock: SteppedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After the set time observers hear once, and requests fail until a heartbeat works."""
    told = Told()
    service = connect(server, told, heartbeat_warning_seconds=30, heartbeat_lost_seconds=100)
    training = service.create_lora_training_client("tinker/toy", rank=2).result(10)
    training.optim_step(ADAM).result(10)
    server.fail_next("session_heartbeat", 503, times=20)
    with caplog.at_level(logging.WARNING, "tinker"):
        clock.advance(130)
        event = told.wait()
    assert 100 < event.silent_seconds < 125
    assert event.session_id == training.model_id.partition(":")[0]
    assert isinstance(event.error, tinker.InternalServerError)
    error = training.optim_step(ADAM).exception(10)
    assert isinstance(error, SessionSilentError)
    assert "(heartbeat_lost_seconds is 100)" in str(error)
    warnings = [
        record for record in caplog.records if "no heartbeat has succeeded" in record.message
    ]
    assert len(warnings) == 1
    clock.advance(200)
    server.wait_for("session_heartbeat", 25)
    training.optim_step(ADAM).result(10)
    assert len(told.lost) == 1


def test_by_default_nothing_counts_as_lost(server: FaultyServer, clock: SteppedClock) -> None:
    """Without the setting a client continues when heartbeats fail."""
    told = Told()
    training = connect(server, told).create_lora_training_client("tinker/toy", rank=2).result(10)
    server.fail_next("session_heartbeat", 503, times=60)
    clock.advance(500)
    training.optim_step(ADAM).result(10)
    assert told.lost == []
    server.forget()


def test_a_client_that_is_collected_without_room_on_the_stack_is_shut_down(
    server: FaultyServer, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dropped client whose finalizer overflows the stack sends no more heartbeats and closes its
    connections.
    """
    service = tinker.ServiceClient(
        base_url="http://server", api_key="tml-a", transport=server.transport, clock=clock.clock()
    )
    service.create_sampling_client(base_model="tinker/toy").result(10)
    transport = service._runtime().transport  # pyright: ignore[reportPrivateUsage]
    clock.advance(10)  # until nothing is under way that holds the client
    assert len(server.requests("session_heartbeat")) == 2
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    held = [service]
    del service

    def collect_deep() -> None:
        try:
            collect_deep()
        except RecursionError:
            held.clear()
            gc.collect()

    def let_the_loop_turn() -> None:
        """The I/O thread is notified, begins a shutdown, and has finished it."""
        for _ in range(3):
            passed = threading.Event()
            loop_thread().call(passed.set)
            assert passed.wait(10)

    collect_deep()
    let_the_loop_turn()
    asyncio.run(transport.sleep(0))  # the finalizer could not shut it down
    clock.advance(60)
    let_the_loop_turn()
    with pytest.raises(tinker.ClientClosedError):
        asyncio.run(transport.sleep(0))
    assert len(server.requests("session_heartbeat")) == 2
