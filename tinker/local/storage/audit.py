"""The audit log: the user's actions since the server was started, or longer. Guarded by the lock of the state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from tinker_wire import models

from tinker.local.storage.accounts import USER_ID
from tinker.local.storage.checkpoint_records import CheckpointRecord
from tinker.local.storage.usage import to_utc


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
