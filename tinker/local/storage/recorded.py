"""Sampled sequences that a training request may name: their tokens and log-probabilities, for a
while and up to a limit.

Guarded by the lock of the state. With a journal they survive a restart, like the sessions that they
belong to.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.protocol import Continuation, EngineError, Float32, Int32
from tinker.local.settings import Settings
from tinker.local.storage.journal import Journal, Table
from tinker.types.datum import Datum, ProvenanceSpan, SampledProvenanceSpan
from tinker.types.model_input import EncodedTextChunk, ModelInput
from tinker.types.tensor_data import TensorData

log: logging.Logger = logging.getLogger("tinker.local")


class RecordedSequence(msgspec.Struct, array_like=True, eq=False):
    """One sampled sequence, its numbers as bytes. ``used_at`` is a time of day."""

    sequence_id: str
    session_id: str
    prompt_length: int
    tokens: bytes
    logprobs: bytes
    used_at: float

    @property
    def token_ids(self) -> Int32:
        """Return the sampled tokens."""
        return np.frombuffer(self.tokens, np.int32)


_SEQUENCES = Table("sequences", RecordedSequence, "sequence_id")


class RecordedSequences:
    """The sequences by their ids, the one that has not been used for longest first. ``now`` is the
    time of day.
    """

    def __init__(self, settings: Settings, now: Callable[[], float], journal: Journal) -> None:
        self._settings, self._now, self._journal = settings, now, journal
        self._sequences: OrderedDict[str, RecordedSequence] = OrderedDict()
        self._tokens = 0
        self._is_announced = False
        journal.add_tables(_SEQUENCES)
        for one in journal.read(_SEQUENCES, "order by used_at"):
            self._put(one)

    @property
    def tokens(self) -> int:
        """Return how many sampled tokens are recorded."""
        return self._tokens

    def announce(self) -> None:
        """Log once which objective this server computes."""
        if not self._is_announced:
            self._is_announced = True
            log.info(
                "stable_reinforce: the formula of the hosted service is not published; this server "
                "computes truncated "
                "REINFORCE, an objective of its own, with the metrics truncated_reinforce/..."
            )

    def add(
        self, sequence_id: str, session_id: str, prompt_length: int, sampled: Continuation
    ) -> None:
        """Record a sequence of a session. The least recently used sequences are dropped beyond the
        limit.
        """
        tokens, logprobs = (
            np.array(sampled.tokens, np.int32).tobytes(),
            np.array(sampled.logprobs, np.float32).tobytes(),
        )
        one = RecordedSequence(
            sequence_id, session_id, prompt_length, tokens, logprobs, self._now()
        )
        self._journal.note(_SEQUENCES.add(one))
        self._put(one)
        while self._tokens > self._settings.max_recorded_tokens:
            self._remove(next(iter(self._sequences)))

    def find(self, sequence_id: str, session_id: str) -> RecordedSequence:
        """Return a sequence, whose time begins again. Raises EngineError for one that this session
        cannot name.
        """
        found, seconds = self._sequences.get(sequence_id), self._settings.recorded_seconds
        if found is None:
            raise EngineError(
                f"there is no record of the sequence {sequence_id!r}: it was sampled without "
                "record_stability_info=True, or "
                f"went after {seconds:g} s without use or beyond "
                f"{self._settings.max_recorded_tokens} tokens"
            )
        if found.session_id != session_id:
            raise EngineError(f"the sequence {sequence_id!r} belongs to another session")
        if self._now() - found.used_at > seconds:
            raise EngineError(
                f"the record of the sequence {sequence_id!r} has expired: it was "
                f"not used for {seconds:g} s"
            )
        found.used_at = self._now()
        self._sequences.move_to_end(sequence_id)
        statement = "update sequences set used_at = ? where sequence_id = ?"
        self._journal.note((statement, (found.used_at, sequence_id)))
        return found

    def drop_session(self, session_id: str) -> None:
        """Forget the sequences of a session that has ended."""
        for name in [name for name, one in self._sequences.items() if one.session_id == session_id]:
            self._remove(name)

    def _put(self, one: RecordedSequence) -> None:
        before = self._sequences.pop(one.sequence_id, None)
        self._sequences[one.sequence_id] = one
        self._tokens += len(one.token_ids) - (0 if before is None else len(before.token_ids))

    def _remove(self, sequence_id: str) -> None:
        self._tokens -= len(self._sequences.pop(sequence_id).token_ids)
        self._journal.note(_SEQUENCES.delete("sequence_id = ?", sequence_id))


FindRecord: TypeAlias = Callable[[str], RecordedSequence]
NO_TOKEN = -1  # at the places of an image


@attrs.frozen
class _Placed:
    """A span and its first position in the field that it belongs to. ``record`` is that of its
    sequence.
    """

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
    """Return the data with the recorded log-probabilities as ``logprobs``, and a mask that leaves
    the sampled targets only.

    Raises EngineError, naming datum and field, for spans that are missing or do not fit.
    """
    return [_attach(f"data[{index}]", datum, find) for index, datum in enumerate(data)]


def _attach(where: str, datum: Datum, find: FindRecord) -> Datum:
    if datum.model_input_spans is None or datum.loss_fn_input_spans is None:
        raise EngineError(
            f"{where} has no provenance; use Datum.with_provenance to name the "
            "sampled sequence of its tokens"
        )
    if "target_tokens" not in datum.loss_fn_inputs:
        raise EngineError(f"{where}: loss_fn_inputs is missing target_tokens")
    _place(
        f"{where}.model_input_spans",
        datum.model_input_spans,
        _read_tokens(where, datum.model_input),
        find,
    )
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
    placed = _place(f"{where}.loss_fn_input_spans", datum.loss_fn_input_spans, targets, find)
    sampled = [one for one in placed if one.is_sampled]
    _check_overlaps(where, sampled)
    logprobs, mask = np.zeros(len(targets), np.float32), np.zeros(len(targets), np.float32)
    for one in sampled:
        logprobs[one.there], mask[one.there] = (
            np.frombuffer(one.record.logprobs, np.float32)[one.recorded],
            1.0,
        )
    _check_advantages(where, datum, mask)
    if (
        "mask" in datum.loss_fn_inputs
        and np.shape(given := datum.loss_fn_inputs["mask"].to_numpy()) == mask.shape
    ):
        mask = mask * given.astype(np.float32)
    added = {"logprobs": TensorData.from_numpy(logprobs), "mask": TensorData.from_numpy(mask)}
    return attrs.evolve(datum, loss_fn_inputs={**datum.loss_fn_inputs, **added})


def _read_tokens(where: str, value: ModelInput) -> NDArray[np.int32]:
    parts = [np.empty(0, np.int32)]
    try:
        for chunk in value.chunks:
            parts.append(
                chunk.array
                if isinstance(chunk, EncodedTextChunk)
                else np.full(chunk.length, NO_TOKEN, np.int32)
            )
    except ValueError as error:
        raise EngineError(f"{where}.model_input: {error}") from error
    return np.concatenate(parts)


def _place(
    what: str, spans: Sequence[ProvenanceSpan], tokens: NDArray[np.generic], find: FindRecord
) -> list[_Placed]:
    """Return the spans with their places. Raises EngineError unless they cover the tokens, and
    their sequences have them.
    """
    total = sum(span.length for span in spans)
    if total != len(tokens):
        raise EngineError(f"{what} cover {total} tokens, and there are {len(tokens)}")
    placed = list(_find_records(what, spans, find))
    for one in placed:
        record = one.record
        known = len(record.token_ids) if one.is_sampled else record.prompt_length
        if one.recorded.stop > known:
            kind = "sampled tokens" if one.is_sampled else "tokens of the prompt"
            name = one.span.sequence_id
            raise EngineError(
                f"{what}: {one.recorded.start} to {one.recorded.stop} are not in the {known} "
                f"{kind} of {name!r}"
            )
        if (
            one.is_sampled
            and (wrong := np.flatnonzero(tokens[one.there] != record.token_ids[one.recorded])).size
        ):
            at = one.start + int(wrong[0])
            raise EngineError(
                f"{what}: the token at position {at} is not the one that was sampled in "
                f"{one.span.sequence_id!r}"
            )
    return placed


def _find_records(
    what: str, spans: Sequence[ProvenanceSpan], find: FindRecord
) -> Iterator[_Placed]:
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
        if (
            one.span.sequence_id == following.span.sequence_id
            and one.recorded.stop > following.recorded.start
        ):
            raise EngineError(
                f"{where}.loss_fn_input_spans overlap: they name tokens of "
                f"{one.span.sequence_id!r} twice"
            )


def _check_advantages(where: str, datum: Datum, sampled: Float32) -> None:
    tensor = datum.loss_fn_inputs.get("advantages")
    advantages = np.zeros(len(sampled)) if tensor is None else tensor.to_numpy()
    if (
        np.shape(advantages) == np.shape(sampled)
        and (wrong := np.flatnonzero((advantages != 0) & (sampled == 0))).size
    ):
        raise EngineError(
            f"{where}: advantages is not 0 at position {int(wrong[0])}, which is "
            "not a sampled token"
        )
