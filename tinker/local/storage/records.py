"""Records of what a server has done: usage, the audit log, and the metrics of its runs; with a journal, kept in its file.

With a journal, an entry is written in the transaction of the result that it belongs to, so that a request which is repeated
after a kill counts once. Entries that belong to no result are written when the request that made them is answered.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs
import msgspec
from tinker_wire import models

from tinker._wire import json
from tinker.local.storage.access import USER_ID, USER_NAME
from tinker.local.storage.checkpoint_records import CheckpointRecord, to_utc
from tinker.local.storage.journal import Journal

HOUR = 3600
GIGABYTE = 10**9
#: Project, session and base model.
UsageKey: TypeAlias = tuple[str | None, str | None, str | None]


@attrs.frozen
class StoragePeriod:
    """How many bytes were stored, and from when until when."""

    key: UsageKey
    nbytes: int
    since: float
    until: float


class UsageMeter:
    """Tokens and checkpoints of every hour, and the storage of deleted checkpoints, the newest ``max_deleted`` of them.

    ``now`` is the time of day in seconds since 1970.
    """

    def __init__(self, max_deleted: int, now: Callable[[], float]) -> None:
        self._now = now
        self._counts: dict[tuple[int, str, UsageKey], int] = {}
        self._deleted: deque[StoragePeriod] = deque(maxlen=max_deleted)
        self._is_repeating = False
        self.on_count: Callable[[int, str, UsageKey, int], None] = _ignore_count
        self.on_deletion: Callable[[StoragePeriod], None] = _ignore_deletion

    def restore(self, counts: Mapping[tuple[int, str, UsageKey], int], deleted: deque[StoragePeriod]) -> None:
        """Begin with what an earlier process of this server has counted."""
        self._counts, self._deleted = dict(counts), deleted

    @contextlib.contextmanager
    def repeating(self) -> Generator[None]:
        """Count nothing: what is done was done before, and counted. Only in the engine's thread, where all counting is."""
        self._is_repeating = True
        try:
            yield
        finally:
            self._is_repeating = False

    def count(self, what: str, amount: int, key: UsageKey) -> None:
        """Count tokens (``training``, ``sampling_prefill``, ``sampling_sample``) or checkpoints (``checkpoint``)."""
        if amount and not self._is_repeating:
            entry = (int(self._now()) // HOUR * HOUR, what, key)
            self._counts[entry] = self._counts.get(entry, 0) + amount
            self.on_count(*entry, amount)

    def totals(self) -> dict[tuple[str, str | None], int]:
        """Return what was counted, by what it is and base model."""
        found: dict[tuple[str, str | None], int] = {}
        for (_, what, (_, _, base_model)), amount in self._counts.items():
            found[what, base_model] = found.get((what, base_model), 0) + amount
        return found

    def record_deletion(self, record: CheckpointRecord) -> None:
        """Keep counting what a deleted checkpoint stored until now."""
        until = min(self._now(), record.expires_at or math.inf)
        self._deleted.append(StoragePeriod(_checkpoint_key(record), record.nbytes, record.created_at, until))
        self.on_deletion(self._deleted[-1])

    def events(self, since: float, until: float, stored: Iterable[CheckpointRecord]) -> Iterator[models.BillingUsageEvent]:
        """Yield the usage between two full hours, by hour. ``stored`` are the checkpoints that exist."""
        for (hour, what, key), amount in sorted(self._counts.items(), key=repr):
            if since <= hour < until:
                yield _event(hour, key, _event_info(what, amount))
        now = self._now()
        present = [StoragePeriod(_checkpoint_key(r), r.nbytes, r.created_at, min(now, r.expires_at or now)) for r in stored]
        yield from _storage_events([*self._deleted, *present], since, min(until, now))


def _ignore_count(hour: int, what: str, key: UsageKey, amount: int) -> None:
    return None


def _ignore_deletion(period: StoragePeriod) -> None:
    return None


def _event_info(what: str, amount: int) -> models.BillingEventInfo:
    if what == "training":
        return models.TrainingBillingEvent(token_count=amount)
    if what == "sampling_prefill":
        return models.SamplingPrefillBillingEvent(cached=False, token_count=amount)
    if what == "sampling_sample":
        return models.SamplingSampleBillingEvent(token_count=amount)
    return models.CheckpointBillingEvent(count=amount)


def _storage_events(periods: Iterable[StoragePeriod], since: float, until: float) -> Iterator[models.BillingUsageEvent]:
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


class AuditLog:
    """The newest entries. ``now`` is the time of day in seconds since 1970."""

    def __init__(self, max_entries: int, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: deque[tuple[str, models.AuditLogEntry]] = deque(maxlen=max_entries)
        self.on_record: Callable[[str, models.AuditLogEntry], None] = _ignore_entry

    def restore(self, entries: Iterable[tuple[str, models.AuditLogEntry]]) -> None:
        """Begin with the entries of an earlier process of this server."""
        self._entries.extend(entries)

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
        self.on_record(kind, entry)

    def record_checkpoint(self, event: str, record: CheckpointRecord, purpose: str | None = None, **details: object) -> None:
        """Add an entry about a checkpoint."""
        run, path = record.training_run_id, record.path
        self.record(event, "checkpoints", model_id=run, tinker_path=path, purpose=purpose, **details)

    def entries(self, kind: str, day: str | None) -> list[models.AuditLogEntry]:
        """Return those of a kind (``all``: every one) and of a day in UTC (None: every one), oldest first."""
        return [
            entry
            for its_kind, entry in self._entries
            if kind in ("all", its_kind) and day in (None, entry.timestamp.date().isoformat())
        ]


def _ignore_entry(kind: str, entry: models.AuditLogEntry) -> None:
    return None


MAX_POINTS = 2000  # the newest; a run of more steps loses the oldest ones
LOSS, TOKENS, PER_TOKEN = "loss:sum", "tokens:sum", "loss per token"
_JOIN: Mapping[str, Callable[[float, float], float]] = {"sum": lambda a, b: a + b, "min": min, "max": max}


@attrs.frozen
class HistoryPoint:
    """One optimizer step: its number, from 1 on, the time of day, and the metrics."""

    step: int
    at: float
    metrics: Mapping[str, float]


class RunHistory:
    """The steps of one run. Guarded by the lock of the state."""

    def __init__(self) -> None:
        self.points: deque[HistoryPoint] = deque(maxlen=MAX_POINTS)
        self.step_count: int = 0
        self._sums: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self.on_point: Callable[[HistoryPoint], None] = _ignore_point

    def restore(self, points: Iterable[HistoryPoint]) -> None:
        """Begin with the steps that an earlier process of this server has seen."""
        self.points.extend(points)
        self.step_count = self.points[-1].step if self.points else 0

    def add_loss(self, metrics: Mapping[str, float]) -> None:
        """Add what a forward_backward reported. Several before one step count together, by the reduction in their names."""
        for name, value in metrics.items():
            before = self._sums.get(name)
            join = _JOIN.get(name.rpartition(":")[2], _JOIN["sum"])
            self._sums[name] = value if before is None else join(before, value)
            self._calls[name] = self._calls.get(name, 0) + 1

    def add_step(self, metrics: Mapping[str, float], at: float) -> None:
        """Add an optimizer step, which ends what was added since the one before."""
        joined = {name: self._settle(name, value) for name, value in self._sums.items()}
        if LOSS in joined and joined.get(TOKENS):
            joined = {PER_TOKEN: joined[LOSS] / joined[TOKENS], **joined}
        self.step_count += 1
        self.points.append(HistoryPoint(self.step_count, at, {**joined, **metrics}))
        self._sums, self._calls = {}, {}
        self.on_point(self.points[-1])

    def _settle(self, name: str, value: float) -> float:
        """Return the value over all calls: metrics that are neither a sum nor an extreme are averaged."""
        return value if name.rpartition(":")[2] in _JOIN else value / self._calls[name]


def _ignore_point(point: HistoryPoint) -> None:
    return None


MAX_FORMER_RUNS = 200  # whose curves are kept, the newest
_SCHEMA = """
create table if not exists usage (
    hour integer not null, what text not null, key blob not null, amount integer not null, primary key (hour, what, key));
create table if not exists deleted (position integer primary key, content blob not null);
create table if not exists audit (position integer primary key, kind text not null, content blob not null);
create table if not exists points (
    model_id text not null, step integer not null, at real not null, metrics blob not null, primary key (model_id, step));
create table if not exists seen (model_id text primary key, base_model text not null, rank integer not null, at real not null);
"""
_ADD_USAGE = "insert into usage values (?, ?, ?, ?) on conflict do update set amount = amount + excluded.amount"
_SEE = "insert into seen values (?, ?, ?, ?) on conflict do update set at = excluded.at"
_TRIM = "delete from {0} where position <= (select max(position) from {0}) - ?"


@attrs.frozen
class FormerRun:
    """A run of an earlier process of this server. ``last_step_at`` is a time of day."""

    model_id: str
    base_model: str
    rank: int
    last_step_at: float
    history: RunHistory


class _AmountRow(msgspec.Struct, frozen=True, array_like=True):
    hour: int
    what: str
    key: bytes
    amount: int


class _AuditRow(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    content: bytes


class _ContentRow(msgspec.Struct, frozen=True, array_like=True):
    content: bytes


class _PointRow(msgspec.Struct, frozen=True, array_like=True):
    step: int
    at: float
    metrics: bytes


class _SeenRow(msgspec.Struct, frozen=True, array_like=True):
    model_id: str
    base_model: str
    rank: int
    at: float


class Ledger:
    """Usage, audit log and curves in the file of a journal."""

    def __init__(self, journal: Journal, max_entries: int) -> None:
        self._journal, self._max_entries = journal, max_entries
        journal.add_tables(_SCHEMA)

    def keep(self, usage: UsageMeter, audit: AuditLog) -> None:
        """Give both what was seen before, and write down what they see from now on."""
        rows = self._journal.read("select hour, what, key, amount from usage", _AmountRow)
        usage.restore({(row.hour, row.what, _decode_key(row.key)): row.amount for row in rows}, self._read_deleted())
        audit.restore(
            (row.kind, json.decode(row.content, models.AuditLogEntry))
            for row in self._journal.read("select kind, content from audit order by position", _AuditRow)
        )
        usage.on_count, usage.on_deletion, audit.on_record = self._add_usage, self._add_deletion, self._add_audit

    def open_history(self, model_id: str, base_model: str, rank: int) -> RunHistory:
        """Return the history of a run, as it was left, whose steps are written down from now on."""
        history = self._read_history(model_id)

        def write(point: HistoryPoint) -> None:
            self._journal.note(_SEE, model_id, base_model, rank, point.at)
            values = model_id, point.step, point.at, msgspec.msgpack.encode(point.metrics)
            self._journal.note("insert or replace into points values (?, ?, ?, ?)", *values)
            self._journal.note("delete from points where model_id = ? and step <= ?", model_id, point.step - MAX_POINTS)

        history.on_point = write
        return history

    def former_runs(self, live: Collection[str]) -> list[FormerRun]:
        """Return the runs that ended in earlier processes, the newest first; those beyond MAX_FORMER_RUNS are forgotten."""
        everyone = self._journal.read("select model_id, base_model, rank, at from seen order by at desc", _SeenRow)
        rows = [row for row in everyone if row.model_id not in live]
        for row in rows[MAX_FORMER_RUNS:]:
            self._journal.note("delete from seen where model_id = ?", row.model_id)
            self._journal.note("delete from points where model_id = ?", row.model_id)
        self._journal.flush()
        return [
            FormerRun(row.model_id, row.base_model, row.rank, row.at, self._read_history(row.model_id))
            for row in rows[:MAX_FORMER_RUNS]
        ]

    def _read_history(self, model_id: str) -> RunHistory:
        query = "select step, at, metrics from points where model_id = ? order by step"
        rows = self._journal.read(query, _PointRow, model_id)
        history = RunHistory()
        history.restore(
            HistoryPoint(row.step, row.at, msgspec.msgpack.decode(row.metrics, type=dict[str, float])) for row in rows
        )
        return history

    def _read_deleted(self) -> deque[StoragePeriod]:
        rows = self._journal.read("select content from deleted order by position", _ContentRow)
        return deque((_decode_period(row.content) for row in rows), maxlen=self._max_entries)

    def _add_usage(self, hour: int, what: str, key: UsageKey, amount: int) -> None:
        self._journal.note(_ADD_USAGE, hour, what, msgspec.json.encode(key), amount)

    def _add_deletion(self, period: StoragePeriod) -> None:
        content = msgspec.json.encode((period.key, period.nbytes, period.since, period.until))
        self._journal.note("insert into deleted (content) values (?)", content)
        self._journal.note(_TRIM.format("deleted"), self._max_entries)

    def _add_audit(self, kind: str, entry: models.AuditLogEntry) -> None:
        self._journal.note("insert into audit (kind, content) values (?, ?)", kind, json.encode(entry))
        self._journal.note(_TRIM.format("audit"), self._max_entries)


def _decode_key(content: bytes) -> UsageKey:
    return msgspec.json.decode(content, type=tuple[str | None, str | None, str | None])


def _decode_period(content: bytes) -> StoragePeriod:
    kind = tuple[tuple[str | None, str | None, str | None], int, float, float]
    return StoragePeriod(*msgspec.json.decode(content, type=kind))
