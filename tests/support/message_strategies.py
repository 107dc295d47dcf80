"""Strategies for the messages of tinker_public.proto: for tests of the codec and of servers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tinker.types import (
    Datum,
    DmelChunk,
    EncodedTextChunk,
    ImageChunk,
    ModelInput,
    PromptProvenanceSpan,
    SampledProvenanceSpan,
    TensorData,
)

floats = st.floats(width=32, allow_nan=False)
tokens = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20)
names = st.text(max_size=8)
configs = st.dictionaries(names, st.floats(allow_nan=False) | st.text(max_size=5), max_size=3)


def dense(dtype: str, values: list[Any], shape: list[int] | None = None) -> TensorData:
    """Return a tensor that is not sparse."""
    return TensorData(values, dtype, shape)  # type: ignore[arg-type]


tensors = st.one_of(
    st.lists(floats, max_size=12).map(lambda values: dense("float32", values, [len(values)])),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=12).map(
        lambda values: dense("int64", values, [len(values)])
    ),
    st.lists(floats, min_size=6, max_size=6).map(lambda values: dense("float32", values, [2, 3])),
    floats.map(lambda value: TensorData(np.asarray(value, np.float32), "float32", [])),
    floats.map(lambda value: TensorData([value, 2.0], "float32", [2, 4], [0, 1, 2], [3, 0])),
)
chunks = st.one_of(
    tokens.map(lambda values: EncodedTextChunk(tokens=values)),
    st.builds(
        ImageChunk,
        data=st.binary(max_size=30),
        format=st.sampled_from(["png", "jpeg"]),
        expected_tokens=st.none() | st.integers(0, 2**31 - 1),
    ),
    st.binary(max_size=30).map(lambda data: DmelChunk(dmel=data)),
)
spans = st.one_of(
    st.builds(
        PromptProvenanceSpan,
        sequence_id=st.text(min_size=1, max_size=5),
        offset=st.integers(0, 9),
        length=st.integers(0, 9),
    ),
    st.builds(
        SampledProvenanceSpan,
        sequence_id=st.text(min_size=1, max_size=5),
        offset=st.integers(0, 9),
        length=st.integers(0, 9),
    ),
)


@st.composite
def datums(draw: st.DrawFn) -> Datum:
    """Any datum that the messages can carry, sensible or not."""
    paired = draw(st.booleans())
    return Datum(
        ModelInput(chunks=draw(st.lists(chunks, max_size=3))),
        draw(st.dictionaries(names, tensors, max_size=3)),  # type: ignore[arg-type]
        model_input_spans=draw(st.lists(spans, min_size=1, max_size=2)) if paired else None,
        loss_fn_input_spans=draw(st.lists(spans, min_size=1, max_size=2)) if paired else None,
    )
