"""Servers of our own in this process, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.api import Api, Clock, MakeApi

from tinker.local.engines.toy import ToyEngine
from tinker.local.settings import Settings
from tinker.local.state import State


@pytest.fixture
def make_api(tmp_path: Path) -> Iterator[MakeApi]:
    """Make servers with the toy engine (or those given) and the settings given; all are closed in
    the end.
    """
    made: list[Api] = []

    def make(
        engine: ToyEngine | Sequence[ToyEngine] | None = None,
        *,
        sampler: ToyEngine | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> Api:
        engines = (
            [engine or ToyEngine(vocabulary=512)]
            if engine is None or isinstance(engine, ToyEngine)
            else engine
        )
        clocks: dict[str, Any] = {} if clock is None else {"clock": clock, "now": clock}
        state = State(
            [partial(_return, one) for one in engines],
            Settings(**{"data_dir": tmp_path / "data", **settings}),
            samplers=[] if sampler is None else [partial(_return, sampler)],
            **clocks,
        )
        made.append(Api(state))
        return made[-1]

    yield make
    for api in made:
        api.close()


def _return(engine: ToyEngine) -> ToyEngine:
    return engine


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    """Return a server with default settings."""
    return make_api()


@pytest.fixture
def sampler(api: Api) -> str:
    """Return a sampling session of the base model."""
    return api.sampler(api.session())


@pytest.fixture
def clock() -> Clock:
    """Return the clock that a test moves, for the servers that it makes with it."""
    return Clock()
