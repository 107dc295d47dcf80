"""The heartbeat of a session, and what happens when the server does not accept it. Used on the loop only."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tinker_wire import models
from tinker_wire.api import service as api

from tinker._http import ONE_SHOT, Policy, Purpose, Transport, statuses
from tinker.errors import APIError, ClientClosedError, SessionSilentError
from tinker.observing import SessionLost

logger = logging.getLogger("tinker")


async def beat(transport: Transport, session_id: str, policy: Policy = ONE_SHOT) -> None:
    """Send one heartbeat; raise its error if it fails."""
    body = models.SessionHeartbeatRequest(session_id=session_id)
    await transport.send(api.session_heartbeat(body), policy, purpose=Purpose.HEARTBEAT)


class Heart:
    """The heartbeats of the sessions of one client.

    ``beating`` are those of which a heartbeat was answered. ``silence`` is the error of new requests while the session counts
    as lost, None while it does not. ``owner`` returns None when nobody uses the client any more, which ``end`` then shuts down.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._warned = False
        self.beating: set[str] = set()
        self.silence: SessionSilentError | None = None
        self.owner: Callable[[], object | None] = lambda: self
        self.end: Callable[[], None] = lambda: None

    async def run(self, session_id: str) -> None:
        """Send heartbeats until cancelled, the owner is gone, the session is over, or the server turns out to know none."""
        clock = self._transport.clock
        heard = clock.monotonic()
        self._hear()
        while self.owner() is not None:
            try:
                await beat(self._transport, session_id)
                self.beating.add(session_id)
                heard = clock.monotonic()
                self._hear()
            except APIError as error:
                if statuses.is_session_over(error):
                    if session_id in self.beating:
                        self._report_lost(session_id, clock.monotonic() - heard, error)
                    return
                self._miss(session_id, clock.monotonic() - heard, error)
            except ClientClosedError:
                return
            except Exception:
                logger.exception("session %s: a heartbeat failed; heartbeats continue", session_id)
            await clock.timer(self._transport.config.heartbeat_seconds)
        self.end()

    def _hear(self) -> None:
        self._warned, self.silence = False, None

    def _miss(self, session_id: str, seconds: float, error: APIError) -> None:
        """Warn once if no heartbeat was accepted for long; after the longer limit, count the session as lost."""
        config = self._transport.config
        if not self._warned and seconds > config.heartbeat_warning_seconds:
            self._warned = True
            logger.warning("session %s: no heartbeat has succeeded for %.0f s: %s", session_id, seconds, error)
        if self.silence is None and config.heartbeat_lost_seconds is not None and seconds > config.heartbeat_lost_seconds:
            self.silence = SessionSilentError(
                f"session {session_id} counts as lost: the server accepted no heartbeat for {seconds:.0f} s "
                f"(heartbeat_lost_seconds is {config.heartbeat_lost_seconds:g}). The last error: {error}"
            )
            self.silence.__cause__ = error
            self._report_lost(session_id, seconds, error)

    def _report_lost(self, session_id: str, seconds: float, error: APIError) -> None:
        if observers := self._transport.observers:
            operation = api.session_heartbeat.__name__
            observers.notify(SessionLost(operation=operation, session_id=session_id, silent_seconds=seconds, error=error))
