"""The settings of a client, read once from arguments and the environment."""

from __future__ import annotations

from tinker._config.proxies import Proxies
from tinker._config.settings import (
    Config,
    WireChoice,
    check_given,
    is_sendable,
    load_config,
    local_dir,
    prices_file,
    serve_api_key,
)

__all__ = [
    "Config",
    "Proxies",
    "WireChoice",
    "check_given",
    "is_sendable",
    "load_config",
    "local_dir",
    "prices_file",
    "serve_api_key",
]
