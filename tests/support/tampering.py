"""Ways to a server that change something; time that passes only in sleeps; wrong engines."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import httpx

from tinker import types
from tinker._wire import json as wire_json
from tinker._wire import proto
from tinker.local.engines import toy
from tinker.testing import faults
from tinker.testing.conformance.connection import KitClock
from tinker.wire import unpack_body

Answer = Callable[[httpx.Request, httpx.Response], httpx.Response]


class Tampering(httpx.BaseTransport):
    """The way to a server, on which requests and answers are changed."""

    def __init__(
        self,
        answer: Answer = lambda request, response: response,
        request: Callable[[httpx.Request], httpx.Request] = lambda request: request,
    ) -> None:
        self._inner = httpx.HTTPTransport()
        self._answer, self._request = answer, request

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        changed = self._request(request)
        response = self._inner.handle_request(changed)
        response.read()
        return self._answer(request, response)

    def close(self) -> None:
        self._inner.close()


def is_of(request: httpx.Request, operation: str) -> bool:
    """Whether a request is for this address, by its end."""
    return request.url.path.endswith(f"/{operation}")


def operation_of(request: httpx.Request) -> str:
    """Return the operation of a request; method and path of one outside the contract."""
    return faults.operation_of(request.method, request.url.path)


def media_type(message: httpx.Request | httpx.Response) -> str:
    return str(message.headers.get("content-type", ""))


def edited(response: httpx.Response, content: bytes, status: int = 0) -> httpx.Response:
    """Return the same response with another body, or another status."""
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return httpx.Response(status or response.status_code, headers=headers, content=content)


def with_content(request: httpx.Request, content: bytes) -> httpx.Request:
    """Return the same request with another body."""
    left_out = {"content-length", "content-encoding"}
    headers = {name: value for name, value in request.headers.items() if name not in left_out}
    return httpx.Request(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )


def with_fields(request: httpx.Request, **fields: Any) -> httpx.Request:
    """Return the same request with other fields in its JSON."""
    return with_content(request, json.dumps({**json.loads(request.content), **fields}).encode())


def body(operation: str, change: Callable[[dict[str, Any]], object]) -> Tampering:
    """Change the JSON of an operation's successful answers."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if (
            not is_of(request, operation)
            or not response.is_success
            or "json" not in media_type(response)
        ):
            return response
        value = response.json()
        change(value)
        return httpx.Response(response.status_code, json=value)

    return Tampering(answer)


def head(
    operation: str, status: int | None = None, media_type: str = "application/json"
) -> Tampering:
    """Change status or media type of an operation's answers."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not is_of(request, operation):
            return response
        return httpx.Response(
            status or response.status_code,
            headers={"content-type": media_type},
            content=response.content,
        )

    return Tampering(answer)


def always(status: int, value: object, path: str = "retrieve_future", **headers: str) -> Tampering:
    """Answers one operation always the same."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if request.url.path.endswith(path):
            return httpx.Response(status, json=value, headers=headers)
        return response

    return Tampering(answer)


def asking(accept: str) -> Tampering:
    """Ask for results in one form, as a server answers that does not look at what is asked for."""

    def asked(request: httpx.Request) -> httpx.Request:
        if is_of(request, "retrieve_future"):
            request.headers["accept"] = accept
        return request

    return Tampering(request=asked)


def results(
    loss: Callable[[types.ForwardBackwardOutput], types.ForwardBackwardOutput] = lambda output: (
        output
    ),
    sample: Callable[
        [types.SampleResponse, dict[str, Any]], types.SampleResponse
    ] = lambda response, request: response,
) -> Tampering:
    """Change the results of losses and of samples in both forms; those of samples by request."""
    asked: dict[str, httpx.Request] = {}

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not response.is_success:
            return response
        if not is_of(request, "retrieve_future"):
            if (
                "json" in media_type(response)
                and isinstance(value := response.json(), dict)
                and "request_id" in value
            ):
                asked[value["request_id"]] = request
            return response
        submitted = asked.get(json.loads(request.content)["request_id"])
        is_protobuf = media_type(response) == proto.MEDIA_TYPE
        if submitted is None or (
            not is_protobuf and not {"loss_fn_outputs", "sequences"} & response.json().keys()
        ):
            return response
        if is_of(submitted, "asample"):
            content = sampled(
                response.content, json.loads(submitted.content), is_protobuf=is_protobuf
            )
        else:
            content = computed(response.content, is_protobuf=is_protobuf)
        return httpx.Response(200, headers={"content-type": media_type(response)}, content=content)

    def computed(content: bytes, *, is_protobuf: bool) -> bytes:
        if is_protobuf:
            return proto.encode_loss_output(loss(proto.decode_loss_output(content)))
        read = wire_json.public_loss_output(
            wire_json.decode(content, wire_json.models.ForwardBackwardOutput)
        )
        return wire_json.encode(wire_json.wire_loss_output(loss(read)))

    def sampled(content: bytes, request: dict[str, Any], *, is_protobuf: bool) -> bytes:
        if is_protobuf:
            return proto.encode_sample(sample(proto.decode_sample(content), request))
        read = wire_json.public_sample(wire_json.decode(content, wire_json.models.SampleResponse))
        return wire_json.encode(wire_json.wire_sample(sample(read, request)))

    return Tampering(answer)


def each_sequence(
    change: Callable[[types.SampledSequence, dict[str, Any]], types.SampledSequence],
) -> Tampering:
    """Change every sequence of a sample, by the request."""
    return results(
        sample=lambda response, request: attrs.evolve(
            response, sequences=[change(one, request) for one in response.sequences]
        )
    )


def each_logprobs(
    change: Callable[[Any], Any], metrics: Callable[[dict[str, float]], dict[str, float]] = dict
) -> Tampering:
    """Change the logprobs of each datum of a loss."""

    def changed(output: types.ForwardBackwardOutput) -> types.ForwardBackwardOutput:
        rows = [
            {
                **fields,
                "logprobs": types.TensorData.from_numpy(change(fields["logprobs"].to_numpy())),
            }
            for fields in output.loss_fn_outputs
        ]
        return attrs.evolve(output, loss_fn_outputs=rows, metrics=metrics(output.metrics))

    return results(loss=changed)


def loss_call(request: httpx.Request) -> proto.ForwardBackwardCall | None:
    """Return a loss that is asked for in protobuf; None for anything else."""
    if media_type(request) != proto.MEDIA_TYPE:
        return None
    try:
        return proto.decode_forward_backward(
            unpack_body(request.content, request.headers.get("content-encoding", ""))
        )
    except ValueError:
        return None


def encoded(call: proto.ForwardBackwardCall, number: int, run: str = "") -> bytes:
    """Return the body of a loss under another number, or of another run."""
    parts = proto.encode_forward_backward(
        run or call.model_id,
        number,
        call.data,
        call.loss_fn,
        call.loss_fn_config,
        forward_only=call.forward_only,
    )
    return b"".join(parts)


def renumbered(number_of: Callable[[str, int, bytes], int]) -> Tampering:
    """Number training requests otherwise: by the run, the number, and the body without it."""

    def changed(request: httpx.Request) -> httpx.Request:
        if call := loss_call(request):
            return with_content(
                request, encoded(call, number_of(call.model_id, call.seq_id, encoded(call, 1)))
            )
        value = read(request.content)
        if (
            not isinstance(value, dict)
            or not value.keys() >= {"seq_id", "model_id"}
            or not isinstance(value["seq_id"], int)
        ):
            return request
        plain = json.dumps({**value, "seq_id": 1}).encode()
        return with_fields(request, seq_id=number_of(value["model_id"], value["seq_id"], plain))

    return Tampering(request=changed)


def read(content: bytes) -> Any:
    """Return the JSON of a body; None for anything else."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def replaced(pairs: Sequence[tuple[bytes, bytes]]) -> Tampering:
    """Write something else in every response, and back again in every request."""

    def swap(content: bytes, back: bool) -> bytes:
        for own, other in pairs:
            content = content.replace(*((other, own) if back else (own, other)))
        return content

    def asked(request: httpx.Request) -> httpx.Request:
        url = request.url.copy_with(raw_path=swap(request.url.raw_path, True))
        headers = {
            name: value for name, value in request.headers.items() if name != "content-length"
        }
        call = loss_call(request)
        content = (
            encoded(call, call.seq_id, swap(call.model_id.encode(), True).decode())
            if call
            else swap(request.content, True)
        )
        return httpx.Request(
            request.method, url, headers=headers, content=content, extensions=request.extensions
        )

    def answered(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if "json" not in media_type(response):
            return response
        return edited(response, swap(response.content, False))

    return Tampering(answered, asked)


# --------------------------------------------------------------------------------------------- time


class Stepped:
    """Time that passes only in sleeps, in which those who wait for an event act in time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clock = KitClock(
            monotonic=lambda: self.now, sleep=self.sleep, event=lambda: SteppedEvent(self)
        )
        self.changed = threading.Condition()
        self.acting = 0  # threads that wait for events, while they do not
        self.due: list[float] = []

    def sleep(self, seconds: float) -> None:
        with self.changed:
            until = self.now + seconds
            self._let_them_act()
            while self.due and min(self.due) <= until:
                self.now = max(self.now, min(self.due))
                self.changed.notify_all()
                assert self.changed.wait_for(
                    lambda: not any(due <= self.now for due in self.due), 30
                )
                self._let_them_act()
            self.now = until

    def _let_them_act(self) -> None:
        assert self.changed.wait_for(lambda: self.acting == 0, 30), (
            "somebody who was woken waits no more"
        )


class SteppedEvent(threading.Event):
    """An event of a thread that does nothing but wait for it and act."""

    def __init__(self, time: Stepped) -> None:
        super().__init__()
        self._time = time
        with time.changed:
            time.acting += 1

    def set(self) -> None:
        with self._time.changed:
            super().set()
            self._time.changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        time, due = self._time, self._time.now + (timeout or 0.0)
        with time.changed:
            time.due.append(due)
            time.acting -= 1
            time.changed.notify_all()
            time.changed.wait_for(lambda: self.is_set() or time.now >= due)
            time.due.remove(due)
            time.acting += 0 if self.is_set() else 1
            time.changed.notify_all()
            return self.is_set()


def engine(**methods: Callable[..., Any]) -> toy.ToyEngine:
    """Return an engine with other methods: each gets the engine, its own method, and arguments."""
    made = toy.ToyEngine(vocabulary=512)
    for name, method in methods.items():
        setattr(made, name, partial(method, made, getattr(made, name)))
    return made


def stepless() -> toy.ToyEngine:
    """Return an engine that says that it stepped."""
    return engine(optim_step=lambda *_: {})


def unclipped() -> toy.ToyEngine:
    """Return an engine that takes ppo for importance_sampling."""

    def loss(self: Any, do: Any, run: str, data: Any, name: str, config: Any, **how: Any) -> Any:
        if name == "ppo":
            name, config = "importance_sampling", {}
        return do(run, data, name, config, **how)

    return engine(forward_backward=loss)


def unseeded() -> toy.ToyEngine:
    """Return an engine that begins every adapter with a seed of its own."""
    seeds = itertools.count(1000)

    def create(self: Any, do: Any, run: str, spec: Any) -> None:
        do(run, attrs.evolve(spec, seed=next(seeds)))

    return engine(create_adapter=create)


def reusing() -> toy.ToyEngine:
    """Return an engine that gives a new adapter the gradient of one that was unloaded."""
    left: list[Any] = []

    def drop(self: Any, do: Any, run: str) -> None:
        if (adapter := self._adapters.get(run)) is not None and adapter.gradient is not None:
            left.append(adapter.gradient)
        do(run)

    def create(self: Any, do: Any, run: str, spec: Any) -> None:
        do(run, spec)
        if left:
            self._adapters[run].gradient = left.pop()

    return engine(drop_adapter=drop, create_adapter=create)
