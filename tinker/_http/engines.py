"""The two HTTP engines behind one interface: connections of our own for exchanges with a server;
httpx for an injected transport, the server in this process, files, and where httpunk does not run.
Code outside this package does not depend on the choice. httpx is imported when it is needed.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import AsyncGenerator
from functools import cache
from typing import TYPE_CHECKING, Any

from tinker._http.limits import open_slots
from tinker._http.messages import HTTPEngine
from tinker._http.observers import Observers

if TYPE_CHECKING:
    import httpx

    from tinker._config import Config

logger = logging.getLogger("tinker")


def open_engine(
    config: Config, observers: Observers, transport: httpx.AsyncBaseTransport | None = None
) -> HTTPEngine:
    """Choose the engine for these settings; makes no connection yet. Call this anywhere, use the
    engine on the loop only.
    """
    slots = None
    if transport is None and not config.is_local:
        try:
            from tinker._http.engine_http import HttpEngine
        except ImportError as error:
            if not (error.name or "").startswith("httpunk"):
                raise
            _warn_of_fallback(str(error))
            transport, slots = _open_transport(config), open_slots(config.connections)
        else:
            return HttpEngine(
                config.proxies,
                connections=config.connections,
                proxy_headers=config.proxy_headers,
                trust=config.trust,
            )
    from tinker._http.engine_httpx import HttpxEngine

    return HttpxEngine(transport or _local_transport(config), observers, slots)


@cache
def _warn_of_fallback(reason: str) -> None:
    logger.warning(
        "httpunk cannot be imported here (%s), so httpx sends the requests: "
        "over HTTP/1.1, and more slowly",
        reason,
    )


def _open_transport(config: Config) -> httpx.AsyncBaseTransport:
    """Return httpx's own connections, with the proxies and certificates of these settings."""
    from tinker._http.httpx_transports import ProxiedTransport

    return ProxiedTransport(config.proxies, config.proxy_headers, config.trust.context("http/1.1"))


def wrap_client(client: object) -> httpx.AsyncBaseTransport | None:
    """Return a transport that sends through the user's client; None for None. Raises TypeError for
    anything else.
    """
    if client is None:
        return None
    from tinker._http import httpx_transports

    return httpx_transports.wrap_client(client)


def _local_transport(config: Config) -> httpx.AsyncBaseTransport:
    """Return the server of this process. It is imported by name, so that the client does not depend
    on it.
    """
    from tinker._http.httpx_transports import InProcessTransport

    local = importlib.import_module("tinker.local")
    app: Any = local.in_process_app(config.base_url, data_dir=config.local_dir)
    return InProcessTransport(app)


@contextlib.asynccontextmanager
async def open_files(engine: HTTPEngine, config: Config) -> AsyncGenerator[httpx.AsyncClient]:
    """Open a client for files behind signed URLs: it has no credentials and follows redirects."""
    from tinker._http.engine_httpx import HttpxEngine, open_files_client

    if isinstance(engine, HttpxEngine):
        yield open_files_client(engine.transport)  # not to be closed
        return
    async with open_files_client(_open_transport(config)) as client:
        yield client
