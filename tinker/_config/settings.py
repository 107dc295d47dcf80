"""Settings of one client: arguments over environment over defaults. The only reader of ``os.environ``."""

from __future__ import annotations

import base64
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

import attrs
import msgspec

from tinker._checks import check_number, check_type
from tinker._config import config as _defaults
from tinker._config.config import LOCAL_SCHEME, Config
from tinker._config.proxies import Proxies, from_environment
from tinker._version import __version__

if TYPE_CHECKING:
    from typing import Unpack

    from tinker._config.config import ConfigSettings

_API_PATH = "/api/v1"
_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"", "0", "false", "no", "off"})


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
    proxy: str | None = None,
    environ: Mapping[str, str] | None = None,
    **others: Any,
) -> Config:
    """Read the settings now, so that a variable set after import counts. An empty variable counts as unset.

    ``others`` are further fields of Config; None means the environment, as it does for those that are named.

    Raises ValueError for an unknown wire, a base URL that cannot be used, a key or header that cannot be sent, a URL that is
    not a proxy's, and defaults that are not JSON; TypeError for a setting that does not exist.
    """
    env = os.environ if environ is None else environ
    wanted = base_url or env.get("TINKER_BASE_URL") or _defaults.HOSTED_URL
    url = _base_url(wanted)
    given = {**_spell(_pairs(env, "TINKER_DEFAULT_HEADERS")), **_spell(headers)}
    found: dict[str, Any] = {
        "base_url": url,
        "api_key": _key(api_key, "api_key") or _key(env.get("TINKER_API_KEY"), "TINKER_API_KEY"),
        "credential_cmd": env.get("TINKER_CREDENTIAL_CMD") or None,
        "credentials_file": Path(env.get("HOME") or Path.home()) / ".tinker" / "credentials.json",
        "project_id": project_id or env.get("TINKER_PROJECT_ID") or None,
        "tags": tuple(dict.fromkeys(tag for tag in env.get("TINKER_TAGS", "").split(",") if tag)),
        "wire": wire or env.get("TINKER_WIRE") or "auto",
        "proxies": Proxies() if url.startswith(LOCAL_SCHEME) else from_environment(env, "TINKER_PROXY", proxy),
        "headers": {**_cloudflare(env), **_password(wanted, url, env), **given},
        "query": {**_pairs(env, "TINKER_DEFAULT_QUERY"), **(query or {})},
        "sdk_version": env.get("TINKER_SDK_VERSION") or __version__,
        "local_dir": local_dir(env),
        "patience_seconds": None if patience_seconds is None else _patience(patience_seconds),
        "fail_fast": _switched(fail_fast, env, "TINKER_FAIL_FAST"),
        "telemetry": _switched(telemetry, env, "TINKER_TELEMETRY"),
        **_read_limits(env),
    }
    return Config(**{**found, **{name: value for name, value in others.items() if value is not None}})


def _read_limits(env: Mapping[str, str]) -> dict[str, Any]:
    """Return those settings of pools, heartbeats and dumps that the environment has."""
    found: dict[str, Any] = {
        "proxy_headers": _pairs(env, "TINKER_PROXY_HEADERS") or None,
        "ca_file": _file(env, "TINKER_CA_FILE"),
        "client_cert": _file(env, "TINKER_CLIENT_CERT"),
        "client_key": _file(env, "TINKER_CLIENT_KEY"),
        "connections": _counts(env, "TINKER_CONNECTIONS") or None,
        "sample_submissions": _integer(env, "TINKER_SAMPLE_SUBMISSIONS"),
        "heartbeat_seconds": _seconds(env, "TINKER_HEARTBEAT_SECONDS"),
        "heartbeat_warning_seconds": _seconds(env, "TINKER_HEARTBEAT_WARNING_SECONDS"),
        "heartbeat_lost_seconds": _seconds(env, "TINKER_HEARTBEAT_LOST_SECONDS"),
        "dump_http": _dump_target(env.get("TINKER_DUMP_HTTP", "")),
    }
    if env.get("TINKER_TRACE_CONTEXT", "").strip():
        found["trace_context"] = _switched(None, env, "TINKER_TRACE_CONTEXT")
    return {name: value for name, value in found.items() if value is not None}


def _dump_target(text: str) -> str | None:
    """Return where exchanges are written to: ``-`` where the variable is a switch that is on, else the file that it names."""
    word = text.strip().lower()
    return None if word in _OFF else "-" if word in _ON else text


def _integer(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {text!r}")
    return int(text)


def _seconds(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"{name} must be a number of seconds above 0, got {text!r}")
    return seconds


def override(config: Config, **given: Any) -> Config:
    """Return the settings with those of the arguments that are given in their place; headers and query are added."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if "base_url" in chosen:
        chosen["base_url"] = _base_url(chosen["base_url"])
    if "api_key" in chosen:
        chosen["api_key"] = _key(chosen["api_key"], "api_key")
    if "headers" in chosen:
        chosen["headers"] = {**config.headers, **_spell(chosen["headers"])}
    if "query" in chosen:
        chosen["query"] = {**config.query, **chosen["query"]}
    return attrs.evolve(config, **chosen)


def load_later(config: Config | None, **given: Unpack[ConfigSettings]) -> Callable[[], Config]:
    """Check arguments that can never be right, and return a function that loads the settings once they are needed.

    With a ``config``, the arguments override it, and the environment is not read. Raises ValueError and TypeError.
    """
    check_type("config", config, Config)
    if base_url := given.get("base_url"):
        _base_url(base_url)
    _key(given.get("api_key"), "api_key")
    if (patience_seconds := given.get("patience_seconds")) is not None:
        check_number("patience_seconds", patience_seconds, finite=False)
    # A function, as the repr of a partial would show the key.
    return lambda: load_config(**given) if config is None else override(config, **given)


def local_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return where servers of this machine keep checkpoints, unless they are told otherwise."""
    return _file(os.environ if environ is None else environ, "TINKER_LOCAL_DIR")


def prices_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the price list of commands, unless they are told another."""
    return _file(os.environ if environ is None else environ, "TINKER_PRICES")


def _file(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def serve_api_key(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the key that a server started here asks its clients for, unless it is told otherwise."""
    return (os.environ if environ is None else environ).get("TINKER_SERVE_API_KEY") or None


def login_shell() -> str:
    """Return the name of the user's shell; empty where the system does not tell."""
    return Path(os.environ.get("SHELL", "")).name


def _switched(choice: bool | None, env: Mapping[str, str], name: str) -> bool:
    """Return the choice, else the switch in the environment, which is off unless it says that it is on."""
    return env.get(name, "").strip().lower() in _ON if choice is None else choice


def _patience(seconds: float) -> float:
    check_number("patience_seconds", seconds, finite=False)
    return float(seconds)


def _key(key: str | None, name: str) -> str | None:
    """Return the key, without the line break that files of keys end with. ValueError for one that cannot be sent."""
    if not isinstance(key or "", str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be a string, got {type(key).__name__}")
    stripped = (key or "").strip()
    if not is_sendable(stripped):
        raise ValueError(f"{name} must be one line of plain ASCII text, but it contains a line break or another character")
    return stripped or None


def is_sendable(key: str) -> bool:
    """Return whether a header can carry a key."""
    return key.isascii() and key.isprintable()


_NEARLY_LOCAL = re.compile(r"local(?::/?(\D.*)?)?")
_NOT_IN_URLS = re.compile(r"[\s\x00-\x1f\x7f?#]")


def _base_url(url: object) -> str:
    """Return the address of a server, without the name and the password that it may have."""
    if not isinstance(url, str):
        raise TypeError(f"base_url must be a string, got {type(url).__name__}")
    if not url.startswith(("http://", "https://", LOCAL_SCHEME)):
        shown = _redact(url)
        local = _NEARLY_LOCAL.fullmatch(shown)
        likely = f"{LOCAL_SCHEME}{local[1] or ''}" if local else f"http://{shown}"
        meant = "" if "://" in url else f"; did you mean {likely!r}?"
        raise ValueError(f"base_url must start with http://, https:// or {LOCAL_SCHEME}, got {shown!r}{meant}")
    if url.startswith(LOCAL_SCHEME):
        return url
    parts = _split(url.rstrip("/"))
    if parts.path.endswith(_API_PATH):
        shown = _redact(url.rstrip("/").removesuffix(_API_PATH))
        raise ValueError(f"base_url ends in {_API_PATH}, which the client adds; write {shown!r}")
    return parts._replace(netloc=_normal_host(parts)).geturl()


_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def _normal_host(parts: SplitResult) -> str:
    """Return the host and port in the one form that clients of the same server share: lower case, no default port."""
    return parts.netloc.rpartition("@")[2].lower().removesuffix(_DEFAULT_PORTS[parts.scheme]).removesuffix(":")


def _split(url: str) -> SplitResult:
    shown = _redact(url)
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(f"base_url is not a valid URL: {shown!r}: {error}") from None
    if not has_host or _NOT_IN_URLS.search(url):
        raise ValueError(f"base_url must have the form http://host[:port][/path], got {shown!r}")
    return parts


def _redact(url: str) -> str:
    """Return an address as errors show it."""
    return f"...@{url.rpartition('@')[2]}" if "@" in url else url


def show_url(url: str) -> str:
    """Return a base URL as a repr may show it: without a name and password, and without a query, which may hold a key.

    >>> show_url("https://me:secret@host:8443/tinker?key=secret")
    'https://host:8443/tinker'
    """
    scheme, separator, rest = url.partition("://")
    rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


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
        raise ValueError(f"{name} must be a JSON object of strings: {error}") from None


def _counts(env: Mapping[str, str], name: str) -> dict[str, int]:
    """Return the JSON object of a variable, whose values are integers."""
    try:
        return msgspec.json.decode(env.get(name) or "{}", type=dict[str, int])
    except msgspec.DecodeError as error:
        raise ValueError(f"{name} must be a JSON object of integers: {error}") from None


def _cloudflare(env: Mapping[str, str]) -> dict[str, str]:
    pairs = {
        "CF-Access-Client-Id": env.get("CLOUDFLARE_ACCESS_CLIENT_ID"),
        "CF-Access-Client-Secret": env.get("CLOUDFLARE_ACCESS_CLIENT_SECRET"),
    }
    return {name: value for name, value in pairs.items() if value}
