"""Limits, keys and shutdown: each limit has an error that names it, and nothing is left running."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from support.api import (
    Api,
    Clock,
    MakeApi,
    custom_loss_body,
    loss_body,
    model_body,
    occupied,
    sample_body,
    sampler_body,
    step_body,
)
from tinker_wire.operations import OPERATIONS

from tinker.local.engines.toy import ToyEngine
from tinker.local.storage.sessions import MAX_LOGS

SESSION = {"tags": [], "sdk_version": "1"}
PATH = {"session_id": "s", "sampler_id": "s", "training_run_id": "r", "checkpoint_id": "weights/c"}


def test_a_key_is_required_where_one_is_set(make_api: MakeApi) -> None:
    """Without the key, or with another one, every operation but the health check is 401."""
    api = make_api(api_key="tml-secret-é")
    for name in OPERATIONS:
        for headers in ({}, {"x-api-key": "tml-other"}):
            answer = api.call(name, {}, headers=headers, **PATH)
            assert answer.status_code == (200 if name == "healthz" else 401)
            assert "secret" not in answer.text
    answer = api.call("create_session", SESSION, headers={"x-api-key": "tml-secret-é".encode()})
    assert answer.status_code == 200
    assert "secret" not in repr(api.state.settings)


def test_large_bodies_are_refused(make_api: MakeApi) -> None:
    """A body above the limit is 413, streamed or decompressed too; one of the limit is taken."""
    zstandard = pytest.importorskip("zstandard")
    api = make_api(max_request_bytes=1000)
    assert api.refused("create_session", content=b" " * 1001)[0] == 413
    bomb = zstandard.compress(b" " * 10_000_000)
    assert len(bomb) < 1000
    zstd = {"content-encoding": "zstd"}
    api.refuses(413, "max_request_bytes", "create_session", content=bomb, headers=zstd)

    async def stream(content: bytes) -> Any:
        for start in range(0, len(content), 100):
            yield content[start : start + 100]

    path = OPERATIONS["create_session"].path
    assert api.runner.run(api.client.post(path, content=stream(b" " * 2000))).status_code == 413
    full = json.dumps(SESSION).encode().ljust(1000)
    assert api.runner.run(api.client.post(path, content=stream(full))).status_code == 200
    api.ok("create_session", content=full)
    api.ok("create_session", content=zstandard.compress(full), headers=zstd)


def test_custom_losses_are_bounded(make_api: MakeApi) -> None:
    """A custom loss beyond the session's limit is 403 and names the setting."""
    api = make_api(max_custom_losses=1)
    session = api.session()
    api.ok("create_custom_loss", custom_loss_body(session))
    api.ok("create_custom_loss", custom_loss_body(session))
    api.refuses(403, "max_custom_losses", "create_custom_loss", custom_loss_body(session, 1))


def test_clients_of_a_sampling_session_are_bounded(api: Api, sampler: str) -> None:
    """Clients of one sampling session beyond the limit are 403."""
    logs = api.shared.store.sampler(sampler)
    for client in range(MAX_LOGS):
        logs.completion_log(client)
    assert api.refused("asample", sample_body(sampler, MAX_LOGS * 10**9))[0] == 403
    assert "sequences" in api.result(api.sample(sampler, (MAX_LOGS - 1) * 10**9))


def test_sessions_models_and_samplers_are_bounded(make_api: MakeApi) -> None:
    """Beyond the limit a model or sampler is 403, a session 429; finished sessions do not count."""
    api = make_api(max_sessions=2, max_models=1, max_samplers=1)
    first, second = api.session(), api.session()
    refused = api.call("create_session", SESSION)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    assert "max_sessions" in refused.json()["detail"]
    api.model(first)
    api.sampler(first)
    api.refuses(403, "max_models", "create_model", model_body(second))
    api.refuses(403, "max_samplers", "create_sampling_session", sampler_body(second))
    api.finish(first)
    assert api.model(second)
    assert api.sampler(second)
    assert api.session()


def test_silent_sessions_make_room(make_api: MakeApi, clock: Clock) -> None:
    """When a place is needed, sessions that are silent for long enough are ended."""
    api = make_api(clock=clock, max_sessions=2, idle_session_seconds=60.0)
    silent, beating = api.session(), api.session()
    clock.seconds += 61.0
    api.ok("session_heartbeat", {"session_id": beating})
    assert api.session()
    assert api.refused("session_heartbeat", {"session_id": silent})[0] == 410
    assert api.refused("create_session", SESSION)[0] == 429


def test_sessions_of_dead_clients_make_room_after_a_minute(make_api: MakeApi, clock: Clock) -> None:
    """Six missed heartbeats suffice where a place is needed; requests and polls are heartbeats."""
    api = make_api(clock=clock, max_models=4)
    dead, beating, working, polling = (api.session() for _ in range(4))
    models = [api.create_model(session) for session in (dead, beating, working, polling)]
    api.results(models)
    clock.seconds += 59.0
    api.refuses(403, "max_models", "create_model", model_body(api.session()))
    api.ok("session_heartbeat", {"session_id": beating})
    api.ok("get_info", {"model_id": models[2]["model_id"]})
    api.result(models[3])
    clock.seconds += 1.0
    assert api.model()
    assert [
        session.session_id for session in api.shared.store.sessions() if session.end is not None
    ] == [dead]


def test_sessions_of_dead_clients_end_after_their_time(make_api: MakeApi, clock: Clock) -> None:
    """A silent session ends after its time and frees its adapters, though nobody needs a place."""
    engine = ToyEngine(vocabulary=512)
    api = make_api(engine, clock=clock)
    dead, alive = api.session(), api.session()
    gone, kept = api.model(dead), api.model(alive)
    clock.seconds += 600.0
    for number in range(1, 5):  # between two steps of one model every other lane has had its turn
        api.result(api.step(kept, number))
    assert engine._adapters.keys() == {kept}
    api.refuses(400, "has ended", "optim_step", step_body(gone, 1))
    api.ok("session_heartbeat", {"session_id": alive})


def test_ranks_are_bounded(make_api: MakeApi) -> None:
    """An impossible rank is 400 at creation, with the limits."""
    api = make_api(max_rank=8)
    body = model_body(api.session())
    for rank in (0, 9, 10**9):
        status, detail = api.refused("create_model", {**body, "lora_config": {"rank": rank}})
        assert (status, detail) == (400, f"rank is {rank}; this server takes ranks from 1 to 8")
    assert api.model(body["session_id"], lora_config={"rank": 8})
    make_api().refuses(400, "1 to 1024", "create_model", {**body, "lora_config": {"rank": 1025}})


def test_the_queue_is_bounded(make_api: MakeApi) -> None:
    """Beyond the limit a request is 429 with a time to wait, and its number is not used up."""
    api = make_api(max_queued_requests=1)
    model = api.model()
    api.step(model, 2)
    answer = api.call("forward_backward", loss_body(model, 3))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_the_end_fails_what_waits_and_leaves_no_thread(make_api: MakeApi) -> None:
    """Closing finishes what runs, fails what waits, refuses what is new and ends every thread."""
    before = set(threading.enumerate())
    api, engine, running = occupied(make_api)
    model = running["request_id"].rpartition(":request:")[0]
    queued = api.step(model, 2)

    async def close_while_polling() -> httpx.Response:
        poll = asyncio.create_task(
            api.acall("retrieve_future", {"request_id": queued["request_id"]})
        )
        await asyncio.sleep(0)
        closing = asyncio.create_task(api.state.aclose())
        answer = await poll
        engine.gate.set()
        await closing
        return answer

    answer = api.runner.run(close_while_polling())
    assert answer.json() == {"error": "the server is shutting down", "category": "server"}
    assert api.metrics(running)
    assert api.refused("optim_step", step_body(model, 3))[0] == 503
    assert api.refused("asample", sample_body(None))[0] == 503
    assert set(threading.enumerate()) <= before


def test_closing_is_harmless_at_any_time(api: Api) -> None:
    """A server that has served nothing can be closed, twice, with and without a loop."""
    api.state.close()
    api.runner.run(api.state.aclose())
    status, detail = api.refused("get_server_capabilities")
    assert (status, detail) == (503, "the server is shutting down")
    assert api.call("get_server_capabilities").json()["code"] == "unavailable"
