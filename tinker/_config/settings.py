"""The environment of a client: settings from variables, below those of arguments. The only reader of ``os.environ``."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs

from tinker._config.proxies import Proxies, from_environment
from tinker._config.values import LOCAL_SCHEME, read_base_url, spell_headers


def gather(
    fields: Iterable[attrs.Attribute[Any]], given: Mapping[str, Any], default_url: str, environ: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return the settings that arguments give, or else the environment (None: the process's), read now.

    An empty variable or text counts as unset. ValueError for what cannot be read.
    """
    env = os.environ if environ is None else environ
    chosen = drop_unset(given)
    wanted = chosen.get("base_url") or env.get("TINKER_BASE_URL") or default_url
    url = read_base_url(wanted)
    proxy = chosen.pop("proxy", None)
    proxies = Proxies() if url.startswith(LOCAL_SCHEME) else from_environment(env, "TINKER_PROXY", proxy)
    derived = {"headers": {**_cloudflare(env), **_password(wanted, url, env)}, "proxies": proxies}
    return merge(merge(derived, _read_variables(fields, env)), {**chosen, "base_url": url})


def _read_variables(fields: Iterable[attrs.Attribute[Any]], env: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that the environment has."""
    found: dict[str, Any] = {}
    for field in fields:
        variable, read = field.metadata["variable"], field.metadata["read"]
        if read is not None and env.get(variable, "").strip():
            found[field.name] = read(variable, env[variable])
    return drop_unset(found)


def drop_unset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings that are None or blank text."""
    return {name: value for name, value in settings.items() if (value.strip() if isinstance(value, str) else value is not None)}


def merge(settings: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Return settings with later ones in their place; headers and query are added."""
    headers = {**settings.get("headers", {}), **spell_headers(later.get("headers"))}
    query = {**settings.get("query", {}), **later.get("query", {})}
    return {**settings, **later, "headers": headers, "query": query}


def local_dir() -> Path | None:
    """Return where servers of this machine keep checkpoints, unless an argument says so."""
    return _path("TINKER_LOCAL_DIR")


def prices_file() -> Path | None:
    """Return the price list of commands, unless an option names one."""
    return _path("TINKER_PRICES")


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return Path(text) if text else None


def explain_missing_certificates() -> str:
    """Return the end of a message: what OpenSSL is told to read and is not there. Empty if it is there."""
    file, folders = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR", "").split(os.pathsep)
    if file and not Path(file).is_file():
        return f"; there is no file {file}, which SSL_CERT_FILE names"
    missing = any(folders) and not any(Path(one).is_dir() for one in folders)
    return f"; there is no folder {os.pathsep.join(folders)}, which SSL_CERT_DIR names" if missing else ""


TELEMETRY = "TINKER_TELEMETRY"


def is_telemetry_unset() -> bool:
    """Return whether the environment does not say whether telemetry is sent."""
    return not os.environ.get(TELEMETRY, "").strip()


def serve_api_key() -> str | None:
    """Return the key that a server started here asks its clients for, unless an option gives one."""
    return os.environ.get("TINKER_SERVE_API_KEY") or None


def login_shell() -> str:
    """Return the name of the user's shell; empty where the system does not know it."""
    return Path(os.environ.get("SHELL", "")).name


def _password(wanted: str, url: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the header for the name and password of the address; of the one in the environment for the same server."""
    if url.startswith(LOCAL_SCHEME):
        return {}
    known = env.get("TINKER_BASE_URL")
    for address in (wanted, known if known and "@" in known and read_base_url(known) == url else None):
        parts = urlsplit(address or "")
        if parts.username is not None:
            text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
    return {}


def _cloudflare(env: Mapping[str, str]) -> dict[str, str]:
    pairs = {
        "CF-Access-Client-Id": env.get("CLOUDFLARE_ACCESS_CLIENT_ID"),
        "CF-Access-Client-Secret": env.get("CLOUDFLARE_ACCESS_CLIENT_SECRET"),
    }
    return {name: value for name, value in pairs.items() if value}
