"""One poller for all samples of a sampling client, on servers that want it: which of them are done, since when it asked last.

The results themselves are fetched one by one. Used on the loop only.
"""

from __future__ import annotations

import asyncio

from tinker_wire import models
from tinker_wire.api import futures as api

from tinker._loop import LoopThread
from tinker._pools import Purpose
from tinker._retry import ABSENT_STATUSES, POLL
from tinker._transport import Transport
from tinker.errors import APIError, APIStatusError, copy_error


class Completions:
    """The completions of one sampling client. Asks only while somebody waits, or while fetched results are to be reported."""

    def __init__(self, transport: Transport, thread: LoopThread, target: models.SamplingSessionFuturesTarget) -> None:
        self._transport = transport
        self._thread = thread
        self._target = target
        self._cursor = 0
        self._waiting: dict[str, asyncio.Future[int | None]] = {}
        self._early: dict[str, int | None] = {}
        self._fetched: set[str] = set()
        self._polling: asyncio.Task[None] | None = None
        self._absent = False

    async def wait(self, request_id: str) -> int | None:
        """Wait until the request is done: the size of its result, None when that is unknown or it failed.

        Also None, at once, on a server that turns out not to have the endpoint.
        """
        if request_id in self._early:
            return self._early.pop(request_id)
        if self._absent:
            return None
        waiter: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = waiter
        self._ensure_polling()
        try:
            return await waiter
        finally:
            self._waiting.pop(request_id, None)

    def fetched(self, request_id: str) -> None:
        """The result is here, so the server may forget it; told with the next poll."""
        if not self._absent:
            self._fetched.add(request_id)
            self._ensure_polling()

    def _ensure_polling(self) -> None:
        if self._polling is None or self._polling.done():
            self._polling = self._thread.task(self._poll(), name="completions")

    async def _poll(self) -> None:
        attempts = self._transport.attempts(POLL, api.retrieve_futures.__name__)
        while self._waiting or self._fetched:
            try:
                await self._once()
                attempts.reset()
            except APIError as error:
                if isinstance(error, APIStatusError) and error.status_code in ABSENT_STATUSES:
                    self._give_up()
                    return
                try:
                    delay = attempts.next_delay(error)
                except APIError as final:
                    self._fail(final)
                    return
                await self._transport.clock.sleep(delay)

    async def _once(self) -> None:
        reported = frozenset(self._fetched)
        request = api.retrieve_futures(
            models.FuturesRetrieveRequest(
                target=self._target,
                prev_cursor=self._cursor,
                timeout=None if self._waiting else 0.0,
                retrieved_request_ids=sorted(reported),
            )
        )
        call = self._transport.prepare(request, Purpose.POLL)
        answer = self._transport.decode(request, call, await self._transport.perform(call, request.operation))
        self._fetched -= reported
        self._cursor = answer.cursor
        for completion in answer.completions:
            self._done(completion)

    def _done(self, completion: models.FutureCompletion) -> None:
        if isinstance(completion, dict):  # a state of tomorrow: fetching it tells what it is
            request_id, size = str(completion.get("request_id")), None
        else:
            request_id = completion.request_id
            size = completion.response_payload_uncompressed_size if isinstance(completion, models.FutureFinished) else None
        waiter = self._waiting.pop(request_id, None)
        if waiter is None:
            self._early[request_id] = size  # done before its submission was answered
        elif not waiter.done():
            waiter.set_result(size)

    def _give_up(self) -> None:
        """The server has no such endpoint: everybody polls for themselves."""
        self._absent = True
        self._fetched.clear()
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, error: APIError) -> None:
        self._fetched.clear()
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(copy_error(error))
