"""The clients of commands: those of the library, which give up after seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker import _config
from tinker._runtime import Runtime, open_runtime
from tinker._session import Description
from tinker.cli.context import Options
from tinker.rest_client import RestClient

if TYPE_CHECKING:
    from tinker.admin_client import AdminClient
    from tinker.service_client import ServiceClient


def config_of(options: Options) -> _config.Config:
    """The settings. ValueError for a base URL that is none."""
    return _config.load(base_url=options.base_url, patience_seconds=options.patience_seconds)


def connected(options: Options) -> Runtime:
    """Connections that make no session. TinkerError when the server needs a key and none is known."""
    return open_runtime(config_of(options), Description(user_metadata={}))


def rest_client(options: Options) -> RestClient:
    """For what the server keeps."""
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
