"""Requests that need no session, each a future at once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from tinker_wire import models
from tinker_wire.runtime import Request

from tinker._checks import check_number
from tinker._clock import Clock
from tinker._config import check_headers, load_config
from tinker._http import retry
from tinker._runtime import Runtime, is_of_this_process, open_runtime, run
from tinker._session import Description
from tinker.futures import APIFuture

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_NO_SESSION = Description(user_metadata={})


class Rest(msgspec.Struct, eq=False):
    """Asks one server. What is under way keeps the connections open, also when its
    client is gone.
    """

    _runtime: Runtime

    @property
    def runtime(self) -> Runtime:
        """Return the connections and what goes with them; a child made by ``fork``
        makes its own.
        """
        if not is_of_this_process(self._runtime):
            before = self._runtime
            self._runtime = open_runtime(
                before.config,
                _NO_SESSION,
                clock=before.clock,
                observers=before.transport.observers.given,
            )
        return self._runtime

    def ask(self, request: Request[T]) -> APIFuture[T]:
        """Send the request; the future's result is its response. TypeError or ValueError for
        options that cannot be right.
        """
        return self.run(request.operation, partial(self.answer, request), request)

    def run(
        self,
        operation: str,
        make: Callable[[], Coroutine[Any, Any, T]],
        request: Request[Any] | None = None,
    ) -> APIFuture[T]:
        """Run the coroutine that ``make`` returns, within the options of the
        request that it sends.
        """
        if request is not None:
            _check_options(request)
        return run(self.runtime, operation, self._await_in_time, make, request)

    async def _await_in_time(
        self,
        _: APIFuture[T],
        make: Callable[[], Coroutine[Any, Any, T]],
        request: Request[Any] | None,
    ) -> T:
        if request is None or request.timeout_seconds is None:
            return await make()
        try:
            async with self.runtime.clock.deadline(request.timeout_seconds):
                return await make()
        except TimeoutError as error:
            raise self.runtime.transport.describe_timeout(request) from error

    async def answer(self, request: Request[T]) -> T:
        """Return the response, on the loop."""
        runtime = await self.ready()
        value = (
            await runtime.transport.send(request, retry.REST.within(request.timeout_seconds))
        ).value
        if isinstance(value, models.GetServerCapabilitiesResponse):
            runtime.server.note_capabilities(value)
        return value

    async def ready(self) -> Runtime:
        """Return the runtime, once it is known how the credential travels. ClientClosedError after
        the end of its service.
        """
        runtime = self.runtime
        runtime.session.check_open()
        await runtime.server.config()
        return runtime


def _check_options(request: Request[Any]) -> None:
    """Raise TypeError or ValueError for an option of the caller that cannot be right."""
    if request.timeout_seconds is not None:
        check_number("timeout", request.timeout_seconds, positive=True)
    check_headers(request.extra_headers or {})


def open_rest(
    runtime: Runtime | None,
    *,
    base_url: str | None,
    api_key: str | None,
    transport: httpx.AsyncBaseTransport | None,
    clock: Clock | None,
) -> Rest:
    """Open on a runtime that exists, else on one of its own. ValueError when both are described."""
    if runtime is None:
        # there is no session to report about
        config = load_config(base_url=base_url, api_key=api_key, telemetry=False)
        return Rest(open_runtime(config, _NO_SESSION, transport=transport, clock=clock))
    if base_url is not None or api_key is not None:
        raise ValueError(
            "base_url and api_key come from the client whose connections are used; pass neither"
        )
    return Rest(runtime)
