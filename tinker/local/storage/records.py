"""Records of a server's activity: usage, the audit log, metrics of runs, sampled sequences."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray
from tinker_wire import models

from tinker._wire import json
from tinker.local.call import log
from tinker.local.engines.protocol import Continuation, EngineError, Float32, Int32, explain
from tinker.local.settings import Settings
from tinker.local.storage import USER_ID, USER_NAME, CheckpointRecord, to_utc
from tinker.local.storage.futures import Journal, Table
from tinker.types.model_input import (
    Datum,
    EncodedTextChunk,
    ModelInput,
    ProvenanceSpan,
    SampledProvenanceSpan,
)
from tinker.types.tensor_data import TensorData

HOUR = 3600
GIGABYTE = 10**9
#: Project, session and base model.
UsageKey: TypeAlias = tuple[str | None, str | None, str | None]


class StoragePeriod(msgspec.Struct, frozen=True, array_like=True):
    """How many bytes were stored, and from when until when."""

    key: UsageKey
    nbytes: int
    since: float
    until: float


_AMOUNTS = Table(
    "usage",
    tuple[int, str, bytes, int],
    "hour",
    "what",
    "key",
    columns="hour what key amount",
    conflict="sum",
)
_PERIODS = Table("deleted", tuple[bytes], columns="content")


class UsageMeter:
    """Tokens and checkpoints of every hour, and the storage of deleted checkpoints, the newest
    ``max_deleted`` of them.

    ``now`` is the time of day in seconds since 1970.
    """

    def __init__(self, max_deleted: int, now: Callable[[], float], journal: Journal) -> None:
        self._max_deleted, self._now, self._journal = max_deleted, now, journal
        self._is_repeating = False
        journal.add_tables(_AMOUNTS, _PERIODS)
        self._counts: dict[tuple[int, str, UsageKey], int] = {
            (hour, what, msgspec.json.decode(key, type=UsageKey)): amount
            for hour, what, key, amount in journal.read(_AMOUNTS)
        }
        rows = journal.read(_PERIODS)
        deleted = (msgspec.json.decode(content, type=StoragePeriod) for (content,) in rows)
        self._deleted: deque[StoragePeriod] = deque(deleted, maxlen=max_deleted)

    @contextlib.contextmanager
    def repeating(self) -> Generator[None]:
        """Count nothing in the block, as its work was counted before. Only in the engine's thread,
        like all counting.
        """
        self._is_repeating = True
        try:
            yield
        finally:
            self._is_repeating = False

    def count(self, what: str, amount: int, key: UsageKey) -> None:
        """Count tokens (``training``, ``sampling_prefill``, ``sampling_sample``) or checkpoints
        (``checkpoint``).
        """
        if amount and not self._is_repeating:
            entry = (int(self._now()) // HOUR * HOUR, what, key)
            self._counts[entry] = self._counts.get(entry, 0) + amount
            self._journal.note(_AMOUNTS.add((*entry[:2], msgspec.json.encode(key), amount)))

    def totals(self) -> dict[tuple[str, str | None], int]:
        """Return the totals by kind and base model."""
        found: dict[tuple[str, str | None], int] = {}
        for (_, what, (_, _, base_model)), amount in self._counts.items():
            found[what, base_model] = found.get((what, base_model), 0) + amount
        return found

    def record_deletion(self, record: CheckpointRecord) -> None:
        """Keep the storage usage of a deleted checkpoint."""
        until = min(self._now(), record.expires_at or math.inf)
        self._deleted.append(
            StoragePeriod(_checkpoint_key(record), record.nbytes, record.created_at, until)
        )
        row = _PERIODS.add((msgspec.json.encode(self._deleted[-1]),))
        self._journal.note(row, _PERIODS.trim(self._max_deleted))

    def events(
        self, since: float, until: float, stored: Iterable[CheckpointRecord]
    ) -> Iterator[models.BillingUsageEvent]:
        """Yield the usage between two full hours, by hour. ``stored`` are the checkpoints that
        exist.
        """
        for (hour, what, key), amount in sorted(self._counts.items(), key=repr):
            if since <= hour < until:
                yield _event(hour, key, _event_info(what, amount))
        now = self._now()
        present = [
            StoragePeriod(_checkpoint_key(r), r.nbytes, r.created_at, min(now, r.expires_at or now))
            for r in stored
        ]
        yield from _storage_events([*self._deleted, *present], since, min(until, now))


def _event_info(what: str, amount: int) -> models.BillingEventInfo:
    if what == "training":
        return models.TrainingBillingEvent(token_count=amount)
    if what == "sampling_prefill":
        return models.SamplingPrefillBillingEvent(cached=False, token_count=amount)
    if what == "sampling_sample":
        return models.SamplingSampleBillingEvent(token_count=amount)
    return models.CheckpointBillingEvent(count=amount)


def _storage_events(
    periods: Iterable[StoragePeriod], since: float, until: float
) -> Iterator[models.BillingUsageEvent]:
    totals: dict[tuple[int, UsageKey], float] = {}
    for period in periods:
        begin, end = max(since, period.since), min(until, period.until)
        for hour in range(int(begin) // HOUR * HOUR, max(int(begin), int(end)) + 1, HOUR):
            seconds = min(end, hour + HOUR) - max(begin, hour)
            if seconds > 0:
                entry = hour, period.key
                totals[entry] = totals.get(entry, 0.0) + period.nbytes / GIGABYTE * seconds / HOUR
    for (hour, key), amount in sorted(totals.items(), key=repr):
        yield _event(hour, key, models.StorageBillingEvent(free=True, gigabyte_hours=amount))


def _event(hour: int, key: UsageKey, info: models.BillingEventInfo) -> models.BillingUsageEvent:
    project_id, session_id, base_model = key
    return models.BillingUsageEvent(
        bucket_start=to_utc(hour),
        bucket_end=to_utc(hour + HOUR),
        base_model=base_model,
        user_id=USER_ID,
        user_name=USER_NAME,
        session_id=session_id,
        project_id=project_id,
        event_info=info,
    )


def _checkpoint_key(record: CheckpointRecord) -> UsageKey:
    return record.project_id, record.session_id, record.base_model


_ENTRIES = Table("audit", tuple[str, bytes], columns="kind content")


class AuditLog:
    """The newest of the user's actions. ``now`` is the time of day in seconds since 1970."""

    def __init__(self, max_entries: int, now: Callable[[], float], journal: Journal) -> None:
        self._max_entries, self._now, self._journal = max_entries, now, journal
        journal.add_tables(_ENTRIES)
        kept = (
            (kind, json.decode(content, models.AuditLogEntry))
            for kind, content in journal.read(_ENTRIES)
        )
        self._entries: deque[tuple[str, models.AuditLogEntry]] = deque(kept, maxlen=max_entries)

    def record(
        self,
        event: str,
        kind: str,
        *,
        model_id: str | None = None,
        tinker_path: str | None = None,
        purpose: str | None = None,
        **details: models.JSONValue,
    ) -> None:
        """Add an entry."""
        entry = models.AuditLogEntry(
            timestamp=to_utc(self._now()),
            event=event,
            event_details={"actor": USER_ID, **details},
            model_id=model_id,
            tinker_path=tinker_path,
            purpose=purpose,
        )
        self._entries.append((kind, entry))
        self._journal.note(
            _ENTRIES.add((kind, json.encode(entry))), _ENTRIES.trim(self._max_entries)
        )

    def record_checkpoint(
        self, event: str, record: CheckpointRecord, purpose: str | None = None, **details: object
    ) -> None:
        """Add an entry about a checkpoint."""
        run, path = record.training_run_id, record.path
        self.record(
            event, "checkpoints", model_id=run, tinker_path=path, purpose=purpose, **details
        )

    def entries(self, kind: str, day: str | None) -> list[models.AuditLogEntry]:
        """Return those of a kind (``all``: every one) and of a day in UTC (None: every one), oldest
        first.
        """
        return [
            entry
            for its_kind, entry in self._entries
            if kind in ("all", its_kind) and day in (None, entry.timestamp.date().isoformat())
        ]


MAX_FORMER_RUNS = 200  # of which the histories are kept, the newest
MAX_POINTS = 2000  # the newest; a run of more steps loses the oldest ones
LOSS, SURROGATE = "loss:sum", "surrogate_loss:sum"
WEIGHTS, PER_TOKEN = "weights:sum", "loss per token"
_JOIN: Mapping[str, Callable[[float, float], float]] = {
    "sum": lambda a, b: a + b,
    "min": min,
    "max": max,
}


@attrs.frozen
class HistoryPoint:
    """One optimizer step: its number, from 1 on, the time of day, and the metrics."""

    step: int
    at: float
    metrics: Mapping[str, float]


_PointRow: TypeAlias = tuple[str, int, float, bytes]
_POINT = "model_id step at metrics"
_POINTS = Table("points", tuple[str, int, float, bytes], "model_id", "step", columns=_POINT)
_REPORTS = Table("reports", tuple[str, int, float, bytes], "model_id", "step", columns=_POINT)
_RUNS = Table(
    "seen", tuple[str, str, int, float], "model_id", columns="model_id base_model rank at"
)
RUN_TABLES = (_POINTS, _REPORTS, _RUNS)


class RunHistory:
    """The metrics of one run, one point for each optimizer step, the newest MAX_POINTS of them.

    ``reports`` are the metrics that the client computes and reports, such as rewards, by its own
    steps.
    """

    def __init__(self, journal: Journal, model_id: str, base_model: str, rank: int) -> None:
        self._journal = journal
        self.model_id = model_id
        self.base_model = base_model
        self.rank = rank
        self.points: deque[HistoryPoint] = self._read(_POINTS)
        self.reports: deque[HistoryPoint] = self._read(_REPORTS)
        self.step_count: int = self.points[-1].step if self.points else 0
        self._sums: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._is_sum = False

    def _read(self, table: Table[_PointRow]) -> deque[HistoryPoint]:
        rows = self._journal.read(table, "where model_id = ? order by step", self.model_id)
        kept = (
            HistoryPoint(step, at, msgspec.msgpack.decode(metrics, type=dict[str, float]))
            for _, step, at, metrics in rows
        )
        return deque(kept, maxlen=MAX_POINTS)

    def add_report(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        """Add metrics that the client reports for a step of its own counting."""
        self.reports.append(HistoryPoint(step, at, metrics))
        self._write(_REPORTS, self.reports[-1])

    def add_loss(
        self, metrics: Mapping[str, float], *, is_sum: bool = False, is_gradient: bool = False
    ) -> None:
        """Add the metrics of a forward_backward; several before one step are combined by the
        reduction in their names.

        ``is_sum``: the loss divided by the weights says nothing, as it is one of a policy.
        ``is_gradient``: the client computes a loss of its own and sends the gradient as weights,
        some below 0. From then on the run has no loss per token.
        """
        self._is_sum = self._is_sum or is_sum or is_gradient
        for told, value in metrics.items():
            name = SURROGATE if is_gradient and told == LOSS else told  # as in the client's metrics
            join = _JOIN.get(name.rpartition(":")[2], _JOIN["sum"])
            self._sums[name] = join(self._sums[name], value) if name in self._sums else value
            self._calls[name] = self._calls.get(name, 0) + 1

    def add_step(self, metrics: Mapping[str, float], at: float) -> None:
        """Add an optimizer step, with the metrics added since the previous one."""
        # over all calls: metrics that are neither a sum nor an extreme are averaged
        joined = {
            name: value / (1 if name.rpartition(":")[2] in _JOIN else self._calls[name])
            for name, value in self._sums.items()
        }
        if LOSS in joined and joined.get(WEIGHTS) and not self._is_sum:
            joined = {PER_TOKEN: joined[LOSS] / joined[WEIGHTS], **joined}
        self.step_count += 1
        self.points.append(HistoryPoint(self.step_count, at, {**joined, **metrics}))
        self._sums, self._calls = {}, {}
        self._write(_POINTS, self.points[-1])

    def _write(self, table: Table[_PointRow], point: HistoryPoint) -> None:
        metrics = msgspec.msgpack.encode(point.metrics)
        self._journal.note(
            _RUNS.add((self.model_id, self.base_model, self.rank, point.at)),
            table.add((self.model_id, point.step, point.at, metrics)),
            table.delete("model_id = ? and step <= ?", self.model_id, point.step - MAX_POINTS),
        )


def find_former_runs(journal: Journal, live: Collection[str]) -> list[RunHistory]:
    """Return the runs that ended in earlier processes, the newest first; those beyond
    MAX_FORMER_RUNS are forgotten.
    """
    rows = [row for row in journal.read(_RUNS, "order by at desc") if row[0] not in live]
    for model_id, *_ in rows[MAX_FORMER_RUNS:]:
        journal.note(*(table.delete("model_id = ?", model_id) for table in RUN_TABLES))
    journal.flush()
    return [
        RunHistory(journal, model_id, base_model, rank)
        for model_id, base_model, rank, _ in rows[:MAX_FORMER_RUNS]
    ]


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
    time of day, ``tokens`` how many sampled ones are recorded.
    """

    def __init__(self, settings: Settings, now: Callable[[], float], journal: Journal) -> None:
        self._settings, self._now, self._journal = settings, now, journal
        self._sequences: OrderedDict[str, RecordedSequence] = OrderedDict()
        self.tokens: int = 0
        self._is_announced = False
        journal.add_tables(_SEQUENCES)
        for one in journal.read(_SEQUENCES, "order by used_at"):
            self._put(one)

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
        tokens = np.array(sampled.tokens, np.int32).tobytes()
        logprobs = np.array(sampled.logprobs, np.float32).tobytes()
        one = RecordedSequence(
            sequence_id, session_id, prompt_length, tokens, logprobs, self._now()
        )
        self._journal.note(_SEQUENCES.add(one))
        self._put(one)
        while self.tokens > self._settings.max_recorded_tokens:
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
        self.tokens += len(one.token_ids) - (0 if before is None else len(before.token_ids))

    def _remove(self, sequence_id: str) -> None:
        self.tokens -= len(self._sequences.pop(sequence_id).token_ids)
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
        logprobs[one.there] = np.frombuffer(one.record.logprobs, np.float32)[one.recorded]
        mask[one.there] = 1.0
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
    with explain(f"{where}.model_input", ValueError):
        for chunk in value.chunks:
            parts.append(
                chunk.array
                if isinstance(chunk, EncodedTextChunk)
                else np.full(chunk.length, NO_TOKEN, np.int32)
            )
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
            with explain(what):
                record = find(span.sequence_id)
            yield _Placed(span, start, record)
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
