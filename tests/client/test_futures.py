"""The future type, from all sides."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from support.cases import for_each

import tinker
from tinker._futures import TokenQueue
from tinker._loop import loop_thread

ADAM = tinker.AdamParams()
PENDING = {"type": "try_again", "request_id": "x", "queue_state": "paused_capacity"}


def begin_paused(
    wire: Any, call: Callable[..., tinker.APIFuture[Any]], *arguments: Any, polls: int = 1
) -> tinker.APIFuture[Any]:
    """Make a call whose queue is paused until the faults are cleared."""
    before = len(wire.requests("retrieve_future"))
    wire.fail("retrieve_future", 200, body=PENDING, times=10**9)
    future = call(*arguments)
    wire.wait_for("retrieve_future", before + polls)
    return future


def test_awaited_from_any_loop_any_number_of_times(training: tinker.TrainingClient) -> None:
    """A future can be awaited by several loops and threads, as a task, and again when done."""
    future = training.optim_step(ADAM)

    async def twice() -> bool:
        await asyncio.wait([asyncio.ensure_future(future)])
        task = asyncio.create_task(future.coroutine())
        return (await future) is (await future.result_async(5)) is (await task)

    assert asyncio.run(twice())
    assert asyncio.run(twice())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(future.result, 5).result() is future.result(5)
    assert future.future() is future
    assert concurrent.futures.wait([future], 5).done == {future}


WAITS: dict[str, Callable[[tinker.APIFuture[Any]], Any]] = {
    "await": lambda future: future,
    "result_async": lambda future: future.result_async(),
    "result_async with a limit": lambda future: future.result_async(5),
    "coroutine": lambda future: future.coroutine(),
    "progress": lambda future: tinker.progress([future]),
    "progress, one by one": lambda future: anext(aiter(tinker.progress([future]))),
    "progress of coroutines": lambda future: anext(aiter(tinker.progress([future.coroutine()]))),
    "stream": lambda future: anext(tinker.SampleStream(future, TokenQueue(), None)),
}


@for_each("how", WAITS)
def test_awaited_outside_of_asyncio(how: str) -> None:
    """Where another library runs coroutines, an await says that it needs asyncio."""

    async def wait(future: tinker.APIFuture[Any]) -> None:
        await WAITS[how](future)

    future: tinker.APIFuture[Any] = tinker.APIFuture("sample")
    with pytest.raises(
        RuntimeError, match=r"loop of asyncio; from trio: await trio\.to_thread\.run_sync"
    ):
        wait(future).send(None)
    assert future.cancel()


@pytest.mark.gives_up_soon
def test_repr_shows_the_operation_and_its_state(training: tinker.TrainingClient, wire: Any) -> None:
    """The repr has operation and state: pending, done, cancelled, or the error's class."""
    wire.fail("optim_step", 422)
    failed = training.optim_step(ADAM)
    failed.exception(10)
    assert repr(failed) == "<APIFuture optim_step, UnprocessableEntityError>"
    done = training.optim_step(ADAM)
    done.result(10)
    assert repr(done) == "<APIFuture optim_step, done>"
    waiting = tinker.APIFuture[None]("sample")
    assert repr(waiting) == "<APIFuture sample, pending>"
    waiting.cancel()
    assert repr(waiting) == "<APIFuture sample, cancelled>"


@pytest.mark.httpunk("httpx does not say why it could not connect")
def test_timeout_reports_the_last_failed_attempt(
    training: tinker.TrainingClient, wire: Any
) -> None:
    """A timeout has the reason of the last failed attempt, until the server responds."""
    for operation in ("session_heartbeat", "optim_step"):
        wire.drop(operation, apply=False, times=10**9)
    future = training.optim_step(ADAM)
    wire.wait_for("optim_step", 2)
    with pytest.raises(
        TimeoutError,
        match=r"optim_step has no result after 0 s, not yet accepted by the server; .+",
    ):
        future.result(0)
    wire.faults.clear()
    future.result(10)


def test_timeout_names_the_request(training: tinker.TrainingClient, wire: Any) -> None:
    """A timeout names operation, request and queue state; the result comes later."""
    future = begin_paused(wire, training.optim_step, ADAM, polls=3)
    with pytest.raises(
        TimeoutError,
        match=r"optim_step has no result after 0 s, request .*, queue state paused_capacity",
    ):
        future.result(0)
    wire.faults.clear()
    assert future.result(10).metrics is not None


def test_async_timeout_cancels(training: tinker.TrainingClient, wire: Any) -> None:
    """An async wait that times out cancels the operation."""
    future = begin_paused(wire, training.optim_step, ADAM)
    with pytest.raises(TimeoutError):
        asyncio.run(future.result_async(0))
    assert future.cancelled()
    wire.faults.clear()


def test_cancelled_task_cancels_its_future(training: tinker.TrainingClient, wire: Any) -> None:
    """Cancelling the awaiting task stops the polling, and leaves no hole in the training order."""
    future = begin_paused(wire, training.optim_step, ADAM)

    async def scenario() -> None:
        task = asyncio.create_task(future.coroutine())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert future.cancelled()
    wire.faults.clear()
    training.optim_step(ADAM).result(10)
    assert [one.seq_id for one in wire.requests("optim_step")] == [1, 2]


@pytest.mark.parametrize("moment", ["while it is sent", "while it is awaited"])
@pytest.mark.parametrize("name", ["forward", "forward_backward", "optim_step", "save_state"])
def test_a_cancelled_request_that_changes_the_run_is_told(
    training: tinker.TrainingClient,
    wire: Any,
    datum: Any,
    caplog: pytest.LogCaptureFixture,
    name: str,
    moment: str,
) -> None:
    """One warning says that what was accepted takes effect, if it changes the run."""
    arguments = {"optim_step": [ADAM], "save_state": ["kept"]}.get(
        name, [[datum()], "cross_entropy"]
    )
    operation = {"save_state": "save_weights", "forward": "forward_backward"}.get(name, name)
    call, release = getattr(training, name), wire.faults.clear
    training.get_info()
    if moment == "while it is sent":
        release = wire.hold(operation)
        future = call(*arguments)
        wire.wait_for(operation)
    else:
        future = begin_paused(wire, call, *arguments)
    assert future.cancel()
    release()
    training.save_state("after").result(10)
    told = [record.getMessage() for record in caplog.records if "cancelled" in record.getMessage()]
    assert len(told) == (name in ("forward_backward", "optim_step"))
    said = f"{name} was cancelled after the server had accepted it"
    assert all(text.startswith(said) for text in told)


def test_cancelled_before_its_turn_is_not_sent(service: tinker.ServiceClient, wire: Any) -> None:
    """A request cancelled before its turn is never sent and uses no number."""
    client = service.create_lora_training_client("tinker/toy")
    first = begin_paused(wire, client.optim_step, ADAM)
    second = client.optim_step(ADAM)
    assert first.cancel()
    wire.faults.clear()
    second.result(10)
    assert [one.seq_id for one in wire.requests("optim_step")] == [1]
    with pytest.raises(concurrent.futures.CancelledError):
        first.result()


def test_errors_reach_every_waiter(training: tinker.TrainingClient, wire: Any) -> None:
    """A failure is raised by result and await, and returned by exception."""
    wire.fail("optim_step", 404)
    future = training.optim_step(ADAM)
    with pytest.raises(tinker.NotFoundError):
        future.result(10)
    with pytest.raises(tinker.NotFoundError):
        asyncio.run(future.result_async())
    assert isinstance(future.exception(10), tinker.NotFoundError)


def test_the_log_has_the_frames_of_a_failure(
    training: tinker.TrainingClient, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """At DEBUG a failure is logged with the frames that its traceback omits; no success is."""
    caplog.set_level(logging.DEBUG, "tinker")
    training.optim_step(ADAM).result(10)
    wire.fail("optim_step", 400)
    with pytest.raises(tinker.BadRequestError):
        training.optim_step(ADAM).result(10)
    (record,) = [record for record in caplog.records if record.msg == "%s failed"]
    assert record.exc_info is not None
    assert any("_http" in frame.filename for frame in traceback.extract_tb(record.exc_info[2]))


def test_an_older_name_of_training_clients() -> None:
    """What older code imports as the future of a training client is the client's class."""
    from tinker.lib.public_interfaces import BackcompatTrainingClientFuture

    assert BackcompatTrainingClientFuture is tinker.TrainingClient


def test_future_made_of_another() -> None:
    """A future made of a concurrent one shares result, error, and cancellation both ways."""
    from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

    done, failed, given_up = (concurrent.futures.Future[int]() for _ in range(3))
    one, two, three = (AwaitableConcurrentFuture(source) for source in (done, failed, given_up))
    done.set_result(3)
    failed.set_exception(ValueError("no"))
    assert one.result(1) == asyncio.run(one.result_async()) == 3
    assert one.future() is done
    with pytest.raises(ValueError, match="no"):
        two.result(1)
    assert three.cancel()
    assert given_up.cancelled()
    assert three.cancelled()


def test_a_result_that_was_not_waited_for() -> None:
    """Accessing a name of the result, an item or an iterator says to wait for the result; private
    names, `hasattr` and `getattr` with a default work as everywhere.
    """
    future: Any = tinker.APIFuture[Any]()
    with pytest.raises(AttributeError, match=r"'metrics': it is the future of an operation; call"):
        _ = future.metrics
    with pytest.raises(AttributeError, match=r"has no attribute '_metrics'$"):
        _ = future._metrics
    assert getattr(future, "loss", 2) == 2
    for use in (lambda: future[0], lambda: list(future)):
        with pytest.raises(TypeError, match=r"call .result\(\) or await it"):
            use()
    assert future  # exists, and has no length


def test_futures_without_init() -> None:
    """A future whose constructor was not called raises the usual errors for missing attributes."""

    class StandIn(tinker.APIFuture[int]):
        def __init__(self) -> None:
            pass

    with pytest.raises(AttributeError, match="operation"):
        _ = StandIn().operation


def test_a_future_whose_work_is_cancelled_is_cancelled(
    training: tinker.TrainingClient, wire: Any
) -> None:
    """If an operation's work is cancelled in any way, so is its future."""
    polls = len(wire.requests("retrieve_future"))
    release = wire.hold("retrieve_future")
    future = training.optim_step(ADAM)
    wire.wait_for("retrieve_future", polls + 1)
    assert future._task is not None
    loop_thread().call(future._task.cancel)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(10)
    release()
