"""Requests of checks, without retries and with a timeout, and the results of checks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from tinker_wire.runtime import Request

from tinker._http import ONE_SHOT, ConnectionFacts, Purpose, RawResponse
from tinker._runtime import Runtime
from tinker.errors import TinkerError
from tinker.observing import ServerInfo

T = TypeVar("T")
CheckStatus: TypeAlias = Literal["ok", "note", "FAIL"]
Support: TypeAlias = Literal["yes", "no", "unknown"]


class CheckResult(NamedTuple):
    """The result of one check."""

    name: str
    status: CheckStatus
    detail: str


class DoctorReport(NamedTuple):
    """The results of all checks. ``operations`` maps each operation of the contract to whether the
    server has it.

    ``info`` has the adaptations of clients to this server; None if no request was sent.
    ``connections`` lists those used.
    """

    base_url: str
    results: list[CheckResult]
    operations: dict[str, Support]
    info: ServerInfo | None = None
    connections: tuple[ConnectionFacts, ...] = ()

    @property
    def failures(self) -> list[str]:
        """Return the names of the checks that failed."""
        return [result.name for result in self.results if result.status == "FAIL"]


class Prober:
    """A client for checks, on the connections of ``runtime``. A request fails after ``seconds``
    (None: no limit).
    """

    def __init__(self, runtime: Runtime, seconds: float | None) -> None:
        self.runtime: Runtime = runtime
        self._seconds = seconds

    async def read(self, request: Request[T]) -> T:
        """Send a request and return the decoded response. TinkerError for a refusal and for a
        timeout.
        """
        return (await self._in_time(self.runtime.transport.send(request, ONE_SHOT))).value

    async def answer(self, request: Request[Any]) -> RawResponse:
        """Send a request and return the raw response with its headers. TinkerError as for
        :meth:`read`.
        """
        transport = self.runtime.transport
        return await self._in_time(transport.send_once(transport.prepare(request, Purpose.SESSION)))

    async def _in_time(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._seconds):
                return await answer
        except TimeoutError:
            raise TinkerError(f"no answer within {self._seconds:g} s (--patience)") from None
