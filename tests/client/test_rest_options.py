"""Options of a single call: more headers, and a time limit."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tinker
from tinker import types

Connect = Callable[..., tinker.ServiceClient]
Rest = tinker.RestClient
PATH = "tinker://run-1/weights/0001"
SESSION = "5e551011-0000-4000-8000-000000000001"
TRACE = f"sessions/{SESSION}/trace_export"
EMPTY = {"sessions": []}


@pytest.fixture
def rest(connect: Connect) -> Rest:
    """Return a REST client whose own headers have one that calls may replace."""
    return connect(default_headers_overrides={"X-Team": "everyone"}).create_rest_client()


@pytest.fixture
def anywhere(wire: Any) -> Iterator[None]:
    """Requests that follow a redirect to another host are not of the contract."""
    yield
    wire.judge.bad_requests.clear()


def values_of(exchange: Any, name: str) -> list[str]:
    headers = exchange.request.headers.raw
    return [value.decode() for key, value in headers if key.decode().lower() == name]


def test_headers_are_those_of_one_call(rest: Rest, wire: Any) -> None:
    """Headers replace the client's own of any case, and come only with the call that has them."""
    rest.list_sessions(
        extra_headers={"x-team": "mine", "X-Trace": "7", "user-agent": "mine"}
    ).result(10)
    asyncio.run(rest.list_sessions_async(1, extra_headers={"X-Trace": "8"}))
    rest.list_sessions().result(10)
    sent = wire.requests("sessions")
    assert [values_of(one, "x-team") for one in sent] == [["mine"], ["everyone"], ["everyone"]]
    assert [values_of(one, "x-trace") for one in sent] == [["7"], ["8"], []]
    assert values_of(sent[0], "user-agent") == ["mine"]
    assert [values_of(one, "x-api-key") for one in sent] == [["tml-secret"]] * 3


@pytest.mark.parametrize("has_token", [False, True])
def test_headers_can_replace_the_credential(connect: Connect, wire: Any, has_token: bool) -> None:
    """A call may be made under another credential than the client's, which may be a token."""
    wire.fail("client/config", 200, body={"pjwt_auth_enabled": has_token})
    wire.fail("auth/token", 200, body={"jwt": "a.b.c"}, times=int(has_token))
    rest = connect().create_rest_client()
    rest.list_sessions(extra_headers={"x-api-key": "tml-other"}).result(10)
    assert values_of(wire.requests("sessions")[0], "x-api-key") == ["tml-other"]


def test_headers_survive_retries(rest: Rest, wire: Any) -> None:
    """Every attempt has the headers, and the same idempotency key."""
    wire.fail("sessions/search", 503)
    wire.drop("sessions/search", apply=False)
    wire.fail("sessions/search", 200, body={"sessions": [], "next_cursor": None})
    every = types.SessionSearchRequest()
    with pytest.warns(tinker.ExperimentalWarning):
        rest.search_sessions(every, extra_headers={"X-Trace": "7"}).result(10)
    sent = wire.requests("sessions/search")
    assert [values_of(one, "x-trace") for one in sent] == [["7"]] * 3
    assert len({one.request.headers["x-idempotency-key"] for one in sent}) == 1


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("location", "kept"), [("/api/v1/sessions", True), ("http://elsewhere/api/v1/sessions", False)]
)
def test_headers_stay_with_the_server(rest: Rest, wire: Any, location: str, kept: bool) -> None:
    """A redirect to the same server keeps the headers, and one to another server loses them."""
    wire.fail("sessions", 307, headers={"location": location}, outside="a proxy's redirect")
    wire.fail("sessions", 200, body=EMPTY)
    rest.list_sessions(extra_headers={"X-Trace": "hush"}).result(10)
    assert ["x-trace" in one.request.headers for one in wire.requests("sessions")] == [True, kept]


def test_headers_are_secrets(
    connect: Connect, wire: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of exchanges and errors show the names of the headers at most, and no values."""
    log = tmp_path / "log.jsonl"
    monkeypatch.setenv("TINKER_DUMP_HTTP", str(log))
    rest = connect().create_rest_client()
    wire.fail("sessions", 403, body={"detail": "hush-hush has no access"})
    with pytest.raises(tinker.PermissionDeniedError) as caught:
        rest.list_sessions(extra_headers={"X-Trace": "hush-hush"}).result(10)
    assert "hush-hush" not in str(caught.value.request.headers)
    listed = [json.loads(line) for line in log.read_text().splitlines()]
    assert "hush-hush" not in log.read_text()
    shown = [one["request_headers"] for one in listed if one["operation"] == "list_sessions"]
    assert shown[0]["x-trace"] == "<redacted>"


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"timeout": 0}, ValueError, "timeout must be above 0"),
        ({"timeout": float("inf")}, ValueError, "timeout must be finite"),
        ({"timeout": httpx.Timeout(5)}, TypeError, "timeout must be a number"),
        (
            {"extra_headers": {"X-Trace": "hush\r\nX-Other: 1"}},
            ValueError,
            "the header 'X-Trace' must not contain a line break",
        ),
        ({"extra_headers": {"X-Trace": None}}, TypeError, "the header 'X-Trace' must be a string"),
        (
            {"extra_headers": "X-Trace: hush"},
            TypeError,
            "extra_headers must be a mapping of strings to strings, got str",
        ),
    ],
)
def test_wrong_options_are_refused_on_the_users_line(
    rest: Rest, wire: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """A wrong option is an error of the call itself, without its value, and nothing is sent."""
    for call in (rest.list_sessions, lambda **given: rest.copy_weights(PATH, "p", **given)):
        with pytest.raises(kind, match=message) as caught:
            call(**options)
        assert "hush" not in str(caught.value)
    assert wire.exchanges == []


def test_a_silent_server_is_given_up_in_time(
    connect: Connect, silent_transport: Any, clock: Any
) -> None:
    """The timeout ends a call also while the settings are awaited, with an error that names it."""
    future = connect(transport=silent_transport).create_rest_client().list_sessions(timeout=7)
    assert silent_transport.asked.wait(10)
    clock.advance(7)
    words = r"GET http://server/api/v1/sessions.*: no result within 7 s"
    with pytest.raises(tinker.APITimeoutError, match=words) as caught:
        future.result(10)
    assert caught.value.request.url.path == "/api/v1/sessions"


@pytest.mark.parametrize(("timeout", "silence"), [(7, 7), (200, 150)])
def test_the_timeout_is_that_of_an_attempt(
    rest: Rest, wire: Any, clock: Any, timeout: int, silence: int
) -> None:
    """The timeout ends the attempt under way; a longer one allows a longer silence."""
    release = wire.hold("sessions")
    future = rest.list_sessions(timeout=timeout)
    wire.wait_for("sessions")
    clock.advance(silence, idle=silence < timeout)
    if silence < timeout:
        release()
        assert future.result(10).sessions == []
    else:
        with pytest.raises(tinker.APITimeoutError, match="within 7 s"):
            future.result(10)
        release()


def test_retries_end_in_time(rest: Rest, wire: Any, clock: Any) -> None:
    """No retry begins that the timeout would end; the last failure is raised."""
    wire.fail("sessions", 503, times=4)
    started = clock.now
    with pytest.raises(tinker.InternalServerError) as caught:
        rest.list_sessions(timeout=5).result(10)
    assert clock.now - started <= 5
    assert "4 attempts" in caught.value.__notes__[0]


def test_a_trace_is_given_up_in_time(rest: Rest, wire: Any, clock: Any) -> None:
    """The timeout of a call that makes several requests is for all of them."""
    wire.fail(TRACE, 200, body={"status": "pending"}, times=4)
    started = clock.now
    with pytest.raises(tinker.APITimeoutError, match="no result within 17 s"):
        rest.export_session_trace(SESSION, timeout=17).result(10)
    assert clock.now - started == 17


@pytest.mark.parametrize("kind", [tinker.RestClient, tinker.AdminClient])
def test_every_method_that_asks_has_the_options(
    kind: type[tinker.AdminClient | tinker.RestClient],
) -> None:
    """Both options are keywords of every method that makes requests, and of its twin."""
    methods = [getattr(kind, name) for name in dir(kind) if not name.startswith("_")]
    asking = [
        one for one in methods if callable(one) and one.__name__ not in ("get_telemetry", "whoami")
    ]
    assert len(asking) >= 6
    for method in asking:
        parameters = inspect.signature(method).parameters
        for name in ("extra_headers", "timeout"):
            found = parameters[name]
            assert (found.kind.name, found.default) == ("KEYWORD_ONLY", None), method.__name__
        assert "timeout:" in method.__doc__ or method.__name__.endswith("_async"), method.__name__
