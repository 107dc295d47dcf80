"""Read and check single settings: the address of the server, the key, headers, and the texts of variables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

T = TypeVar("T")

LOCAL_SCHEME = "local://"
_API_PATH = "/api/v1"
_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})

# Texts of variables, none of them blank. Each function gets the name of the variable for its error.


def read_text(_: str, text: str) -> str:
    """Return the text."""
    return text


def read_path(_: str, text: str) -> Path:
    """Return the path of a file or folder."""
    return Path(text)


def read_home(_: str, text: str) -> Path:
    """Return where the credential is stored in a home folder."""
    return Path(text) / ".tinker" / "credentials.json"


def read_words(_: str, text: str) -> tuple[str, ...]:
    """Return the words between commas, each once."""
    return tuple(dict.fromkeys(word for word in text.split(",") if word))


def read_switch(_: str, text: str) -> bool:
    """Return whether the text says that something is on."""
    return text.strip().lower() in _ON


def read_dump_target(_: str, text: str) -> str | None:
    """Return where exchanges are written to: ``-`` if the variable is a switch that is on, else the file that it names."""
    word = text.strip().lower()
    return None if word in _OFF else "-" if word in _ON else text


def read_count(name: str, text: str) -> int:
    """Return an integer of at least 1."""
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {text!r}")
    return int(text)


def read_seconds(name: str, text: str) -> float:
    """Return a number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"{name} must be a number of seconds above 0, got {text.strip()!r}")
    return seconds


def read_strings(name: str, text: str) -> dict[str, str]:
    """Return a JSON object whose values are strings."""
    return _read_object(name, text, dict[str, str], "strings")


def read_counts(name: str, text: str) -> dict[str, int]:
    """Return a JSON object whose values are integers."""
    return _read_object(name, text, dict[str, int], "integers")


def _read_object(name: str, text: str, kind: type[T], values: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{name} must be a JSON object of {values}: {error}") from None


# Keys and addresses, of arguments and variables.


def read_key(name: str, key: object) -> str | None:
    """Return the key without the line break that files of keys end with. ValueError for one that cannot be sent."""
    if not isinstance(key, str):
        raise TypeError(f"{name} must be a string, got {type(key).__name__}")
    stripped = key.strip()
    if not is_sendable(stripped):
        raise ValueError(f"{name} must be one line of plain ASCII text, but it contains a line break or another character")
    return stripped or None


def is_sendable(key: str) -> bool:
    """Return whether a header can carry a key."""
    return key.isascii() and key.isprintable()


_NEARLY_LOCAL = re.compile(r"local(?::/?(\D.*)?)?")
_NOT_IN_URLS = re.compile(r"[\s\x00-\x1f\x7f?#]")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def read_base_url(url: object) -> str:
    """Return the address of a server, without the name and the password that it may have."""
    if not isinstance(url, str):
        raise TypeError(f"base_url must be a string, got {type(url).__name__}")
    url = lower_scheme(url)
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


def lower_scheme(url: str) -> str:
    """Return an address with its scheme in lower case, which means the same."""
    return re.sub("^[^:]+://", lambda scheme: scheme[0].lower(), url)


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


def is_loopback(host: str) -> bool:
    """Return whether a name or an address reaches nothing but this machine."""
    import ipaddress  # rare

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def show_url(url: str) -> str:
    """Return a base URL as a repr may show it: without a name and password, and without a query, which may hold a key.

    >>> show_url("https://me:secret@host:8443/tinker?key=secret")
    'https://host:8443/tinker'
    """
    scheme, separator, rest = url.partition("://")
    rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


# Headers of our own, as we spell them: one that somebody overrides must not be there twice.
_OUR_HEADERS = ("Accept", "Authorization", "User-Agent", "X-API-Key", "CF-Access-Client-Id", "CF-Access-Client-Secret")
_SPELLING = {name.lower(): name for name in _OUR_HEADERS}


def spell_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return headers with those of our own as we spell them."""
    return {_SPELLING.get(name.lower(), name): value for name, value in (headers or {}).items()}
