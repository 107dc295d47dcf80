"""Futures: how long polls are held, what they return meanwhile, and how long results are kept."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from support.api import PROTO, Api, Clock, MakeApi, datum, occupied, step_body

from tinker._wire import proto
from tinker.local.call import APIProblem
from tinker.local.engines.protocol import LossResult
from tinker.local.engines.toy import ToyEngine
from tinker.local.storage.futures import RequestFailure, ServerFuture, request_key


def test_a_poll_is_held_until_the_result_is_there(make_api: MakeApi) -> None:
    """A poll that starts before the work is done answers with the result, without a second poll."""
    api, engine, future = occupied(make_api)

    async def poll_then_open() -> Any:
        polls = [
            api.acall("retrieve_future", {"request_id": future["request_id"]}) for _ in range(3)
        ]
        tasks = [asyncio.create_task(poll) for poll in polls]
        await asyncio.sleep(0)
        engine.gate.set()
        return await asyncio.gather(*tasks)

    answers = api.runner.run(poll_then_open())
    assert {answer.status_code for answer in answers} == {200}
    assert all("metrics" in answer.json() for answer in answers)


def test_waiters_on_different_loops_are_all_woken(make_api: MakeApi) -> None:
    """Clients in two threads, each with a separate loop, can wait for the same future."""
    api, engine, future = occupied(make_api)
    waiting = api.state.futures.find(future["request_id"])
    outcomes: list[object] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(asyncio.run(waiting.wait())))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    engine.gate.set()
    for thread in threads:
        thread.join(30)
    assert outcomes == [waiting.outcome] * 2


def test_pending_work_says_try_again(make_api: MakeApi) -> None:
    """After the hold a client of today gets ``try_again`` with a state, one of 2025 a 408 with it."""
    api = make_api(hold_seconds=0)
    future = api.step(api.create_model(api.session())["model_id"], 7)
    today, wanted = api.retrieve(future).json(), ("try_again", future["request_id"], "active")
    assert (today["type"], today["request_id"], today["queue_state"]) == wanted
    old = api.call("retrieve_future", {"request_id": future["request_id"]})
    assert (old.status_code, old.json()["queue_state"]) == (408, "active")


def test_the_form_follows_the_accept_header(api: Api) -> None:
    """Bulk results are protobuf where that is accepted; records and failures are JSON."""
    session = api.session()
    model, sampler = api.model(session), api.sampler(session)
    sample, loss, step = api.sample(sampler), api.loss(model, 1), api.step(model, 2)
    failed = api.loss(model, 3, loss_fn="ppo")
    forms = {}
    for name, future in {"sample": sample, "loss": loss, "step": step, "failed": failed}.items():
        forms[name] = [
            api.retrieve(future, headers=h).headers["content-type"] for h in (None, PROTO)
        ]
    binary, text = "application/x-protobuf", "application/json"
    assert forms == {
        "sample": [text, binary],
        "loss": [text, binary],
        "step": [text, text],
        "failed": [text, text],
    }


def test_a_large_result_is_announced_by_its_size(make_api: MakeApi) -> None:
    """A large result is announced where that is allowed, and has exactly that size."""
    api = make_api(inline_result_bytes=100)
    model = api.model()
    future = api.loss(model, 1, data=[datum([1] * 100, [2] * 100)])
    for headers in (None, PROTO):
        announced = api.retrieve(future, metadata=True, headers=headers).json()
        assert announced["status"] == "complete_metadata"
        body = api.retrieve(future, headers=headers).content
        assert len(body) == announced["response_payload_size"]
    assert proto.decode_loss_output(body).loss_fn_outputs[0]["logprobs"].shape == [100]
    small = api.step(model, 2)
    assert "metrics" in api.retrieve(small, metadata=True).json()


def test_a_result_that_json_cannot_carry_is_a_failure(make_api: MakeApi) -> None:
    """NaN in a result is a failure of category server in JSON; protobuf carries it."""

    class Diverged(ToyEngine):
        def forward_backward(self, *args: Any, **options: Any) -> LossResult:
            return LossResult(outputs=[{"logprobs": np.array([np.nan], np.float32)}], metrics={})

    api = make_api(Diverged(vocabulary=512))
    future = api.loss(api.model(), 1)
    api.fails("NaN", future, "server")
    output = proto.decode_loss_output(api.retrieve(future, headers=PROTO).content)
    assert np.isnan(output.loss_fn_outputs[0]["logprobs"].values).all()


def test_a_result_is_gone_after_its_time(make_api: MakeApi, clock: Clock) -> None:
    """An expired result is 410, and the same request again returns the same expired future."""
    api = make_api(clock=clock, result_seconds=60.0)
    model = api.model()
    future = api.step(model, 1)
    api.result(future)
    clock.seconds += 61.0
    api.refuses(410, "no longer kept", "retrieve_future", {"request_id": future["request_id"]})
    assert api.step(model, 1) == future
    assert api.refused("optim_step", step_body(model, 1, eps=1.0))[0] == 409


@pytest.mark.parametrize("limit", [{"max_results": 2}, {"max_result_bytes": 10}])
def test_results_that_were_read_make_room_first(make_api: MakeApi, limit: dict[str, int]) -> None:
    """Beyond the limits, fetched results are dropped before those not yet fetched."""
    api = make_api(**limit)
    model = api.model()
    read = api.loss(model, 1)
    api.result(read)
    unread = api.loss(model, 2)
    api.result(api.step(model, 3))
    api.result(api.step(model, 4))
    assert api.refused("retrieve_future", {"request_id": read["request_id"]})[0] == 410
    assert "metrics" in api.result(unread)


def test_a_remembered_identifier_takes_little_memory(api: Api) -> None:
    """What is kept of a result that is gone tells requests apart in 200 bytes at most."""
    futures, count = api.state.futures, 20_000

    def run(number: int) -> None:
        future = futures.open(
            ServerFuture(
                request_key("0b9a3c52-1111-4000-8000-000000000000:sample:0", number),
                number.to_bytes(16),
            )
        )
        futures.resolve(future, RequestFailure("no", "user"))
        futures.release(future.request_id)

    run(0)
    tracemalloc.start()
    for number in range(1, count + 1):
        run(number)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / count < 200
    key = request_key("0b9a3c52-1111-4000-8000-000000000000:sample:0", count)
    assert futures.find_request_id(key, count.to_bytes(16)) == key
    with pytest.raises(APIProblem, match="another body"):
        futures.find_request_id(key, b"g" * 16)
