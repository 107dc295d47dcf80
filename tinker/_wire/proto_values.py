"""What messages of ``tinker_public.proto`` are to users, where that is no class with their fields.

The codec in ``proto.py`` is generated. It finds these functions by their names: ``make_X`` returns
the value of a message X, from those of its fields that are read; ``take_X`` returns the fields to
write; ``refuse_X`` says why a value has no message.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import attrs

from tinker.types._values import np
from tinker.types.model_input import (
    Datum,
    ImageAssetPointerChunk,
    ModelInput,
    ModelInputChunk,
    ProvenanceSpan,
)
from tinker.types.results import ForwardBackwardOutput, LossFnOutput, PromptAltTokens, TopkLogprobs
from tinker.types.tensor_data import NumericArray, TensorData, dimensions, wrap

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ITEMSIZE = {"float32": 4, "int64": 8, "int32": 4, "bfloat16": 2}


class ProtoError(ValueError):
    """The bytes are not the message they should be."""


@attrs.frozen(kw_only=True)
class ForwardBackwardCall:
    """A decoded ``ForwardBackwardRequest``."""

    model_id: str
    seq_id: int
    data: list[Datum]
    loss_fn: str
    loss_fn_config: dict[str, float | str]
    forward_only: bool


class SparseCsr(NamedTuple):
    """The arrays of a sparse tensor."""

    values: NumericArray
    crow_indices: NDArray[np.int64]
    col_indices: NDArray[np.int64]


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise ProtoError(what)


def make_tensor(
    dtype: str, shape: list[int], dense: NumericArray, sparse_csr: SparseCsr | None
) -> TensorData:
    """Return the tensor. Without a shape it has one dimension, or none if it has one value."""
    if sparse_csr is not None:
        values, crow, col = sparse_csr
        return TensorData(
            values,
            "float32" if values.dtype.kind == "f" else "int64",
            shape,
            crow.tolist(),
            col.tolist(),
        )
    _expect(all(dimension >= 0 for dimension in shape), "negative dimension")
    return TensorData.from_numpy(dense.reshape(shape or ((dense.size,) if dense.size != 1 else ())))


def take_tensor(
    tensor: TensorData,
) -> tuple[str, Sequence[int], NumericArray | None, SparseCsr | None]:
    values = tensor.values
    if tensor.sparse_crow_indices is None:
        return tensor.dtype, tensor.shape or values.shape, values, None
    crow, col = (
        np.asarray(indices, np.int64)
        for indices in (tensor.sparse_crow_indices, tensor.sparse_col_indices)
    )
    return tensor.dtype, dimensions(tensor), None, SparseCsr(values, crow, col)


def make_batched_tensor(
    dtype: str, trailing_shape: list[int], offsets: NDArray[np.int64], data: NumericArray
) -> list[TensorData]:
    """Return a tensor for each datum, which is a view of ``data``."""
    itemsize = _ITEMSIZE[dtype]
    if len(offsets):
        fits = (
            offsets[0] >= 0
            and offsets[-1] <= data.size * itemsize
            and bool((np.diff(offsets) >= 0).all())
        )
        _expect(bool(fits and not (offsets % itemsize).any()), "offsets do not fit the data")
    _expect(
        all(dimension > 0 for dimension in trailing_shape), "trailing dimensions must be positive"
    )
    pieces = [data[start:end] for start, end in itertools.pairwise((offsets // itemsize).tolist())]
    return [
        TensorData.from_numpy(one.reshape(-1, *trailing_shape)) if trailing_shape else wrap(one)
        for one in pieces
    ]


def take_batched_tensor(
    tensors: Sequence[TensorData],
) -> tuple[str, Sequence[int] | None, NDArray[np.int64], list[NDArray[Any]]]:
    arrays = [np.atleast_1d(tensor.to_numpy()) for tensor in tensors]
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)], dtype=np.int64)
    return tensors[0].dtype, arrays[0].shape[1:] or None, offsets, arrays


def make_array_record(
    num_datums: int, fields: Mapping[str, list[TensorData]]
) -> list[LossFnOutput]:
    """Return the outputs. A record without fields may claim any number of them: a bound keeps
    hostile bytes from filling memory.
    """
    _expect(0 <= num_datums <= 1_000_000, f"a record of {num_datums} datums")
    for name, column in fields.items():
        _expect(
            len(column) == num_datums,
            f"field {name!r} has {len(column)} entries for {num_datums} datums",
        )
    return [{name: column[index] for name, column in fields.items()} for index in range(num_datums)]


def take_array_record(
    record: tuple[str, list[LossFnOutput]],
) -> tuple[str, int, Mapping[str, list[TensorData]]]:
    type_tag, outputs = record
    return (
        type_tag,
        len(outputs),
        {name: [output[name] for output in outputs] for name in outputs[0]},
    )


def make_forward_backward_output(
    loss_fn_output_type: str, loss_fn_outputs: list[list[LossFnOutput]], metrics: dict[str, float]
) -> ForwardBackwardOutput:
    outputs = list(itertools.chain.from_iterable(loss_fn_outputs))
    return ForwardBackwardOutput(
        loss_fn_output_type.rpartition(":")[2] or "ArrayRecord", outputs, metrics
    )


def take_forward_backward_output(
    output: ForwardBackwardOutput,
) -> tuple[str, list[tuple[str, list[LossFnOutput]]], dict[str, float]]:
    """Return the fields, with a record for each run of datums of the same layout."""
    type_tag = output.loss_fn_output_type.rpartition(":")[2]
    runs = itertools.groupby(output.loss_fn_outputs, _layout)
    return output.loss_fn_output_type, [(type_tag, list(run)) for _, run in runs], output.metrics


def _layout(output: LossFnOutput) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, tensor.dtype, tuple(dimensions(tensor)[1:])) for name, tensor in output.items()]


def make_topk_logprobs(
    k: int, length: int, token_ids: NDArray[np.int32], logprobs: NDArray[np.float32]
) -> TopkLogprobs | None:
    if k == 0 or length == 0:
        return None
    _expect(
        k * length == token_ids.size == logprobs.size,
        f"a top-k table of {length} x {k} with {token_ids.size} cells",
    )
    return TopkLogprobs(token_ids.reshape(length, k), logprobs.reshape(length, k))


def take_topk_logprobs(
    table: TopkLogprobs,
) -> tuple[int, int, NDArray[np.int32], NDArray[np.float32]]:
    length, k = table.token_ids.shape
    return k, length, table.token_ids, table.logprobs


def make_prompt_alt_tokens(
    tokens: TensorData | None, logprobs: TensorData | None
) -> PromptAltTokens:
    if tokens is None or logprobs is None:
        raise ProtoError("alternative tokens without ids or logprobs")
    return PromptAltTokens(tokens, logprobs)


def make_datum(
    model_input: list[ModelInputChunk],
    loss_fn_inputs: dict[str, TensorData],
    model_input_spans: list[ProvenanceSpan],
    loss_fn_input_spans: list[ProvenanceSpan],
) -> Datum:
    spans = (
        (model_input_spans, loss_fn_input_spans)
        if model_input_spans or loss_fn_input_spans
        else (None, None)
    )
    return Datum(ModelInput(chunks=model_input), loss_fn_inputs, *spans)


def make_forward_backward_request(
    model_id: str,
    seq_id: int,
    loss_fn: str,
    forward_only: bool,
    loss_fn_config: dict[str, float],
    loss_fn_config_v2: dict[str, float | str],
    data: list[Datum],
) -> ForwardBackwardCall:
    config = loss_fn_config | loss_fn_config_v2
    return ForwardBackwardCall(
        model_id=model_id,
        seq_id=seq_id,
        data=data,
        loss_fn=loss_fn,
        loss_fn_config=config,
        forward_only=forward_only,
    )


def refuse_chunk(chunk: ImageAssetPointerChunk) -> NoReturn:
    raise ValueError(
        "an ImageAssetPointerChunk cannot be trained on over protobuf; "
        "send the image as an ImageChunk"
    )
