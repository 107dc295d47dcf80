"""Hosts by name and address, and a guard that keeps web pages away from a server without a key.

A page that its user visits can send requests to this machine, and by DNS rebinding read the
answers. Browsers cannot hide the name they used (``Host``) nor the page they act for (``Origin``,
or ``Sec-Fetch-Site`` without one), so both must be names that this server goes by. A server with a
key needs none of this: no page knows the key.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tinker._config import is_loopback
from tinker.local.errors import APIProblem, error_response
from tinker.local.settings import Settings


def is_address(name: str) -> bool:
    """Return whether it is an IP address, which DNS rebinding cannot fake."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on


class Guard:
    """The application, for requests that name one of ``hosts``, this machine itself, or an address
    instead of a name.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = (
            self._fault(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        )
        if fault is None:
            await self._app(scope, receive, send)
            return
        await error_response(APIProblem(403, fault))(scope, receive, send)

    def _fault(self, method: str, headers: Headers) -> str | None:
        host, origin = headers.get("host"), headers.get("origin")
        if (
            origin is None
            and method not in ("GET", "HEAD")
            and headers.get("sec-fetch-site") == "cross-site"
        ):
            # a link that leads here is followed with GET, which changes nothing
            origin = "another site"
        if (
            host is not None
            and not self._is_ours(name := hostname(f"//{host}"))
            and not is_address(name)
        ):
            return (
                f"{name!r} is not a name of this server; start it with "
                f"--allow-host {name}, or with a key"
            )
        if (
            origin is not None
            and _split(origin).netloc != host
            and not self._is_ours(hostname(origin))
        ):
            return (
                f"this server takes no requests from web pages of {origin!r}; start it with "
                "--allow-host, or with a key"
            )
        return None

    def _is_ours(self, name: str) -> bool:
        return name in self._hosts or is_loopback(name)


def guard_app(app: ASGIApp, settings: Settings, host: str) -> ASGIApp:
    """Return the application as it is served on ``host``: behind a guard unless
    clients need a key.
    """
    if settings.api_key is not None:
        return app
    names = {socket.gethostname() if host in EVERY_ADDRESS else host, *settings.allowed_hosts}
    if settings.public_url is not None:
        names.add(hostname(settings.public_url))
    return Guard(app, names)


def hostname(url: str) -> str:
    """Return the name or address in a URL, in lower case; empty without one."""
    return (_split(url).hostname or "").rstrip(".")


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; empty ones where it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
