"""Settings of one client: arguments over environment over defaults. The only reader of ``os.environ``."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import attrs

from tinker._checks import check_type
from tinker._config.config import HOSTED_URL, Config
from tinker._config.proxies import Proxies, from_environment
from tinker._config.values import LOCAL_SCHEME, read_base_url, spell_headers

if TYPE_CHECKING:
    from typing import Unpack

    from tinker._config.config import ConfigSettings


def load_config(*, environ: Mapping[str, str] | None = None, **given: Unpack[ConfigSettings]) -> Config:
    """Read the settings now, so that a variable set after import counts. An empty variable or text counts as unset.

    Raises ValueError for an unknown wire, a base URL that cannot be used, a key or header that cannot be sent, a URL that is
    not a proxy's, and variables that do not have their form; TypeError for a setting that does not exist.
    """
    env = os.environ if environ is None else environ
    found, chosen = _read_variables(env), _drop_unset(given)
    wanted = chosen.get("base_url") or env.get("TINKER_BASE_URL") or HOSTED_URL
    url = read_base_url(wanted)
    proxy = chosen.pop("proxy", None)
    proxies = Proxies() if url.startswith(LOCAL_SCHEME) else from_environment(env, "TINKER_PROXY", proxy)
    derived = {"headers": {**_cloudflare(env), **_password(wanted, url, env)}, "proxies": proxies}
    return Config(**_merge(_merge(derived, found), {**chosen, "base_url": url}))


def _read_variables(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that the environment has."""
    found: dict[str, Any] = {}
    for field in attrs.fields(Config):
        variable, read = field.metadata["variable"], field.metadata["read"]
        if read is not None and env.get(variable, "").strip():
            found[field.name] = read(variable, env[variable])
    return _drop_unset(found)


def _drop_unset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings that are None or blank text."""
    return {name: value for name, value in settings.items() if (value.strip() if isinstance(value, str) else value is not None)}


def _merge(settings: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Return settings with later ones in their place; headers and query are added."""
    headers = {**settings.get("headers", {}), **spell_headers(later.get("headers"))}
    query = {**settings.get("query", {}), **later.get("query", {})}
    return {**settings, **later, "headers": headers, "query": query}


def override(config: Config, **given: Unpack[ConfigSettings]) -> Config:
    """Return the settings with those of the arguments that are given in their place; headers and query are added."""
    return attrs.evolve(config, **_merge({"headers": config.headers, "query": config.query}, _drop_unset(given)))


def load_later(config: Config | None, **given: Unpack[ConfigSettings]) -> Callable[[], Config]:
    """Check the arguments, and return a function that loads the settings once they are needed.

    With a ``config``, the arguments override it, and the environment is not read. Raises ValueError and TypeError.
    """
    check_type("config", config, Config)
    checked = override(config or Config(), **given)
    # A function, as the repr of a partial would show the key.
    return lambda: load_config(**given) if config is None else checked


def local_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return where servers of this machine keep checkpoints, unless an argument says so."""
    return _path("TINKER_LOCAL_DIR", environ)


def prices_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the price list of commands, unless an option names one."""
    return _path("TINKER_PRICES", environ)


def _path(variable: str, environ: Mapping[str, str] | None) -> Path | None:
    text = (os.environ if environ is None else environ).get(variable)
    return Path(text) if text else None


def serve_api_key(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the key that a server started here asks its clients for, unless an option gives one."""
    return (os.environ if environ is None else environ).get("TINKER_SERVE_API_KEY") or None


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
