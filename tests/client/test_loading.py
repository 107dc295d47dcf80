"""An in-process server that must load torch and its model before it can respond."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tinker_wire.models import GetServerCapabilitiesResponse

import tinker
from tinker._http.engine_httpx import InProcessTransport
from tinker._loop import loop_thread
from tinker.errors import APITimeoutError, InternalServerError
from tinker.local import Settings, State, create_app
from tinker.local.app import Listener, Loading
from tinker.local.engines.toy import ToyEngine
from tinker.observing import Event, ModelLoading
from tinker.testing import SteppedClock

WHAT = "torch and org/name"


class CountedLoading(Loading):
    """A counter of the requests that it has informed about loading."""

    def __init__(self) -> None:
        super().__init__()
        self._told = threading.Semaphore(0)
        self.listeners: dict[Listener, Listener] = {}

    def watch(self, listener: Listener) -> None:
        def tell(what: str | None) -> None:
            listener(what)
            if what is not None:
                self._told.release()

        self.listeners[listener] = tell
        super().watch(tell)

    def unwatch(self, listener: Listener) -> None:
        super().unwatch(self.listeners.pop(listener))

    def wait_for(self, requests: int) -> None:
        """Wait until this many requests are informed, and the client's thread has noted it."""
        assert all(self._told.acquire(timeout=10) for _ in range(requests))
        for _ in range(2):  # the first may run with what was handed over before
            noted = threading.Event()
            loop_thread().call(noted.set)
            assert noted.wait(10)


@attrs.define
class SlowServer:
    """An in-process server whose engine opens when the test allows it, and what observers heard."""

    state: State
    transport: InProcessTransport
    loading: CountedLoading
    may_open: threading.Event = attrs.field(factory=threading.Event)
    heard: list[ModelLoading] = attrs.field(factory=list)
    error: Exception | None = None

    def observe(self, event: Event) -> None:
        if isinstance(event, ModelLoading):
            self.heard.append(event)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowServer]:
    """Yield a server whose engine does not open before ``may_open``."""
    loading = CountedLoading()

    def open_engine() -> ToyEngine:
        assert slow.may_open.wait(10)
        if slow.error is not None:
            raise slow.error
        return ToyEngine()

    state = State(functools.partial(loading.open, WHAT, open_engine), Settings(data_dir=tmp_path))
    app = create_app(state)
    app.state.loading = loading
    slow = SlowServer(state, InProcessTransport(app), loading)
    yield slow
    slow.may_open.set()
    state.close()


@pytest.fixture
def client(slow: SlowServer, clock: SteppedClock) -> Iterator[tinker.ServiceClient]:
    """Yield a client of that server."""
    service = tinker.ServiceClient(
        base_url="local://",
        transport=slow.transport,
        clock=clock.clock(),
        observers=[slow.observe],
        patience_seconds=10,
    )
    yield service
    slow.may_open.set()
    service.close().result(10)
    assert slow.loading.listeners == {}  # a request that is over listens no more


def ask(client: tinker.ServiceClient) -> tinker.APIFuture[GetServerCapabilitiesResponse]:
    """Request the list of models, which the server has once its engine is open."""
    return client.create_rest_client().get_server_capabilities()


def test_loading_does_not_count_against_timeouts(
    client: tinker.ServiceClient, slow: SlowServer, clock: SteppedClock
) -> None:
    """A request outlives its timeouts while torch loads; observers hear of start and end once."""
    asked = [ask(client), ask(client)]
    slow.loading.wait_for(2)
    clock.advance(1000, idle=True)
    slow.may_open.set()
    assert [one.result(10).supported_models[0].model_name for one in asked] == ["tinker/toy"] * 2
    assert [event.what for event in slow.heard] == [WHAT, WHAT]
    assert [event.seconds for event in slow.heard] == [None, 1000.0]


def test_loading_has_a_separate_deadline(
    client: tinker.ServiceClient, slow: SlowServer, clock: SteppedClock
) -> None:
    """After half an hour the request fails and names what did not load; a later one finds it."""
    asked = ask(client)
    slow.loading.wait_for(1)
    clock.advance(1801, idle=True)
    with pytest.raises(APITimeoutError, match=f"{WHAT} did not load within 1800 s"):
        asked.result(10)
    slow.may_open.set()
    assert ask(client).result(10).supported_models[0].model_name == "tinker/toy"


@pytest.mark.parametrize("loads", [True, False], ids=["loaded", "given up"])
def test_loading_is_logged_periodically(
    client: tinker.ServiceClient, slow: SlowServer, clock: SteppedClock, caplog: Any, loads: bool
) -> None:
    """A line is logged every fifteen seconds, and none once the model is loaded or nobody waits."""
    with caplog.at_level(logging.WARNING, "tinker"):
        asked = ask(client)
        slow.loading.wait_for(1)
        for _ in range(2):
            clock.advance(15)
        if loads:
            slow.may_open.set()
        said = [f"still loading {WHAT}, 15 s so far", f"still loading {WHAT}, 30 s so far"]
        assert caplog.messages == said
        if not loads:
            clock.advance(1801, idle=True)
        assert isinstance(asked.exception(10), type(None) if loads else APITimeoutError)
        caplog.clear()
        clock.advance(100, idle=True)
    assert caplog.messages == []


def test_exit_while_loading_is_not_logged(
    slow: SlowServer, client: tinker.ServiceClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Import errors caused by the process exiting during loading are not logged."""
    slow.error = AttributeError("'_OpNamespace' 'prims' object has no attribute 'sum'")
    asked = ask(client)
    slow.loading.wait_for(1)
    slow.state.begin_close()
    slow.may_open.set()
    slow.state.close()
    with pytest.raises(InternalServerError, match="shutting down"):
        asked.result(10)
    assert [record for record in caplog.records if record.name == "tinker.local"] == []
