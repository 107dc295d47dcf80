"""A server to check, servers with other engines and settings, and those of a profile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tinker.local import Settings, running_server
from tinker.local.engines.toy import ToyEngine

Serve = Callable[..., str]


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start servers, with an engine and settings of choice; they end with the tests."""
    with ExitStack() as stack:

        def start(engine: ToyEngine | None = None, **settings: Any) -> str:
            short = {"hold_seconds": 2.0, "gap_seconds": 3.0, "inline_result_bytes": 1000}
            folder: Path = tmp_path_factory.mktemp("server")
            chosen = Settings(**{"data_dir": folder, **short, **settings})
            return stack.enter_context(running_server(chosen, engine or ToyEngine(vocabulary=512)))

        yield start


@pytest.fixture(scope="session")
def server(serve: Serve) -> str:
    """Return a server that waits for nothing long, and takes any key."""
    return serve()


@pytest.fixture(scope="session")
def server_like(serve: Serve) -> Callable[[str], str]:
    """Return a server that passes for another one, by the name of the profile."""
    return functools.cache(lambda profile: serve(profile=profile))
