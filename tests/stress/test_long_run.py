"""A day in simulated time: heartbeats, settings and tokens come in time until the session ends."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tinker_wire import models

import tinker
from tinker._http.auth import read_claims
from tinker.testing import FaultyServer, SteppedClock, toy_server

PROMPT, PARAMS, ADAM = (
    tinker.ModelInput.from_ints([104, 105]),
    tinker.SamplingParams(max_tokens=2),
    tinker.AdamParams(),
)
HOUR = 3600.0
HEARTBEAT_SECONDS = tinker.Config().heartbeat_seconds
KEY_OPERATIONS = {"client_config", "auth_token"}


def gaps(server: FaultyServer, operation: str) -> list[float]:
    """Return the times between the requests of an operation."""
    return [
        later.at - earlier.at for earlier, later in itertools.pairwise(server.requests(operation))
    ]


@pytest.mark.soak
def test_a_day(tmp_path: Path) -> None:
    """For 24 hours heartbeats come every ten seconds, settings every five minutes, and no request
    carries a token that ended.
    """
    clock = SteppedClock()
    settings: dict[str, Any] = {
        "client_config": models.ClientConfigResponse(pjwt_auth_enabled=True),
        "token_seconds": HOUR,
    }
    with toy_server(tmp_path, clock=clock, api_key="tml-day", **settings) as server:
        service = server.service(api_key="tml-day")
        training = service.create_lora_training_client("tinker/toy", rank=2).result(30)
        sampling = service.create_sampling_client(base_model="tinker/toy").result(30)
        for _ in range(24):
            clock.advance(HOUR)
            assert training.optim_step(ADAM).exception(30) is None
            assert sampling.sample(PROMPT, 1, PARAMS).exception(30) is None
        assert abs(len(server.requests("session_heartbeat")) - 24 * HOUR / HEARTBEAT_SECONDS) <= 5
        assert max(gaps(server, "session_heartbeat")) < HEARTBEAT_SECONDS + 1
        assert abs(len(server.requests("client_dynamic_config")) - 24 * HOUR / 300) <= 2
        assert max(gaps(server, "client_dynamic_config")) < 301
        assert abs(len(server.requests("auth_token")) - 24 * 2) <= 3
        assert {exchange.status for exchange in server.exchanges} == {200}
        for exchange in server.exchanges:
            carried = exchange.headers["x-api-key"]
            if exchange.operation in KEY_OPERATIONS:
                assert carried == "tml-day"
            else:
                assert (read_claims(carried).exp or 0) > exchange.at


def test_an_interpreter_held_for_minutes(tmp_path: Path) -> None:
    """After minutes in which nothing of the client could run, heartbeats and work go on, and
    nothing is made up for in a burst.
    """
    clock = SteppedClock()
    with toy_server(tmp_path, clock=clock) as server:
        training = server.service().create_lora_training_client("tinker/toy", rank=2).result(30)
        clock.advance(30)
        before = len(server.requests("session_heartbeat"))
        clock.now += 300
        clock.advance(60)
        assert 5 <= len(server.requests("session_heartbeat")) - before <= 8
        assert training.optim_step(ADAM).exception(30) is None


def test_an_hour_of_silence(tmp_path: Path) -> None:
    """After an hour in which nothing got through, heartbeats and work go on in the same session."""
    clock = SteppedClock()
    with toy_server(tmp_path, clock=clock) as server:
        training = server.service().create_lora_training_client("tinker/toy", rank=2).result(30)
        server.go_silent()
        clock.advance(HOUR)
        server.come_up()
        before = len(server.requests("session_heartbeat"))
        clock.advance(60)
        answered = [exchange.status for exchange in server.requests("session_heartbeat")[before:]]
        assert answered.count(200) >= 5
        assert training.optim_step(ADAM).exception(30) is None


def test_a_session_that_ended(tmp_path: Path) -> None:
    """A session that the server ended for silence stops its heartbeats and fails its requests; a
    new one works.
    """
    clock = SteppedClock()
    with toy_server(tmp_path, clock=clock, max_sessions=1, idle_session_seconds=600.0) as server:
        training = server.service().create_lora_training_client("tinker/toy", rank=2).result(30)
        server.go_silent()
        clock.advance(1200)
        server.come_up()
        fresh = server.service().create_lora_training_client("tinker/toy", rank=2)
        assert fresh.optim_step(ADAM).exception(30) is None
        with pytest.raises(tinker.BadRequestError, match="has ended"):
            training.optim_step(ADAM).result(30)
        clock.advance(60)
        ended = [
            exchange for exchange in server.requests("session_heartbeat") if exchange.status == 410
        ]
        assert len(ended) == 1
