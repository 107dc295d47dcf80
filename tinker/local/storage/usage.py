"""Usage by the hour, since the server was started, or longer. Nothing has a price here. Guarded by the lock of the state."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs
from tinker_wire import models

from tinker.local.storage.accounts import USER_ID, USER_NAME
from tinker.local.storage.checkpoint_records import CheckpointRecord

HOUR = 3600
GIGABYTE = 10**9
#: Project, session and base model.
UsageKey: TypeAlias = tuple[str | None, str | None, str | None]


def to_utc(seconds: float) -> datetime.datetime:
    """Return seconds since 1970 as a time in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


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
