"""Servers with one fault each, of servers that were tried or against a rule of the contract."""

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
    always,
    asking,
    body,
    each_logprobs,
    each_sequence,
    edited,
    engine,
    is_of,
    loss_call,
    media_type,
    read,
    renumbered,
    replaced,
    results,
    reusing,
    stepless,
    unclipped,
    unseeded,
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


NO_RESULT = {"type": "try_again", "request_id": "r", "queue_state": "active"}
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
    """One fault, and what must be said of it: what the title of the finding has, whether the exit
    code is not 0 without --strict, and where it matters, the operations and the blocked checks.
    """

    plant: Plant
    cause: str
    fails: bool = True
    blames: str | None = None
    blocks: str | None = None
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


def when(
    operation: str,
    status: int,
    value: object = None,
    *,
    of: Callable[[httpx.Request, httpx.Response], bool],
) -> Plant:
    """A server that answers so where this holds of a request, of an operation or any."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        is_other = operation and not is_of(request, operation)
        if is_other or not of(request, response):
            return response
        return httpx.Response(status, json=value)

    return answering(answer)


def refused_as(status: int) -> Callable[[httpx.Request, httpx.Response], bool]:
    return lambda request, response: response.status_code == status


def sends(words: bytes) -> Callable[[httpx.Request, httpx.Response], bool]:
    return lambda request, response: words in request.content


def extra(field: str) -> dict[str, Any]:
    """Return a refusal of a field that a server does not know."""
    loc = ["body", field]
    return {
        "detail": [{"type": "extra_forbidden", "loc": loc, "msg": "Extra inputs are not permitted"}]
    }


def polled(request: httpx.Request) -> str:
    """Return the id of the request whose result is asked for; none of another operation."""
    if not is_of(request, "retrieve_future"):
        return ""
    wanted: str = json.loads(request.content).get("request_id", "")
    return wanted


def remembering(change: Callable[..., httpx.Response], **options: Any) -> Plant:
    """A server whose responses are changed by what it remembers of those before them."""
    return lambda: Tampering(partial(change, defaultdict(dict), **options))


def pend(
    came: Any, request: httpx.Request, response: httpx.Response, *, code: int, value: object
) -> httpx.Response:
    """Say with other words that a request waits for the number below its own."""
    if response.is_success and (call := loss_call(request)):
        came[call.model_id][call.seq_id] = response.json()["request_id"]
    waiting = {one for known in came.values() if 1 not in known for one in known.values()}
    is_pending = b'"try_again"' in response.content and polled(request) in waiting
    return httpx.Response(code, json=value) if is_pending else response


def pending(code: int, value: object) -> Plant:
    return remembering(pend, code=code, value=value)


def one_future(first: Any, request: httpx.Request, response: httpx.Response) -> httpx.Response:
    """Give the steps of a run the request id of its first loss."""
    if response.is_success and (call := loss_call(request)):
        first["of"].setdefault(call.model_id, response.json()["request_id"])
    if not response.is_success or not is_of(request, "optim_step"):
        return response
    run, value = json.loads(request.content)["model_id"], response.json()
    return httpx.Response(
        200, json={**value, "request_id": first["of"].get(run, value["request_id"])}
    )


def never_done(submitted: Any, request: httpx.Request, response: httpx.Response) -> httpx.Response:
    """Have no results of steps, ever."""
    if is_of(request, "optim_step") and response.is_success:
        submitted[response.json()["request_id"]] = {}
    is_step = polled(request) in submitted
    return httpx.Response(200, json=NO_RESULT) if is_step else response


def gap_for_ever(came: Any, request: httpx.Request, response: httpx.Response) -> httpx.Response:
    """Let a request whose number is not the next one wait for ever."""
    if response.is_success and (call := loss_call(request)):
        came[call.model_id][call.seq_id] = None
        if min(came[call.model_id]) > 1:
            came["waiting"][response.json()["request_id"]] = None
        else:
            came["waiting"].clear()
    is_stuck = polled(request) in came["waiting"]
    return httpx.Response(408, json={"type": "try_again"}) if is_stuck else response


def fetched_once(gone: Any, request: httpx.Request, response: httpx.Response) -> httpx.Response:
    """Have a result no more once it was fetched."""
    is_pending = b'"try_again"' in response.content
    if not polled(request) or not response.is_success or is_pending:
        return response
    if polled(request) in gone:
        return httpx.Response(404, json={"detail": "Future not found"})
    if b'"complete_metadata"' not in response.content[:200]:
        gone[polled(request)] = {}
    return response


def not_found_while_pending(
    asked: Any, request: httpx.Request, response: httpx.Response, *, polls: int
) -> httpx.Response:
    """Do not know a request, for so many polls, until it is done."""
    if not polled(request) or response.status_code != 200:
        return response
    count = asked[polled(request)]["count"] = asked[polled(request)].get("count", 0) + 1
    if count > polls and b'"try_again"' not in response.content:
        return response
    return httpx.Response(404, json={"detail": "there is no such request"})


def status(code: int, instead_of: int, *operations: str) -> Plant:
    """A server with one status instead of another."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        is_other = bool(operations) and not any(is_of(request, one) for one in operations)
        if response.status_code != instead_of or is_other:
            return response
        return edited(response, response.content, code)

    return answering(answer)


def refusing(change: Callable[[int, object], dict[str, Any]]) -> Plant:
    """A server with other bodies of its refusals."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        value = read(response.content)
        if response.status_code < 400 or not isinstance(value, dict):
            return response
        other = change(response.status_code, value.get("detail"))
        return edited(response, json.dumps(other).encode())

    return answering(answer)


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
        url = one.url.copy_merge_params({"offset": "1"})
        is_list = is_of(one, "training_runs")
        return httpx.Request(one.method, url, headers=one.headers) if is_list else one

    return Tampering(request=request)


def no_zone(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if "json" not in media_type(response):
        return response
    content = re.sub(rb'(\d\d:\d\d:\d\d(?:\.\d+)?)(?:Z|\+00:00)"', rb'\1"', response.content)
    return edited(response, content)


def rename_loss(output: types.ForwardBackwardOutput) -> types.ForwardBackwardOutput:
    metrics = {
        name.replace("loss:sum", "total_loss:sum"): value for name, value in output.metrics.items()
    }
    return attrs.evolve(output, metrics=metrics)


def json_without_forward() -> Tampering:
    """Losses are read only as JSON, and there is no operation for a forward pass."""

    def asked(request: httpx.Request) -> httpx.Request:
        if is_of(request, "forward_backward") and media_type(request) == proto.MEDIA_TYPE:
            request.headers["content-type"] = "application/octet-stream"
        elif is_of(request, "forward"):
            request.url = request.url.copy_with(path="/api/v1/no_such_operation")
        return request

    return Tampering(request=asked)


def asks_for_unknown(request: httpx.Request, response: httpx.Response) -> bool:
    return response.status_code == 404 and b"no-such" in request.content + request.url.raw_path


def busy_once() -> Tampering:
    """The first model is refused with 429 and no word about when to come again."""
    first = iter([httpx.Response(429, json={"detail": "too many models"})])
    return Tampering(
        lambda request, response: (
            next(first, response) if is_of(request, "create_model") else response
        )
    )


def without_header(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    response.headers.pop("www-authenticate", None)
    return response


def uses_number_again(request: httpx.Request, response: httpx.Response) -> bool:
    is_training = is_of(request, "forward_backward") or is_of(request, "optim_step")
    return response.status_code == 409 and is_training


# --------------------------------------------------------------------------------------- repetition


def other_future(operation: str) -> Plant:
    """Each repetition of a request has a request id of its own, for the same work."""

    def plant() -> Tampering:
        seen: Counter[bytes] = Counter()

        def asked(request: httpx.Request) -> httpx.Request:
            if "json" not in media_type(request):
                return request
            return with_content(request, re.sub(rb"~\d+", b"", request.content))

        def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
            if not is_of(request, operation) or not response.is_success:
                return response
            seen[request.content] += 1
            value = response.json()
            field = "request_id" if "request_id" in value else "sampling_session_id"
            if seen[request.content] > 1:
                value[field] += f"~{seen[request.content]}"
            return httpx.Response(200, json=value)

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
    seen: set[bytes] = set()
    numbers = itertools.count(10**15)

    def asked(request: httpx.Request) -> httpx.Request:
        if not is_of(request, "asample"):
            return request
        if request.content in seen:
            return with_fields(request, seq_id=next(numbers))
        seen.add(request.content)
        return request

    return Tampering(request=asked)


def other_sequence_ids() -> Tampering:
    """A repeated sample has other ids of its sequences."""
    numbers = itertools.count()

    def change(value: dict[str, Any]) -> None:
        ids = value["sample_sequence_ids"]
        value["sample_sequence_ids"] = [f"{one}~{next(numbers)}" for one in ids]

    return body("asample", change)


class Uncounted(Tampering):
    """A request that is refused uses up no number: what comes after it is out of order."""

    def __init__(self, later: Callable[[int], httpx.Response], *, waits: bool) -> None:
        super().__init__(self._change)
        self._later, self._waits = later, waits
        self._stuck: set[str] = set()
        self._waiting: set[str] = set()

    def _change(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if polled(request) in self._waiting:
            return self._later(0)
        if call := loss_call(request):
            if call.loss_fn == "no_such_loss":
                self._stuck.add(call.model_id)
                return httpx.Response(422, json={"detail": "there is no loss 'no_such_loss'"})
            if call.model_id in self._stuck:
                if not self._waits:
                    return self._later(call.seq_id)
                self._waiting.add(response.json()["request_id"])
        return response


# ------------------------------------------------------------------------------------------ futures


def failing(change: Callable[[dict[str, Any]], httpx.Response]) -> Plant:
    """A server with another form of failed requests."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        value = read(response.content) if polled(request) else None
        is_failure = isinstance(value, dict) and {"error", "category"} <= value.keys()
        return change(value) if is_failure else response

    return answering(answer)


def octet_stream(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if media_type(response) == proto.MEDIA_TYPE:
        response.headers["content-type"] = "application/octet-stream"
    return response


def announce_to_everyone() -> Tampering:
    """Large results are announced to clients that did not allow it, again and again."""
    return Tampering(
        request=lambda one: with_fields(one, allow_metadata_only=True) if polled(one) else one
    )


def floats_as_text(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    value = read(response.content) if polled(request) else None
    if not isinstance(value, dict) or "loss_fn_outputs" not in value:
        return response
    for fields in value["loss_fn_outputs"]:
        fields["logprobs"]["data"] = [str(one) for one in fields["logprobs"]["data"]]
    return httpx.Response(200, json=value)


# ------------------------------------------------------------------------------------------ numbers


Output: TypeAlias = types.ForwardBackwardOutput


Sequence: TypeAlias = types.SampledSequence


def loss_sum(change: Callable[[float, Output], float]) -> Plant:
    """A server with another sum of the loss."""

    def changed(output: Output) -> Output:
        value = change(output.metrics["loss:sum"], output)
        return attrs.evolve(output, metrics={**output.metrics, "loss:sum": value})

    return lambda: results(loss=changed)


def mean_of_tokens(value: float, output: Output) -> float:
    rows = [fields["logprobs"] for fields in output.loss_fn_outputs if "logprobs" in fields]
    return value / max(sum(row.to_numpy().size for row in rows), 1)


def wide(values: Any, read: Any = np.float32, write: Any = np.float64) -> Any:
    """What a reader of float32 makes of float64."""
    return np.ascontiguousarray(values, write).view(read)


def sequences(**changes: Callable[[Any], Any]) -> Plant:
    """A server with other stop reasons, tokens, logprobs or likeliest tokens of its sequences."""

    def changed(one: Sequence, request: dict[str, Any]) -> Sequence:
        parts = {
            "reason": one.stop_reason,
            "tokens": one.tokens_np,
            "logprobs": one.logprobs_np,
            "likeliest": one.topk_logprobs_np,
        }
        reason, tokens, logprobs, likeliest = (
            value if value is None else changes.get(name, lambda same: same)(value)
            for name, value in parts.items()
        )
        return Sequence(reason, one.sequence_id, tokens, logprobs, likeliest)

    return lambda: each_sequence(changed)


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


def cut_stop(one: Sequence, request: dict[str, Any]) -> Sequence:
    if one.stop_reason != "stop" or not one.tokens:
        return one
    logprobs = None if one.logprobs_np is None else one.logprobs_np[:-1]
    return Sequence(one.stop_reason, one.sequence_id, one.tokens_np[:-1], logprobs)


def turned(table: types.TopkLogprobs) -> types.TopkLogprobs:
    return types.TopkLogprobs(table.token_ids[:, ::-1].copy(), table.logprobs[:, ::-1].copy())


def samples(change: Callable[[list[Sequence]], list[Sequence]]) -> Plant:
    """A server with other sequences in a sample."""
    return lambda: results(
        sample=lambda response, _: attrs.evolve(response, sequences=change(response.sequences))
    )


def prompt_values(change: Callable[[Any], Any]) -> Plant:
    """A server with other logprobs of prompts."""

    def changed(response: types.SampleResponse, request: dict[str, Any]) -> types.SampleResponse:
        if response.prompt_logprobs_np is None:
            return response
        return attrs.evolve(response, prompt_logprobs_np=change(response.prompt_logprobs_np))

    return lambda: results(sample=changed)


def without_newest(of_run: bool) -> Plant:
    """A server whose list of a run, or of the user, lacks the checkpoint that was saved last."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        is_other = ("/training_runs/" in request.url.path) is not of_run
        if not is_of(request, "checkpoints") or not response.is_success or is_other:
            return response
        value = response.json()
        newest = max(value["checkpoints"], key=lambda one: one["time"], default=None)
        value["checkpoints"] = [one for one in value["checkpoints"] if one is not newest]
        return httpx.Response(200, json=value)

    return answering(answer)


def silent_overwrite() -> Tampering:
    """A save replaces what has its name."""
    return Tampering(
        request=lambda one: with_fields(one, overwrite=True) if is_of(one, "save_weights") else one
    )


def archive_of_a_path(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    path = "file:///var/lib/server/archive.tar"
    if is_of(request, "archive") and response.status_code == 302:
        return httpx.Response(302, headers={**response.headers, "location": path})
    if is_of(request, "archive") and response.is_success:
        return httpx.Response(200, json={**response.json(), "url": path})
    return response


def listed(**fields: object) -> Plant:
    """A server that lists other fields of checkpoints."""
    return changing("checkpoints", lambda v: [one.update(fields) for one in v["checkpoints"]])


def wrong(**methods: Callable[..., Any]) -> Plant:
    """A server whose engine has other methods."""
    return lambda: engine(**methods)


def keep_the_last(self: Any, loss: Any, run: str, *of: Any, backward: bool) -> LossResult:
    if backward:
        self._adapters[run].gradient = None
    return loss(run, *of, backward=backward)


def keep_the_gradient(self: Any, step: Any, run: str, params: Any) -> Any:
    gradient = self._adapters[run].gradient
    metrics = step(run, params)
    self._adapters[run].gradient = gradient
    return metrics


def drift(self: Any, step: Any, run: str, params: Any) -> Any:
    metrics, noise = step(run, params), np.random.default_rng(1)
    for values in self._adapters[run].weights.tensors.values():
        values += noise.normal(0.0, 0.1, values.shape).astype(values.dtype)
    return metrics


def decay(self: Any, step: Any, run: str, params: Any) -> Any:
    metrics = step(run, params)
    for values in self._adapters[run].weights.tensors.values():
        values *= 0.9
    return metrics


def demand(self: Any, step: Any, run: str, params: Any) -> Any:
    if self._adapters[run].gradient is None:
        raise EngineError("no gradient was accumulated")
    return step(run, params)


def average(self: Any, loss: Any, run: str, data: Any, loss_fn: str, *of: Any, **how: Any) -> Any:
    """Divide the weights of a datum by their sum."""

    def averaged(inputs: dict[str, Any]) -> dict[str, Any]:
        weights = inputs.get("weights")
        return inputs if weights is None else {**inputs, "weights": weights / weights.sum()}

    if loss_fn == "cross_entropy":
        data = [attrs.evolve(one, loss_inputs=averaged(one.loss_inputs)) for one in data]
    return loss(run, data, loss_fn, *of, **how)


def reverse(self: Any, loss: Any, *of: Any, **how: Any) -> Any:
    result = loss(*of, **how)
    return attrs.evolve(result, outputs=result.outputs[::-1])


def with_params(change: Callable[[Any], dict[str, Any]]) -> Plant:
    """An engine that steps with other parameters."""
    return wrong(
        optim_step=lambda self, step, run, params: step(run, attrs.evolve(params, **change(params)))
    )


def load_nothing(self: Any, load: Any, run: str, *of: Any, **how: Any) -> Any:
    spec = load(run, *of, **how)
    self.create_adapter(run, spec)
    return spec


# ------------------------------------------------------------------------------------------ engines


class Live(dict[str, Any]):
    """The tensors of an adapter as they are now."""

    def __init__(self, find: Callable[[], Any]) -> None:
        super().__init__(find().weights.tensors)
        self._find = find

    def __getitem__(self, name: str) -> Any:
        return self._find().weights.tensors[name]


def share(self: Any, snapshot: Any, run: str) -> Any:
    """Sample from the weights that are being trained."""
    find = partial(self._adapter, run)
    return toy.ArrayWeights(find().weights.spec, Live(find))


NUMBERS = "sequence numbers"
WAITING = ("training.loss", "sequence.gap")


OF_PATHS = "uploads.adapter weights.delete weights.publish weights.time_to_live weights.external weights.archive"


differing = partial(Fault, fails=False)


waiting = partial(Fault, server="waiting", slow=True, only=WAITING)


unheld = partial(Fault, server="not holding")
FAULTS: dict[str, Fault] = {
    # what servers say of themselves, sessions, ids
    "health: another word": differing(
        changing("healthz", lambda v: v.update(status="healthy")), "healthy"
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
        blocks=" ".join(
            f"sessions.{one}" for one in ("finish", "newest_first", "contents", "search")
        ),
    ),
    "session: 200 for a wrong body": Fault(
        when("create_session", 200, {"session_id": "s"}, of=refused_as(422)),
        "Wrong bodies",
        blames="create_session",
    ),
    "session: 500 for a wrong body": Fault(
        when("create_session", 500, of=refused_as(422)), "unhandled error", blames="create_session"
    ),
    "session: heartbeat never known": differing(
        lambda: always(404, {"detail": "there is no such session"}, "session_heartbeat"),
        "heartbeat of an open",
    ),
    "session: heartbeat after its end": Fault(
        when("session_heartbeat", 200, {}, of=refused_as(410)), "heartbeat|410|finished"
    ),
    "model: ids of its own": differing(
        lambda: replaced([(b":train:", b"-model-")]), "Ids or paths"
    ),
    "model: another rank": Fault(changing("get_info", lambda v: v.update(lora_rank=9)), "rank"),
    "runs: older first": Fault(older_run_first, "used first|used last"),
    "operation: get_info missing": Fault(
        lambda: always(404, {"detail": "Not Found"}, "get_info"), "Required operations are missing"
    ),
    "operation: no forward pass": Fault(
        json_without_forward,
        "forward pass without a gradient is missing",
        blames="forward",
        blocks="",
    ),
    "fields: unknown ones refused": differing(
        when("", 422, extra("field_of_tomorrow"), of=sends(b"_of_tomorrow")), "Unknown fields"
    ),
    "fields: a default refused": differing(
        when("create_model", 422, extra("optimizer_config"), of=sends(b"optimizer_config")),
        "Unknown fields",
    ),
    "times: no zone": differing(answering(no_zone), "time"),
    # statuses and refusals
    "statuses: 202 for a submission": differing(
        status(202, 200, "forward_backward"), "status codes"
    ),
    "statuses: 200 for a delete": differing(status(200, 204), "status codes"),
    "statuses: 400 for a conflict": differing(status(400, 409), "status codes"),
    "refusals: error for detail": differing(
        refusing(lambda code, detail: {"error": detail}), '"detail"'
    ),
    "refusals: 422 in words": differing(
        refusing(lambda code, detail: {"detail": "invalid body" if code == 422 else detail}),
        "list of places",
    ),
    "refusals: 500 for unknown ids": Fault(when("", 500, of=asks_for_unknown), "Unknown ids"),
    "refusals: 401 without WWW-Authenticate": differing(
        answering(without_header), "WWW-Authenticate", server="with a key"
    ),
    "refusals: 403 for a wrong key": differing(
        status(403, 401), "status codes", server="with a key"
    ),
    "refusals: 429 without Retry-After": differing(busy_once, "Retry-After"),
    "refusals: unknown request is 400": differing(
        status(400, 404, "retrieve_future"), "status codes"
    ),
    # futures
    "future: no request_id": Fault(
        changing("forward_backward", lambda v: v.pop("request_id")), "request_id"
    ),
    "pending: 202": unheld(pending(202, {"detail": "pending"}), "no result yet"),
    "pending: 404": unheld(pending(404, {"detail": "not ready"}), "no result yet"),
    "pending: 404, as for an unknown request": Fault(
        remembering(not_found_while_pending, polls=1), "no result yet"
    ),
    "pending: 404, for seconds": Fault(
        remembering(not_found_while_pending, polls=12), "no result yet"
    ),
    "pending: another word": unheld(pending(200, {"status": "pending"}), "no result yet"),
    "pending: 202 after 30 s": waiting(pending(202, {}), "no result yet"),
    "pending: 404 after 30 s": waiting(pending(404, {"detail": "not ready"}), "no result yet"),
    "pending: an unknown queue state": waiting(
        pending(200, {**NO_RESULT, "queue_state": "asleep"}),
        "queue_state",
        fails=False,
    ),
    "pending: polls not held": unheld(
        pending(200, NO_RESULT),
        "held",
        fails=False,
    ),
    "results: never there": Fault(
        remembering(never_done),
        "arrive in time",
    ),
    "results: fetched once": Fault(remembering(fetched_once), "fetched only once"),
    "results: octet-stream": Fault(answering(octet_stream), "another media type"),
    "results: protobuf for JSON": Fault(
        lambda: asking("application/x-protobuf, application/json"),
        "as protobuf although only JSON",
    ),
    "results: JSON for protobuf": differing(lambda: asking("application/json"), "protobuf"),
    "results: announced unasked": Fault(announce_to_everyone, "announced", server="announcing"),
    "results: announced with a wrong size": Fault(
        changing(
            "retrieve_future", lambda v: v.update({k: 1 for k in v if k == "response_payload_size"})
        ),
        "announced",
        server="announcing",
    ),
    "results: floats as text": Fault(answering(floats_as_text), "str|text|string"),
    "failures: as status 400": differing(
        failing(lambda v: httpx.Response(400, json={"detail": v["error"]})),
        "status code of the poll",
    ),
    "failures: no category": Fault(
        failing(lambda v: httpx.Response(200, json={"error": v["error"]})), "category"
    ),
    "failures: an unknown category": differing(
        failing(lambda v: httpx.Response(200, json={**v, "category": v["category"].upper()})),
        "category",
    ),
    # numbers of requests
    "numbers: order of arrival": Fault(in_order_of_arrival, NUMBERS),
    "numbers: a repeated loss runs again": Fault(repeats_run, "repeated request"),
    "numbers: a used one accepted": Fault(
        when("", 200, {"request_id": "no-such-request"}, of=uses_number_again), NUMBERS
    ),
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
        remembering(gap_for_ever),
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
    "loss: mean of tokens": Fault(loss_sum(mean_of_tokens), "is a mean"),
    "loss: mean of datums": Fault(
        loss_sum(lambda v, output: v / max(len(output.loss_fn_outputs), 1)), "mean"
    ),
    "loss: other sign": Fault(loss_sum(lambda v, _: -v), "sign"),
    "loss: another name": differing(lambda: results(loss=rename_loss), "loss:sum"),
    "logprobs: shifted": Fault(lambda: each_logprobs(lambda row: np.roll(row, 1)), "shift"),
    "logprobs: float64 read as float32": Fault(lambda: each_logprobs(wide), "another width"),
    "outputs: another order": Fault(
        wrong(forward_backward=reverse), "not in the order of the data"
    ),
    "ppo: not clipped": Fault(unclipped, "`ppo`"),
    "weights: divided by their sum": Fault(wrong(forward_backward=average), "is a mean"),
    # training
    "gradient: only the last": Fault(
        wrong(forward_backward=keep_the_last), "only the last gradient"
    ),
    "gradient: kept after the step": Fault(
        wrong(optim_step=keep_the_gradient), "gradient of the step before it again"
    ),
    "gradient: of a forward pass": Fault(
        wrong(forward_backward=lambda self, loss, *of, backward: loss(*of, backward=True)),
        "forward pass",
    ),
    "gradient: of an unloaded model": Fault(reusing, "gradient of an unloaded one"),
    "step: drifts": Fault(wrong(optim_step=drift), "without a gradient changes the parameters"),
    "step: decays": Fault(wrong(optim_step=decay), "without a gradient changes the parameters"),
    "step: refused without a gradient": differing(wrong(optim_step=demand), "without a gradient"),
    "step: does nothing": Fault(stepless, "step changes nothing"),
    "step: a rate of its own": Fault(
        with_params(lambda params: {"learning_rate": params.learning_rate or 0.1}),
        "learning rate of 0",
    ),
    "step: no clipping": Fault(with_params(lambda _: {"grad_clip_norm": 0.0}), "grad_clip_norm"),
    "seed: of adapters ignored": Fault(unseeded, "seed of an adapter"),
    # samples
    "sample: seed ignored": Fault(ignoring("seed", partial(next, itertools.count(7))), "seed"),
    "sample: stop ignored": Fault(ignoring("stop", []), "stop"),
    "sample: stop token cut off": Fault(lambda: each_sequence(cut_stop), "stop token"),
    "sample: always length": Fault(sequences(reason=lambda _: "length"), "stop"),
    "sample: random at temperature 0": Fault(
        ignoring("temperature", 1.0), "temperature 0|most likely token"
    ),
    "sample: one instead of three": Fault(samples(lambda found: found[:1]), "as many parts"),
    "sample: copies": Fault(
        samples(lambda found: found[:1] * len(found)), "Sequences of one request are the same"
    ),
    "sample: tokens as int64": Fault(
        sequences(tokens=lambda row: wide(row, np.int32, np.int64)), "another width"
    ),
    "sample: logprobs as float64": Fault(sequences(logprobs=wide), "as many parts"),
    "sample: a logprob short": Fault(sequences(logprobs=lambda row: row[:-1]), "as many parts"),
    "sample: too long": Fault(ignoring("max_tokens", 9), "max_tokens|tokens"),
    "sample: no logprobs": differing(sequences(logprobs=lambda _: None), "logprob"),
    "sample: no sequence ids": differing(
        changing("asample", lambda v: v.pop("sample_sequence_ids")), "sample_sequence_ids"
    ),
    "sample: least likely first": Fault(sequences(likeliest=turned), "sorted|best first|likely"),
    "prompt: one value short": Fault(prompt_values(lambda row: row[1:]), "Prompt logprobs"),
    "prompt: shifted": Fault(
        prompt_values(lambda row: np.concatenate([row[:1], np.roll(row[1:], 1)])),
        "prompt are shifted",
    ),
    # checkpoints
    "save: another form of paths": differing(
        lambda: replaced([(b"/weights/conf", b"/checkpoints/conf")]), "Ids or paths"
    ),
    "save: paths of files": differing(
        lambda: replaced([(b"tinker://", b"/srv/checkpoints/")]), "Ids or paths", blocks=OF_PATHS
    ),
    "save: replaces a name": Fault(silent_overwrite, "already done|overwrite|name"),
    "save: metadata lost": Fault(listed(user_metadata=None), "user_metadata"),
    "save: time to live ignored": Fault(listed(expires_at=None), "ttl|live|expires"),
    "list: of a run without the newest": Fault(
        without_newest(of_run=True), "Lists lack a checkpoint"
    ),
    "list: of the user without the newest": Fault(
        without_newest(of_run=False), "Lists lack a checkpoint"
    ),
    "list: bare ids": differing(
        changing(
            "checkpoints",
            lambda v: [
                one.update(checkpoint_id=one["checkpoint_id"].split("/")[-1])
                for one in v["checkpoints"]
            ],
        ),
        "Ids or paths",
    ),
    "list: counts the page": Fault(
        changing(
            "checkpoints",
            lambda v: "cursor" in v and v["cursor"].update(total_count=len(v["checkpoints"])),
        ),
        "cursor|total_count",
    ),
    "info: another base model": Fault(
        changing("weights_info", lambda v: v.update(base_model="other/model")),
        "base model|made from",
    ),
    "publish: twice": Fault(when("publish", 204, of=refused_as(409)), "already done"),
    "archive: a path of the server": Fault(answering(archive_of_a_path), "URL of the archive"),
    "model: one id for all": Fault(
        ignoring("model_seq_id", 1, where="", operation="create_model"),
        "same `request_id`|two models",
    ),
    "future: one id for all": Fault(remembering(one_future), "same `request_id`"),
    "load: weights lost": Fault(wrong(load=load_nothing), "loaded model"),
    "load: optimizer lost": Fault(
        wrong(load=lambda self, load, *of, optimizer: load(*of, optimizer=False)), "optimizer"
    ),
    "sampler: follows the training": Fault(wrong(snapshot=share), "snapshot"),
    "sampler: base model instead": Fault(
        wrong(_start=lambda self, start, job: start(attrs.evolve(job, weights=None))),
        "trained weights|base model|training and sampling",
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
    """The only finding is titled by the cause; the exit code tells wrong work or numbers."""
    fault = FAULTS[name]
    report = check(fault, serve, url)
    found = findings(report)
    titles = [one.title for one in found]
    assert found, "nothing is found"
    assert re.search(fault.cause, titles[0], re.IGNORECASE), titles
    assert len(found) == 1, titles
    assert report.passed() is not fault.fails, titles
    if fault.blocks is not None:
        assert {row.check for row in report.checks if row.outcome is Outcome.BLOCKED} == {
            *fault.blocks.split()
        }
    if fault.blames is not None:
        assert {
            op for op, worst in report.operations.items() if worst is Outcome.CONTRADICTION
        } == {*fault.blames.split()}


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
    """Where alternatives of sampled tokens are refused, they are absent, and nothing is blocked."""

    option = "topk_sample_logprobs"
    older = when(
        "asample", 422, extra(option), of=lambda request, _: bool(read(request.content).get(option))
    )
    report = run(url("usual"), transport=older(), clock=Stepped().clock, only=("sampling.*",))
    assert findings(report) == ()
    outcomes = {row.check: row.outcome for row in report.checks}
    assert outcomes["sampling.likeliest"] is Outcome.ABSENT
    assert outcomes["sampling.stop_tokens"] is Outcome.SUPPORTED
