"""Servers of our own in this process, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api import Api, Clock, MakeApi

from tinker.local.engines.toy import ToyEngine
from tinker.local.settings import Settings
from tinker.local.state import State


@pytest.fixture
def make_api(tmp_path: Path) -> Iterator[MakeApi]:
    """Makes servers with the toy engine (or the one given) and the settings given; all are closed in the end."""
    made: list[Api] = []

    def make(engine: ToyEngine | None = None, *, clock: Clock | None = None, **settings: Any) -> Api:
        engine = engine or ToyEngine(vocabulary=512)
        clocks: dict[str, Any] = {} if clock is None else {"clock": clock, "now": clock}
        state = State(lambda: engine, Settings(**{"data_dir": tmp_path / "data", **settings}), **clocks)
        made.append(Api(state))
        return made[-1]

    yield make
    for api in made:
        api.close()


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    """A server with default settings."""
    return make_api()
