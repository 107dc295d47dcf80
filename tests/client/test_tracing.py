"""Trace context: every request of a call carries the user's span, and our server stores it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

import tinker
from tinker.local import State
from tinker.local.storage.futures import Span, encode_trace, in_trace

otel = pytest.importorskip("opentelemetry.trace")

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()
PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)


@contextmanager
def span(number: int, state: str = "") -> Generator[str]:
    """Activate a span of the user's; the value is its header."""
    entries = [tuple(pair.split("=")) for pair in state.split(",") if pair]
    told: Any = {"trace_flags": otel.TraceFlags(1), "trace_state": otel.TraceState(entries)}
    context = otel.SpanContext(number, number, is_remote=False, **told)
    with otel.use_span(otel.NonRecordingSpan(context)):
        yield f"00-{number:032x}-{number:016x}-01"


def test_every_request_of_a_call_has_its_trace(connect: Connect, wire: Any) -> None:
    """Submissions, retries and polls carry the span of their call, other requests none."""
    service = connect()
    training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("optim_step", 503)
    del wire.exchanges[:]
    with span(17, "vendor=1") as first:
        step = training.optim_step(ADAM)
    with span(18) as second:
        sample = sampler.sample(PROMPT, 1, PARAMS)
    step.result(10)
    sample.result(10)
    training.optim_step(ADAM).result(10)
    steps = [exchange.request.headers for exchange in wire.requests("optim_step")]
    assert [headers.get("traceparent") for headers in steps] == [first, first, None]
    assert [headers.get("tracestate") for headers in steps] == ["vendor=1", "vendor=1", None]
    sample_of, polls, beats = (
        {exchange.request.headers.get("traceparent") for exchange in wire.requests(operation)}
        for operation in ("asample", "retrieve_future", "session_heartbeat")
    )
    assert (sample_of, polls) == ({second}, {first, second, None})
    assert beats <= {None}


def test_it_can_be_turned_off(connect: Connect, wire: Any) -> None:
    """With trace_context off nothing is sent, even if a span is active."""
    config = tinker.Config.load(base_url="http://server", api_key="tml-a", trace_context=False)
    with span(17):
        connect(config=config).get_server_capabilities()
    assert not [one for one in wire.exchanges if "traceparent" in one.request.headers]


def test_the_server_records_it(
    connect: Connect, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    """Our server records the trace of a request in its log and in the timeline of the session."""
    training = connect().create_lora_training_client("tinker/toy", rank=4).result(10)
    with span(17) as header, caplog.at_level(logging.DEBUG, "tinker.local"):
        training.optim_step(ADAM).result(10)
    training.optim_step(ADAM).result(10)
    with state.lock() as shared:
        (session,) = shared.store.sessions()
    spans = [one for one in session.spans if one.operation == "optim_step"]
    assert [one.traceparent for one in spans] == [header, None]
    assert f"optim_step is of trace {header}" in caplog.messages
    events = json.loads(encode_trace(spans, 0.0, 1e12))["traceEvents"]
    traces = {event["args"].get("traceparent") for event in events if event["ph"] == "X"}
    assert traces == {header, None}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        "00-1-1-01",
        f"00-{0:032x}-{1:016x}-01",
        f"00-{1:032x}-{0:016x}-01",
        f"ff-{1:032x}-{1:016x}-01",
        "\n" + "0" * 55,
    ],
)
def test_the_server_ignores_invalid_traces(header: str) -> None:
    """An invalid trace header is ignored."""
    with in_trace("x", header):
        assert Span(operation="x", track="t").traceparent is None
    with in_trace("x", f"00-{1:032x}-{1:016x}-01"):
        assert Span(operation="x", track="t").traceparent is not None
    assert Span(operation="x", track="t").traceparent is None
