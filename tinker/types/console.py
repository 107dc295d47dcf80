"""Addresses of the hosted service's web console. They are made here, not requested; other servers
have no such pages.
"""

from __future__ import annotations

from urllib.parse import quote

from tinker.types.paths import ParsedCheckpointTinkerPath

CONSOLE = "https://tinker.thinkingmachines.ai"


def session_url(session_id: str | None) -> str:
    """Return the page of a session, the list of sessions for None."""
    return f"{CONSOLE}/sessions" if session_id is None else f"{CONSOLE}/sessions/{session_id}"


def training_run_url(training_run_id: str) -> str:
    """Return the page of a training run."""
    return f"{CONSOLE}/training_runs/{training_run_id}"


def checkpoint_url(tinker_path: str) -> str:
    """Return the page of a checkpoint; ValueError for a malformed path."""
    parsed = ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
    run, checkpoint = quote(parsed.training_run_id, safe=""), quote(parsed.checkpoint_id, safe="")
    return f"{CONSOLE}/checkpoints/{run}/{checkpoint}"


def playground_url(tinker_path: str) -> str:
    """Return the page of a chat with a checkpoint."""
    return f"{CONSOLE}/playground?mode=checkpoint&checkpoint={quote(tinker_path, safe='')}"
