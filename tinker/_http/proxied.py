"""Connections of httpx, for files and where httpunk does not run: each address through its own proxy."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx

from tinker._config import Proxies
from tinker._http.messages import IDLE_SECONDS
from tinker._installation import install_command

# Those who send know how many exchanges there may be at once.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE_SECONDS)


class ProxiedTransport(httpx.AsyncBaseTransport):
    """One httpx transport for each proxy and one for direct connections, created on first use."""

    def __init__(self, proxies: Proxies, headers: Mapping[str, str], context: ssl.SSLContext) -> None:
        self._proxies, self._headers, self._context = proxies, headers, context
        self._transports: dict[str | None, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request through the transport for its address."""
        proxy = self._proxies.of(str(request.url))
        transport = self._transports.get(proxy)
        if transport is None:
            transport = self._transports[proxy] = self._open(proxy)
        return await transport.handle_async_request(request)

    def _open(self, proxy: str | None) -> httpx.AsyncHTTPTransport:
        """Raises httpx.UnsupportedProtocol without the package that a SOCKS proxy needs."""
        given = None
        if proxy is not None:
            context = self._context if proxy.startswith("https:") else None
            given = httpx.Proxy(proxy.replace("socks5h://", "socks5://"), headers=dict(self._headers), ssl_context=context)
        try:
            return httpx.AsyncHTTPTransport(proxy=given, trust_env=False, verify=self._context, limits=_LIMITS)
        except ImportError:
            raise httpx.UnsupportedProtocol(f"a SOCKS proxy needs another package: {install_command('socks')}") from None

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in self._transports.values():
            await transport.aclose()
