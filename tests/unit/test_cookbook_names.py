"""The names and values that tinker-cookbook and its tests use without a server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
from typing import Any
from unittest.mock import MagicMock

import httpx
import numpy as np
import pytest

import tinker
from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

TEXT = types.ModelInput.from_ints([1, 2])
SPAN = types.PromptProvenanceSpan(sequence_id="a", offset=1, length=2)


@pytest.mark.parametrize(
    ("module", "name", "same"),
    [
        ("tinker.lib.public_interfaces", "APIFuture", tinker.APIFuture),
        ("tinker.lib.public_interfaces.rest_client", "RestClient", tinker.RestClient),
        ("tinker.types.tensor_data", "TensorData", tinker.TensorData),
        ("tinker.types.image_chunk", "ImageChunk", types.ImageChunk),
        *(
            ("tinker.types", name, getattr(tinker, name))
            for name in (
                "AdamParams", "Datum", "EncodedTextChunk", "ForwardBackwardOutput", "ModelInput", "ModelInputChunk",
                "OptimStepResponse", "ParsedCheckpointTinkerPath", "PromptProvenanceSpan", "SampledProvenanceSpan",
                "SampledSequence", "SampleResponse", "SamplingParams", "StopReason", "TensorData",
            )
        ),
    ],
)  # fmt: skip
def test_paths(module: str, name: str, same: object) -> None:
    """A name is the same object under each of its paths."""
    assert getattr(importlib.import_module(module), name) is same


@pytest.mark.parametrize(
    "name",
    ["AuditLogEntry", "AuditLogResponse", "DmelChunk", "ExternalWeightsUrlsResponse", "ImageAssetPointerChunk", "ImageChunk",
     "LossFnType", "SaveWeightsExternalResponse"],
)  # fmt: skip
def test_names_of_types_alone(name: str) -> None:
    """Some names exist only in ``tinker.types``."""
    assert getattr(types, name)


def test_annotations_at_run_time() -> None:
    """Types can be subscripted and joined while modules are imported."""
    assert list[types.ModelInputChunk]
    assert types.PromptProvenanceSpan | types.SampledProvenanceSpan
    assert tinker.APIFuture[tinker.ForwardBackwardOutput]
    assert AwaitableConcurrentFuture[int]


def test_replaced_datum() -> None:
    """``dataclasses.replace`` of a datum keeps its tensors and spans."""
    inputs = {"target_tokens": [2, 3], "mask": np.ones(2, np.float32)}
    datum = types.Datum(TEXT, inputs).with_provenance([SPAN], [SPAN])  # type: ignore[arg-type]
    without = dataclasses.replace(
        datum, loss_fn_inputs={"target_tokens": datum.loss_fn_inputs["target_tokens"]}
    )
    assert without.loss_fn_inputs["target_tokens"] is datum.loss_fn_inputs["target_tokens"]
    assert (without.model_input, without.model_input_spans, without.loss_fn_input_spans) == (
        TEXT,
        [SPAN],
        [SPAN],
    )


def test_replaced_spans() -> None:
    """Spans can be moved by ``dataclasses.replace``, are validated, and compared by value."""
    moved = dataclasses.replace(SPAN, offset=SPAN.offset + 1, length=SPAN.length - 1)
    assert moved == types.PromptProvenanceSpan(sequence_id="a", offset=2, length=1)
    assert moved != types.SampledProvenanceSpan(sequence_id="a", offset=2, length=1)
    with pytest.raises(ValueError, match="length"):
        dataclasses.replace(SPAN, length=-1)


def test_as_dataclasses() -> None:
    """The functions of ``dataclasses`` read values: their fields, defaults and contents."""
    fields = {field.name: field for field in dataclasses.fields(types.PromptProvenanceSpan)}
    assert list(fields) == ["sequence_id", "offset", "length"]
    assert (fields["offset"].default, fields["length"].default, fields["length"].kw_only) == (
        0,
        dataclasses.MISSING,
        True,
    )
    assert dataclasses.asdict(SPAN) == {"sequence_id": "a", "offset": 1, "length": 2}
    assert dataclasses.fields(types.Datum)[1].default_factory() == {}  # type: ignore[misc]
    assert not dataclasses.is_dataclass(tinker.TrainingClient)


def test_inputs_keep_their_chunks() -> None:
    """Chunks of an input are the given objects, in a new list."""
    chunks: list[types.ModelInputChunk] = [
        types.EncodedTextChunk(tokens=[1]),
        types.ImageChunk(data=b"", format="png"),
    ]
    value = types.ModelInput(chunks=chunks)
    chunks.clear()
    assert [type(chunk).__name__ for chunk in value.chunks] == ["EncodedTextChunk", "ImageChunk"]
    longer = types.ModelInput.empty().append(value.chunks[0]).append_int(2)
    assert longer.chunks[0] is value.chunks[0]
    assert len(longer.chunks) == 2


def test_errors_by_hand() -> None:
    """An error can be created from a real response, and has the given message."""
    response = httpx.Response(400, request=httpx.Request("POST", "http://server"))
    error = tinker.BadRequestError("too long", response=response, body=None)
    assert (str(error), error.status_code, error.body) == ("too long", 400, None)


def test_error_families() -> None:
    """Handlers may go from specific to general exceptions."""
    assert issubclass(tinker.APITimeoutError, tinker.APIConnectionError)
    for kind in (
        tinker.AuthenticationError,
        tinker.RateLimitError,
        tinker.BadRequestError,
        tinker.APIConnectionError,
    ):
        assert issubclass(kind, tinker.TinkerError)
    assert not issubclass(tinker.BadRequestError, tinker.APIConnectionError)


def test_futures_by_hand() -> None:
    """Any ``concurrent.futures.Future`` can be wrapped and awaited, and be had again."""
    source: concurrent.futures.Future[int] = concurrent.futures.Future()
    source.set_result(7)
    future = AwaitableConcurrentFuture[int](source)

    async def both() -> list[int]:
        return [await future, await future.coroutine(), await future.result_async(timeout=5)]

    assert asyncio.run(both()) == [7, 7, 7]
    assert future.result(timeout=5) == future.future().result() == 7
    assert isinstance(future, tinker.APIFuture)


KNOWN_TO_TRACES = {
    tinker.TrainingClient: {
        "forward", "forward_backward", "forward_backward_custom", "get_info", "optim_step", "save_state", "create_sampling_client",
        "save_weights_for_sampler", "save_weights_external", "save_weights_and_get_sampling_client", "load_state",
        "load_state_with_optimizer",
    },
    tinker.SamplingClient: {"sample", "compute_logprobs", "get_base_model"},
}  # fmt: skip


@pytest.mark.parametrize("client", KNOWN_TO_TRACES)
def test_methods_that_traces_replace(client: type) -> None:
    """The methods that return a Future are those that the cookbook knows, of the class itself."""
    found = {
        name
        for name, value in vars(client).items()
        if inspect.isfunction(value) and not name.startswith("_") and not name.endswith("_async")
        and ("Future" in str(inspect.signature(value).return_annotation) or name in ("get_info", "get_base_model"))
    }  # fmt: skip
    assert found <= KNOWN_TO_TRACES[client]
    for name in KNOWN_TO_TRACES[client]:
        assert inspect.isfunction(vars(client)[name])
        assert not inspect.iscoroutinefunction(vars(client)[name])


@pytest.mark.parametrize(
    ("client", "name"),
    [
        (tinker.SamplingClient, "sample_async"),
        (tinker.TrainingClient, "forward_backward_async"),
        (tinker.TrainingClient, "optim_step_async"),
        (tinker.TrainingClient, "save_weights_for_sampler_async"),
    ],
)
def test_twins_that_captures_replace(client: type, name: str) -> None:
    """Async twins are coroutine functions, whose wrappers have their name and signature."""
    twin = getattr(client, name)

    @functools.wraps(twin)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await twin(*args, **kwargs)

    wrapper.seen = True  # type: ignore[attr-defined]
    assert inspect.iscoroutinefunction(twin)
    assert (wrapper.__name__, inspect.signature(wrapper)) == (name, inspect.signature(twin))


def test_specifications() -> None:
    """A mock with a client as its spec has the methods of the client, and no others."""
    mock = MagicMock(spec=tinker.SamplingClient)
    assert mock.sample
    assert mock.get_base_model
    with pytest.raises(AttributeError):
        mock.sampel  # noqa: B018
