"""What a check has made on the server, and how that is freed: checkpoints deleted, models unloaded, sessions finished.

How that goes is another check's matter; an operation that the server does not have is asked for once in a run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
from tinker_wire import models
from tinker_wire.api import service as service_api
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Request

from tinker._http import ABSENT_STATUSES
from tinker.testing.conformance.connection import ReceivedResponse
from tinker.testing.conformance.memory import RunMemory
from tinker.testing.conformance.outcome import Absent, CheckEnd

Send = Callable[[Request[Any]], ReceivedResponse]


@attrs.define
class Leftovers:
    """Ids and paths of what must be freed."""

    checkpoints: list[str] = attrs.field(factory=lambda: list[str]())
    models: list[str] = attrs.field(factory=lambda: list[str]())
    sessions: list[str] = attrs.field(factory=lambda: list[str]())

    def free(self, send: Send, memory: RunMemory) -> None:
        """Free everything, in the order that a server can follow, until the time is over."""
        for request in self._requests():
            if request.operation not in memory.lacking:
                with suppress(CheckEnd):
                    _ask(request, send, memory)

    def _requests(self) -> list[Request[Any]]:
        return [
            *(weights_api.delete_checkpoint(**checkpoint_parts(path)) for path in self.checkpoints),
            *(training_api.unload_model(models.UnloadModelRequest(model_id=model)) for model in self.models),
            *(service_api.finish_session(_SUCCESS, session_id=session) for session in self.sessions),
        ]


#: There is no such operation, or it does not take the request.
_NEVER = ABSENT_STATUSES | {400, 422}
_SUCCESS = models.FinishSessionRequest(reason={"type": "success"}, detail=None)


def _ask(request: Request[Any], send: Send, memory: RunMemory) -> None:
    """A 404 may be about the thing and not about the operation, which is there once it has freed something."""
    try:
        answer = send(request)
    except Absent:
        memory.lacking.add(request.operation)
        return
    if answer.status < 300:
        memory.statuses.setdefault(request.operation, set()).add(answer.status)
    elif answer.status in _NEVER and request.operation not in memory.statuses:
        memory.lacking.add(request.operation)


def checkpoint_parts(path: str) -> dict[str, str]:
    """Return the parts of a checkpoint's URL."""
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    return {"training_run_id": run, "checkpoint_id": checkpoint}
