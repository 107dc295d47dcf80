"""JSON bodies: the form of each kind of value, and refused values."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from tinker_wire import models

from tinker._wire import json as wire
from tinker.types import (
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
    TensorData,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (np.float32(0.1), float(np.float32(0.1))),
        (np.int64(7), 7),
        (np.array([[1, 2], [3, 4]]), [1, 2, 3, 4]),
    ],
)
def test_numpy_values_are_numbers(value: Any, written: object) -> None:
    """A numpy number is written without loss, an array as a flat list, an object not at all."""
    assert json.loads(wire.encode({"value": value})) == {"value": written}
    with pytest.raises(TypeError, match="object has no JSON form"):
        wire.encode({"value": object()})


def test_numbers_in_quotes_are_refused() -> None:
    """A number in quotes is refused: types are not converted."""
    assert wire.decode(b'{"model_id": "m", "seq_id": 1}', models.OptimStepRequest).seq_id == 1
    with pytest.raises(msgspec.ValidationError, match="seq_id"):
        wire.decode(b'{"model_id": "m", "seq_id": "1"}', models.OptimStepRequest)


def test_each_kind_of_chunk() -> None:
    """Every kind of chunk of a model input has its record."""
    chunks = [
        EncodedTextChunk(tokens=[1, 2]),
        ImageChunk(data=b"\x89PNG", format="png", expected_tokens=3),
        ImageAssetPointerChunk(location="s3://a", format="jpeg", expected_tokens=4),
        DmelChunk(dmel=b"\x01\x02"),
    ]
    found = wire.wire_model_input(ModelInput(chunks=chunks)).chunks
    assert [type(one) for one in found] == [getattr(models, type(one).__name__) for one in chunks]
    assert (found[2].location, found[2].expected_tokens) == ("s3://a", 4)  # type: ignore[union-attr]
    assert found[3].dmel == b"\x01\x02"  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_without_a_json_form(value: float) -> None:
    """NaN and infinity are refused with the tensor's name; other numbers are accepted."""
    with pytest.raises(ValueError, match="advantages contains NaN or infinity"):
        wire.wire_tensor(TensorData.from_numpy(np.array([0.5, value], np.float32)), "advantages")
    for array in (np.array([0.5], np.float32), np.array([5])):
        assert wire.wire_tensor(TensorData.from_numpy(array), "targets").dtype == array.dtype


def test_encoding_a_prompt_keeps_no_list_of_it() -> None:
    """Prompts are kept as arrays, a quarter of the size of their lists."""
    prompt = ModelInput.from_ints([1, 2, 300])
    body = wire.encode(wire.wire_model_input(prompt))
    assert b'"tokens":[1,2,300]' in body
    (chunk,) = prompt.chunks
    assert isinstance(chunk, EncodedTextChunk)
    assert chunk._tokens is None
