"""Inputs of models: prompts of chunks, and the datums to train on."""

from __future__ import annotations

import base64
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias, cast, get_args

import attrs
from tinker_wire import limits, models

from tinker.types._values import AttrsValue, FrozenValue, SuggestsNames, explain_changes, np
from tinker.types.tensor_data import (
    LONGEST_SHOWN,
    Int32Array,
    TensorData,
    TensorDtype,
    cast_exactly,
    is_torch,
    pack,
    rectangular,
    show_tokens,
    token_array,
    wire_array,
)

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


class EncodedTextChunk(FrozenValue):
    """Tokens of text.

    Args:
        tokens: The token ids, a list, tuple, range, numpy array or torch tensor of integers, which
            is copied. The attribute is a list, or a tuple if you passed one. Do not change it.
        type: The kind of the chunk, always ``encoded_text``.

    Raises:
        ValueError: The values are not 32-bit integers.

    >>> EncodedTextChunk(tokens=[1, 2, 3]).length
    3
    """

    __slots__ = ("_array", "_tokens")
    _array: Int32Array
    _tokens: Sequence[int] | None
    type: Literal["encoded_text"] = "encoded_text"

    def __init__(
        self,
        *,
        tokens: Sequence[int] | Iterable[int],
        type: Literal["encoded_text"] = "encoded_text",
    ) -> None:
        if type != "encoded_text":
            raise ValueError(f"type must be 'encoded_text', got {type!r}")
        object.__setattr__(self, "_array", token_array(tokens))
        object.__setattr__(
            self, "_tokens", tuple(self._array.tolist()) if isinstance(tokens, tuple) else None
        )

    @property
    def tokens(self) -> Sequence[int]:
        """Return the token ids as a list, or as a tuple if a tuple was passed."""
        if self._tokens is None:
            object.__setattr__(self, "_tokens", self._array.tolist())
        assert self._tokens is not None
        return self._tokens

    @property
    def array(self) -> Int32Array:
        """Return the token ids as int32, converted once."""
        return self._array

    @property
    def length(self) -> int:
        """Return the number of tokens."""
        return len(self._array)

    def _field_values(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "type": self.type}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EncodedTextChunk):
            return NotImplemented
        return self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash((self.tokens, self.type))

    def __repr__(self) -> str:
        if len(self._array) <= LONGEST_SHOWN:
            return f"EncodedTextChunk(tokens={self.tokens!r}, type={self.type!r})"
        return f"EncodedTextChunk(tokens={show_tokens(self._array)})"

    def __reduce__(self) -> tuple[object, ...]:
        return _text_chunk, (self._array if self._tokens is None else self._tokens,)


def _text_chunk(tokens: Sequence[int]) -> EncodedTextChunk:
    return EncodedTextChunk(tokens=tokens)


def _as_bytes(value: bytes | str) -> bytes:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else bytes(value)
    except (TypeError, ValueError):
        raise ValueError(
            "data must be the bytes of an image file, or base64 text; to read a file: "
            "Path(...).read_bytes()"
        ) from None


def _image_format(
    _: object, attribute: attrs.Attribute[models.ImageFormat], value: models.ImageFormat
) -> None:
    if value not in get_args(models.ImageFormat):
        raise ValueError(
            f"{attribute.name} must be one "
            f"of {', '.join(get_args(models.ImageFormat))}, got {value!r}"
        )


class _Image(AttrsValue):
    __slots__ = ()
    expected_tokens: int | None

    @property
    def length(self) -> int:
        """Return ``expected_tokens``. Raises ValueError if it is None."""
        if self.expected_tokens is None:
            raise ValueError(
                f"the length is unknown: set expected_tokens of the {type(self).__name__}"
            )
        return self.expected_tokens


@attrs.frozen(kw_only=True)
class ImageChunk(_Image):
    """An image.

    Attributes:
        data: The bytes of the image file; a str is decoded as base64.
        format: The format of the file, such as ``png`` or ``jpeg``.
        expected_tokens: The number of tokens that the image counts as. None means unknown.
        type: The kind of the chunk, always ``image``.
    """

    data: bytes = attrs.field(converter=_as_bytes)
    format: models.ImageFormat = attrs.field(validator=_image_format)
    expected_tokens: int | None = None
    type: Literal["image"] = "image"


@attrs.frozen(kw_only=True)
class ImageAssetPointerChunk(_Image):
    """Reference to an image that the server downloads. Only for sampling and for servers that use
    JSON.

    Attributes:
        format: The format of the file, such as ``png`` or ``jpeg``.
        location: The URL of the file.
        expected_tokens: The number of tokens that the image counts as. None means unknown.
        type: The kind of the chunk, always ``image_asset_pointer``.
    """

    format: models.ImageFormat = attrs.field(validator=_image_format)
    location: str
    expected_tokens: int | None = None
    type: Literal["image_asset_pointer"] = "image_asset_pointer"


@attrs.frozen(kw_only=True)
class DmelChunk(AttrsValue):
    """Audio features.

    Attributes:
        dmel: A serialized TensorContainer; a str is decoded as base64.
        type: The kind of the chunk, always ``dmel``.
    """

    dmel: bytes = attrs.field(converter=_as_bytes)
    type: Literal["dmel"] = "dmel"

    @property
    def length(self) -> int:
        """Return the first dimension named in the container's header; ValueError for a header that
        cannot be read.
        """
        return _container_length(self.dmel)


def _container_length(data: bytes) -> int:
    """Read the header: optional marker 254, a dtype byte 0-7, the number of dimensions and the
    dimensions as varints.
    """
    if not data:
        raise ValueError("the TensorContainer is empty")
    at = 1 if data[0] == 254 else 0
    if at >= len(data) or data[at] > 7:
        raise ValueError("the dtype of the TensorContainer is unknown")
    count, at = _varint(data, at + 1)
    if count == 0:
        raise ValueError("the TensorContainer has no shape")
    return _varint(data, at)[0]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the TensorContainer ends within its shape")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


ModelInputChunk: TypeAlias = EncodedTextChunk | ImageAssetPointerChunk | ImageChunk | DmelChunk
# Each kind with its `type`, and the field that tells the kind where the plain form has no `type`.
_KINDS: Sequence[tuple[type[ModelInputChunk], str, str]] = (
    (EncodedTextChunk, "encoded_text", "tokens"),
    (ImageChunk, "image", "data"),
    (ImageAssetPointerChunk, "image_asset_pointer", "location"),
    (DmelChunk, "dmel", "dmel"),
)
_CHUNKS = tuple(kind for kind, _, _ in _KINDS)


def _chunk_list(chunks: Iterable[ModelInputChunk | Mapping[str, object]]) -> list[ModelInputChunk]:
    result = [
        chunk if isinstance(chunk, _CHUNKS) else cast("ModelInputChunk", _read_chunk(chunk))
        for chunk in chunks
    ]
    for index, chunk in enumerate(result):
        if not isinstance(chunk, _CHUNKS):  # pyright: ignore[reportUnnecessaryIsInstance]
            is_token = isinstance(cast("object", chunk), numbers.Integral)
            advice = (
                "; for token ids use ModelInput.from_ints(tokens), or append_int(token)"
                if is_token
                else ""
            )
            raise TypeError(
                f"chunks[{index}] must be a model input chunk, got {type(chunk).__name__}{advice}"
            )
    return result


def _read_chunk(chunk: object) -> object:
    """Return a chunk from its plain form; a value that is not a mapping is left to the constructor
    to refuse.
    """
    if not isinstance(chunk, Mapping):
        return chunk
    fields = cast("Mapping[str, object]", chunk)
    for kind, name, field in _KINDS:
        if fields["type"] == name if "type" in fields else field in fields:
            return kind.model_validate(fields)
    raise ValueError(
        f"unknown kind of chunk: type {fields.get('type')!r}, with the fields {', '.join(fields)}"
    )


class Tokenizer(Protocol):
    """A tokenizer for :meth:`ModelInput.from_text`, such as those of transformers and tiktoken."""

    def encode(self, text: str, /) -> Sequence[int]:
        """Return the token ids of ``text``."""
        ...


@attrs.frozen(kw_only=True)
class ModelInput(SuggestsNames, AttrsValue):
    """Input of the model: chunks in order.

    Attributes:
        chunks: The chunks, or their plain data; any iterable is accepted and copied to a list.

    >>> ModelInput.from_ints([1, 2]).append_int(3).to_ints()
    [1, 2, 3]
    """

    chunks: list[ModelInputChunk] = attrs.field(converter=_chunk_list)

    _advice: ClassVar[str] = "; for token ids use ModelInput.from_ints(tokens)"
    _suggestions: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("tokens", "token_ids", "ids"), "to_ints()"
    )

    @classmethod
    def from_ints(cls, tokens: Sequence[int] | Iterable[int]) -> ModelInput:
        """Create an input with one text chunk.

        Args:
            tokens: The token ids, a list, numpy array or torch tensor of integers.

        Returns:
            The input.

        Raises:
            ValueError: The values are not 32-bit integers, or one is negative.
        """
        __tracebackhide__ = True
        chunk = EncodedTextChunk(tokens=tokens)
        if chunk.length and (least := chunk.array.min()) < 0:
            at = chunk.array.argmin()
            raise ValueError(f"token ids must not be negative, got {least} at position {at}")
        return cls(chunks=[chunk])

    @classmethod
    def from_text(cls, text: str, tokenizer: Tokenizer) -> ModelInput:
        """Create an input with one text chunk by encoding a text.

        Args:
            text: The text.
            tokenizer: An object whose ``encode(text)`` returns token ids, including any special
                tokens that it adds. An end of the text is taken off, so that a model continues it.

        Returns:
            The input.
        """
        from tinker._chat import encode_prompt_text

        return cls.from_ints(encode_prompt_text(tokenizer, text))

    @classmethod
    def empty(cls) -> ModelInput:
        """Create an input without chunks. Use :meth:`append` to add chunks."""
        return cls(chunks=[])

    def append(self, chunk: ModelInputChunk) -> ModelInput:
        """Return a new input with a chunk at the end.

        Args:
            chunk: The chunk.

        Returns:
            The new input.
        """
        return ModelInput(chunks=[*self.chunks, chunk])

    def append_int(self, token: int) -> ModelInput:
        """Return a new input with a chunk of one token at the end.

        Args:
            token: The token id.

        Returns:
            The new input.
        """
        return self.append(EncodedTextChunk(tokens=[token]))

    def to_ints(self) -> list[int]:
        """Return all tokens as one list.

        Returns:
            The token ids.

        Raises:
            ValueError: A chunk is not text.
        """
        tokens: list[int] = []
        for chunk in self.chunks:
            if not isinstance(chunk, EncodedTextChunk):
                kinds = [type(c).__name__ for c in self.chunks]
                raise ValueError(
                    f"to_ints takes a ModelInput of EncodedTextChunks only, got {kinds}"
                )
            tokens.extend(chunk.tokens)
        return tokens

    @property
    def length(self) -> int:
        """Return the number of tokens in all chunks. Raises ValueError if an image chunk has no
        ``expected_tokens``.
        """
        return sum(chunk.length for chunk in self.chunks)


def suggest_model_input(value: object) -> str:
    """Return what was given in the place of a ModelInput, and how to make one of it."""
    got = type(value).__name__
    first = (
        cast("Sequence[object]", value)[0] if isinstance(value, (list, tuple)) and value else None
    )
    if isinstance(first, (ModelInput, str)):
        return f"got a {got} of {type(first).__name__}: pass one at a time"
    if isinstance(first, Mapping):
        return f"got a {got} of messages: use tinker.data.prompt_from_messages(tokenizer, messages)"
    if isinstance(value, str):
        tokens = "tokenizer.encode(text)"
    elif isinstance(value, Mapping):
        tokens = "tokens['input_ids']"
    elif isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
        tokens = "tokens"
    else:
        return f"got {got}"
    return f"got {got}: use ModelInput.from_ints({tokens})"


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
class Datum(SuggestsNames, AttrsValue):
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

    _suggestions: ClassVar[Mapping[str, str]] = {
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
