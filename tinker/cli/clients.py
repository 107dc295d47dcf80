"""The clients of commands: those of the library, which give up after seconds."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from tinker.cli.options import Options

if TYPE_CHECKING:
    from tinker_wire.models import ClientSessionFinishReasonType

    from tinker._config import Config
    from tinker._runtime import Runtime
    from tinker.admin_client import AdminClient
    from tinker.rest_client import RestClient
    from tinker.service_client import ServiceClient

CLOSE_SECONDS = 2.0

# The clients are imported on use, so that the help of commands is quick.


def config_of(options: Options, api_key: str | None = None) -> Config:
    """The settings; ``api_key`` None means that of the environment. ValueError for a base URL that is none."""
    from tinker._config import settings as _config

    return _config.load(base_url=options.base_url, api_key=api_key, patience_seconds=options.patience_seconds)


def connected(options: Options, api_key: str | None = None) -> Runtime:
    """Connections that make no session and end with the command. TinkerError when a key is needed and none is known."""
    from tinker._runtime import open_runtime
    from tinker._session import Description

    runtime = open_runtime(config_of(options, api_key), Description(user_metadata={}))
    click.get_current_context().call_on_close(partial(_close, runtime))
    return runtime


def _close(runtime: Runtime) -> None:
    from tinker.futures import APIFuture, start

    with suppress(TimeoutError):
        start(APIFuture("close"), runtime.transport.exchange.aclose).result(CLOSE_SECONDS)


def rest_client(options: Options) -> RestClient:
    """For what the server keeps."""
    from tinker.rest_client import RestClient

    return RestClient(connected(options))


def admin_client(options: Options) -> AdminClient:
    """For those who run an organization."""
    from tinker.admin_client import AdminClient

    return AdminClient(connected(options))


@contextmanager
def service_client(options: Options, *, hasty: bool = False) -> Generator[ServiceClient]:
    """A session, ended after the block, though not waited for long.

    Its requests are tried for minutes, as long work deserves; ``hasty`` ones as long as all others here.
    """
    from tinker.errors import TinkerError
    from tinker.service_client import ServiceClient

    patience = options.patience_seconds if hasty else None
    service = ServiceClient({"made_by": "tinker cli"}, base_url=options.base_url, patience_seconds=patience)
    reason: ClientSessionFinishReasonType = "interrupted"
    try:
        yield service
        reason = "success"
    except Exception:
        reason = "errored"
        raise
    finally:
        with suppress(TimeoutError, TinkerError):
            service.close(reason).result(CLOSE_SECONDS)
