"""Parts of a server by themselves, without the server that hears what happens in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tinker.local.storage import Checkpoints, Owner
from tinker.local.storage.futures import RequestOutcome, ServerFuture
from tinker.local.storage.sessions import ModelRecord, SessionRecord


class NoEvents:
    """A state that does nothing, and knows of no checkpoint."""

    @property
    def checkpoints(self) -> NoEvents:
        return self

    def describe_last_save(self, run: str) -> str:
        return ""

    def handle_result(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Do nothing."""

    def handle_gap(self, future: ServerFuture) -> None:
        """Do nothing."""

    def handle_dropped_result(self, request_id: str) -> None:
        """Do nothing."""

    def handle_session_end(self, session: SessionRecord) -> None:
        """Do nothing."""

    def handle_model_end(self, model: ModelRecord) -> None:
        """Do nothing."""


def open_checkpoints(root: Path, now: Callable[[], float] = lambda: 0.0) -> Checkpoints:
    """Open the checkpoints of a folder as a server does."""
    return Checkpoints(root, now, Owner(root), lambda record: None)
