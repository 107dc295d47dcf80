"""Sampled sequences that a training request may name: their tokens and log-probabilities, for a while and up to a limit.

Guarded by the lock of the state. With a journal they survive a restart, like the sessions that they belong to.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

import attrs
import msgspec
import numpy as np

from tinker.local.engines.protocol import Continuation, EngineError, Float32, Int32
from tinker.local.settings import Settings
from tinker.local.storage.journal import Journal, Table

log: logging.Logger = logging.getLogger("tinker.local")


@attrs.define(eq=False)
class RecordedSequence:
    """One sampled sequence. ``used_at`` is a time of day."""

    session_id: str
    prompt_length: int
    tokens: Int32
    logprobs: Float32
    used_at: float


class _SequenceRow(msgspec.Struct, frozen=True, array_like=True):
    sequence_id: str
    session_id: str
    prompt_length: int
    tokens: bytes
    logprobs: bytes
    used_at: float


_SEQUENCES = Table("sequences", _SequenceRow, "sequence_id")


class RecordedSequences:
    """The sequences by their ids, the one that has not been used for longest first. ``now`` is the time of day."""

    def __init__(self, settings: Settings, now: Callable[[], float], journal: Journal) -> None:
        self._settings, self._now, self._journal = settings, now, journal
        self._sequences: OrderedDict[str, RecordedSequence] = OrderedDict()
        self._tokens = 0
        self._is_announced = False
        journal.add_tables(_SEQUENCES)
        for row in journal.read(_SEQUENCES, "order by used_at"):
            tokens, logprobs = np.frombuffer(row.tokens, np.int32), np.frombuffer(row.logprobs, np.float32)
            self._put(row.sequence_id, RecordedSequence(row.session_id, row.prompt_length, tokens, logprobs, row.used_at))

    @property
    def tokens(self) -> int:
        """Return how many sampled tokens are recorded."""
        return self._tokens

    def announce(self) -> None:
        """Log once which objective this server computes."""
        if not self._is_announced:
            self._is_announced = True
            log.info(
                "stable_reinforce: the formula of the hosted service is not published; this server computes truncated "
                "REINFORCE, an objective of its own, with the metrics truncated_reinforce/..."
            )

    def add(self, sequence_id: str, session_id: str, prompt_length: int, sampled: Continuation) -> None:
        """Record a sequence of a session. The least recently used sequences are dropped beyond the limit."""
        tokens, logprobs = np.array(sampled.tokens, np.int32), np.array(sampled.logprobs, np.float32)
        one = RecordedSequence(session_id, prompt_length, tokens, logprobs, self._now())
        row = _SequenceRow(sequence_id, session_id, prompt_length, tokens.tobytes(), logprobs.tobytes(), one.used_at)
        self._journal.note(_SEQUENCES.add(row))
        self._put(sequence_id, one)
        while self._tokens > self._settings.max_recorded_tokens:
            self._remove(next(iter(self._sequences)))

    def find(self, sequence_id: str, session_id: str) -> RecordedSequence:
        """Return a sequence, whose time begins again. Raises EngineError for one that this session cannot name."""
        found, seconds = self._sequences.get(sequence_id), self._settings.recorded_seconds
        if found is None:
            raise EngineError(
                f"there is no record of the sequence {sequence_id!r}: it was sampled without record_stability_info=True, or "
                f"went after {seconds:g} s without use or beyond {self._settings.max_recorded_tokens} tokens"
            )
        if found.session_id != session_id:
            raise EngineError(f"the sequence {sequence_id!r} belongs to another session")
        if self._now() - found.used_at > seconds:
            raise EngineError(f"the record of the sequence {sequence_id!r} has expired: it was not used for {seconds:g} s")
        found.used_at = self._now()
        self._sequences.move_to_end(sequence_id)
        statement = "update sequences set used_at = ? where sequence_id = ?"
        self._journal.note((statement, (found.used_at, sequence_id)))
        return found

    def drop_session(self, session_id: str) -> None:
        """Forget the sequences of a session that has ended."""
        for name in [name for name, one in self._sequences.items() if one.session_id == session_id]:
            self._remove(name)

    def _put(self, sequence_id: str, one: RecordedSequence) -> None:
        before = self._sequences.pop(sequence_id, None)
        self._sequences[sequence_id] = one
        self._tokens += len(one.tokens) - (0 if before is None else len(before.tokens))

    def _remove(self, sequence_id: str) -> None:
        self._tokens -= len(self._sequences.pop(sequence_id).tokens)
        self._journal.note(_SEQUENCES.delete("sequence_id = ?", sequence_id))
