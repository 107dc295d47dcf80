"""A session on the server: made by the first request that needs it, kept alive, ended once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from tinker_wire import models
from tinker_wire.api import auth as auth_api
from tinker_wire.api import service as api
from tinker_wire.runtime import Request

from tinker._basics.config import is_sendable
from tinker._basics.events import SessionLost
from tinker._http import retry
from tinker._http.auth import Credential, find_command
from tinker._http.limits import THROTTLED_SLOTS, Budget, Limits, cool_down_for
from tinker._http.messages import Purpose
from tinker._http.retry import Policy
from tinker._http.submission import Negotiation
from tinker._http.transport import Transport
from tinker._loop import TaskScope, loop_thread
from tinker._session.results import ResultPoller, ResultSpec
from tinker.errors import (
    APIError,
    APIStatusError,
    ClientClosedError,
    SessionLostError,
    SessionSilentError,
    TinkerError,
    copy_error,
)
from tinker.futures import APIFuture

logger = logging.getLogger("tinker")
T = TypeVar("T")


async def beat(transport: Transport, session_id: str, policy: Policy = retry.ONE_SHOT) -> None:
    """Send one heartbeat; raise its error if it fails."""
    await transport.send(
        api.session_heartbeat(models.SessionHeartbeatRequest(session_id=session_id)),
        policy,
        purpose=Purpose.HEARTBEAT,
    )


class Heartbeat:
    """The heartbeats of the sessions of one client.

    ``confirmed`` are those of which a heartbeat was answered. ``silence`` is the error of new
    requests while the session counts as lost, None while it does not. ``owner`` returns None when
    nobody uses the client any more, which ``end`` then shuts down.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._warned = False
        self.confirmed: set[str] = set()
        self.silence: SessionSilentError | None = None
        self.owner: Callable[[], object | None] = lambda: self
        self.end: Callable[[], None] = lambda: None

    async def run(self, session_id: str) -> None:
        """Send heartbeats until cancelled, the owner is gone, the session is over, or the server
        turns out to know none.
        """
        clock = self._transport.clock
        heard = clock.monotonic()
        self._record_success()
        while self.owner() is not None:
            try:
                await beat(self._transport, session_id)
                self.confirmed.add(session_id)
                heard = clock.monotonic()
                self._record_success()
            except APIError as error:
                if retry.is_session_over(error):
                    if session_id in self.confirmed:
                        self._report_lost(session_id, clock.monotonic() - heard, error)
                    return
                self._record_failure(session_id, clock.monotonic() - heard, error)
            except ClientClosedError:
                return
            except Exception:
                logger.exception("session %s: a heartbeat failed; heartbeats continue", session_id)
            await clock.timer(self._transport.config.heartbeat_seconds)
        self.end()

    def _record_success(self) -> None:
        self._warned, self.silence = False, None

    def _record_failure(self, session_id: str, seconds: float, error: APIError) -> None:
        """Warn once if no heartbeat was accepted for long; after the longer limit, count the
        session as lost.
        """
        config = self._transport.config
        if not self._warned and seconds > config.heartbeat_warning_seconds:
            self._warned = True
            logger.warning(
                "session %s: no heartbeat has succeeded for %.0f s: %s", session_id, seconds, error
            )
        if (
            self.silence is None
            and config.heartbeat_lost_seconds is not None
            and seconds > config.heartbeat_lost_seconds
        ):
            self.silence = SessionSilentError(
                f"session {session_id} counts as lost: the server accepted no heartbeat for "
                f"{seconds:.0f} s "
                f"(heartbeat_lost_seconds is {config.heartbeat_lost_seconds:g}). "
                f"The last error: {error}"
            )
            self.silence.__cause__ = error
            self._report_lost(session_id, seconds, error)

    def _report_lost(self, session_id: str, seconds: float, error: APIError) -> None:
        if observers := self._transport.observers:
            observers.notify(
                SessionLost(
                    operation=api.session_heartbeat.__name__,
                    session_id=session_id,
                    silent_seconds=seconds,
                    error=error,
                )
            )


SHORTEST_REFRESH_SECONDS = 10.0
_FROM_COMMAND = "credential_cmd"
_CONFIG, _DYNAMIC = "client config", "dynamic config"  # the names of the tasks that ask for them


class ServerConfig(msgspec.Struct):
    """The settings of a server. ``answered`` says that it knows the endpoint; ``dynamic`` is
    replaced by refreshes.
    """

    config: models.ClientConfigResponse
    answered: bool
    dynamic: models.ClientDynamicConfigResponse = msgspec.field(
        default_factory=models.ClientDynamicConfigResponse
    )


class ServerSettings:
    """The settings of the server of one client."""

    def __init__(self, transport: Transport, tasks: TaskScope) -> None:
        self._transport = transport
        self._tasks = tasks
        self._known: ServerConfig | None = None
        #: How many tokens a model takes, of those whose length the server has said; by the name of
        #: the model.
        self.context_lengths: dict[str | None, int] = {}
        self.known_models: tuple[str, ...] = ()
        #: The losses of the server, each with its settings; None where it has not said so.
        self.losses: Mapping[str, Sequence[str]] | None = None

    def note_capabilities(self, capabilities: models.GetServerCapabilitiesResponse) -> None:
        """Store the names of the models and their context lengths, if the server reports them."""
        self.known_models = tuple(
            model.model_name for model in capabilities.supported_models if model.model_name
        )
        self.context_lengths = {
            model.model_name: model.max_context_length
            for model in capabilities.supported_models
            if model.model_name
            and model.max_context_length is not None
            and model.max_context_length > 0
        }

    async def config(self) -> ServerConfig:
        """Return the settings, requested by the first caller; after a failure the next caller tries
        again.
        """
        return (
            self._known if self._known is not None else await self._tasks.share(_CONFIG, self._ask)
        )

    def adopt(self, server_config: ServerConfig) -> None:
        """Use settings that another process received; request nothing."""
        self._known = server_config

    def forget(self) -> None:
        """Forget the settings and the absent endpoints of a server that was restarted, so that they
        are requested again.
        """
        self._tasks.cancel(_CONFIG, _DYNAMIC)
        self._transport.findings.forget_absences()
        self._known = self.losses = None

    async def _ask(self) -> ServerConfig:
        server_config = await self._client_config()
        self.losses = server_config.config.loss_fns
        if server_config.config.pjwt_auth_enabled:
            self._exchange_credentials(server_config.config)
        if server_config.answered:
            self._tasks.background(_DYNAMIC, partial(self._refresh, server_config))
        self._known = server_config
        return server_config

    async def _client_config(self) -> ServerConfig:
        config = await self._transport.send_optional(
            api.client_config(self._body()),
            retry.START,
            purpose=Purpose.START,
            check=_useless_limit,
        )
        return ServerConfig(config or models.ClientConfigResponse(), answered=config is not None)

    def _body(self) -> models.ClientConfigRequest:
        return models.ClientConfigRequest(sdk_version=self._transport.config.sdk_version)

    def _exchange_credentials(self, config: models.ClientConfigResponse) -> None:
        """Exchange the credential for tokens. A server may accept only the one of the command."""
        is_of_command = config.credential_default_source == _FROM_COMMAND
        source = find_command(self._transport.config) if is_of_command else None
        self._transport.auth.use_exchange(self._exchange, source)

    async def _exchange(self, credential: Credential) -> Credential:
        reply = await self._transport.send(
            auth_api.auth_token(models.AuthTokenRequest()),
            retry.START,
            purpose=Purpose.START,
            credential=credential,
            check=_useless_token,
        )
        return Credential(reply.value.jwt)

    async def _refresh(self, server_config: ServerConfig) -> None:
        """Request the settings periodically; a failure keeps the known ones, and an absent endpoint
        ends this.
        """
        while True:
            try:
                dynamic = await self._transport.send_optional(
                    api.client_dynamic_config(self._body()), retry.ONE_SHOT
                )
                if dynamic is None:
                    return
                server_config.dynamic = dynamic
            except APIError as error:
                logger.debug("dynamic config: %s", error)
            except ClientClosedError:
                return
            except Exception:
                logger.exception("could not read the server's settings; retrying")
            await self._transport.clock.timer(
                max(server_config.dynamic.refresh_interval_sec, SHORTEST_REFRESH_SECONDS)
            )


# Settings that say how much there may be of something, so that nothing could ever be sent with 0.
_LIMITS = (
    "sample_max_concurrent_requests",
    "sample_dispatch_bytes_semaphore_size",
    "fwdbwd_dispatch_bytes_semaphore_size",
    "inflight_response_bytes_semaphore_size",
    "fwdbwd_max_chunk_len",
    "fwdbwd_max_chunk_bytes_count",
)


def _useless_limit(config: models.ClientConfigResponse) -> str | None:
    """Describe the first limit that lets nothing pass."""
    for name in _LIMITS:
        if (value := getattr(config, name)) <= 0:
            return f"{name} must be at least 1, got {value}"
    return None


def _useless_token(answer: models.AuthTokenResponse) -> str | None:
    return (
        None
        if is_sendable(answer.jwt)
        else "the token contains characters that a header cannot contain"
    )


# All that the end of a session may take.
SHUTDOWN_SECONDS = 5.0
# the names of its tasks
_START, _HEARTBEAT = "session start", "session heartbeat"


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """A session that exists: its id, settings, limits and poller."""

    session_id: str
    server_config: ServerConfig
    config: models.ClientConfigResponse  # of the server when the client started
    limits: Limits
    results: ResultPoller
    wire: Negotiation
    # The metrics and fields that every result of a loss had so far, by its name and whether it was
    # forward only.
    result_names: dict[tuple[str, bool], frozenset[str]] = {}

    async def submit(
        self, request: Request[models.UntypedAPIFuture], spec: ResultSpec[T], future: APIFuture[Any]
    ) -> T:
        """Submit a request and wait for its result."""
        return await self.results.wait(
            await self.results.transport.send(request, retry.SUBMIT), spec, future
        )


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Session metadata from the caller."""

    user_metadata: Mapping[str, object]
    display_name: str | None = None


class Follower(Protocol):
    """What is told when a session begins and ends."""

    def begin_session(self, session_id: str) -> None:
        """Follow a session, the first or one in place of a lost one."""
        ...

    def lose_session(self) -> None:
        """Stop until the next session begins."""
        ...

    async def end_session(self) -> None:
        """Finish, while the connections are still open."""
        ...


class Session:
    """The one session of a service client."""

    def __init__(
        self,
        transport: Transport,
        server: ServerSettings,
        tasks: TaskScope,
        description: Description,
        followers: Iterable[Follower] = (),
    ) -> None:
        self._transport = transport
        self._server = server
        self._tasks = tasks
        self._description = description
        self._followers = tuple(followers)
        self._known: SessionContext | None = None
        self._closed = False
        self._heartbeat = Heartbeat(transport)
        self._expired: set[str] = set()  # those that the server no longer knows
        self.model_numbers: itertools.count[int] = itertools.count()
        self.sampler_numbers: itertools.count[int] = itertools.count()
        self.loss_numbers: itertools.count[int] = itertools.count()
        self.loss_keys: set[str] = set()

    def watch_owner(self, owner: Callable[[], object | None], end: Callable[[], None]) -> None:
        """Call ``end`` instead of the next heartbeat when ``owner`` returns None.

        The finalizer of the owner usually comes first. It fails where the stack has no room left.
        """
        self._heartbeat.owner, self._heartbeat.end = owner, end

    def check_open(self) -> None:
        """Raise ClientClosedError once the session was ended."""
        if self._closed:
            raise ClientClosedError

    async def ensure_started(self) -> SessionContext:
        """Return the session, created now if it was not. After a failed creation the next caller
        tries again.

        SessionSilentError while it counts as lost by the settings.
        """
        self.check_open()
        if self._heartbeat.silence is not None:
            raise copy_error(self._heartbeat.silence) from self._heartbeat.silence.__cause__
        return (
            self._known if self._known is not None else await self._tasks.share(_START, self._start)
        )

    async def in_session(
        self, make: Callable[[SessionContext], Awaitable[T]]
    ) -> tuple[SessionContext, T]:
        """Make a new client in the session; in a new session, when the server does not know this
        one any more.

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
            logger.warning(
                "the server no longer knows session %s; starting a new one", started.session_id
            )
        renewed = await self._renew(started)
        try:
            return renewed, await make(renewed)
        except APIStatusError as error:
            if (lost := await self.session_lost_error(renewed.session_id, error)) is not None:
                raise lost from error
            raise

    async def session_lost_error(
        self, session_id: str, error: Exception
    ) -> SessionLostError | None:
        """Return the error of a request that failed because the server no longer knows the session;
        None for others.
        """
        if not isinstance(error, APIStatusError) or not await self._is_lost(session_id, error):
            return None
        lost = SessionLostError(
            f"{error.operation}: the server no longer knows this client's session; it was probably "
            "restarted. Saved "
            "checkpoints are kept: to continue, create a new client with the same ServiceClient, "
            "for example with "
            f"create_training_client_from_state_with_optimizer(path). ({error})",
            response=error.response,
            body=error.body,
        )
        lost.operation, lost.session_id = error.operation, session_id
        return lost

    async def _is_lost(self, session_id: str, error: APIStatusError) -> bool:
        """Return whether a request failed because the server no longer knows its session: it
        refuses that heartbeat only.
        """
        if not retry.is_lost(error) or not self._heartbeat.confirmed:
            return False
        if session_id not in self._expired and await self._is_forgotten(session_id):
            self._expired.add(session_id)
        return session_id in self._expired

    async def _is_forgotten(self, session_id: str) -> bool:
        try:
            await beat(self._transport, session_id, retry.START)
        except APIStatusError as answer:
            return retry.is_lost(answer)
        except TinkerError:
            return False
        return False

    async def _renew(self, lost: SessionContext) -> SessionContext:
        """Open a new session in place of a lost one, and request the server's settings again."""
        if self._known is lost:
            self._known = None
            self._tasks.cancel(_HEARTBEAT)
            for follower in self._followers:
                follower.lose_session()
            self.loss_keys.clear()
            self._server.forget()
        return await self.ensure_started()

    @property
    def session_id(self) -> str | None:
        """Return the id, None before the session exists."""
        return None if self._known is None else self._known.session_id

    @property
    def context(self) -> SessionContext | None:
        """Return the session if it can be used now; otherwise None, and :meth:`ensure_started`
        starts it or raises.
        """
        return None if self._closed or self._heartbeat.silence is not None else self._known

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
            retry.START,
            purpose=Purpose.START,
        )
        _log_messages(reply.value)
        self._known = self._keep_alive(reply.value.session_id, server_config)
        return self._known

    def _keep_alive(self, session_id: str, server_config: ServerConfig) -> SessionContext:
        self._transport.observers.session_id = session_id
        self._tasks.background(_HEARTBEAT, partial(self._heartbeat.run, session_id))
        if not self._transport.config.is_local:
            loop_thread().watch_lag()
        for follower in self._followers:
            follower.begin_session(session_id)
        return _build_context(session_id, server_config, self._transport)

    async def close(self, reason: models.ClientSessionFinishReasonType, detail: str | None) -> None:
        """End the session and close every connection; later requests are refused.

        A server that does not respond is not waited for long; a session that is still being created
        then is given up.
        """
        if self._closed:
            return
        self._closed = True
        if self._known is not None or self._tasks.is_running(_START):
            with contextlib.suppress(TimeoutError):
                async with self._transport.clock.deadline(SHUTDOWN_SECONDS):
                    await self._finish(reason, detail)
        await self._transport.close()

    async def _finish(
        self, reason: models.ClientSessionFinishReasonType, detail: str | None
    ) -> None:
        try:
            started = (
                self._known
                if self._known is not None
                else await self._tasks.share(_START, self._start)
            )
            await self._transport.send(
                api.finish_session(
                    models.FinishSessionRequest(reason={"type": reason}, detail=detail),
                    session_id=started.session_id,
                ),
                retry.ONE_SHOT,
                purpose=Purpose.HEARTBEAT,
            )
        except Exception as error:  # it ends by itself when heartbeats stop
            logger.debug("session finish: %s", error, exc_info=not isinstance(error, TinkerError))
        for follower in self._followers:
            await follower.end_session()


def _build_context(
    session_id: str, server_config: ServerConfig, transport: Transport
) -> SessionContext:
    settings, config = transport.config, server_config.config
    wire = Negotiation(settings.wire, transport.findings)
    wire.note_config_answered(server_config.answered)
    most = (
        None
        if config.sample_use_retrieve_futures
        else max(1, config.sample_max_concurrent_requests)
    )
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
    return SessionContext(
        session_id=session_id,
        server_config=server_config,
        config=config,
        limits=limits,
        results=ResultPoller(transport, limits.result_nbytes, json_results=settings.wire == "json"),
        wire=wire,
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
