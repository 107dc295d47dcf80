"""The settings of a client, read once from arguments and the environment."""

from __future__ import annotations

from tinker._config.config import CONNECTIONS, Config, WireChoice, check_headers
from tinker._config.proxies import PORTS, Proxies
from tinker._config.settings import (
    load_config,
    load_later,
    local_dir,
    login_shell,
    override,
    prices_file,
    serve_api_key,
)
from tinker._config.trust import Trust
from tinker._config.values import is_sendable, show_url

__all__ = [
    "CONNECTIONS",
    "Config",
    "PORTS",
    "Proxies",
    "Trust",
    "WireChoice",
    "check_headers",
    "is_sendable",
    "load_config",
    "load_later",
    "local_dir",
    "override",
    "prices_file",
    "login_shell",
    "serve_api_key",
    "show_url",
]
