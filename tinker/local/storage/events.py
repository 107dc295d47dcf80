"""What the parts of a server report to one another: one interface, handed to each of them when it is made."""

from __future__ import annotations

from typing import Protocol

from tinker.local.storage.checkpoint_records import CheckpointRecord
from tinker.local.storage.futures import RequestOutcome, ServerFuture
from tinker.local.storage.sessions import ModelRecord, SessionRecord


class ServerEvents(Protocol):
    """Whoever hears what happens in a server."""

    def result_ready(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Handle a result before anybody can see it."""
        ...

    def result_dropped(self, request_id: str) -> None:
        """Handle the end of a result that is kept no longer."""
        ...

    def session_ended(self, session: SessionRecord) -> None:
        """Handle the end of a session."""
        ...

    def model_closed(self, model: ModelRecord) -> None:
        """Handle the end of a model: what was submitted for it still runs."""
        ...

    def checkpoint_expired(self, record: CheckpointRecord) -> None:
        """Handle the removal of a checkpoint that has expired."""
        ...

    def find_last_save(self, run: str) -> str:
        """Return what to add to the refusal of a run that is unknown: where it was saved last; empty without a save."""
        ...
