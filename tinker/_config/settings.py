"""Settings of one client: arguments over environment over defaults. The only reader of ``os.environ``."""

from __future__ import annotations

import base64
import math
import numbers
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias, get_args
from urllib.parse import SplitResult, unquote, urlsplit

import attrs
import msgspec

from tinker._config.proxies import Proxies, from_environment
from tinker._version import __version__

HOSTED_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
LOCAL_SCHEME = "local://"

_ON = frozenset({"1", "true", "yes", "on"})

WireChoice: TypeAlias = Literal["auto", "proto", "json"]


def _nothing() -> Mapping[str, str]:
    return {}


@attrs.frozen(kw_only=True)
class Config:
    """What a client was told. ``base_url`` has no trailing slash and no password; secrets stay out of the repr.

    ``patience_seconds`` is the longest time that one exchange is tried again; None leaves that to the policy of each kind.
    ``fail_fast`` means that a rate limit is raised instead of waited out. ``max_retries`` is how often at most a failed
    exchange is tried again, and ``silence_seconds`` how long a server may say nothing; None leaves them to the kind of request.
    """

    base_url: str
    api_key: str | None = attrs.field(default=None, repr=False)
    credential_cmd: str | None = attrs.field(default=None, repr=False)
    credentials_file: Path = Path("~/.tinker/credentials.json")
    project_id: str | None = None
    tags: tuple[str, ...] = ()
    wire: WireChoice = "auto"
    proxies: Proxies = attrs.field(factory=Proxies)
    headers: Mapping[str, str] = attrs.field(factory=_nothing, repr=False)
    query: Mapping[str, str] = attrs.field(factory=_nothing, repr=False)
    sdk_version: str = __version__
    local_dir: Path | None = None
    patience_seconds: float | None = None
    fail_fast: bool = False
    telemetry: bool = False
    trace_context: bool = True
    max_retries: int | None = None
    silence_seconds: float | None = None

    @property
    def is_hosted(self) -> bool:
        """Return whether the server is the hosted service, which never does without a key."""
        return self.base_url == HOSTED_URL

    @property
    def is_local(self) -> bool:
        """Return whether the server runs in this process."""
        return self.base_url.startswith(LOCAL_SCHEME)


def load_config(
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    project_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
    wire: str | None = None,
    patience_seconds: float | None = None,
    fail_fast: bool | None = None,
    telemetry: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read the settings now, so that a variable set after import counts. An empty variable counts as unset.

    Raises ValueError for an unknown wire, a base URL that cannot be used, a key or header that cannot be sent, a URL that is
    not a proxy's, and defaults that are not JSON.
    """
    env = os.environ if environ is None else environ
    wanted = base_url or env.get("TINKER_BASE_URL") or HOSTED_URL
    url = _base_url(wanted)
    given = {**_spell(_pairs(env, "TINKER_DEFAULT_HEADERS")), **_spell(headers)}
    return Config(
        base_url=url,
        api_key=_key(api_key, "api_key") or _key(env.get("TINKER_API_KEY"), "TINKER_API_KEY"),
        credential_cmd=env.get("TINKER_CREDENTIAL_CMD") or None,
        credentials_file=Path(env.get("HOME") or Path.home()) / ".tinker" / "credentials.json",
        project_id=project_id or env.get("TINKER_PROJECT_ID") or None,
        tags=tuple(dict.fromkeys(tag for tag in env.get("TINKER_TAGS", "").split(",") if tag)),
        wire=_wire(wire or env.get("TINKER_WIRE") or "auto"),
        proxies=Proxies() if url.startswith(LOCAL_SCHEME) else from_environment(env, "TINKER_PROXY"),
        headers=_sendable({**_identity(), **_cloudflare(env), **_password(wanted, url, env), **given}),
        query={**_pairs(env, "TINKER_DEFAULT_QUERY"), **(query or {})},
        sdk_version=env.get("TINKER_SDK_VERSION") or __version__,
        local_dir=local_dir(env),
        patience_seconds=_patience(patience_seconds),
        fail_fast=_switched(fail_fast, env, "TINKER_FAIL_FAST"),
        telemetry=_switched(telemetry, env, "TINKER_TELEMETRY"),
    )


def local_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return where servers of this machine keep checkpoints, unless they are told otherwise."""
    env = os.environ if environ is None else environ
    return Path(env["TINKER_LOCAL_DIR"]) if env.get("TINKER_LOCAL_DIR") else None


def prices_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the price list of commands, unless they are told another."""
    env = os.environ if environ is None else environ
    return Path(env["TINKER_PRICES"]) if env.get("TINKER_PRICES") else None


def serve_api_key(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the key that a server started here asks its clients for, unless it is told otherwise."""
    return (os.environ if environ is None else environ).get("TINKER_SERVE_API_KEY") or None


def _switched(choice: bool | None, env: Mapping[str, str], name: str) -> bool:
    """Return the choice, else the switch in the environment, which is off unless it says that it is on."""
    return env.get(name, "").strip().lower() in _ON if choice is None else choice


def check_given(*, base_url: str | None, api_key: str | None, patience_seconds: float | None) -> None:
    """Refuse arguments that can never be right, before anything needs them. ValueError, TypeError."""
    if base_url:
        _base_url(base_url)
    _key(api_key, "api_key")
    _patience(patience_seconds)


def _patience(seconds: object) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(f"patience_seconds must be a number, got {type(seconds).__name__}")
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"patience_seconds must be 0 or more, got {seconds}")
    return float(seconds)


def _key(key: str | None, name: str) -> str | None:
    """Return the key, without the line break that files of keys end with. ValueError for one that cannot be sent."""
    stripped = (key or "").strip()
    if not is_sendable(stripped):
        raise ValueError(f"{name} must be one line of plain ASCII text; this one has a line break or another character in it")
    return stripped or None


def is_sendable(key: str) -> bool:
    """Return whether a header can carry a key."""
    return key.isascii() and key.isprintable()


def _sendable(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if _BREAKS.search(name) or _BREAKS.search(value):
            raise ValueError(f"the header {name!r} must not hold a line break")
    return headers


_BREAKS = re.compile(r"[\r\n\x00]")
_NOT_IN_URLS = re.compile(r"[\s\x00-\x1f\x7f?#]")


def _base_url(url: object) -> str:
    """Return the address of a server, without the name and the password that it may have."""
    if not isinstance(url, str):
        raise TypeError(f"base_url must be text, got {type(url).__name__}")
    if not url.startswith(("http://", "https://", LOCAL_SCHEME)):
        raise ValueError(f"base_url must start with http://, https:// or {LOCAL_SCHEME}, got {_redact(url)!r}")
    if url.startswith(LOCAL_SCHEME):
        return url
    parts = _split(url.rstrip("/"))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _split(url: str) -> SplitResult:
    shown = _redact(url)
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(f"base_url is not a URL: {error}: {shown!r}") from None
    if not has_host or _NOT_IN_URLS.search(url):
        raise ValueError(f"base_url must be a host with, if need be, a port and a path, got {shown!r}")
    return parts


def _redact(url: str) -> str:
    """Return an address as errors show it."""
    return f"...@{url.rpartition('@')[2]}" if "@" in url else url


def _password(wanted: str, url: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the header for the name and password of the address; of the one in the environment for the same server."""
    if url.startswith(LOCAL_SCHEME):
        return {}
    known = env.get("TINKER_BASE_URL")
    for address in (wanted, known if known and "@" in known and _base_url(known) == url else None):
        parts = urlsplit(address or "")
        if parts.username is not None:
            text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
    return {}


def _wire(choice: str) -> WireChoice:
    match choice:
        case "auto" | "proto" | "json":
            return choice
        case _:
            raise ValueError(f"wire must be one of {', '.join(get_args(WireChoice))}, got {choice!r}")


# Headers of our own, as we spell them: one that somebody overrides must not be there twice.
_OUR_HEADERS = ("Accept", "Authorization", "User-Agent", "X-API-Key", "CF-Access-Client-Id", "CF-Access-Client-Secret")
_SPELLING = {name.lower(): name for name in _OUR_HEADERS}


def _spell(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {_SPELLING.get(name.lower(), name): value for name, value in (headers or {}).items()}


def _pairs(env: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the JSON object of a variable, whose values are text."""
    try:
        return msgspec.json.decode(env.get(name) or "{}", type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ValueError(f"{name} must be a JSON object of text: {error}") from None


def _identity() -> dict[str, str]:
    return {"User-Agent": f"tinker-open-client/{__version__} Python/{platform.python_version()}"}


def _cloudflare(env: Mapping[str, str]) -> dict[str, str]:
    pairs = {
        "CF-Access-Client-Id": env.get("CLOUDFLARE_ACCESS_CLIENT_ID"),
        "CF-Access-Client-Secret": env.get("CLOUDFLARE_ACCESS_CLIENT_SECRET"),
    }
    return {name: value for name, value in pairs.items() if value}
