"""Servers with one fault each: the kit finds the fault, and says what it is in one finding.

The faults are those of servers that were tried, and one for each rule of
`docs/contract/servers.md`. They are planted into what our own server sends and receives, or into
its engine.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeAlias

import attrs
import httpx
import numpy as np
import pytest
from support.tampering import (
    Answer,
    Stepped,
    Tampering,
    Unclipped,
    Unseeded,
    always,
    body,
    each_logprobs,
    each_sequence,
    edited,
    is_of,
    loss_call,
    media_type,
    read,
    renumbered,
    replaced,
    results,
    with_content,
    with_fields,
)

import tinker.local.engines.toy as toy
from tinker import types
from tinker._wire import proto
from tinker.local.engines.protocol import EngineError, LossResult
from tinker.testing import Outcome, Report, run
from tinker.testing.conformance.report import findings

Plant: TypeAlias = Callable[[], httpx.BaseTransport | toy.ToyEngine]
Serve = Callable[..., str]
KEY = "tml-key"
MANY = {"gap_seconds": 60.0, "max_uploads": 10**6}
SERVERS: dict[str, dict[str, Any]] = {
    "usual": {"hold_seconds": 2.0, "inline_result_bytes": 10**9, **MANY},
    "with a key": {"hold_seconds": 2.0, "inline_result_bytes": 10**9, **MANY, "api_key": KEY},
    "announcing": {"hold_seconds": 2.0, "inline_result_bytes": 1000, **MANY},
    "not holding": {"hold_seconds": 0.0, "inline_result_bytes": 10**9, **MANY},
    "waiting": {"inline_result_bytes": 10**9, **MANY, "hold_seconds": 1.2, "gap_seconds": 2.0},
}


@attrs.frozen
class Fault:
    """One fault, and what must be said of it.

    ``cause``: what the title of the finding has. ``fails``: whether the exit code is not 0 without
    --strict. ``blames``: the operations with a contradiction, where that matters. ``blocks``: the
    checks that it blocks, where that matters. ``server``: which of `SERVERS`.
    """

    plant: Plant
    cause: str
    fails: bool = True
    blames: frozenset[str] | None = None
    blocks: frozenset[str] | None = None
    server: str = "usual"
    slow: bool = False
    only: tuple[str, ...] = ("*",)


# ---------------------------------------------------------------------------------------- responses


def answering(change: Answer) -> Plant:
    """A server whose responses are changed."""
    return lambda: Tampering(change)


def changing(operation: str, change: Callable[[dict[str, Any]], object]) -> Plant:
    """A server that sends other JSON for an operation."""
    return lambda: body(operation, change)


def status(code: int, instead_of: int, *operations: str) -> Plant:
    """A server with one status instead of another."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if response.status_code != instead_of or (
            operations and not any(is_of(request, one) for one in operations)
        ):
            return response
        return edited(response, response.content, code)

    return answering(answer)


def refusing(change: Callable[[int, object], dict[str, Any]]) -> Plant:
    """A server with other bodies of its refusals."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        value = read(response.content)
        if response.status_code < 400 or not isinstance(value, dict):
            return response
        return edited(
            response, json.dumps(change(response.status_code, value.get("detail"))).encode()
        )

    return answering(answer)


def pending(code: int, value: object) -> Plant:
    """A server with another word for the result of a request that waits for the number below its
    own.
    """

    def plant() -> Tampering:
        came: dict[str, dict[int, str]] = defaultdict(dict)

        def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
            if response.is_success and (call := loss_call(request)):
                came[call.model_id][call.seq_id] = response.json()["request_id"]
            if not is_of(request, "retrieve_future") or b'"try_again"' not in response.content:
                return response
            waiting = {one for known in came.values() if 1 not in known for one in known.values()}
            return (
                httpx.Response(code, json=value)
                if json.loads(request.content)["request_id"] in waiting
                else response
            )

        return Tampering(answer)

    return plant


def one_session() -> Tampering:
    """Every session has the id of the first."""
    first: list[str] = []

    def change(value: dict[str, Any]) -> None:
        first.append(value["session_id"])
        value["session_id"] = first[0]

    return body("create_session", change)


def older_run_first() -> Tampering:
    """The second run is listed first."""

    def request(one: httpx.Request) -> httpx.Request:
        if not is_of(one, "training_runs"):
            return one
        return httpx.Request(
            one.method, one.url.copy_merge_params({"offset": "1"}), headers=one.headers
        )

    return Tampering(request=request)


def one_future() -> Tampering:
    """The steps of a run have the request id of its first loss."""
    first: dict[str, str] = {}

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if response.is_success and (call := loss_call(request)):
            first.setdefault(call.model_id, response.json()["request_id"])
        if response.is_success and is_of(request, "optim_step"):
            run = json.loads(request.content)["model_id"]
            return httpx.Response(
                200,
                json={
                    **response.json(),
                    "request_id": first.get(run) or response.json()["request_id"],
                },
            )
        return response

    return Tampering(answer)


def count_the_page(value: dict[str, Any]) -> None:
    value["cursor"]["total_count"] = len(value["checkpoints"])


def no_zone(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if "json" not in media_type(response):
        return response
    content = re.sub(rb'(\d\d:\d\d:\d\d(?:\.\d+)?)(?:Z|\+00:00)"', rb'\1"', response.content)
    return edited(response, content)


def rename_loss(output: types.ForwardBackwardOutput) -> types.ForwardBackwardOutput:
    metrics = {
        ("total_loss:sum" if name == "loss:sum" else name): value
        for name, value in output.metrics.items()
    }
    return attrs.evolve(output, metrics=metrics)


def refuse_unknown(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if b"_of_tomorrow" not in request.content:
        return response
    detail = [
        {
            "type": "extra_forbidden",
            "loc": ["body", "field_of_tomorrow"],
            "msg": "Extra inputs are not permitted",
        }
    ]
    return httpx.Response(422, json={"detail": detail})


def json_without_forward() -> Tampering:
    """Losses are read only as JSON, and there is no operation for a forward pass."""

    def asked(request: httpx.Request) -> httpx.Request:
        if is_of(request, "forward_backward") and media_type(request) == proto.MEDIA_TYPE:
            request.headers["content-type"] = "application/octet-stream"
        elif is_of(request, "forward"):
            request.url = request.url.copy_with(path="/api/v1/no_such_operation")
        return request

    return Tampering(request=asked)


def accept_any_session(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if is_of(request, "create_session") and response.status_code == 422:
        return httpx.Response(200, json={"type": "create_session", "session_id": "s"})
    return response


def crash_on_syntax(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if is_of(request, "create_session") and response.status_code == 422:
        return httpx.Response(500, text="Internal Server Error")
    return response


def crash_on_unknown(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if response.status_code == 404 and b"no-such" in request.content + request.url.raw_path:
        return httpx.Response(500, text="Internal Server Error")
    return response


def without_header(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    response.headers.pop("www-authenticate", None)
    return response


def busy_once() -> Tampering:
    """The first model is refused with 429 and no word about when to come again."""
    refused: list[None] = []

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if is_of(request, "create_model") and not refused:
            refused.append(None)
            return httpx.Response(429, json={"detail": "too many models"})
        return response

    return Tampering(answer)


def beat_of_the_dead(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if is_of(request, "session_heartbeat") and response.status_code == 410:
        return httpx.Response(200, json={"type": "session_heartbeat"})
    return response


def refuse_fields_at_default() -> Tampering:
    """create_model takes no `optimizer_config`."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if is_of(request, "create_model") and b"optimizer_config" in request.content:
            detail = [
                {
                    "type": "extra_forbidden",
                    "loc": ["body", "optimizer_config"],
                    "msg": "Extra inputs are not permitted",
                }
            ]
            return httpx.Response(422, json={"detail": detail})
        return response

    return Tampering(answer)


# --------------------------------------------------------------------------------------- repetition


def other_future(operation: str) -> Plant:
    """Each repetition of a request has a request id of its own, for the same work."""

    def plant() -> Tampering:
        seen: Counter[bytes] = Counter()

        def asked(request: httpx.Request) -> httpx.Request:
            is_json = "json" in media_type(request)
            return (
                with_content(request, re.sub(rb"~\d+", b"", request.content))
                if is_json
                else request
            )

        def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
            if is_of(request, operation) and response.is_success:
                seen[request.content] += 1
                value = response.json()
                field = "request_id" if "request_id" in value else "sampling_session_id"
                if seen[request.content] > 1:
                    value[field] += f"~{seen[request.content]}"
                return httpx.Response(200, json=value)
            return response

        return Tampering(answer, asked)

    return plant


def repeats_run() -> Tampering:
    """A repeated training request is one more request."""
    known: dict[str, dict[int, bytes]] = defaultdict(dict)
    shift: Counter[str] = Counter()

    def number_of(run: str, number: int, content: bytes) -> int:
        if known[run].get(number) == content:
            shift[run] += 1
            return max(known[run]) + shift[run]
        known[run][number] = content
        return number + shift[run]

    return renumbered(number_of)


def in_order_of_arrival() -> Tampering:
    """Requests run as they arrive; a repeated one is recognized."""
    known: dict[str, dict[int, int]] = defaultdict(dict)
    return renumbered(
        lambda run, number, content: known[run].setdefault(number, len(known[run]) + 1)
    )


def draw_again() -> Tampering:
    """A repeated sample is drawn again."""
    seen: Counter[bytes] = Counter()
    numbers = itertools.count(10**15)

    def asked(request: httpx.Request) -> httpx.Request:
        if not is_of(request, "asample"):
            return request
        seen[request.content] += 1
        if seen[request.content] == 1:
            return request
        return with_fields(request, seq_id=next(numbers))

    return Tampering(request=asked)


def other_sequence_ids() -> Tampering:
    """A repeated sample has other ids of its sequences."""
    numbers = itertools.count()

    def change(value: dict[str, Any]) -> None:
        value["sample_sequence_ids"] = [
            f"{one}~{next(numbers)}" for one in value["sample_sequence_ids"]
        ]

    return body("asample", change)


def accept_used_numbers(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if response.status_code == 409 and (
        is_of(request, "forward_backward") or is_of(request, "optim_step")
    ):
        return httpx.Response(
            200, json={"request_id": "no-such-request", "type": "untyped_api_future"}
        )
    return response


class Uncounted(Tampering):
    """A request that is refused uses up no number: what comes after it is out of order."""

    def __init__(self, later: Callable[[int], httpx.Response], *, waits: bool) -> None:
        super().__init__(self._change)
        self._later, self._waits = later, waits
        self._stuck: set[str] = set()
        self._waiting: set[str] = set()

    def _change(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if is_of(request, "retrieve_future"):
            wanted = json.loads(request.content).get("request_id")
            return self._later(0) if wanted in self._waiting else response
        if call := loss_call(request):
            if call.loss_fn == "no_such_loss":
                self._stuck.add(call.model_id)
                return httpx.Response(422, json={"detail": "there is no loss 'no_such_loss'"})
            if call.model_id in self._stuck:
                if not self._waits:
                    return self._later(call.seq_id)
                self._waiting.add(response.json().get("request_id", ""))
        return response


def never_done(value: object, code: int, of: str) -> Plant:
    """The results of an operation are never there."""

    def plant() -> Tampering:
        submitted: set[str] = set()

        def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
            if is_of(request, of) and response.is_success:
                submitted.add(response.json()["request_id"])
            if (
                is_of(request, "retrieve_future")
                and json.loads(request.content).get("request_id") in submitted
            ):
                return httpx.Response(code, json=value)
            return response

        return Tampering(answer)

    return plant


def gap_for_ever() -> Tampering:
    """A request whose number is not the next one waits for ever."""
    last: dict[str, set[int]] = defaultdict(set)
    waiting: set[str] = set()

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if response.is_success and (call := loss_call(request)):
            last[call.model_id].add(call.seq_id)
            if min(last[call.model_id]) > 1:
                waiting.add(response.json()["request_id"])
            else:
                waiting.clear()
        if (
            is_of(request, "retrieve_future")
            and json.loads(request.content).get("request_id") in waiting
        ):
            return httpx.Response(408, json={"type": "try_again"})
        return response

    return Tampering(answer)


# ------------------------------------------------------------------------------------------ futures


def is_failure(value: Any) -> bool:
    return isinstance(value, dict) and {"error", "category"} <= value.keys()


def failing(change: Callable[[dict[str, Any]], httpx.Response]) -> Plant:
    """A server with another form of failed requests."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        value = read(response.content) if is_of(request, "retrieve_future") else None
        return change(value) if is_failure(value) else response

    return answering(answer)


def fetched_once() -> Tampering:
    """A result is gone once it was fetched."""
    gone: set[str] = set()

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if (
            not is_of(request, "retrieve_future")
            or not response.is_success
            or b'"try_again"' in response.content
        ):
            return response
        wanted = json.loads(request.content)["request_id"]
        if wanted in gone:
            return httpx.Response(404, json={"detail": "Future not found"})
        if b'"complete_metadata"' not in response.content[:200]:
            gone.add(wanted)
        return response

    return Tampering(answer)


def octet_stream(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if media_type(response) != proto.MEDIA_TYPE:
        return response
    return httpx.Response(
        200, headers={"content-type": "application/octet-stream"}, content=response.content
    )


def accept_of_every_poll(accept: str) -> Plant:
    """A server that answers in one form, whatever is asked for."""

    def asked(request: httpx.Request) -> httpx.Request:
        if is_of(request, "retrieve_future"):
            request.headers["accept"] = accept
        return request

    return lambda: Tampering(request=asked)


def announce_to_everyone() -> Tampering:
    """Large results are announced to clients that did not allow it, again and again."""

    def asked(request: httpx.Request) -> httpx.Request:
        value = read(request.content)
        if (
            not is_of(request, "retrieve_future")
            or not isinstance(value, dict)
            or "request_id" not in value
        ):
            return request
        return with_fields(request, allow_metadata_only=True)

    return Tampering(request=asked)


def floats_as_text(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    value = read(response.content) if is_of(request, "retrieve_future") else None
    if not isinstance(value, dict) or "loss_fn_outputs" not in value:
        return response
    for fields in value["loss_fn_outputs"]:
        fields["logprobs"]["data"] = [str(one) for one in fields["logprobs"]["data"]]
    return httpx.Response(200, json=value)


# ------------------------------------------------------------------------------------------ numbers


def mean_loss(output: types.ForwardBackwardOutput) -> types.ForwardBackwardOutput:
    count = sum(
        fields["logprobs"].to_numpy().size
        for fields in output.loss_fn_outputs
        if "logprobs" in fields
    )
    metrics = {**output.metrics, "loss:sum": output.metrics["loss:sum"] / max(count, 1)}
    return attrs.evolve(output, metrics=metrics)


def mean_of_datums(output: types.ForwardBackwardOutput) -> types.ForwardBackwardOutput:
    metrics = {
        **output.metrics,
        "loss:sum": output.metrics["loss:sum"] / max(len(output.loss_fn_outputs), 1),
    }
    return attrs.evolve(output, metrics=metrics)


def positive_loss(output: types.ForwardBackwardOutput) -> types.ForwardBackwardOutput:
    return attrs.evolve(output, metrics={**output.metrics, "loss:sum": -output.metrics["loss:sum"]})


def wide(values: Any) -> Any:
    """What a reader of float32 makes of float64."""
    return np.ascontiguousarray(values, np.float64).view(np.float32)


def ignoring(
    field: str, value: object, where: str = "sampling_params", operation: str = "asample"
) -> Plant:
    """A server that does not read a field, which has this value to it."""

    def asked(request: httpx.Request) -> httpx.Request:
        if not is_of(request, operation) or not isinstance(found := read(request.content), dict):
            return request
        inner = found.get(where) if where else found
        if isinstance(inner, dict) and field in inner:
            inner[field] = value() if callable(value) else value
            return with_content(request, json.dumps(found).encode())
        return request

    return lambda: Tampering(request=asked)


def cut_stop(one: types.SampledSequence, request: dict[str, Any]) -> types.SampledSequence:
    if one.stop_reason != "stop" or not one.tokens:
        return one
    logprobs = None if one.logprobs_np is None else one.logprobs_np[:-1]
    return types.SampledSequence(one.stop_reason, one.sequence_id, one.tokens_np[:-1], logprobs)


def relabel(
    reason: str,
) -> Callable[[types.SampledSequence, dict[str, Any]], types.SampledSequence]:
    return lambda one, request: types.SampledSequence(
        reason,
        one.sequence_id,
        one.tokens_np,
        one.logprobs_np,
        one.topk_logprobs_np,  # type: ignore[arg-type]
    )


def prompt_values(change: Callable[[Any], Any]) -> Plant:
    """A server with other logprobs of prompts."""

    def changed(response: types.SampleResponse, request: dict[str, Any]) -> types.SampleResponse:
        if response.prompt_logprobs_np is None:
            return response
        return attrs.evolve(response, prompt_logprobs_np=change(response.prompt_logprobs_np))

    return lambda: results(sample=changed)


def fewer(response: types.SampleResponse, request: dict[str, Any]) -> types.SampleResponse:
    return attrs.evolve(response, sequences=response.sequences[:1])


def no_logprobs(one: types.SampledSequence, request: dict[str, Any]) -> types.SampledSequence:
    return types.SampledSequence(
        one.stop_reason, one.sequence_id, one.tokens_np, None, one.topk_logprobs_np
    )


def least_likely_first(
    one: types.SampledSequence, request: dict[str, Any]
) -> types.SampledSequence:
    if (table := one.topk_logprobs_np) is None:
        return one
    turned = types.TopkLogprobs(table.token_ids[:, ::-1].copy(), table.logprobs[:, ::-1].copy())
    return types.SampledSequence(
        one.stop_reason, one.sequence_id, one.tokens_np, one.logprobs_np, turned
    )


def copies(response: types.SampleResponse, request: dict[str, Any]) -> types.SampleResponse:
    return attrs.evolve(response, sequences=[response.sequences[0]] * len(response.sequences))


def wide_tokens(one: types.SampledSequence, request: dict[str, Any]) -> types.SampledSequence:
    tokens = np.ascontiguousarray(one.tokens_np, np.int64).view(np.int32)
    return types.SampledSequence(
        one.stop_reason, one.sequence_id, tokens, one.logprobs_np, one.topk_logprobs_np
    )


def wide_logprobs(one: types.SampledSequence, request: dict[str, Any]) -> types.SampledSequence:
    logprobs = None if one.logprobs_np is None else wide(one.logprobs_np)
    return types.SampledSequence(
        one.stop_reason, one.sequence_id, one.tokens_np, logprobs, one.topk_logprobs_np
    )


def fewer_logprobs(one: types.SampledSequence, request: dict[str, Any]) -> types.SampledSequence:
    logprobs = None if one.logprobs_np is None else one.logprobs_np[:-1]
    return types.SampledSequence(
        one.stop_reason, one.sequence_id, one.tokens_np, logprobs, one.topk_logprobs_np
    )


def not_found_while_pending(polls: int) -> Plant:
    """A server that does not know a request, for so many polls, until it is done."""

    def plant() -> Tampering:
        asked: Counter[str] = Counter()

        def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
            if not is_of(request, "retrieve_future") or response.status_code != 200:
                return response
            asked[json.loads(request.content)["request_id"]] += 1
            is_early = asked[json.loads(request.content)["request_id"]] <= polls
            is_pending = is_early or b'"try_again"' in response.content
            return (
                httpx.Response(404, json={"detail": "there is no such request"})
                if is_pending
                else response
            )

        return Tampering(answer)

    return plant


def without_newest(operation: str) -> Plant:
    """A server whose list lacks the checkpoint that was saved last."""

    def plant() -> Tampering:
        def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
            if not is_of(request, "checkpoints") or not response.is_success:
                return response
            is_of_run = "/training_runs/" in request.url.path
            if is_of_run is not (operation == "list_checkpoints"):
                return response
            value = response.json()
            newest = max(value["checkpoints"], key=lambda one: one["time"], default=None)
            value["checkpoints"] = [one for one in value["checkpoints"] if one is not newest]
            return httpx.Response(200, json=value)

        return Tampering(answer)

    return plant


def silent_overwrite() -> Tampering:
    """A save replaces what has its name."""

    def asked(request: httpx.Request) -> httpx.Request:
        return with_fields(request, overwrite=True) if is_of(request, "save_weights") else request

    return Tampering(request=asked)


def publish_again(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if is_of(request, "publish") and response.status_code == 409:
        return httpx.Response(204)
    return response


def archive_of_a_path(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if response.status_code == 302 and is_of(request, "archive"):
        return httpx.Response(
            302, headers={**response.headers, "location": "file:///var/lib/server/archive.tar"}
        )
    if response.is_success and is_of(request, "archive"):
        return httpx.Response(
            200, json={**response.json(), "url": "file:///var/lib/server/archive.tar"}
        )
    return response


# ------------------------------------------------------------------------------------------ engines


class Engine(toy.ToyEngine):
    def __init__(self) -> None:
        super().__init__(vocabulary=512)


class Forgetful(Engine):
    """Keeps the last gradient instead of the sum."""

    def forward_backward(
        self, adapter_id: str, data: Any, loss_fn: str, config: Any, *, backward: bool
    ) -> LossResult:
        if backward:
            self._adapters[adapter_id].gradient = None
        return super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)


class Hoarding(Engine):
    """Keeps the gradient after the step."""

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        gradient = self._adapters[adapter_id].gradient
        metrics = super().optim_step(adapter_id, params)
        self._adapters[adapter_id].gradient = gradient
        return metrics


class Stepless(Engine):
    """Says that it stepped."""

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        return {}


class Drifting(Engine):
    """Adds noise to the parameters in each step."""

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        metrics = super().optim_step(adapter_id, params)
        noise = np.random.default_rng(1)
        for values in self._adapters[adapter_id].weights.tensors.values():
            values += noise.normal(0.0, 0.1, values.shape).astype(values.dtype)
        return metrics


class Decaying(Engine):
    """Takes a tenth of the parameters away in each step."""

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        metrics = super().optim_step(adapter_id, params)
        for values in self._adapters[adapter_id].weights.tensors.values():
            values *= 0.9
        return metrics


class Demanding(Engine):
    """Refuses a step that has nothing to apply."""

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        if self._adapters[adapter_id].gradient is None:
            raise EngineError("no gradient was accumulated")
        return super().optim_step(adapter_id, params)


class Averaging(Engine):
    """Divides the weights of a datum by their sum."""

    def forward_backward(
        self, adapter_id: str, data: Any, loss_fn: str, config: Any, *, backward: bool
    ) -> LossResult:
        if loss_fn == "cross_entropy":
            data = [attrs.evolve(one, loss_inputs=_averaged(one.loss_inputs)) for one in data]
        return super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)


def _averaged(inputs: dict[str, Any]) -> dict[str, Any]:
    return (
        {**inputs, "weights": inputs["weights"] / inputs["weights"].sum()}
        if "weights" in inputs
        else inputs
    )


class Leaking(Engine):
    """Computes a gradient also where none is wanted."""

    def forward_backward(
        self, adapter_id: str, data: Any, loss_fn: str, config: Any, *, backward: bool
    ) -> LossResult:
        return super().forward_backward(adapter_id, data, loss_fn, config, backward=True)


class Reusing(Engine):
    """Gives a new adapter the gradient of one that was unloaded."""

    def __init__(self) -> None:
        super().__init__()
        self._left: list[Any] = []

    def drop_adapter(self, adapter_id: str) -> None:
        if (adapter := self._adapters.get(adapter_id)) is not None and adapter.gradient is not None:
            self._left.append(adapter.gradient)
        super().drop_adapter(adapter_id)

    def create_adapter(self, adapter_id: str, spec: Any) -> None:
        super().create_adapter(adapter_id, spec)
        if self._left:
            self._adapters[adapter_id].gradient = self._left.pop()


class Reversing(Engine):
    """Answers the outputs in another order."""

    def forward_backward(
        self, adapter_id: str, data: Any, loss_fn: str, config: Any, *, backward: bool
    ) -> LossResult:
        result = super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)
        return attrs.evolve(result, outputs=result.outputs[::-1])


class Rushing(Engine):
    """Steps at its own rate."""

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        return super().optim_step(
            adapter_id, attrs.evolve(params, learning_rate=params.learning_rate or 0.1)
        )


class NeverClipping(Engine):
    """Does not read `grad_clip_norm`."""

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        return super().optim_step(adapter_id, attrs.evolve(params, grad_clip_norm=0.0))


class LoadingNothing(Engine):
    """Loads a fresh adapter."""

    def load(self, adapter_id: str, directory: Any, *, optimizer: bool) -> Any:
        spec = super().load(adapter_id, directory, optimizer=optimizer)
        self.create_adapter(adapter_id, spec)
        return spec


class WithoutMoments(Engine):
    """Loads no state of the optimizer."""

    def load(self, adapter_id: str, directory: Any, *, optimizer: bool) -> Any:
        return super().load(adapter_id, directory, optimizer=False)


class Sharing(Engine):
    """Samples from the weights that are being trained."""

    def snapshot(self, adapter_id: str) -> Any:
        return toy.ArrayWeights(
            self._adapter(adapter_id).weights.spec, Live(partial(self._adapter, adapter_id))
        )  # type: ignore[arg-type]


class Live(dict[str, Any]):
    """The tensors of an adapter as they are now."""

    def __init__(self, find: Callable[[], Any]) -> None:
        super().__init__(find().weights.tensors)
        self._find = find

    def __getitem__(self, name: str) -> Any:
        return self._find().weights.tensors[name]


class SamplingBase(Engine):
    """Samples from the base model, whatever was saved."""

    def _weights(self, job: Any) -> Any:
        return self._base


NUMBERS = "sequence numbers"
WAITING = ("training.loss", "sequence.gap")
FAULTS: dict[str, Fault] = {
    # what servers say of themselves, sessions, ids
    "health: another word": Fault(
        changing("healthz", lambda v: v.update(status="healthy")), "healthy", fails=False
    ),
    "capabilities: no names": Fault(
        changing(
            "get_server_capabilities",
            lambda v: [one.pop("model_name") for one in v["supported_models"]],
        ),
        "model_name",
    ),
    "session: id is a number": Fault(
        changing("create_session", lambda v: v.update(session_id=7)), "session_id"
    ),
    "session: one id for all": Fault(
        one_session,
        "two sessions have the same id",
        blocks=frozenset(
            f"sessions.{one}" for one in ("finish", "newest_first", "contents", "search")
        ),
    ),
    "session: 200 for a wrong body": Fault(
        answering(accept_any_session), "Wrong bodies", blames=frozenset({"create_session"})
    ),
    "session: 500 for a wrong body": Fault(
        answering(crash_on_syntax), "unhandled error", blames=frozenset({"create_session"})
    ),
    "session: heartbeat never known": Fault(
        lambda: always(404, {"detail": "there is no such session"}, "session_heartbeat"),
        "heartbeat of an open",
        fails=False,
    ),
    "session: heartbeat after its end": Fault(
        answering(beat_of_the_dead), "heartbeat|410|finished"
    ),
    "model: ids of its own": Fault(
        lambda: replaced([(b":train:", b"-model-")]), "Ids or paths", fails=False
    ),
    "model: another rank": Fault(changing("get_info", lambda v: v.update(lora_rank=9)), "rank"),
    "runs: older first": Fault(older_run_first, "used first|used last"),
    "operation: get_info missing": Fault(
        lambda: always(404, {"detail": "Not Found"}, "get_info"), "Required operations are missing"
    ),
    "operation: no forward pass": Fault(
        json_without_forward,
        "forward pass without a gradient is missing",
        blames=frozenset({"forward"}),
        blocks=frozenset(),
    ),
    "fields: unknown ones refused": Fault(answering(refuse_unknown), "Unknown fields", fails=False),
    "fields: a default refused": Fault(refuse_fields_at_default, "Unknown fields", fails=False),
    "times: no zone": Fault(answering(no_zone), "time", fails=False),
    # statuses and refusals
    "statuses: 202 for a submission": Fault(
        status(202, 200, "forward_backward"), "status codes", fails=False
    ),
    "statuses: 200 for a delete": Fault(status(200, 204), "status codes", fails=False),
    "statuses: 400 for a conflict": Fault(status(400, 409), "status codes", fails=False),
    "refusals: error for detail": Fault(
        refusing(lambda code, detail: {"error": detail}), '"detail"', fails=False
    ),
    "refusals: 422 in words": Fault(
        refusing(lambda code, detail: {"detail": "invalid body" if code == 422 else detail}),
        "list of places",
        fails=False,
    ),
    "refusals: 500 for unknown ids": Fault(answering(crash_on_unknown), "Unknown ids"),
    "refusals: 401 without WWW-Authenticate": Fault(
        answering(without_header), "WWW-Authenticate", fails=False, server="with a key"
    ),
    "refusals: 403 for a wrong key": Fault(
        status(403, 401), "status codes", fails=False, server="with a key"
    ),
    "refusals: 429 without Retry-After": Fault(busy_once, "Retry-After", fails=False),
    "refusals: unknown request is 400": Fault(
        status(400, 404, "retrieve_future"), "status codes", fails=False
    ),
    # futures
    "future: no request_id": Fault(
        changing("forward_backward", lambda v: v.pop("request_id")), "request_id"
    ),
    "pending: 202": Fault(
        pending(202, {"detail": "pending"}), "no result yet", server="not holding"
    ),
    "pending: 404": Fault(
        pending(404, {"detail": "not ready"}), "no result yet", server="not holding"
    ),
    "pending: 404, as for an unknown request": Fault(not_found_while_pending(1), "no result yet"),
    "pending: 404, for seconds": Fault(not_found_while_pending(12), "no result yet"),
    "pending: another word": Fault(
        pending(200, {"status": "pending"}), "no result yet", server="not holding"
    ),
    "pending: 202 after 30 s": Fault(
        pending(202, {}), "no result yet", server="waiting", slow=True, only=WAITING
    ),
    "pending: 404 after 30 s": Fault(
        pending(404, {"detail": "not ready"}),
        "no result yet",
        server="waiting",
        slow=True,
        only=WAITING,
    ),
    "pending: an unknown queue state": Fault(
        pending(200, {"type": "try_again", "request_id": "r", "queue_state": "asleep"}),
        "queue_state",
        fails=False,
        server="waiting",
        slow=True,
        only=WAITING,
    ),
    "pending: polls not held": Fault(
        pending(200, {"type": "try_again", "request_id": "r", "queue_state": "active"}),
        "held",
        fails=False,
        server="not holding",
    ),
    "results: never there": Fault(
        never_done(
            {"type": "try_again", "request_id": "r", "queue_state": "active"}, 200, "optim_step"
        ),
        "arrive in time",
    ),
    "results: fetched once": Fault(fetched_once, "fetched only once"),
    "results: octet-stream": Fault(answering(octet_stream), "another media type"),
    "results: protobuf for JSON": Fault(
        accept_of_every_poll("application/x-protobuf, application/json"),
        "as protobuf although only JSON",
    ),
    "results: JSON for protobuf": Fault(
        accept_of_every_poll("application/json"), "protobuf", fails=False
    ),
    "results: announced unasked": Fault(announce_to_everyone, "announced", server="announcing"),
    "results: announced with a wrong size": Fault(
        changing(
            "retrieve_future", lambda v: v.update({k: 1 for k in v if k == "response_payload_size"})
        ),
        "announced",
        server="announcing",
    ),
    "results: floats as text": Fault(answering(floats_as_text), "str|text|string"),
    "failures: as status 400": Fault(
        failing(lambda v: httpx.Response(400, json={"detail": v["error"]})),
        "status code of the poll",
        fails=False,
    ),
    "failures: no category": Fault(
        failing(lambda v: httpx.Response(200, json={"error": v["error"]})), "category"
    ),
    "failures: an unknown category": Fault(
        failing(lambda v: httpx.Response(200, json={**v, "category": v["category"].upper()})),
        "category",
        fails=False,
    ),
    # numbers of requests
    "numbers: order of arrival": Fault(in_order_of_arrival, NUMBERS),
    "numbers: a repeated loss runs again": Fault(repeats_run, "repeated request"),
    "numbers: a used one accepted": Fault(answering(accept_used_numbers), NUMBERS),
    "numbers: refused ones do not count, and it waits": Fault(
        lambda: Uncounted(lambda _: httpx.Response(408, json={"type": "try_again"}), waits=True),
        "refused",
    ),
    "numbers: refused ones do not count, and it refuses": Fault(
        lambda: Uncounted(
            lambda number: httpx.Response(
                409, json={"detail": f"expected {number - 1}, got {number}"}
            ),
            waits=False,
        ),
        "refused",
    ),
    "numbers: a gap waits forever": Fault(
        gap_for_ever,
        "never arrives",
        server="waiting",
        slow=True,
        only=("training.*", "sequence.*"),
    ),
    "repetition: another model request": Fault(other_future("create_model"), "repeated request"),
    "repetition: another sampling session": Fault(
        other_future("create_sampling_session"), "repeated request"
    ),
    "repetition: a sample drawn again": Fault(draw_again, "repeated request"),
    "repetition: other ids of sequences": Fault(other_sequence_ids, "repeated request"),
    # numbers in results
    "loss: mean of tokens": Fault(lambda: results(loss=mean_loss), "is a mean"),
    "loss: mean of datums": Fault(lambda: results(loss=mean_of_datums), "mean"),
    "loss: other sign": Fault(lambda: results(loss=positive_loss), "sign"),
    "loss: another name": Fault(lambda: results(loss=rename_loss), "loss:sum", fails=False),
    "logprobs: shifted": Fault(lambda: each_logprobs(lambda row: np.roll(row, 1)), "shift"),
    "logprobs: float64 read as float32": Fault(lambda: each_logprobs(wide), "another width"),
    "outputs: another order": Fault(Reversing, "not in the order of the data"),
    "ppo: not clipped": Fault(partial(Unclipped, vocabulary=512), "`ppo`"),
    "weights: divided by their sum": Fault(Averaging, "is a mean"),
    # training
    "gradient: only the last": Fault(Forgetful, "only the last gradient"),
    "gradient: kept after the step": Fault(Hoarding, "gradient of the step before it again"),
    "gradient: of a forward pass": Fault(Leaking, "forward pass"),
    "gradient: of an unloaded model": Fault(Reusing, "gradient of an unloaded one"),
    "step: drifts": Fault(Drifting, "without a gradient changes the parameters"),
    "step: decays": Fault(Decaying, "without a gradient changes the parameters"),
    "step: refused without a gradient": Fault(Demanding, "without a gradient", fails=False),
    "step: does nothing": Fault(Stepless, "step changes nothing"),
    "step: a rate of its own": Fault(Rushing, "learning rate of 0"),
    "step: no clipping": Fault(NeverClipping, "grad_clip_norm"),
    "seed: of adapters ignored": Fault(partial(Unseeded, vocabulary=512), "seed of an adapter"),
    # samples
    "sample: seed ignored": Fault(ignoring("seed", partial(next, itertools.count(7))), "seed"),
    "sample: stop ignored": Fault(ignoring("stop", []), "stop"),
    "sample: stop token cut off": Fault(lambda: each_sequence(cut_stop), "stop token"),
    "sample: always length": Fault(lambda: each_sequence(relabel("length")), "stop"),
    "sample: random at temperature 0": Fault(
        ignoring("temperature", 1.0), "temperature 0|most likely token"
    ),
    "sample: one instead of three": Fault(lambda: results(sample=fewer), "as many parts"),
    "sample: copies": Fault(
        lambda: results(sample=copies), "Sequences of one request are the same"
    ),
    "sample: tokens as int64": Fault(lambda: each_sequence(wide_tokens), "another width"),
    "sample: logprobs as float64": Fault(lambda: each_sequence(wide_logprobs), "as many parts"),
    "sample: a logprob short": Fault(lambda: each_sequence(fewer_logprobs), "as many parts"),
    "sample: too long": Fault(ignoring("max_tokens", 9), "max_tokens|tokens"),
    "sample: no logprobs": Fault(lambda: each_sequence(no_logprobs), "logprob", fails=False),
    "sample: no sequence ids": Fault(
        changing("asample", lambda v: v.pop("sample_sequence_ids")),
        "sample_sequence_ids",
        fails=False,
    ),
    "sample: least likely first": Fault(
        lambda: each_sequence(least_likely_first), "sorted|best first|likely"
    ),
    "prompt: one value short": Fault(prompt_values(lambda row: row[1:]), "Prompt logprobs"),
    "prompt: shifted": Fault(
        prompt_values(lambda row: np.concatenate([row[:1], np.roll(row[1:], 1)])),
        "prompt are shifted",
    ),
    # checkpoints
    "save: another form of paths": Fault(
        lambda: replaced([(b"/weights/conf", b"/checkpoints/conf")]), "Ids or paths", fails=False
    ),
    "save: paths of files": Fault(
        lambda: replaced([(b"tinker://", b"/srv/checkpoints/")]),
        "Ids or paths",
        fails=False,
        blocks=frozenset(
            {
                "uploads.adapter",
                *(
                    f"weights.{one}"
                    for one in ("delete", "publish", "time_to_live", "external", "archive")
                ),
            }
        ),
    ),
    "save: replaces a name": Fault(silent_overwrite, "already done|overwrite|name"),
    "save: metadata lost": Fault(
        changing(
            "checkpoints", lambda v: [one.update(user_metadata=None) for one in v["checkpoints"]]
        ),
        "user_metadata",
    ),
    "save: time to live ignored": Fault(
        changing(
            "checkpoints", lambda v: [one.update(expires_at=None) for one in v["checkpoints"]]
        ),
        "ttl|live|expires",
    ),
    "list: of a run without the newest": Fault(
        without_newest("list_checkpoints"), "Lists lack a checkpoint"
    ),
    "list: of the user without the newest": Fault(
        without_newest("list_user_checkpoints"), "Lists lack a checkpoint"
    ),
    "list: bare ids": Fault(
        changing(
            "checkpoints",
            lambda v: [
                one.update(checkpoint_id=one["checkpoint_id"].split("/")[-1])
                for one in v["checkpoints"]
            ],
        ),
        "Ids or paths",
        fails=False,
    ),
    "list: counts the page": Fault(
        changing("checkpoints", lambda v: "cursor" in v and count_the_page(v)), "cursor|total_count"
    ),
    "info: another base model": Fault(
        changing("weights_info", lambda v: v.update(base_model="other/model")),
        "base model|made from",
    ),
    "publish: twice": Fault(answering(publish_again), "already done"),
    "archive: a path of the server": Fault(answering(archive_of_a_path), "URL of the archive"),
    "model: one id for all": Fault(
        lambda: ignoring("model_seq_id", 1, where="", operation="create_model")(),
        "same `request_id`|two models",
    ),
    "future: one id for all": Fault(one_future, "same `request_id`"),
    "load: weights lost": Fault(LoadingNothing, "loaded model"),
    "load: optimizer lost": Fault(WithoutMoments, "optimizer"),
    "sampler: follows the training": Fault(Sharing, "snapshot"),
    "sampler: base model instead": Fault(
        SamplingBase, "trained weights|base model|training and sampling"
    ),
}


@pytest.fixture(scope="module")
def url(serve: Serve) -> Callable[[str], str]:
    """Our server, by the name of its settings."""
    return cache(lambda name: serve(**SERVERS[name]))


def check(fault: Fault, serve: Serve, url: Callable[[str], str]) -> Report:
    """Return the report on a server with the fault."""
    planted = fault.plant()
    # which steps over what a server needs to compute
    clock = None if fault.server == "not holding" else Stepped().clock
    options: dict[str, Any] = {
        "clock": clock,
        "slow": fault.slow,
        "only": fault.only,
        "skip": ["*.custom_loss"],
    }
    if not (fault.slow or fault.cause == "arrive in time"):
        # of that clock: a busy server takes seconds of ours to write or export something
        options["deadline_seconds"] = 3600.0
    if isinstance(planted, toy.ToyEngine):
        return run(serve(planted, **SERVERS[fault.server]), **options)
    return run(url(fault.server), api_key=KEY, transport=planted, **options)


#: Each fault costs a whole run of the kit: the usual tests have a few, `nox -s chaos` and
#: `contract` have all.
CASES = [
    pytest.param(name, marks=[] if index % 28 == 0 else pytest.mark.soak)
    for index, name in enumerate(FAULTS)
]


@pytest.mark.parametrize("name", CASES)
def test_a_planted_fault_is_found(name: str, serve: Serve, url: Callable[[str], str]) -> None:
    """The first finding is titled by the cause, nothing else is said, and the exit code tells it
    where work or numbers are wrong.
    """
    fault = FAULTS[name]
    report = check(fault, serve, url)
    found = findings(report)
    titles = [one.title for one in found]
    assert found, "nothing is found"
    assert re.search(fault.cause, titles[0], re.IGNORECASE), titles
    assert len(found) == 1, titles
    assert report.passed() is not fault.fails, titles
    if fault.blocks is not None:
        assert {
            row.check for row in report.checks if row.outcome is Outcome.BLOCKED
        } == fault.blocks
    if fault.blames is not None:
        assert {
            op for op, worst in report.operations.items() if worst is Outcome.CONTRADICTION
        } == fault.blames


def test_a_loss_that_is_not_reported_blocks_nothing(url: Callable[[str], str]) -> None:
    """It is one finding; what needs only the logprobs is checked."""
    planted = results(loss=lambda output: attrs.evolve(output, metrics={}))
    only = ("training.*", "losses.*", "sampling.*")
    report = run(
        url("usual"), transport=planted, clock=Stepped().clock, only=only, skip=["*.custom_loss"]
    )
    assert [row.check for row in report.checks if row.outcome is Outcome.BLOCKED] == []
    (found,) = findings(report)
    assert "loss:sum" in found.title


def test_a_server_without_an_option_of_later_clients_is_not_blamed(
    url: Callable[[str], str],
) -> None:
    """Where alternatives of sampled tokens are refused, that feature is absent, and what needs
    temperature 0 is checked.
    """

    def refuse(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        sent = read(request.content) if is_of(request, "asample") else None
        if not (isinstance(sent, dict) and sent.get("topk_sample_logprobs")):
            return response
        detail = [
            {
                "type": "extra_forbidden",
                "loc": ["body", "topk_sample_logprobs"],
                "msg": "Extra inputs are not permitted",
            }
        ]
        return httpx.Response(422, json={"detail": detail})

    report = run(
        url("usual"), transport=Tampering(refuse), clock=Stepped().clock, only=("sampling.*",)
    )
    assert findings(report) == ()
    outcomes = {row.check: row.outcome for row in report.checks}
    assert outcomes["sampling.likeliest"] is Outcome.ABSENT
    assert outcomes["sampling.stop_tokens"] is Outcome.SUPPORTED
