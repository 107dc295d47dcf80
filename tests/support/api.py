"""A server in this process, driven through its ASGI interface: no socket, no sleep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

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

    def refuses(
        self, status: int, words: str, operation: str, body: object = None, **options: Any
    ) -> Any:
        """Return the detail of an exchange that must fail with this status, and say these words."""
        code, detail = self.refused(operation, body, **options)
        assert code == status, detail
        assert words in str(detail)
        return detail

    def get(self, url: str, method: str = "GET", **options: Any) -> httpx.Response:
        """Exchange a request for an address that no operation has, such as a link or a page."""
        return self.runner.run(self.client.request(method, url, **options))

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

    def results(self, futures: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Return the result of each request."""
        return [self.result(one) for one in futures]

    def metrics(self, future: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics of a loss or step."""
        metrics: dict[str, float] = self.result(future)["metrics"]
        return metrics

    def failure(self, future: Mapping[str, Any]) -> tuple[str, str]:
        """Return category and text of a request that must have failed."""
        body = self.result(future)
        return body["category"], body["error"]

    def fails(self, words: str, future: Mapping[str, Any], category: str = "user") -> str:
        """Return the text of a request that must have failed, by this fault, and say these words."""
        found, error = self.failure(future)
        assert found == category, error
        assert words in error
        return error

    def wait(self, future: Mapping[str, Any]) -> None:
        """Wait until the request is finished, whatever ``hold_seconds`` is."""
        self.runner.run(self.state.futures.find(future["request_id"]).wait())

    def has_outcome(self, future: Mapping[str, Any]) -> bool:
        """Return whether the request is finished, without waiting."""
        return self.runner.run(self.state.futures.find(future["request_id"]).wait(0)) is not None

    def session(self, **fields: Any) -> str:
        return self.ok("create_session", {"tags": [], "sdk_version": "0", **fields})["session_id"]

    def finish(self, session: str, reason: str = "success") -> None:
        body = {"reason": {"type": reason}, "detail": None}
        self.ok("finish_session", body, session_id=session)

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

    def begin(self, **fields: Any) -> tuple[str, str]:
        """Return a new session, and a model in it that is ready for its request number 1."""
        session = self.session()
        return session, self.model(session, **fields)

    def create_model(self, session: str, number: int = 0, **fields: Any) -> Any:
        lora = {"rank": 4, "seed": 1}
        return self.ok(
            "create_model", model_body(session, number, **{"lora_config": lora, **fields})
        )

    def loss(self, model: str, seq_id: int, **fields: Any) -> Any:
        """Submit a forward_backward of one small datum."""
        return self.ok("forward_backward", loss_body(model, seq_id, **fields))

    def step(self, model: str, seq_id: int, **params: float) -> Any:
        return self.ok("optim_step", step_body(model, seq_id, **params))

    def save(self, model: str, seq_id: int, name: str | None, **fields: Any) -> Any:
        return self.ok(
            "save_weights", {"model_id": model, "seq_id": seq_id, "path": name, **fields}
        )

    def saved(self, model: str, seq_id: int, name: str | None, **fields: Any) -> str:
        """Save weights to train from, and return their path."""
        return self.result(self.save(model, seq_id, name, **fields))["path"]

    def save_sampler(self, model: str, seq_id: int | None = None, **fields: Any) -> Any:
        numbered = {} if seq_id is None else {"seq_id": seq_id}
        return self.ok("save_weights_for_sampler", {"model_id": model, **numbered, **fields})

    def load(self, path: str, **target: Any) -> Any:
        """Submit a load into a model, or into a new one: ``session_id`` and ``model_seq_id``."""
        return self.ok("load_weights", {"path": path, "optimizer": True, **target})

    def sampler(self, session: str, number: int = 0, **source: str) -> str:
        body = sampler_body(session, number, **source)
        return self.ok("create_sampling_session", body)["sampling_session_id"]

    def sample(self, sampler: str | None, seq_id: int = 0, **fields: Any) -> Any:
        return self.ok("asample", sample_body(sampler, seq_id, **fields))

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.run(self.state.aclose())
        self.runner.close()


MakeApi: TypeAlias = Callable[..., Api]


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


def model_body(session: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    base = {"session_id": session, "model_seq_id": number, "base_model": "tinker/toy"}
    return {**base, **fields}


def sampler_body(session: str, number: int = 0, **source: str) -> dict[str, Any]:
    what = source or {"base_model": "tinker/toy"}
    return {"session_id": session, "sampling_session_seq_id": number, **what}


def step_body(model: str, seq_id: int, **params: float) -> dict[str, Any]:
    return {"model_id": model, "seq_id": seq_id, "adam_params": params}


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


def occupied(
    make_api: MakeApi, engine: GatedEngine | None = None, **settings: Any
) -> tuple[Api, Any, Any]:
    """Return a server whose engine is in the middle of a loss until its gate opens, the engine, and
    the future of the loss.
    """
    gated = engine or CountingEngine()
    api = make_api(gated, **settings)
    future = api.loss(api.model(), 1)
    assert gated.entered.wait(30)
    return api, gated, future
