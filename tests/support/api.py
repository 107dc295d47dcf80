"""A server in this process, driven through its ASGI interface: no socket, no sleep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from tinker_wire.operations import OPERATIONS

from tinker.local.app import create_app
from tinker.local.engines.protocol import (
    AdapterSpec,
    EngineError,
    LossResult,
    SampleJob,
    SampleResult,
    TrainingExample,
)
from tinker.local.engines.toy import ToyEngine
from tinker.local.state import SharedData, State

PROTO = {"accept": "application/x-protobuf"}


class Api:
    """A client of one server: calls operations by their id and waits for results."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.runner = asyncio.Runner()
        transport = httpx.ASGITransport(create_app(state))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://server")

    @property
    def shared(self) -> SharedData:
        """The state guarded by the server's lock; nothing else runs while a test inspects it."""
        with self.state.lock() as shared:
            return shared

    async def acall(
        self,
        operation: str,
        body: object = None,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        **path: str,
    ) -> httpx.Response:
        """Exchange one request and response on the running loop."""
        row = OPERATIONS[operation]
        return await self.client.request(
            row.method,
            row.path.format(**path),
            json=body if content is None else None,
            content=content,
            headers=headers,
            params=query,
        )

    def call(self, operation: str, body: object = None, **options: Any) -> httpx.Response:
        """Exchange one request and response."""
        return self.runner.run(self.acall(operation, body, **options))

    def ok(self, operation: str, body: object = None, **options: Any) -> Any:
        """Return the body of an exchange that must succeed."""
        answer = self.call(operation, body, **options)
        assert answer.status_code in (200, 204), answer.text
        return answer.json() if answer.content else None

    def refused(self, operation: str, body: object = None, **options: Any) -> tuple[int, Any]:
        """Return status and detail of an exchange that must fail."""
        answer = self.call(operation, body, **options)
        assert answer.status_code >= 400, answer.text
        return answer.status_code, answer.json()["detail"]

    def retrieve(
        self, future: Mapping[str, Any], *, metadata: bool = False, **options: Any
    ) -> httpx.Response:
        """Poll once, as today's clients do."""
        body = {"request_id": future["request_id"], "allow_metadata_only": metadata}
        return self.call("retrieve_future", body, **options)

    def result(self, future: Mapping[str, Any]) -> Any:
        """Return the result as JSON; fail when there is none yet."""
        answer = self.retrieve(future)
        assert answer.status_code == 200, answer.text
        assert answer.json().get("type") != "try_again", answer.text
        return answer.json()

    def failure(self, future: Mapping[str, Any]) -> tuple[str, str]:
        """Return category and text of a request that must have failed."""
        body = self.result(future)
        return body["category"], body["error"]

    def wait(self, future: Mapping[str, Any]) -> None:
        """Wait until the request is finished, whatever ``hold_seconds`` is."""
        self.runner.run(self.state.futures.find(future["request_id"]).wait())

    def has_outcome(self, future: Mapping[str, Any]) -> bool:
        """Return whether the request is finished, without waiting."""
        return self.runner.run(self.state.futures.find(future["request_id"]).wait(0)) is not None

    def session(self, **fields: Any) -> str:
        return self.ok("create_session", {"tags": [], "sdk_version": "0", **fields})["session_id"]

    def report(self, model: str, *metrics: dict[str, Any]) -> None:
        """Report metrics of a run, an event for each dictionary."""
        event = {
            "event": "GENERIC_EVENT",
            "severity": "INFO",
            "timestamp": "2026-01-02T03:04:05Z",
            "event_name": "metrics",
        }
        told = [{**event, "event_data": {"training_run_id": model, **one}} for one in metrics]
        events = [
            {**one, "event_id": str(at), "event_session_index": at} for at, one in enumerate(told)
        ]
        about = {
            "platform": "p",
            "sdk_version": "1",
            "session_id": model.partition(":")[0],
            "process_uuid": "u",
        }
        self.ok("telemetry", {"events": events, **about})

    def model(self, session: str | None = None, number: int = 0, **fields: Any) -> str:
        """Create a model that is ready for its request number 1."""
        return self.result(self.create_model(session or self.session(), number, **fields))[
            "model_id"
        ]

    def create_model(self, session: str, number: int = 0, **fields: Any) -> Any:
        base = {"session_id": session, "model_seq_id": number, "base_model": "tinker/toy"}
        return self.ok("create_model", {**base, "lora_config": {"rank": 4, "seed": 1}, **fields})

    def loss(self, model: str, seq_id: int, **fields: Any) -> Any:
        """Submit a forward_backward of one small datum."""
        return self.ok("forward_backward", loss_body(model, seq_id, **fields))

    def step(self, model: str, seq_id: int, **params: float) -> Any:
        return self.ok("optim_step", {"model_id": model, "seq_id": seq_id, "adam_params": params})

    def save(self, model: str, seq_id: int, name: str | None, **fields: Any) -> Any:
        return self.ok(
            "save_weights", {"model_id": model, "seq_id": seq_id, "path": name, **fields}
        )

    def sampler(self, session: str, number: int = 0, **source: str) -> str:
        body = {
            "session_id": session,
            "sampling_session_seq_id": number,
            **(source or {"base_model": "tinker/toy"}),
        }
        return self.ok("create_sampling_session", body)["sampling_session_id"]

    def sample(self, sampler: str | None, seq_id: int = 0, **fields: Any) -> Any:
        return self.ok("asample", sample_body(sampler, seq_id, **fields))

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.run(self.state.aclose())
        self.runner.close()


def datum(tokens: list[int], targets: list[int], **inputs: list[float]) -> dict[str, Any]:
    """Return a datum as JSON, the way today's clients write it."""
    tensors = {"target_tokens": {"data": targets, "dtype": "int64", "shape": [len(targets)]}}
    tensors |= {
        name: {"data": values, "dtype": "float32", "shape": [len(values)]}
        for name, values in inputs.items()
    }
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
        "loss_fn_inputs": tensors,
    }


def loss_body(model: str, seq_id: int, **fields: Any) -> dict[str, Any]:
    what = {"data": [datum([104, 101], [101, 108])], "loss_fn": "cross_entropy", **fields}
    return {"forward_backward_input": what, "model_id": model, "seq_id": seq_id}


def sample_body(sampler: str | None, seq_id: int = 0, **fields: Any) -> dict[str, Any]:
    params = {"max_tokens": 4, "seed": 7, **fields.pop("params", {})}
    prompt = {"chunks": [{"type": "encoded_text", "tokens": fields.pop("tokens", [104, 105])}]}
    return {
        "prompt": prompt,
        "sampling_params": params,
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        **fields,
    }


def node(op: str, name: str, target: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """One node of a traced loss."""
    return {"op": op, "name": name, "target": target, "args": list(args), "kwargs": kwargs}


def custom_loss_body(session: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a traced loss: minus the sum of the log-probabilities times ``weights``."""
    nodes = [
        node("placeholder", "logprobs", "logprobs"),
        node("placeholder", "weights", "weights"),
        node("call_function", "mul", "operator.mul", {"ref": "logprobs"}, {"ref": "weights"}),
        node("call_method", "sum_1", "sum", {"ref": "mul"}, dim={"tuple": [0]}),
        node("call_function", "neg", "operator.neg", {"ref": "sum_1"}),
        node(
            "output",
            "output",
            "output",
            {"tuple": [{"ref": "neg"}, {"dict": {"custom/nll:sum": {"ref": "neg"}}}]},
        ),
    ]
    return {
        "session_id": session,
        "custom_loss_seq_id": number,
        "name": "nll",
        "inputs": [{"name": "logprobs", "rank": 1}, {"name": "weights", "rank": 1}],
        "graph": {"format": 1, "nodes": nodes},
        **fields,
    }


class Clock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class FullEngine(ToyEngine):
    """Has no room for adapters of rank 13."""

    def __init__(self, **options: Any) -> None:
        super().__init__(vocabulary=512, **options)

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        if spec.rank == 13:
            raise EngineError("there is no room for rank 13")
        super().create_adapter(adapter_id, spec)


class GatedEngine(FullEngine):
    """Losses wait until the gate is opened; ``order`` lists the adapters they were computed for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate, self.entered, self.order = threading.Event(), threading.Event(), list[str]()

    def forward_backward(
        self, adapter_id: str, data: Any, loss_fn: str, config: Any, *, backward: bool
    ) -> LossResult:
        self.entered.set()
        assert self.gate.wait(30)
        self.order.append(adapter_id)
        return super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)


class FolderEngine(ToyEngine):
    """A model that was loaded from a directory, as ``path`` names it."""

    def __init__(self, path: Path) -> None:
        super().__init__(vocabulary=512, base_model=path.name)
        self.aliases = frozenset({str(path)})
        self.tokenizer_id = str(path)


class RecordingEngine(ToyEngine):
    """An engine that records what was computed: the first token of every loss, and ``step``."""

    def __init__(self) -> None:
        super().__init__(vocabulary=512)
        self.order: list[int | str] = []

    def forward_backward(
        self, adapter_id: str, data: Any, loss_fn: str, config: Any, *, backward: bool
    ) -> LossResult:
        examples: list[TrainingExample] = list(data)
        self.order.append(int(examples[0].tokens[0]))
        return super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        self.order.append("step")
        return super().optim_step(adapter_id, params)


class CountingEngine(GatedEngine):
    """Counts the jobs that were sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.sampled = 0

    def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
        self.sampled += len(jobs)
        return super().sample(jobs)


MakeApi = Callable[..., Api]
