"""A session on the server: created by the first request that needs it, kept alive, ended once. It numbers its clients.

Used on the loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from tinker_wire import models
from tinker_wire.api import service as api
from tinker_wire.runtime import Request

from tinker._http import (
    ONE_SHOT,
    START,
    SUBMIT,
    THROTTLED_SLOTS,
    Budget,
    Limits,
    Negotiation,
    Purpose,
    Transport,
    cool_down_for,
    is_lost,
)
from tinker._loop import TaskScope, loop_thread
from tinker._session.heartbeat import Heart, beat
from tinker._session.results import ResultPoller, ResultSpec
from tinker._session.server_config import ServerConfig, ServerSettings
from tinker._session.telemetry import Telemetry
from tinker.errors import APIStatusError, ClientClosedError, SessionLostError, TinkerError, copy_error
from tinker.futures import APIFuture

logger = logging.getLogger("tinker")
T = TypeVar("T")

# All that the end of a session may take.
SHUTDOWN_SECONDS = 5.0
_START, _HEARTBEAT, _TELEMETRY = "session start", "session heartbeat", "telemetry"  # the names of its tasks


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """A session that exists: its id, settings, limits and poller."""

    session_id: str
    server_config: ServerConfig
    config: models.ClientConfigResponse  # of the server when the client started
    limits: Limits
    results: ResultPoller
    wire: Negotiation
    # The metrics and fields that every result of a loss had so far, by its name and whether it was forward only.
    result_names: dict[tuple[str, bool], frozenset[str]] = {}

    async def submit(self, request: Request[models.UntypedAPIFuture], spec: ResultSpec[T], future: APIFuture[Any]) -> T:
        """Submit a request and wait for its result."""
        return await self.results.wait(await self.results.transport.send(request, SUBMIT), spec, future)


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Session metadata from the caller."""

    user_metadata: Mapping[str, object]
    display_name: str | None = None


class Session:
    """The one session of a service client."""

    def __init__(
        self,
        transport: Transport,
        server: ServerSettings,
        tasks: TaskScope,
        description: Description,
        telemetry: Telemetry | None,
    ) -> None:
        self._transport = transport
        self._server = server
        self._tasks = tasks
        self._description = description
        self._telemetry = telemetry
        self._known: SessionContext | None = None
        self._closed = False
        self._heart = Heart(transport)
        self._expired: set[str] = set()  # those that the server no longer knows
        self.model_numbers: itertools.count[int] = itertools.count()
        self.sampler_numbers: itertools.count[int] = itertools.count()
        self.loss_numbers: itertools.count[int] = itertools.count()
        self.loss_keys: set[str] = set()

    def watch_owner(self, owner: Callable[[], object | None], end: Callable[[], None]) -> None:
        """Call ``end`` instead of the next heartbeat when ``owner`` returns None.

        The finalizer of the owner usually comes first. It fails where the stack has no room left.
        """
        self._heart.owner, self._heart.end = owner, end

    def check_open(self) -> None:
        """Raise ClientClosedError once the session was ended."""
        if self._closed:
            raise ClientClosedError

    async def ensure_started(self) -> SessionContext:
        """Return the session, created now if it was not. After a failed creation the next caller tries again.

        SessionSilentError while it counts as lost by the settings.
        """
        self.check_open()
        if self._heart.silence is not None:
            raise copy_error(self._heart.silence) from self._heart.silence.__cause__
        return self._known if self._known is not None else await self._tasks.share(_START, self._start)

    async def in_session(self, make: Callable[[SessionContext], Awaitable[T]]) -> tuple[SessionContext, T]:
        """Make a new client in the session; in a new session, when the server does not know this one any more.

        Returns the session too, as a later one may take the place of this one.
        """
        started = await self.ensure_started()
        try:
            return started, await make(started)
        except SessionLostError:  # of what it is made from
            raise
        except APIStatusError as error:
            if not await self._is_lost(started.session_id, error):
                raise
            logger.warning("the server no longer knows session %s; starting a new one", started.session_id)
        renewed = await self._renew(started)
        try:
            return renewed, await make(renewed)
        except APIStatusError as error:
            if (lost := await self.session_lost_error(renewed.session_id, error)) is not None:
                raise lost from error
            raise

    async def session_lost_error(self, session_id: str, error: Exception) -> SessionLostError | None:
        """Return the error of a request that failed because the server no longer knows the session; None for others."""
        if not isinstance(error, APIStatusError) or not await self._is_lost(session_id, error):
            return None
        lost = SessionLostError(
            f"{error.operation}: the server no longer knows this client's session; it was probably restarted. Saved "
            "checkpoints are kept: to continue, create a new client with the same ServiceClient, for example with "
            f"create_training_client_from_state_with_optimizer(path). ({error})",
            response=error.response,
            body=error.body,
        )
        lost.operation, lost.session_id = error.operation, session_id
        return lost

    async def _is_lost(self, session_id: str, error: APIStatusError) -> bool:
        """Return whether a request failed because the server no longer knows its session: it refuses that heartbeat only."""
        if not is_lost(error) or not self._heart.beating:
            return False
        if session_id not in self._expired and await self._is_forgotten(session_id):
            self._expired.add(session_id)
        return session_id in self._expired

    async def _is_forgotten(self, session_id: str) -> bool:
        try:
            await beat(self._transport, session_id, START)
        except APIStatusError as answer:
            return is_lost(answer)
        except TinkerError:
            return False
        return False

    async def _renew(self, lost: SessionContext) -> SessionContext:
        """Open a new session in place of a lost one, and request the server's settings again."""
        if self._known is lost:
            self._known = None
            self._tasks.cancel(_HEARTBEAT, _TELEMETRY)
            self.loss_keys.clear()
            self._server.forget()
        return await self.ensure_started()

    @property
    def session_id(self) -> str | None:
        """Return the id, None before the session exists."""
        return None if self._known is None else self._known.session_id

    @property
    def context(self) -> SessionContext | None:
        """Return the session if it can be used now; otherwise None, and :meth:`ensure_started` starts it or raises."""
        return None if self._closed or self._heart.silence is not None else self._known

    def adopt(self, session_id: str, server_config: ServerConfig) -> None:
        """Join a session that another client created: nothing is sent but heartbeats."""
        self._server.adopt(server_config)
        self._known = self._keep_alive(session_id, server_config)

    async def _start(self) -> SessionContext:
        transport, settings = self._transport, self._transport.config
        server_config = await self._server.config()
        reply = await transport.send(
            api.create_session(
                models.CreateSessionRequest(
                    tags=list(settings.tags),
                    user_metadata=dict(self._description.user_metadata),
                    sdk_version=settings.sdk_version,
                    project_id=settings.project_id,
                    display_name=self._description.display_name,
                )
            ),
            START,
            purpose=Purpose.START,
        )
        _log_messages(reply.value)
        self._known = self._keep_alive(reply.value.session_id, server_config)
        return self._known

    def _keep_alive(self, session_id: str, server_config: ServerConfig) -> SessionContext:
        self._transport.observers.session_id = session_id
        self._tasks.background(_HEARTBEAT, partial(self._heart.run, session_id))
        if not self._transport.config.is_local:
            loop_thread().watch_lag()
        if self._telemetry is not None:
            self._telemetry.begin_session(session_id)
            self._tasks.background(_TELEMETRY, self._telemetry.run)
        return _build_context(session_id, server_config, self._transport)

    async def close(self, reason: models.ClientSessionFinishReasonType, detail: str | None) -> None:
        """End the session and close every connection; later requests are refused.

        A server that does not respond is not waited for long; a session that is still being created then is given up.
        """
        if self._closed:
            return
        self._closed = True
        if self._known is not None or self._tasks.is_running(_START):
            with contextlib.suppress(TimeoutError):
                async with self._transport.clock.deadline(SHUTDOWN_SECONDS):
                    await self._finish(reason, detail)
        await self._transport.close()

    async def _finish(self, reason: models.ClientSessionFinishReasonType, detail: str | None) -> None:
        try:
            started = self._known if self._known is not None else await self._tasks.share(_START, self._start)
            body = models.FinishSessionRequest(reason={"type": reason}, detail=detail)
            await self._transport.send(
                api.finish_session(body, session_id=started.session_id), ONE_SHOT, purpose=Purpose.HEARTBEAT
            )
        except Exception as error:  # it ends by itself when heartbeats stop
            logger.debug("session finish: %s", error, exc_info=not isinstance(error, TinkerError))
        if self._telemetry is not None:
            await self._telemetry.end_session()


def _build_context(session_id: str, server_config: ServerConfig, transport: Transport) -> SessionContext:
    settings, config = transport.config, server_config.config
    wire = Negotiation(settings.wire, transport.findings)
    wire.note_config_answered(server_config.answered)
    most = None if config.sample_use_retrieve_futures else max(1, config.sample_max_concurrent_requests)
    limits = Limits(
        samples=contextlib.nullcontext() if most is None else asyncio.Semaphore(most),
        dispatch=Budget(settings.sample_submissions),
        throttled_dispatch=Budget(THROTTLED_SLOTS),
        prompt_nbytes=Budget(config.sample_dispatch_bytes_semaphore_size),
        training_nbytes=Budget(config.fwdbwd_dispatch_bytes_semaphore_size),
        result_nbytes=Budget(config.inflight_response_bytes_semaphore_size),
        cool_down=cool_down_for(settings.base_url, transport.auth.source, transport.clock),
        sleep=transport.sleep,
        fails_fast=settings.fail_fast,
    )
    results = ResultPoller(transport, limits.result_nbytes, json_results=settings.wire == "json")
    return SessionContext(
        session_id=session_id, server_config=server_config, config=config, limits=limits, results=results, wire=wire
    )


def _log_messages(created: models.CreateSessionResponse) -> None:
    messages = (
        (logging.INFO, created.info_message),
        (logging.WARNING, created.warning_message),
        (logging.ERROR, created.error_message),
    )
    for level, message in messages:
        if message:
            logger.log(level, "%s", message)
