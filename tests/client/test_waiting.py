"""Waiting for results: many waiters, loops that end, cancellation during completion, long polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.queue_news import waiting

import tinker

ADAM = tinker.AdamParams()
SAMPLE = tinker.ModelInput.from_ints([1]), 1, tinker.SamplingParams(max_tokens=1)
SIZE = {"status": "complete_metadata", "request_id": "x", "response_payload_size": 50_000}


def round_trips(wire: Any) -> None:
    """Let the loop run until nothing is left to do."""
    rest = tinker.RestClient(base_url="http://server", api_key="tml-secret", transport=wire)
    for _ in range(3):
        rest.get_server_capabilities().result(10)


def test_a_loop_that_ends_while_it_waits(training: tinker.TrainingClient, wire: Any) -> None:
    """Other waiters still get the result if the loop of one waiter is closed before it arrives."""
    release = wire.hold("retrieve_future")
    future = training.optim_step(ADAM)
    loop = asyncio.new_event_loop()
    waiter = loop.create_task(future.coroutine())
    loop.run_until_complete(asyncio.sleep(0))
    with pytest.raises(TimeoutError):
        future.result(0)
    waiter._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    release()
    assert future.result(10).metrics is not None
    assert training.optim_step(ADAM).result(10)
    assert not future.cancel()  # which changes nothing once there is a result
    assert future.result(0).metrics is not None


def test_one_waiter_for_a_client_may_be_cancelled(service: tinker.ServiceClient, wire: Any) -> None:
    """A cancelled request cancels neither the creation of its client nor the other requests."""
    release = wire.hold("create_sampling_session")
    sampler = service.create_sampling_client(base_model="tinker/toy")
    gone, stays = sampler.sample(*SAMPLE), sampler.sample(*SAMPLE)
    wire.wait_for("create_sampling_session")
    round_trips(wire)
    assert gone.cancel()
    round_trips(wire)
    release()
    assert stays.result(10).sequences
    assert sampler.result(10) is sampler
    assert len(wire.requests("asample")) == 1


def test_a_waiter_in_a_coroutine_may_be_cancelled(service: tinker.ServiceClient, wire: Any) -> None:
    """The same holds for tasks: a cancelled task cancels only its own request."""
    release = wire.hold("create_sampling_session")
    sampler = service.create_sampling_client(base_model="tinker/toy")

    async def scenario() -> tinker.SampleResponse:
        gone = asyncio.create_task(sampler.sample_async(*SAMPLE))
        stays = asyncio.create_task(sampler.sample_async(*SAMPLE))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        release()
        return await asyncio.wait_for(stays, 10)

    assert asyncio.run(scenario()).sequences


def test_a_cancelled_future_stays_cancelled(training: tinker.TrainingClient, wire: Any) -> None:
    """Responses after the cancellation are dropped, and every waiter raises the cancellation."""
    release = wire.hold("retrieve_future")
    future = training.optim_step(ADAM)
    wire.wait_for("retrieve_future", 2)
    with ThreadPoolExecutor(1) as thread:
        waiter = thread.submit(future.result, 10)
        assert future.cancel()
        assert isinstance(waiter.exception(10), CancelledError)
    release()
    round_trips(wire)
    assert future.cancelled()

    async def awaited() -> None:
        await future

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(awaited())


def test_a_pending_response_resets_the_failures(
    training: tinker.TrainingClient, wire: Any, clock: Any
) -> None:
    """Only failures in a row end a wait, however 'later' is said in between."""
    pending = [
        httpx.Response(200, json=waiting("active")),
        httpx.Response(408, json={"queue_state": "active"}),
        httpx.Response(408, json={"detail": "not yet"}),
        httpx.Response(200, json=SIZE),
        httpx.Response(503, json={"detail": "the last"}),
    ]
    for answer in pending:
        wire.fail("retrieve_future", 503)

        def late(_: httpx.Request, __: bytes, answer: httpx.Response = answer) -> httpx.Response:
            clock.now += 250
            return answer

        wire.answer("retrieve_future", late)
    assert training.optim_step(ADAM).result(10).metrics is not None


def test_a_result_that_decodes_and_does_not_convert(
    training: tinker.TrainingClient, wire: Any, datum: Callable[..., tinker.Datum]
) -> None:
    """A result whose values do not fit together is an invalid response, polled three times."""
    tensor = {"data": [1.0, 2.0], "dtype": "float32", "shape": [3]}
    output = {"loss_fn_output_type": "x", "loss_fn_outputs": [{"logprobs": tensor}], "metrics": {}}
    wire.fail("retrieve_future", 200, body=output, times=3)
    with pytest.raises(tinker.APIResponseValidationError, match="forward: "):
        training.forward([datum()], "cross_entropy").result(10)


@pytest.mark.parametrize(("budget", "overlap"), [(10**9, True), (1, False)])
def test_large_results_wait_for_room(
    connect: Callable[..., tinker.ServiceClient], wire: Any, budget: int, overlap: bool
) -> None:
    """Results of known size are fetched as far as there is room, at least one at a time."""
    wire.fail("client/config", 200, body={"inflight_response_bytes_semaphore_size": budget})
    training = connect().create_lora_training_client("tinker/toy", rank=2).result(10)
    before = len(wire.requests("retrieve_future"))
    wire.fail("retrieve_future", 200, body=SIZE, times=2)
    futures = [training.optim_step(ADAM), training.optim_step(ADAM)]
    assert all(future.result(10) for future in futures)
    asked = [one.json["allow_metadata_only"] for one in wire.requests("retrieve_future")[before:]]
    assert sorted(asked) == [False, False, True, True]
    assert overlap or asked.count(True) == 2
