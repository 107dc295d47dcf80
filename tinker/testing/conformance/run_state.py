"""The state of one run: what it knows about the server, the sessions that it keeps alive, and what
it must delete.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import attrs
from tinker_wire import models
from tinker_wire.api import service as service_api
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Request

from tinker._http import RefusedFields
from tinker.testing.conformance.outcome import Blocked

BodyFormat: TypeAlias = Literal["proto", "json"]

#: How often clients send a heartbeat.
HEARTBEAT_SECONDS = 10.0
#: Longer than one heartbeat may take.
_LONGEST_END_SECONDS = 20.0
_SCHEME = "tinker://"
_SUCCESS = models.FinishSessionRequest(reason={"type": "success"}, detail=None)


@attrs.define
class ServerKnowledge:
    """What earlier checks of a run found out about the server.

    ``basis_seconds``: how long the longest check took on which others rest. ``rate`` and ``eps``:
    of steps as long as the gradient. ``spare``: a model that was not unloaded, and its next number.
    ``refused``: fields at their default that the server refuses, which are left out as clients do.
    ``broken``: checks on which others depend and which failed or were blocked, each with the one
    that failed and its error. ``statuses``: operation to the statuses of its successes. ``full``:
    operations that were refused with 429 until the deadline. ``lacking``: operations for cleanup
    that the server does not have. ``submitted``: the hash of the body of each request id;
    ``fetched``: those with a result. ``shared_session``: the session of all checks if sessions
    cannot be finished, or have one id; ``numbers_used``: how many numbers of models and samplers
    earlier checks took in it. ``leaves_gradients``: whether new models begin with the gradient of
    an unloaded one.
    """

    base_model: str | None = None
    form: BodyFormat | None = None
    basis_seconds: float = 0.0
    rate: float | None = None
    eps: float = 1e4
    spare: tuple[str, int] | None = None
    refused: RefusedFields = attrs.field(factory=RefusedFields)
    broken: dict[str, tuple[str, str]] = attrs.field(factory=lambda: dict[str, tuple[str, str]]())
    statuses: dict[str, set[int]] = attrs.field(factory=lambda: dict[str, set[int]]())
    full: set[str] = attrs.field(factory=lambda: set[str]())
    lacking: set[str] = attrs.field(factory=lambda: set[str]())
    submitted: dict[str, int] = attrs.field(factory=lambda: dict[str, int]())
    fetched: set[str] = attrs.field(factory=lambda: set[str]())
    shared_session: str | None = None
    numbers_used: int = 0
    leaves_gradients: bool = False


class Heartbeats:
    """A thread that sends heartbeats from the first session until :meth:`close`, also while a poll
    is held.

    ``event`` makes the event that the thread waits for; ``send`` sends one heartbeat of a session,
    and raises nothing.
    """

    def __init__(self, event: Callable[[], threading.Event], send: Callable[[str], None]) -> None:
        self._event, self._send = event, send
        self._sessions: tuple[str, ...] = ()
        self._ended: threading.Event
        self._thread: threading.Thread | None = None

    def keep(self, session_id: str) -> None:
        """Send heartbeats of that session from now on."""
        self._sessions += (session_id,)
        if self._thread is None:
            self._ended = self._event()
            self._thread = threading.Thread(
                target=self._run, name="tinker-conformance-heartbeats", daemon=True
            )
            self._thread.start()

    def release(self, session_id: str) -> None:
        """Send no more heartbeats of that session."""
        self._sessions = tuple(one for one in self._sessions if one != session_id)

    def close(self) -> None:
        """Stop. Returns when the heartbeat in progress has a response or has timed out."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join(_LONGEST_END_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            for session in self._sessions:
                if not self._ended.is_set():
                    self._send(session)


@attrs.define
class Cleanup:
    """Ids and paths of what a check has made on the server and must delete."""

    checkpoints: list[str] = attrs.field(factory=lambda: list[str]())
    models: list[str] = attrs.field(factory=lambda: list[str]())
    sessions: list[str] = attrs.field(factory=lambda: list[str]())

    def add(self, path: str) -> str:
        """Return the path of a checkpoint, which may not be there yet and is deleted at the end."""
        self.checkpoints += [path] if path not in self.checkpoints else []
        return path

    def requests(self) -> Iterator[Request[Any]]:
        """Yield the requests that delete everything, in an order that servers can follow."""
        for path in self.checkpoints:
            with suppress(Blocked):  # no URL names the checkpoint
                yield weights_api.delete_checkpoint(**checkpoint_parts(path))
        for model in self.models:
            yield training_api.unload_model(models.UnloadModelRequest(model_id=model))
        for session in self.sessions:
            yield service_api.finish_session(_SUCCESS, session_id=session)


def checkpoint_parts(path: str, saved_in: str = "weights.save") -> dict[str, str]:
    """Return the parts of a checkpoint's URL. Blocked by the check of such saves if its path has no
    run and no name.
    """
    run, _, checkpoint = path.removeprefix(_SCHEME).partition("/")
    if not path.startswith(_SCHEME) or not checkpoint:
        raise Blocked(f"no URL names the checkpoint {path!r}", saved_in)
    return {"training_run_id": run, "checkpoint_id": checkpoint}
