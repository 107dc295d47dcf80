"""Choose the proxy for an address: ``TINKER_PROXY``, or the usual variables in
upper or lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import attrs

PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_SCHEMES = ("http://", "https://", "socks5://", "socks5h://")


@attrs.frozen
class Proxies:
    """``always`` is for every address. Else the proxy of the address's scheme, or of ``all``,
    unless ``no_proxy`` has its host.

    This machine itself is reached through ``always`` only. Addresses of proxies may hold passwords.
    """

    always: str | None = attrs.field(default=None, repr=False)
    by_scheme: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    no_proxy: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether every address is reached directly."""
        return self.always is None and not self.by_scheme

    def of(self, url: str) -> str | None:
        """Return the proxy for an address; None where it is reached directly."""
        if self.always is not None or not self.by_scheme:
            return self.always
        parts = urlsplit(url)
        proxy = self.by_scheme.get(parts.scheme) or self.by_scheme.get("all")
        host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme)
        is_here = host in ("localhost", "::1") or host.startswith("127.")
        return (
            None if is_here or any(_covers(entry, host, port) for entry in self.no_proxy) else proxy
        )


def _covers(entry: str, host: str, port: int | None) -> bool:
    """Return whether an entry of NO_PROXY, a host or domain, with or without a port, has this
    address; ``*`` has all.
    """
    name, colon, wanted = entry.rpartition(":")
    # no port; an address of IPv6
    if not colon or not wanted.isdigit() or (":" in name and not name.startswith("[")):
        name, wanted = entry, ""
    name = name.removeprefix("*").removeprefix(".").strip("[]")
    return not name or ((host == name or host.endswith(f".{name}")) and wanted in ("", str(port)))


def from_environment(env: Mapping[str, str], ours: str, given: str | None = None) -> Proxies:
    """Read the proxies of these variables, ``ours`` and the usual ones; ValueError for addresses of
    another scheme.

    ``given`` takes the place of ``ours``.
    """

    def read(name: str) -> str | None:
        return check(name, env.get(name))

    def check(name: str, given: str | None) -> str | None:
        proxy = lower_scheme(given or "")
        if proxy and not proxy.startswith(_SCHEMES):
            raise ValueError(
                f"{name} must be a proxy address with {' or '.join(_SCHEMES)}, got "
                f"{proxy.partition('://')[0]!r}"
            )
        return proxy or None

    found = {
        scheme: read(f"{scheme}_proxy") or read(f"{scheme.upper()}_PROXY")
        for scheme in ("http", "https", "all")
    }
    by_scheme = {scheme: proxy for scheme, proxy in found.items() if proxy is not None}
    excluded = (env.get("no_proxy") or env.get("NO_PROXY") or "").lower().split(",")
    return Proxies(
        check("proxy", given) or read(ours),
        by_scheme,
        tuple(entry.strip() for entry in excluded if entry.strip()),
    )


def lower_scheme(url: str) -> str:
    """Return an address with its scheme in lower case, which means the same."""
    return re.sub("^[^:]+://", lambda scheme: scheme[0].lower(), url)
