"""Datum: one training example with its model input, the tensors of its loss, and the provenance of
its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, cast

import attrs
from tinker_wire import limits

from tinker.types._numpy import np
from tinker.types._values import AttrsValue, Signposted, explain_changes
from tinker.types.model_input import EncodedTextChunk, ModelInput, suggest_model_input
from tinker.types.tensor_data import (
    LONGEST_SHOWN,
    TensorData,
    TensorDtype,
    cast_exactly,
    is_torch,
    pack,
    rectangular,
    wire_array,
)

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

# A Python list has no dtype of its own; the names known to the losses say which one is meant.
LIST_DTYPES = cast("dict[str, TensorDtype]", limits.LOSS_FN_TYPE_INPUT_DTYPES)
# Two-dimensional torch tensors under these names are sent sparse where that is smaller.
SPARSIFIED = frozenset({"target_tokens", "weights"})

LossFnInputs: TypeAlias = dict[str, TensorData]


def _span_length(instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 0:
        raise ValueError(f"{attribute.name} must not be negative, got {value}")


def _span_id(instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not value:
        raise ValueError("sequence_id must not be empty")


@attrs.frozen(kw_only=True)
class _TokenSpan(AttrsValue):
    sequence_id: str = attrs.field(validator=_span_id)
    offset: int = attrs.field(default=0, validator=_span_length)
    length: int = attrs.field(validator=_span_length)


class PromptProvenanceSpan(_TokenSpan):
    """A span of tokens that comes from the prompt of a sampled sequence.

    Attributes:
        sequence_id: The id of the sequence.
        offset: The first of the tokens in the prompt, 0 or more.
        length: The number of tokens, 0 or more.
    """


class SampledProvenanceSpan(_TokenSpan):
    """A span of tokens that the model sampled as part of a sequence.

    Attributes:
        sequence_id: The id of the sequence.
        offset: The first of the tokens in the sequence, 0 or more.
        length: The number of tokens, 0 or more.
    """


ProvenanceSpan: TypeAlias = PromptProvenanceSpan | SampledProvenanceSpan
ProvenanceSpans: TypeAlias = list[ProvenanceSpan]
LossFnInputValue: TypeAlias = "TensorData | NDArray[Any] | Sequence[Any]"


def to_tensor_data(name: str, value: object) -> TensorData:
    """Convert a loss input to TensorData. Raises ValueError for ragged lists, TypeError for values
    that are not tensors.
    """
    if isinstance(value, TensorData):
        return value
    what = f"loss_fn_inputs[{name!r}]"
    try:
        if is_torch(value):
            sparse = value.ndim == 2 and name in SPARSIFIED
            return TensorData.from_torch_sparse(value) if sparse else TensorData.from_torch(value)
        if isinstance(value, np.ndarray):
            array = cast("NDArray[Any]", value)
            # booleans become the numbers that the input of this name has
            is_mask = array.dtype.kind == "b"
            return TensorData.from_numpy(
                array.astype(LIST_DTYPES.get(name, "float32")) if is_mask else array
            )
    except (TypeError, ValueError, RuntimeError) as error:
        raise type(error)(f"{what}: {error}") from None
    if isinstance(value, list):
        dtype = LIST_DTYPES.get(name)
        quick = None if dtype is None else pack(cast("list[object]", value), dtype)
        if quick is not None:
            return TensorData.from_numpy(quick)
        array = rectangular(cast("list[object]", value), what)
        return TensorData.from_numpy(
            wire_array(array) if dtype is None else cast_exactly(what, array, dtype)
        )
    advice = f": write list({name})" if type(value) in (tuple, range) else ""
    raise TypeError(
        f"{what} must be a list, a numpy array, a torch tensor or TensorData, got "
        f"{type(value).__name__}{advice}"
    )


class NamedTensors(dict[str, TensorData]):
    """The tensors of a loss by name. What is assigned to a name is converted as in the constructor
    of a Datum.
    """

    def __setitem__(self, name: str, value: LossFnInputValue | torch.Tensor) -> None:
        super().__setitem__(name, to_tensor_data(name, value))

    if not TYPE_CHECKING:  # the signatures are those of a dict

        def setdefault(self, name, default=None):
            return super().setdefault(name, to_tensor_data(name, default))

        def update(self, *args, **values):
            super().update(_tensors(dict(*args, **values)))

        def __ior__(self, other):
            self.update(other)
            return self


def _tensors(inputs: Mapping[str, object]) -> NamedTensors:
    if not isinstance(inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"loss_fn_inputs must be a mapping of names to tensors, got {type(inputs).__name__}"
        )
    if (wrong := next((name for name in inputs if not isinstance(name, str)), None)) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"loss_fn_inputs must have strings as names, got {wrong!r}")
    return NamedTensors({name: to_tensor_data(name, value) for name, value in inputs.items()})


def _model_input(value: ModelInput | Mapping[str, object]) -> ModelInput:
    if isinstance(value, Mapping) and "chunks" in value:
        return ModelInput.model_validate(value)
    return cast("ModelInput", value)  # anything else is refused by the datum


def _spans(spans: Sequence[ProvenanceSpan] | None) -> ProvenanceSpans | None:
    if spans is None:
        return None
    for span in spans:
        if not isinstance(span, (PromptProvenanceSpan, SampledProvenanceSpan)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"provenance spans must be span objects, got {type(span).__name__}")
    return list(spans)


def _count_text(model_input: object) -> int:
    """Count the tokens of an input of text; 0 for any other."""
    chunks = model_input.chunks if isinstance(model_input, ModelInput) else []
    return sum(len(chunk.tokens) if isinstance(chunk, EncodedTextChunk) else 0 for chunk in chunks)


@explain_changes
@attrs.frozen(slots=False, repr=False)
class Datum(Signposted, AttrsValue):
    """One training example: its model input and the tensors of its loss.

    Attributes:
        model_input: The tokens and other chunks that the model reads, a ModelInput or its plain
            data.
        loss_fn_inputs: Tensors by name: TensorData, numpy arrays, torch tensors or lists. Their
            first dimension is the length of ``model_input``. The dtype of a list depends on the
            name (``target_tokens`` is int64; ``weights``, ``advantages`` and ``logprobs`` are
            float32); for other names, it depends on the values. A tensor that you assign to a name
            later is converted too.
        model_input_spans: The origin of the tokens of ``model_input``; None if unknown. Pass both
            lists of spans, or neither.
        loss_fn_input_spans: The origin of the tokens of ``target_tokens``; None if unknown.

    >>> datum = Datum(
    ...     model_input=ModelInput.from_ints([1, 2]), loss_fn_inputs={"target_tokens": [2, 3]}
    ... )
    >>> datum.loss_fn_inputs["target_tokens"].dtype
    'int64'
    """

    model_input: ModelInput = attrs.field(converter=_model_input)
    loss_fn_inputs: NamedTensors = attrs.field(factory=NamedTensors, converter=_tensors)
    model_input_spans: ProvenanceSpans | None = attrs.field(default=None, converter=_spans)
    loss_fn_input_spans: ProvenanceSpans | None = attrs.field(default=None, converter=_spans)

    _elsewhere: ClassVar[Mapping[str, str]] = {
        name: f"datum.loss_fn_inputs[{name!r}]" for name in LIST_DTYPES
    }

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.model_input, ModelInput):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"Datum.model_input must be a ModelInput, {suggest_model_input(self.model_input)}"
            )
        if (self.model_input_spans is None) != (self.loss_fn_input_spans is None):
            raise ValueError("pass both model_input_spans and loss_fn_input_spans, or neither")

    def __repr__(self) -> str:
        """Return every value of a short example, and the sizes of a long one."""
        short = _count_text(self.model_input)
        inputs = f"{self.loss_fn_inputs!r}"
        if short > LONGEST_SHOWN:
            sizes = (
                f"{name!r}: {one.dtype}{one.shape}" for name, one in self.loss_fn_inputs.items()
            )
            inputs = f"{{{', '.join(sizes)}}}"
        spans = (
            f"model_input_spans={self.model_input_spans!r}, "
            f"loss_fn_input_spans={self.loss_fn_input_spans!r}"
        )
        return (
            f"{type(self).__name__}(model_input={self.model_input!r}, loss_fn_inputs={inputs}, "
            f"{spans})"
        )

    def _field_values(self) -> dict[str, Any]:
        spans = {name: _plain_spans(getattr(self, name)) for name in _SPANS}
        return {"model_input": self.model_input, "loss_fn_inputs": self.loss_fn_inputs, **spans}

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        inputs: Mapping[str, object] = fields.get("loss_fn_inputs") or {}
        fields["loss_fn_inputs"] = {name: _read_tensor(value) for name, value in inputs.items()}
        fields.update(
            (name, _read_spans(fields[name])) for name in _SPANS if fields.get(name) is not None
        )
        return cls(**fields)

    def with_provenance(
        self, model_input: Sequence[ProvenanceSpan], loss_fn_inputs: Sequence[ProvenanceSpan]
    ) -> Datum:
        """Return a copy with spans that describe the origin of its tokens.

        Args:
            model_input: The spans of the model input, in order.
            loss_fn_inputs: The spans of ``target_tokens``, in order.

        Returns:
            The copy.

        Raises:
            ValueError: The total length of the spans differs from the length of the input or of
                ``target_tokens``.
        """
        _check_tiling("model_input", model_input, self.model_input.length)
        targets = self.loss_fn_inputs.get("target_tokens")
        _check_tiling(
            "loss_fn_inputs", loss_fn_inputs, 0 if targets is None else len(targets.to_numpy())
        )
        return attrs.evolve(self, model_input_spans=model_input, loss_fn_input_spans=loss_fn_inputs)


_SPANS = ("model_input_spans", "loss_fn_input_spans")
_SPAN_KINDS: dict[str, type[ProvenanceSpan]] = {
    "prompt_tokens": PromptProvenanceSpan,
    "sampled_tokens": SampledProvenanceSpan,
}


def _plain_spans(spans: ProvenanceSpans | None) -> list[dict[str, ProvenanceSpan]] | None:
    """Return spans under the name of their kind, as in the protobuf message."""
    if spans is None:
        return None
    names = {kind: name for name, kind in _SPAN_KINDS.items()}
    return [{names[type(span)]: span} for span in spans]


def _read_spans(spans: Sequence[Mapping[str, object] | ProvenanceSpan]) -> ProvenanceSpans:
    read: ProvenanceSpans = []
    for span in spans:
        if isinstance(span, Mapping):
            read += [_SPAN_KINDS[name].model_validate(fields) for name, fields in span.items()]
        else:
            read.append(span)
    return read


def _read_tensor(value: object) -> object:
    return TensorData.model_validate(cast("object", value)) if isinstance(value, Mapping) else value


def _check_tiling(what: str, spans: Sequence[ProvenanceSpan], length: int) -> None:
    total = sum(span.length for span in spans)
    if total != length:
        raise ValueError(f"{what} spans cover {total} tokens, the datum has {length}")
