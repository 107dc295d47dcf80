"""One poller for all samples of a sampling client, on servers that offer it: which of them were
completed since the last poll.

The results themselves are fetched one by one. Used on the loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from tinker_wire import models
from tinker_wire.api import futures as api

from tinker._http import Purpose, Transport, responses, retry, statuses
from tinker._loop import TaskScope
from tinker._session.results import Pace
from tinker.errors import APIError, TinkerError, copy_error

#: A sample that no poll has reported for so long asks for itself: a server that was restarted may
#: not know that it was done.
UNREPORTED_SECONDS = 900.0
logger = logging.getLogger("tinker")
T = TypeVar("T")


class SessionPoller:
    """The completions of one sampling client. It polls only while somebody waits, or it has fetched
    results to report.
    """

    def __init__(
        self, transport: Transport, tasks: TaskScope, target: models.SamplingSessionFuturesTarget
    ) -> None:
        self._transport = transport
        self._tasks = tasks
        self._target = target
        self._task = f"completions of {target.sampling_session_id}, {id(self)}"
        self._cursor = 0
        # since when, and who
        self._waiting: dict[str, tuple[float, asyncio.Future[int | None]]] = {}
        # What is done and not waited for yet, and how many submissions had begun then; one of those
        # may wait for it.
        self._early: dict[str, tuple[int | None, int]] = {}
        self._begun = itertools.count(1)
        self._submitting: dict[int, None] = {}  # in the order of their beginnings
        self._newest = 0
        self._fetched: set[str] = set()
        self._absent = False

    @contextmanager
    def submission(self) -> Generator[int]:
        """Track one submission, so that a completion that comes before its response is not missed.
        For :meth:`fetch`.
        """
        self._newest = number = next(self._begun)
        self._submitting[number] = None
        try:
            yield number
        finally:
            self._end_submission(number)

    def _end_submission(self, number: int) -> None:
        """Forget completions from before the oldest submission that is still under way: nobody will
        wait for them.
        """
        self._submitting.pop(number, None)
        oldest = next(iter(self._submitting), self._newest + 1)
        while self._early and next(iter(self._early.values()))[1] < oldest:
            del self._early[next(iter(self._early))]

    async def fetch(
        self, request_id: str, submission: int, get: Callable[[int | None], Awaitable[T]]
    ) -> T:
        """Return what ``get(size)`` does, once the request of a submission is done; then report
        that its result was fetched.

        ``size`` is that of the result, where it is known.
        """
        size = await self.wait(request_id, submission)
        try:
            return await get(size)
        finally:
            self._note_fetched(request_id)

    async def wait(self, request_id: str, submission: int) -> int | None:
        """Wait until the request of a submission is done; return the size of its result, None if
        unknown or failed.

        Also None, at once, on a server that turns out not to have the endpoint, and when it has not
        been reported for long.
        """
        early = self._early.pop(request_id, None)
        self._end_submission(submission)
        if early is not None or self._absent:
            return None if early is None else early[0]
        waiter: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = self._transport.clock.monotonic(), waiter
        try:
            self._tasks.join(self._task, self._poll)
            return await self._tasks.wait(lambda: waiter)
        finally:
            self._waiting.pop(request_id, None)

    def _note_fetched(self, request_id: str) -> None:
        """Report with the next poll that the result has arrived, so that the server may drop it."""
        if not self._absent:
            self._fetched.add(request_id)
            self._tasks.background(self._task, self._poll)

    async def _poll(self) -> None:
        """Poll until nobody waits; a failure is the error of everybody who does."""
        try:
            await self._poll_until_idle()
        except TinkerError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("asking for completed samples failed")
            failure = TinkerError(
                f"asking for completed samples failed: {type(error).__name__}: {error}"
            )
            failure.__cause__ = error
            self._fail(failure)

    async def _poll_until_idle(self) -> None:
        retries, clock = self._transport.open_retries(retry.POLL), self._transport.clock
        pace = Pace(self._transport)
        while self._waiting or self._fetched:
            started = clock.monotonic()
            try:
                has_news = await self._poll_once()
            except APIError as error:
                if statuses.is_absent(error):
                    self._transport.findings.note_absence(api.retrieve_futures.__name__, error)
                    self._absent = True
                    self._release(math.inf)
                    return
                await self._transport.wait_to_retry(
                    api.retrieve_futures.__name__, retries.after(error, clock.monotonic())
                )
                continue
            retries.reset(clock.monotonic())
            self._release(clock.monotonic() - UNREPORTED_SECONDS)
            if has_news:
                pace.reset()
            elif self._waiting:
                await pace.keep(started)

    async def _poll_once(self) -> bool:
        """Poll once; return whether a waiter was resolved."""
        reported = frozenset(self._fetched)
        request = api.retrieve_futures(
            models.FuturesRetrieveRequest(
                target=self._target,
                prev_cursor=self._cursor,
                timeout=None if self._waiting else 0.0,
                retrieved_request_ids=sorted(reported),
            )
        )
        response = await self._transport.send_once(self._transport.prepare(request, Purpose.POLL))
        answer = responses.decode_json(response, models.FuturesRetrieveResponse)
        self._fetched -= reported
        self._cursor = answer.cursor
        return sum(map(self._done, answer.completions)) > 0

    def _done(self, completion: models.FutureCompletion) -> bool:
        """Resolve the waiter; return whether there was one."""
        if isinstance(completion, dict):  # a state of tomorrow: fetching it tells what it is
            request_id, size = str(completion.get("request_id")), None
        else:
            request_id = completion.request_id
            size = (
                completion.response_payload_uncompressed_size
                if isinstance(completion, models.FutureFinished)
                else None
            )
        _, waiter = self._waiting.pop(request_id, (0.0, None))
        if waiter is None and self._submitting:
            self._early.pop(request_id, None)  # the newest is the last
            self._early[request_id] = size, self._newest
        elif waiter is not None and not waiter.done():
            waiter.set_result(size)
        return waiter is not None

    def _release(self, before: float) -> None:
        """Let every sample that has waited since before a moment poll for itself."""
        for since, waiter in self._waiting.values():
            if since < before and not waiter.done():
                waiter.set_result(None)

    def _fail(self, error: TinkerError) -> None:
        self._fetched.clear()
        for _, waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(copy_error(error))
