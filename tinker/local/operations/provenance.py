"""The records of sampled sequences, found by the spans of a datum, as inputs of its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.protocol import EngineError, Float32
from tinker.local.storage.recorded import RecordedSequence
from tinker.types.datum import Datum, ProvenanceSpan, SampledProvenanceSpan
from tinker.types.model_input import EncodedTextChunk, ModelInput
from tinker.types.tensor_data import TensorData

FindRecord: TypeAlias = Callable[[str], RecordedSequence]
NO_TOKEN = -1  # at the places of an image


@attrs.frozen
class _Placed:
    """A span and its first position in the field that it belongs to. ``record`` is that of its sequence."""

    span: ProvenanceSpan
    start: int
    record: RecordedSequence

    @property
    def is_sampled(self) -> bool:
        return isinstance(self.span, SampledProvenanceSpan)

    @property
    def there(self) -> slice:
        """Return its positions in the field."""
        return slice(self.start, self.start + self.span.length)

    @property
    def recorded(self) -> slice:
        """Return its positions in the prompt, or in the sampled tokens, of its sequence."""
        return slice(self.span.offset, self.span.offset + self.span.length)


def attach_records(data: Sequence[Datum], find: FindRecord) -> list[Datum]:
    """Return the data with the recorded log-probabilities as ``logprobs``, and a mask that leaves the sampled targets only.

    Raises EngineError, naming datum and field, for spans that are missing or do not fit.
    """
    return [_attach(f"data[{index}]", datum, find) for index, datum in enumerate(data)]


def _attach(where: str, datum: Datum, find: FindRecord) -> Datum:
    if datum.model_input_spans is None or datum.loss_fn_input_spans is None:
        raise EngineError(f"{where} has no provenance; use Datum.with_provenance to name the sampled sequence of its tokens")
    if "target_tokens" not in datum.loss_fn_inputs:
        raise EngineError(f"{where}: loss_fn_inputs is missing target_tokens")
    _place(f"{where}.model_input_spans", datum.model_input_spans, _read_tokens(where, datum.model_input), find)
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
    placed = _place(f"{where}.loss_fn_input_spans", datum.loss_fn_input_spans, targets, find)
    sampled = [one for one in placed if one.is_sampled]
    _check_overlaps(where, sampled)
    logprobs, mask = np.zeros(len(targets), np.float32), np.zeros(len(targets), np.float32)
    for one in sampled:
        logprobs[one.there], mask[one.there] = one.record.logprobs[one.recorded], 1.0
    _check_advantages(where, datum, mask)
    if "mask" in datum.loss_fn_inputs and np.shape(given := datum.loss_fn_inputs["mask"].to_numpy()) == mask.shape:
        mask = mask * given.astype(np.float32)
    added = {"logprobs": TensorData.from_numpy(logprobs), "mask": TensorData.from_numpy(mask)}
    return attrs.evolve(datum, loss_fn_inputs={**datum.loss_fn_inputs, **added})


def _read_tokens(where: str, value: ModelInput) -> NDArray[np.int32]:
    parts = [np.empty(0, np.int32)]
    try:
        for chunk in value.chunks:
            parts.append(chunk.array if isinstance(chunk, EncodedTextChunk) else np.full(chunk.length, NO_TOKEN, np.int32))
    except ValueError as error:
        raise EngineError(f"{where}.model_input: {error}") from error
    return np.concatenate(parts)


def _place(what: str, spans: Sequence[ProvenanceSpan], tokens: NDArray[np.generic], find: FindRecord) -> list[_Placed]:
    """Return the spans with their places. Raises EngineError unless they cover the tokens, and their sequences have them."""
    total = sum(span.length for span in spans)
    if total != len(tokens):
        raise EngineError(f"{what} cover {total} tokens, and there are {len(tokens)}")
    placed = list(_find_records(what, spans, find))
    for one in placed:
        record = one.record
        known = len(record.tokens) if one.is_sampled else record.prompt_length
        if one.recorded.stop > known:
            kind = "sampled tokens" if one.is_sampled else "tokens of the prompt"
            name = one.span.sequence_id
            raise EngineError(f"{what}: {one.recorded.start} to {one.recorded.stop} are not in the {known} {kind} of {name!r}")
        if one.is_sampled and (wrong := np.flatnonzero(tokens[one.there] != record.tokens[one.recorded])).size:
            at = one.start + int(wrong[0])
            raise EngineError(f"{what}: the token at position {at} is not the one that was sampled in {one.span.sequence_id!r}")
    return placed


def _find_records(what: str, spans: Sequence[ProvenanceSpan], find: FindRecord) -> Iterator[_Placed]:
    start = 0
    for span in spans:
        if span.length:
            try:
                yield _Placed(span, start, find(span.sequence_id))
            except EngineError as error:
                raise EngineError(f"{what}: {error}") from error
        start += span.length


def _check_overlaps(where: str, sampled: Sequence[_Placed]) -> None:
    """Raise EngineError when a sampled token is the target of two positions."""
    ordered = sorted(sampled, key=lambda one: (one.span.sequence_id, one.span.offset))
    for one, following in pairwise(ordered):
        if one.span.sequence_id == following.span.sequence_id and one.recorded.stop > following.recorded.start:
            raise EngineError(f"{where}.loss_fn_input_spans overlap: they name tokens of {one.span.sequence_id!r} twice")


def _check_advantages(where: str, datum: Datum, sampled: Float32) -> None:
    tensor = datum.loss_fn_inputs.get("advantages")
    advantages = np.zeros(len(sampled)) if tensor is None else tensor.to_numpy()
    if np.shape(advantages) == np.shape(sampled) and (wrong := np.flatnonzero((advantages != 0) & (sampled == 0))).size:
        raise EngineError(f"{where}: advantages is not 0 at position {int(wrong[0])}, which is not a sampled token")
