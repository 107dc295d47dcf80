"""Values as plain data and back: dumps, copies and JSON, of records and our own types."""

from __future__ import annotations

import json
import typing
from typing import Any

import numpy as np
import pytest
from tinker_wire import models

import tinker
from tinker import types

TEXT = types.ModelInput.from_ints([1, 2, 3])
IMAGE = types.ImageChunk(data=b"abc", format="png")
DATUM = types.Datum(
    model_input=TEXT, loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [0.5, 1.0, 1.0]}
)  # type: ignore[dict-item]
SPANS = [
    types.PromptProvenanceSpan(sequence_id="a", length=1),
    types.SampledProvenanceSpan(sequence_id="a", length=2),
]
SEQUENCE = types.SampledSequence(
    stop_reason="stop",
    sequence_id="q",
    tokens=[1, 2],
    logprobs=[-0.5, -0.25],
    topk_logprobs_np=types.TopkLogprobs.from_rows([[(1, -0.5), (2, -1.0)], None]),
)
RESPONSE = types.SampleResponse(
    sequences=[SEQUENCE],
    prompt_logprobs_np=np.asarray([np.nan, -1.5], np.float32),
    prompt_alt_tokens=types.PromptAltTokens(
        tokens=types.TensorData([7], "int64", [1, 1]),
        logprobs=types.TensorData([-1.0], "float32", [1, 1]),
    ),
)
OUTPUT = types.ForwardBackwardOutput(
    "ArrayRecord", [{"logprobs": types.TensorData([-1.0], "float32")}], {"loss:sum": 1.0}
)

DUMPS: list[tuple[Any, dict[str, Any]]] = [
    (TEXT, {"chunks": [{"tokens": [1, 2, 3], "type": "encoded_text"}]}),
    (IMAGE, {"data": "YWJj", "format": "png", "expected_tokens": None, "type": "image"}),
    (types.DmelChunk(dmel=b"hi"), {"dmel": "aGk=", "type": "dmel"}),
    (
        types.ImageAssetPointerChunk(format="jpeg", location="x", expected_tokens=3),
        {"format": "jpeg", "location": "x", "expected_tokens": 3, "type": "image_asset_pointer"},
    ),
    (
        types.LoraConfig(rank=8),
        {"rank": 8, "seed": None, "train_unembed": True, "train_mlp": True, "train_attn": True},
    ),
    (
        types.DimuonParams(learning_rate=0.1),
        {"type": "dimuon", "learning_rate": 0.1, "grad_clip_norm": 0.0, "beta1": 0.9},
    ),
    (
        types.TensorData([1, 2], "int64", [1, 2]),
        {
            "data": [1, 2],
            "dtype": "int64",
            "shape": [1, 2],
            "sparse_crow_indices": None,
            "sparse_col_indices": None,
        },
    ),
    (SPANS[0], {"sequence_id": "a", "offset": 0, "length": 1}),
    (
        types.ParsedCheckpointTinkerPath.from_tinker_path("tinker://r/weights/1"),
        {
            "tinker_path": "tinker://r/weights/1",
            "training_run_id": "r",
            "checkpoint_type": "training",
            "checkpoint_id": "weights/1",
        },
    ),
    (
        types.SaveWeightsResponse(path="tinker://r/weights/1"),
        {"path": "tinker://r/weights/1", "type": None},
    ),
]


@pytest.mark.parametrize(("value", "plain"), DUMPS, ids=lambda value: type(value).__name__)
def test_plain_form(value: Any, plain: dict[str, Any]) -> None:
    """A value dumps its fields, bytes as base64; reading them back gives the same again."""
    assert value.model_dump() == plain
    assert json.loads(value.model_dump_json()) == plain
    kind = type(value)
    assert kind.model_validate(plain).model_dump() == plain
    assert kind.model_validate_json(value.model_dump_json(indent=2)).model_dump() == plain
    assert kind.model_validate(value) is value


@pytest.mark.parametrize(
    "value",
    [DATUM, DATUM.with_provenance(SPANS, SPANS), SEQUENCE, RESPONSE, OUTPUT],
    ids=lambda value: type(value).__name__,
)
def test_values_with_arrays(value: Any) -> None:
    """Values with arrays dump lists and read them back with dtypes, spans and tables."""
    plain = value.model_dump(mode="json")
    assert json.loads(value.model_dump_json()) == json.loads(json.dumps(plain))
    assert type(value).model_validate(plain).model_dump() == value.model_dump()


def test_array_values_come_back_as_they_were() -> None:
    """Tensors keep their dtype, spans their kind, and unknown logprobs stay None."""
    datum = types.Datum.model_validate(DATUM.with_provenance(SPANS, SPANS).model_dump())
    assert {name: tensor.dtype for name, tensor in datum.loss_fn_inputs.items()} == {
        "target_tokens": "int64",
        "weights": "float32",
    }
    assert datum.model_input_spans == SPANS
    assert datum.model_input == TEXT
    response = types.SampleResponse.model_validate_json(RESPONSE.model_dump_json())
    assert response.prompt_logprobs == [None, -1.5]
    assert (
        response.sequences[0].topk_logprobs
        == SEQUENCE.topk_logprobs
        == [[(1, -0.5), (2, -1.0)], None]
    )


def test_dates() -> None:
    """A date stays a date in Python and is text in JSON; both forms are read."""
    plain = {
        "checkpoint_id": "weights/1",
        "checkpoint_type": "training",
        "time": "2026-01-02T03:04:05Z",
        "tinker_path": "tinker://r/weights/1",
    }
    checkpoint = types.Checkpoint.model_validate(plain)
    assert checkpoint.time.year == 2026
    assert checkpoint.model_dump()["time"] is checkpoint.time
    assert checkpoint.model_dump(mode="json", exclude_none=True) == {**plain, "public": False}
    assert types.Checkpoint.model_validate(checkpoint.model_dump()) == checkpoint


def test_dumped_fields_can_be_chosen() -> None:
    """Fields without a value, and fields by name, can be left out."""
    params = tinker.SamplingParams(max_tokens=5)
    assert params.model_dump(exclude_none=True) == {
        "max_tokens": 5,
        "temperature": 1,
        "top_k": -1,
        "top_p": 1,
    }
    assert params.model_dump(include={"max_tokens", "seed"}) == {"max_tokens": 5, "seed": None}
    assert "stop" not in params.model_dump(exclude={"stop"})
    assert TEXT.append(IMAGE).model_dump(exclude_none=True)["chunks"][1] == {
        "data": "YWJj",
        "format": "png",
        "type": "image",
    }


def test_copies() -> None:
    """A copy has the replaced fields and shares the rest, unless it is deep."""
    assert tinker.AdamParams().model_copy(update={"learning_rate": 1.0}) == tinker.AdamParams(
        learning_rate=1.0
    )
    assert types.LoraConfig(rank=8).copy(update={"rank": 16}) == types.LoraConfig(rank=16)
    assert TEXT.model_copy(update={"chunks": []}) == types.ModelInput.empty()
    assert TEXT.length == 3
    assert TEXT.chunks[0].model_copy(update={"tokens": [9]}) == types.EncodedTextChunk(tokens=[9])
    tensor = DATUM.loss_fn_inputs["weights"]
    assert DATUM.model_copy().loss_fn_inputs["weights"] is tensor
    deep = DATUM.model_copy(deep=True).loss_fn_inputs["weights"]
    assert deep is not tensor
    assert deep.data == tensor.data


@pytest.mark.parametrize(
    ("kind", "plain", "message"),
    [
        (
            types.ModelInput,
            {"chunks": [{"type": "video", "data": ""}]},
            "unknown kind of chunk: type 'video', with the fields type, data",
        ),
        (types.ModelInput, {"chunks": [{}]}, "unknown kind of chunk"),
        (types.ModelInput, {"chunks": [5]}, r"chunks\[0\] must be a model input chunk"),
        (types.ModelInput, {}, "chunks"),
        (types.ModelInput, 5, "ModelInput cannot be read from int"),
        (types.LoraConfig, {"rank": "many"}, "rank"),
        (types.LoraConfig, {}, "rank"),
        (types.TensorData, {"data": [1]}, "dtype"),
        (types.Datum, {"model_input": {"chunks": []}, "nonsense": 1}, "nonsense"),
    ],
)
def test_invalid_data(kind: Any, plain: Any, message: str) -> None:
    """Data that do not fit the type are a ValueError that says what is wrong."""
    with pytest.raises(ValueError, match=message):
        kind.model_validate(plain)


def test_chunks_without_a_type() -> None:
    """The type of a chunk without one, as clients of 2025 wrote it, is derived from its fields."""
    chunks = [
        {"tokens": [1]},
        {"data": "YWJj", "format": "png"},
        {"location": "x", "format": "png"},
        {"dmel": "aGk="},
    ]
    read = types.ModelInput.model_validate({"chunks": chunks}).chunks
    assert [chunk.type for chunk in read] == [
        "encoded_text",
        "image",
        "image_asset_pointer",
        "dmel",
    ]


def test_console_addresses() -> None:
    """Results of saves know their page on the hosted service."""
    saved = types.SaveWeightsResponse(path="tinker://r:train:0/weights/1")
    assert (
        saved.get_console_url()
        == "https://tinker.thinkingmachines.ai/checkpoints/r%3Atrain%3A0/weights%2F1"
    )
    sampler = types.SaveWeightsForSamplerResponse(path="tinker://r:train:0/sampler_weights/1")
    assert (
        sampler.get_console_url()
        == "https://tinker.thinkingmachines.ai/checkpoints/r%3Atrain%3A0/sampler_weights%2F1"
    )
    assert sampler.get_playground_url() == (
        "https://tinker.thinkingmachines.ai/playground?mode=checkpoint&checkpoint=tinker%3A%2F%2Fr%3Atrain%3A0%2Fsampler_weights%2F1"
    )


def test_requests_of_public_types() -> None:
    """A request can be created from public types or their plain forms, and dumps as it is sent."""
    params = tinker.SamplingParams(max_tokens=5)
    request = types.SampleRequest(
        prompt=TEXT, sampling_params=params, sampling_session_id="s", seq_id=1
    )
    assert request.model_dump(exclude_none=True)["prompt"] == TEXT.model_dump()
    assert types.SampleRequest.model_validate_json(request.model_dump_json()) == request
    batch = types.ForwardBackwardRequest(
        types.ForwardBackwardInput([DATUM], "cross_entropy"), "m", 1
    )
    again = types.ForwardBackwardRequest.model_validate(batch.model_dump())
    assert again.forward_backward_input.data[0].loss_fn_inputs["target_tokens"].tolist() == [
        2,
        3,
        4,
    ]
    assert again.model_dump() == batch.model_dump()
    forward = types.ForwardRequest(batch.forward_backward_input, "m")
    assert (
        types.ForwardRequest.model_validate(forward.model_dump()).model_dump()
        == forward.model_dump()
    )


def test_billing_time() -> None:
    """The ends of a period are datetimes or RFC 3339 text with a time zone, in order."""
    given = {"starting_on": "2026-01-02T00:00:00Z", "ending_before": "2026-01-02T05:00:00+02:00"}
    request = types.GetBillingUsageRequest.model_validate(given)
    assert (request.ending_before - request.starting_on).total_seconds() == 3 * 3600
    for wrong in ("2026-01-02", "yesterday", "2026-01-01T00:00:00Z", 5):
        with pytest.raises(ValueError, match=r"time zone|isoformat|before|RFC 3339"):
            types.GetBillingUsageRequest.model_validate({**given, "ending_before": wrong})


def test_error_categories_are_text() -> None:
    """A known category equals its text, as errors carry it; all are those of the contract."""
    assert types.RequestErrorCategory.User == "user"
    known, _ = typing.get_args(models.RequestErrorCategory)
    assert tuple(types.RequestErrorCategory) == typing.get_args(known)
