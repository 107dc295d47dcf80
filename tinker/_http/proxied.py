"""The transport of files: each address through its own proxy."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx

from tinker._config import Proxies


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
            transport = self._transports[proxy] = httpx.AsyncHTTPTransport(
                proxy=self._open(proxy), trust_env=False, verify=self._context
            )
        return await transport.handle_async_request(request)

    def _open(self, proxy: str | None) -> httpx.Proxy | None:
        if proxy is None:
            return None
        context = self._context if proxy.startswith("https:") else None
        return httpx.Proxy(proxy, headers=dict(self._headers), ssl_context=context)

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in self._transports.values():
            await transport.aclose()
