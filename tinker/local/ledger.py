"""What happened and what was used, for the audit log and the usage reports. In memory, since the server was started.

Guarded by the lock of the state. Nothing has a price here.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import attrs
from tinker_wire import models

from tinker.local.accounts import USER_ID, USER_NAME
from tinker.local.checkpoints import CheckpointRecord

HOUR = 3600
GIGABYTE = 10**9

#: Project, session and base model of a use.
Place: TypeAlias = tuple[str | None, str | None, str | None]


def time_of_day(seconds: float) -> datetime.datetime:
    """Seconds since 1970 as a time in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


@attrs.frozen
class Stored:
    """What a checkpoint that is gone took up."""

    place: Place
    nbytes: int
    since: float
    until: float


class Ledger:
    """The newest audit entries, and the uses of every hour. ``now`` is the time of day in seconds since 1970."""

    def __init__(self, max_entries: int, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: deque[tuple[str, models.AuditLogEntry]] = deque(maxlen=max_entries)
        self._uses: dict[tuple[int, str, Place], int] = {}
        self._stored: deque[Stored] = deque(maxlen=max_entries)

    # Audit

    def note(
        self,
        event: str,
        kind: str,
        *,
        model_id: str | None = None,
        tinker_path: str | None = None,
        purpose: str | None = None,
        **details: models.JSONValue,
    ) -> None:
        """Write down what the user did."""
        entry = models.AuditLogEntry(
            timestamp=time_of_day(self._now()),
            event=event,
            event_details={"actor": USER_ID, **details},
            model_id=model_id,
            tinker_path=tinker_path,
            purpose=purpose,
        )
        self._entries.append((kind, entry))

    def note_checkpoint(self, event: str, record: CheckpointRecord, purpose: str | None = None, **details: object) -> None:
        """Write down what was done to a checkpoint."""
        run, path = record.training_run_id, record.path
        self.note(event, "checkpoints", model_id=run, tinker_path=path, purpose=purpose, **details)

    def entries(self, kind: str, day: str | None) -> list[models.AuditLogEntry]:
        """Those of a kind (``all``: every one) and of a day in UTC (None: every one), oldest first."""
        return [
            entry
            for its_kind, entry in self._entries
            if kind in ("all", its_kind) and day in (None, entry.timestamp.date().isoformat())
        ]

    # Usage

    def use(self, what: str, amount: int, place: Place) -> None:
        """Count tokens (``training``, ``sampling_prefill``, ``sampling_sample``) or checkpoints (``checkpoint``)."""
        if amount:
            key = (int(self._now()) // HOUR * HOUR, what, place)
            self._uses[key] = self._uses.get(key, 0) + amount

    def removed(self, record: CheckpointRecord) -> None:
        """A checkpoint is gone; what it took up until now stays counted."""
        self._stored.append(Stored(_place(record), record.nbytes, record.created_at, self._now()))

    def usage(self, since: float, until: float, present: Iterable[CheckpointRecord]) -> Iterator[models.BillingUsageEvent]:
        """What was used between two full hours, by hour. ``present`` are the checkpoints that are there."""
        for (hour, what, place), amount in sorted(self._uses.items(), key=repr):
            if since <= hour < until:
                yield _event(hour, place, _info(what, amount))
        now = self._now()
        there = [Stored(_place(r), r.nbytes, r.created_at, min(now, r.expires_at or now)) for r in present]
        yield from _storage([*self._stored, *there], since, min(until, now))


def _info(what: str, amount: int) -> models.BillingEventInfo:
    if what == "training":
        return models.TrainingBillingEvent(token_count=amount)
    if what == "sampling_prefill":
        return models.SamplingPrefillBillingEvent(cached=False, token_count=amount)
    if what == "sampling_sample":
        return models.SamplingSampleBillingEvent(token_count=amount)
    return models.CheckpointBillingEvent(count=amount)


def _storage(stored: Iterable[Stored], since: float, until: float) -> Iterator[models.BillingUsageEvent]:
    totals: dict[tuple[int, Place], float] = {}
    for one in stored:
        begin, end = max(since, one.since), min(until, one.until)
        for hour in range(int(begin) // HOUR * HOUR, max(int(begin), int(end)) + 1, HOUR):
            seconds = min(end, hour + HOUR) - max(begin, hour)
            if seconds > 0:
                key = hour, one.place
                totals[key] = totals.get(key, 0.0) + one.nbytes / GIGABYTE * seconds / HOUR
    for (hour, place), amount in sorted(totals.items(), key=repr):
        yield _event(hour, place, models.StorageBillingEvent(free=True, gigabyte_hours=amount))


def _event(hour: int, place: Place, info: models.BillingEventInfo) -> models.BillingUsageEvent:
    project_id, session_id, base_model = place
    return models.BillingUsageEvent(
        bucket_start=time_of_day(hour),
        bucket_end=time_of_day(hour + HOUR),
        base_model=base_model,
        user_id=USER_ID,
        user_name=USER_NAME,
        session_id=session_id,
        project_id=project_id,
        event_info=info,
    )


def _place(record: CheckpointRecord) -> Place:
    return record.project_id, record.session_id, record.base_model
