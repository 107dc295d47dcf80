"""The start of operations: events, and the future of a client's creation."""

from __future__ import annotations

import concurrent.futures
import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.queue_news import all_told, waiting
from tinker_wire import models

import tinker
from tinker._sampling import SampleOptions
from tinker.observing import FutureSettled

ADAM = tinker.AdamParams()
PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)
Connect = Callable[..., tinker.ServiceClient]


def test_every_operation_is_reported_to_observers(connect: Connect, tmp_path: Any) -> None:
    """Created clients, requests, downloads and the end are reported as settled futures."""
    operations: list[str] = []

    def note(event: object) -> None:
        if isinstance(event, FutureSettled):
            operations.append(event.operation)

    service = connect(observers=[note])
    training = service.create_lora_training_client("tinker/toy", rank=2)
    training.optim_step(ADAM).result(10)
    sampler = training.save_weights_and_get_sampling_client().result(10)
    sampler.compute_logprobs(PROMPT).result(10)
    sampler.get_base_model()
    service.get_server_capabilities()
    service.create_rest_client().list_sessions().result(10)
    path = "tinker://no-run/weights/none"
    failed = tinker.checkpoints.download(path, tmp_path, form="archive", service=service)
    assert failed.exception(10)
    service.close().result(10)
    all_told()
    done = "optim_step compute_logprobs get_base_model get_server_capabilities list_sessions"
    done += " create_lora_training_client save_weights_and_get_sampling_client download close"
    assert set(done.split()) <= set(operations)


@pytest.mark.parametrize("kind", [tinker.TrainingClient, tinker.SamplingClient])
def test_a_client_is_no_future(kind: type) -> None:
    """A client has methods to wait for it, and none that settle a future."""
    shown = {name for name in dir(kind) if not name.startswith("_")}
    assert {"result", "result_async", "done", "exception", "observe_queue"} <= shown
    of_futures = {"set_result", "set_exception", "set_running_or_notify_cancel", "running"}
    assert shown.isdisjoint(of_futures | {"operation", "progress"})
    assert not issubclass(kind, concurrent.futures.Future)


def test_one_task_for_each_operation(
    training: tinker.TrainingClient,
    service: tinker.ServiceClient,
    wire: Any,
    datum: Callable[..., tinker.Datum],
) -> None:
    """A sample and a request of a run are one task each, from the call to the result."""
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("retrieve_future", 200, body=waiting("paused_capacity"), times=10**9)
    thread = training._run.runtime.thread
    before = set(thread._tasks)
    futures: list[Any] = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(5)]
    futures += [training.optim_step(ADAM), training.forward_backward([datum()], "cross_entropy")]
    wire.wait_for("forward_backward")
    all_told()
    # Clients of earlier tests may be collected at any moment; their sessions end on the same loop.
    started = [task.get_name() for task in set(thread._tasks) - before]
    names = sorted(name for name in started if name != "abandoned session")
    wire.faults.clear()
    assert [future.result(10) for future in futures]
    assert names == ["forward_backward", "optim_step", *["sample"] * 5]


def test_a_sampling_option_is_named_the_same_everywhere() -> None:
    """The options of `sample` match its record in order and defaults, and the request's fields."""
    parameters = list(inspect.signature(tinker.SamplingClient.sample).parameters.values())[2:]
    fields = msgspec.structs.fields(SampleOptions)
    assert [one.name for one in parameters] == [one.name for one in fields]
    absent = {msgspec.NODEFAULT: inspect.Parameter.empty}
    given = [absent.get(one.default, one.default) for one in fields]
    assert [one.default for one in parameters] == given
    sent = {one.name.removeprefix("include_") for one in fields}
    assert sent <= set(models.SampleRequest.__struct_fields__)
