"""The parts of the official client's ``holder`` that make sense here, for older scripts."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tinker._runtime import Runtime, run
from tinker.futures import APIFuture

if TYPE_CHECKING:
    from tinker._session import Telemetry

T = TypeVar("T")

_STARTS_WITHIN_SECONDS = 60.0
_INSTEAD = {
    "aclient": "connection pools are not public; use the client method that sends the request",
    "execute_with_retries": (
        "client methods retry automatically; set the time limit with "
        "ServiceClient(patience_seconds=...)"
    ),
    "aclose": "await ServiceClient.close() instead",
    "get_training_client_id": (
        "the client numbers the runs; use training.model_id for the complete id"
    ),
    "estimate_bytes_count_in_model_input": "use len(model_input) for the number of tokens",
}


class SessionHolder:
    """The session of a client, its end, and the client's I/O thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def get_session_id(self) -> str:
        """Return the id of the session. Creates the session if necessary, and blocks until it
        exists.
        """
        return run(self._runtime, "get_session_id", _start_session, self._runtime).result()

    @property
    def _session_id(self) -> str:
        return self.get_session_id()

    def get_telemetry(self) -> Telemetry | None:
        """Return the reporter of failures; None if telemetry is off."""
        return self._runtime.telemetry

    def close(self) -> None:
        """End the session, in the background. Later requests of its clients raise
        ClientClosedError.
        """
        run(self._runtime, "close", lambda _: self._runtime.session.close("success", None))

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the client's I/O thread. Blocking it stops every client."""
        if self._runtime.thread.is_current():
            return asyncio.get_running_loop()
        found: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._runtime.thread.call(lambda: found.set_result(asyncio.get_running_loop()))
        return found.result(_STARTS_WITHIN_SECONDS)

    def run_coroutine_threadsafe(self, coro: Coroutine[Any, Any, T]) -> APIFuture[T]:
        """Run a coroutine on the loop of :meth:`get_loop`; return a future of its result."""
        if not inspect.iscoroutine(coro):
            raise TypeError(
                f"run_coroutine_threadsafe takes a coroutine, got {type(coro).__name__}"
            )
        return run(self._runtime, "run_coroutine_threadsafe", lambda _: coro)

    def __getattr__(self, name: str) -> NoReturn:
        advice = _INSTEAD.get(name, "it is internal to the official client; use the client methods")
        raise AttributeError(f"holder has no attribute {name!r}: {advice}", name=name, obj=self)


async def _start_session(_: APIFuture[str], runtime: Runtime) -> str:
    return (await runtime.session.ensure_started()).session_id
