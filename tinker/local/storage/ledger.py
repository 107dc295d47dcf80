"""What a server has seen, beside what it must do: usage, the audit log and the curves of its runs, kept with its journal.

An entry is written in the transaction of the result that it belongs to, so that a request which is repeated after a kill counts
once. Entries that belong to no result are written when the request that made them is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import attrs
import msgspec
from tinker_wire import models

from tinker._wire import json
from tinker.local.storage.audit import AuditLog
from tinker.local.storage.history import MAX_POINTS, HistoryPoint, RunHistory
from tinker.local.storage.journal import Journal
from tinker.local.storage.usage import StoragePeriod, UsageKey, UsageMeter

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
