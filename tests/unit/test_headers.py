"""Request headers: common ones are built once, and those of one request kept apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tinker_wire import models
from tinker_wire.api import futures as futures_api
from tinker_wire.runtime import Request

from tinker._basics.config import Config, load_config
from tinker._http.auth import Auth, Credential
from tinker._http.messages import Headers, PreparedRequest, Purpose, SharedHeaders
from tinker._http.observers import Observers
from tinker._http.transport import Transport, open_engine
from tinker._loop import Clock, TaskScope, loop_thread

Prepare = Callable[[Config], Transport]


@pytest.fixture
def open_transport() -> Prepare:
    """Create a transport that has not sent anything."""

    def make(config: Config) -> Transport:
        clock, tasks = Clock(), TaskScope(loop_thread())
        observers = Observers(clock)
        auth = Auth(Credential("tml-one"), clock, tasks)
        return Transport(config, clock, auth, open_engine(config, observers), observers, tasks)

    return make


def poll(request_id: str) -> Request[object]:
    body = models.FutureRetrieveRequest(request_id=request_id)
    return futures_api.retrieve_future(
        body, expected=object, x_tinker_request_iteration=0, x_tinker_request_type="Sample"
    )


def prepare(
    transport: Transport, request_id: str, credential: Credential | None = None
) -> PreparedRequest:
    return transport.prepare(poll(request_id), Purpose.POLL, credential=credential)


def test_requests_of_one_client_share_their_headers(open_transport: Prepare) -> None:
    """Requests with the same media types and key share one object; their own headers do not."""
    transport = open_transport(load_config(base_url="http://server", headers={"X-Team": "a"}))
    first, second = (prepare(transport, name).headers for name in "ab")
    assert first.shared is second.shared
    assert {"Accept", "Content-Type", "X-API-Key", "X-Team"} <= first.shared.keys()
    assert first["X-Idempotency-Key"] != second["X-Idempotency-Key"]
    assert first.own.keys().isdisjoint(first.shared)


def test_credentials_do_not_share_headers(open_transport: Prepare) -> None:
    """A request with another credential has separate headers."""
    transport = open_transport(load_config(base_url="http://server"))
    first, other = prepare(transport, "a"), prepare(transport, "b", Credential("tml-two"))
    assert (first.headers["X-API-Key"], other.headers["X-API-Key"]) == ("tml-one", "tml-two")
    assert first.headers.shared is not other.headers.shared


def test_an_operation_overrides_the_headers_of_the_settings(open_transport: Prepare) -> None:
    """A header that the settings name as well is sent once, with the value of the operation."""
    transport = open_transport(
        load_config(base_url="http://server", headers={"X-Tinker-Request-Type": "mine"})
    )
    headers = prepare(transport, "a").headers
    assert headers["X-Tinker-Request-Type"] == "Sample"
    assert list(headers).count("X-Tinker-Request-Type") == 1


def test_no_value_is_shown() -> None:
    """The repr of headers lists their names and shows no value."""
    headers = Headers(SharedHeaders({"X-API-Key": "tml-secret"}), {"X-Own": "hush"})
    shown = f"{headers!r} {headers.shared!r}"
    assert "X-API-Key" in shown
    assert "tml-secret" not in shown
    assert "hush" not in shown
