"""The clients of commands: those of the library, which give up after seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker.cli.context import Options

if TYPE_CHECKING:
    from tinker._config import Config
    from tinker._runtime import Runtime
    from tinker.admin_client import AdminClient
    from tinker.rest_client import RestClient
    from tinker.service_client import ServiceClient

# The clients are imported on use, so that the help of commands is quick.


def config_of(options: Options, api_key: str | None = None) -> Config:
    """The settings; ``api_key`` None means that of the environment. ValueError for a base URL that is none."""
    from tinker import _config

    return _config.load(base_url=options.base_url, api_key=api_key, patience_seconds=options.patience_seconds)


def connected(options: Options, api_key: str | None = None) -> Runtime:
    """Connections that make no session. TinkerError when the server needs a key and none is known."""
    from tinker._runtime import open_runtime
    from tinker._session import Description

    return open_runtime(config_of(options, api_key), Description(user_metadata={}))


def rest_client(options: Options) -> RestClient:
    """For what the server keeps."""
    from tinker.rest_client import RestClient

    return RestClient(connected(options))


def admin_client(options: Options) -> AdminClient:
    """For those who run an organization."""
    from tinker.admin_client import AdminClient

    return AdminClient(connected(options))


def service_client(options: Options, *, hasty: bool = False) -> ServiceClient:
    """A session. Its requests are tried for minutes, as long work deserves; ``hasty`` ones as long as all others here."""
    from tinker.service_client import ServiceClient

    patience = options.patience_seconds if hasty else None
    return ServiceClient({"made_by": "tinker cli"}, base_url=options.base_url, patience_seconds=patience)
