"""Events: the ids they carry, and the built-in observers that count and log them."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from support.queue_news import all_told, waiting

import tinker
from tinker.observing import (
    AttemptStarted,
    CustomLossEvaluated,
    CustomLossStarted,
    Event,
    FutureSettled,
    FutureStarted,
    LogObserver,
    Metrics,
    QueueChange,
    RequestAttempt,
    RequestRetry,
    Timings,
    TokensUsed,
)

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()
PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)
DATUM_INPUTS: Any = {"target_tokens": [2, 3], "weights": [1.0, 1.0]}
DATUM = tinker.Datum(tinker.ModelInput.from_ints([1, 2]), DATUM_INPUTS)


@tinker.with_gradients
def push_up(data: Any, logprobs: Any) -> Any:
    return -sum(part.sum() for part in logprobs), [0 * part - 1 for part in logprobs], {"mine": 2.0}


@tinker.with_gradients
def broken(data: Any, logprobs: Any) -> Any:
    raise ZeroDivisionError("mine")


def test_events_have_ids_and_metadata(connect: Connect, wire: Any) -> None:
    """Every event has the ids and the metadata of its session, run, sampler and request."""
    events: list[Event] = []
    service = connect(observers=[events.append], user_metadata={"who": "me", "trial": 1})
    training = service.create_lora_training_client(
        "tinker/toy", rank=4, user_metadata={"trial": 2}
    ).result(10)
    sampler = training.save_weights_and_get_sampling_client().result(10)
    all_told()
    del events[:]
    wire.fail("optim_step", 503)
    wire.fail("retrieve_future", 200, body=waiting("active"))
    (step := training.optim_step(ADAM)).result(10)
    (sample := sampler.sample(PROMPT, 1, PARAMS)).result(10)
    all_told()
    mine = [one for one in events if not re.search("heartbeat|config", one.operation)]
    assert {one.session_id for one in mine} == {training.model_id.partition(":")[0]}
    assert {one.training_run_id for one in mine} == {training.model_id}
    assert {str(one.user_metadata) for one in mine} == {"{'who': 'me', 'trial': 2}"}
    of_every_kind = {AttemptStarted, RequestAttempt, FutureSettled}
    of_step = {type(one) for one in mine if one.request_id == step.request_id}
    assert of_step == {*of_every_kind, QueueChange}
    of_sample = [one for one in mine if one.request_id == sample.request_id]
    assert {type(one) for one in of_sample} == {*of_every_kind, TokensUsed}
    (sampling_session_id,) = {one.sampling_session_id for one in of_sample}
    assert sampling_session_id is not None
    started = {one.operation: one for one in mine if isinstance(one, FutureStarted)}
    assert set(started) == {"optim_step", "sample"}
    assert started["optim_step"].request_id is None
    assert [one.operation for one in mine if isinstance(one, RequestRetry)] == ["optim_step"]


def test_one_call_is_counted_once(connect: Connect) -> None:
    """`Metrics` counts one outcome for each call of a method."""
    metrics = Metrics()
    training = connect(observers=[metrics]).create_lora_training_client("tinker/toy", rank=4)
    training.save_weights_and_get_sampling_client().result(10)
    all_told()
    assert metrics.snapshot().futures["save_weights_and_get_sampling_client"].count == 1


def test_concurrent_operations_have_separate_ids(connect: Connect) -> None:
    """Two concurrent runs do not get each other's ids, and background work has no run id."""
    events: list[Event] = []
    service = connect(observers=[events.append])
    runs = [service.create_lora_training_client("tinker/toy", rank=4).result(10) for _ in range(2)]
    all_told()
    del events[:]
    futures = [(run, run.optim_step(ADAM)) for _ in range(5) for run in runs]
    owners = {future.request_id: run.model_id for run, future in futures if future.result(10)}
    all_told()
    told = [event for event in events if event.request_id in owners]
    assert len(told) >= 3 * len(futures)
    assert all(event.training_run_id == owners[event.request_id] for event in told)
    assert {event.training_run_id for event in events if "heartbeat" in event.operation} <= {None}


def test_custom_losses_are_events(connect: Connect) -> None:
    """Start and end of a custom loss are events, with loss and metrics, or the error."""
    events: list[Any] = []
    training = connect(observers=[events.append]).create_lora_training_client("tinker/toy", rank=4)
    output = training.forward_backward_custom([DATUM], push_up).result(10)
    error = training.forward_backward_custom([DATUM, DATUM], broken).exception(10)
    kinds = (CustomLossStarted, CustomLossEvaluated)
    started, ended, started_again, failed = (one for one in events if isinstance(one, kinds))
    assert [type(one) for one in (started, ended, started_again, failed)] == [*kinds, *kinds]
    assert (started.datum_count, started_again.datum_count) == (1, 2)
    loss = output.metrics["loss:sum"]
    assert (ended.loss, ended.metrics, ended.error) == (loss, {"mine": 2.0}, None)
    assert (failed.loss, failed.error) == (None, error)
    assert failed.training_run_id == training.model_id


def test_the_log_observer(connect: Connect, wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Outcomes are lines with ids as fields, failures warnings, and exchanges at DEBUG."""
    service = connect(observers=[LogObserver("mine")], user_metadata={"who": "me"})
    training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
    all_told()
    wire.fail("optim_step", 503)
    wire.fail("retrieve_future", 200, body=waiting("paused_capacity", "full"))
    with caplog.at_level(logging.INFO, "mine"):
        training.optim_step(ADAM).result(10)
        training.forward_backward_custom([DATUM], broken).exception(10)
        all_told()
    lines = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "mine"
    ]
    assert [level for level, _ in lines] == ["INFO", "INFO", "INFO", "WARNING"]
    assert "optim_step failed 1 times, retrying in" in lines[0][1]
    assert lines[1][1] == "optim_step is paused_capacity: full"
    assert lines[2][1].startswith("optim_step took ")
    assert "forward_backward_custom failed after" in lines[3][1]
    record: Any = next(record for record in caplog.records if record.name == "mine")
    assert (record.training_run_id, record.user_metadata) == (training.model_id, {"who": "me"})
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "mine"):
        training.forward_backward_custom([DATUM], push_up).result(10)
        training.optim_step(ADAM).cancel()
        all_told()
    text = "\n".join(record.getMessage() for record in caplog.records if record.name == "mine")
    for part in ("in your function", "used trained 2", "returned 200", "cancelled"):
        assert part in text


def settled(seconds: float, error: Exception | None = None) -> FutureSettled:
    return FutureSettled(
        operation='a"b\nc', seconds=seconds, timings=Timings(), error=error, cancelled=False
    )


def test_custom_metrics() -> None:
    """Counters only add up, gauges have the last value, histograms buckets and percentiles."""
    metrics = Metrics()
    metrics.increment("episodes")
    metrics.increment("episodes", 2.5)
    metrics.set_gauge("rate", 0.1)
    metrics.set_gauge("rate", -1)
    for value in range(1, 101):
        metrics.record("length", value, buckets=(10, 50))
    seen = metrics.snapshot()
    assert (seen.counters, seen.gauges) == ({"episodes": 3.5}, {"rate": -1.0})
    length = seen.histograms["length"]
    assert (length.count, length.total, length.mean, length.smallest, length.largest) == (
        100,
        5050,
        50.5,
        1,
        100,
    )
    assert (length.p50, length.p95, length.p99) == (50, 95, 99)
    assert length.buckets == {10: 10, 50: 50, math.inf: 100}
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="at least 0"):
            metrics.increment("episodes", wrong)
    for buckets in ((), (2, 1), (1, 1), (math.nan,)):
        with pytest.raises(ValueError, match="buckets must increase"):
            metrics.record("other", 1, buckets=buckets)
    with pytest.raises(ValueError, match="NaN cannot be recorded"):
        metrics.record("length", math.nan)
    metrics.reset()
    assert metrics.snapshot().counters == {}


def test_durations_have_buckets() -> None:
    """A summary counts the durations up to each bucket's limit, and has the shortest one."""
    metrics = Metrics()
    for seconds in (0.001, 0.3, 100.0):
        metrics(settled(seconds))
    summary = metrics.snapshot().futures['a"b\nc']
    assert (summary.shortest_seconds, summary.longest_seconds) == (0.001, 100.0)
    below_a_second = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
    assert [*summary.buckets] == [*below_a_second, 1, 2, 5, 10, 30, 60, math.inf]
    assert [*summary.buckets.values()] == [1] * 8 + [2] * 7 + [3]


def test_prometheus() -> None:
    """The text is Prometheus': typed families, escaped labels, cumulative buckets, legal names."""
    metrics = Metrics()
    for seconds, error in ((0.5, None), (0.5, ValueError("x"))):
        metrics(settled(seconds, error))
    metrics(TokensUsed(operation="sample", prefilled=3, sampled=4))
    metrics(TokensUsed(operation="sample", prefilled=100, is_confirmed=False))
    metrics.increment("my episodes", 2)
    metrics.set_gauge("0rate", math.nan)
    metrics.record("length", 2, buckets=(1, 3))
    lines = metrics.prometheus().splitlines()
    for line in (
        "# TYPE tinker_operation_seconds histogram",
        'tinker_operation_seconds_bucket{operation="a\\"b\\nc",le="0.2"} 0',
        'tinker_operation_seconds_bucket{operation="a\\"b\\nc",le="+Inf"} 2',
        'tinker_operation_seconds_sum{operation="a\\"b\\nc"} 1',
        'tinker_operation_seconds_count{operation="a\\"b\\nc"} 2',
        'tinker_operation_failures_total{operation="a\\"b\\nc"} 1',
        'tinker_tokens_total{kind="prefilled"} 3',
        "# TYPE my_episodes counter",
        "my_episodes 2",
        "# TYPE _0rate gauge",
        "_0rate NaN",
        'length_bucket{le="1"} 0',
        'length_bucket{le="+Inf"} 1',
        "length_sum 2",
    ):
        assert line in lines
    assert len(lines) == len(set(lines))


def test_tables() -> None:
    """Metrics print as a table, also in a notebook, whatever names they contain."""
    metrics = Metrics()
    metrics(settled(0.5))
    metrics.increment("<i>", 1234)
    metrics.record("[red]length", 2.5)
    console = Console(record=True, width=160, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(metrics)
    shown = console.export_text()
    assert "1,234" in shown
    assert "[red]length" in shown
    html = metrics._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "&lt;i&gt;" in html
    assert "0.5000 s" in html
    assert len(metrics.__rich__().columns) == 8


def test_the_warning_of_a_retry_says_for_how_long(
    training: tinker.TrainingClient, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of a failed attempt has the time of the next, and how long attempts continue."""
    wire.fail("optim_step", 503)
    training.optim_step(ADAM).result(10)
    assert re.search(r"attempt 1 failed, retrying in \d+\.\d s, for up to \d+ s", caplog.text)
