"""RestClient: retries, errors, tokens and traces, and the arguments it refuses."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import tinker
from tinker import types

RECORDED = Path(__file__).parents[1] / "golden" / "rest_client.jsonl"
UNKNOWN = {"type": "asleep", "since": 5}
CHECKPOINT = "training_runs/run-1/checkpoints/weights/0001"
SESSION = "5e551011-0000-4000-8000-000000000001"
NO_PATH = "is not the path of a checkpoint"
PATH = "tinker://run-1/weights/0001"
Rest = tinker.RestClient


@pytest.fixture
def rest(wire: Any, clock: Any) -> Rest:
    """Return a REST client on the transport."""
    return Rest(base_url="http://server", api_key="tml-secret", transport=wire, clock=clock.clock())


BY_ID: dict[str, tuple[Any, ...]] = {
    "publish_checkpoint": (),
    "unpublish_checkpoint": (),
    "set_checkpoint_ttl": (86400,),
}


@pytest.mark.parametrize("name", BY_ID)
def test_a_run_and_an_id_mean_the_same_as_a_path(rest: Rest, wire: Any, name: str) -> None:
    """A method that takes a run and an id sends what the one that takes a path does."""
    operation = f"{CHECKPOINT}/{'ttl' if 'ttl' in name else 'publish'}"
    wire.fail(operation, 204, body=b"", times=2)
    by_id, by_path = getattr(rest, name), getattr(rest, f"{name}_from_tinker_path")
    assert by_id("run-1", "weights/0001", *BY_ID[name]).result(10) is None
    assert by_path(PATH, *BY_ID[name]).result(10) is None
    one, other = wire.requests(operation)
    assert (one.request.method, one.body) == (other.request.method, other.body)


def test_health_is_requested_once(wire: Any, service: tinker.ServiceClient) -> None:
    """The response of a healthy server is returned; an unhealthy one raises at once."""
    assert service.check_health().status == "ok"
    assert asyncio.run(service.check_health_async()).status == "ok"
    wire.fail("healthz", 503)
    with pytest.raises(tinker.InternalServerError):
        service.check_health()
    assert [one.operation for one in wire.exchanges] == ["healthz"] * 3


def test_open_unions_are_read(rest: Rest, wire: Any) -> None:
    """A session's status has the type named by its kind; one of unknown kind is a dictionary."""
    recorded = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    (answer,) = (one["response"]["body"]["json"] for one in recorded if one["n"] == 27)
    (session,) = answer["sessions"]
    body = {**answer, "sessions": [session, {**session, "status": UNKNOWN}]}
    wire.fail("sessions/search", 200, body=body, outside="a status of tomorrow")
    with pytest.warns(tinker.ExperimentalWarning, match="search_sessions") as caught:
        found = rest.search_sessions(types.SessionSearchRequest()).result(10).sessions
    assert caught[0].filename == __file__
    assert isinstance(found[0].status, types.ClientSessionFinished)
    assert found[1].status == UNKNOWN


def test_twins_give_the_result(rest: Rest, training: tinker.TrainingClient) -> None:
    """Each twin takes the arguments of its method and returns the result when awaited once."""

    async def scenario() -> None:
        sampler = await training.save_weights_and_get_sampling_client()
        found = await rest.get_sampler_async(sampler_id=sampler._sampling_session_id or "")
        assert found.base_model == "tinker/toy"
        with pytest.raises(ValueError, match=NO_PATH):
            await rest.delete_checkpoint_from_tinker_path_async("tinker://x")

    asyncio.run(scenario())
    names = [name for name in dir(rest) if name.endswith("_async")]
    assert len(names) >= 27
    assert all(asyncio.iscoroutinefunction(getattr(rest, name)) for name in names)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rest: rest.get_training_run_by_tinker_path("run-1/weights/1"), NO_PATH),
        (lambda rest: rest.delete_checkpoint_from_tinker_path("tinker://run-1/weights"), NO_PATH),
        (lambda rest: rest.publish_checkpoint_from_tinker_path("tinker://run-1/other/1"), NO_PATH),
        (lambda rest: rest.unpublish_checkpoint_from_tinker_path("x"), NO_PATH),
        (lambda rest: rest.set_checkpoint_ttl_from_tinker_path("x", 3600), NO_PATH),
        (lambda rest: rest.get_checkpoint_archive_url_from_tinker_path("x"), NO_PATH),
        (lambda rest: rest.copy_weights("x", "p"), NO_PATH),
        (lambda rest: rest.copy_weights(PATH), "destination_project_id"),
        (lambda rest: rest.copy_weights(PATH, "p", weights_access_token="a\nb"), "line break"),
        (lambda rest: rest.get_external_weights_urls(PATH), "external_weights"),
        (
            lambda rest: rest.set_checkpoint_ttl_from_tinker_path(PATH, 3599),
            r"3600 \(an hour\) to 315360000 \(ten years\), got 3599",
        ),
        (
            lambda rest: rest.set_checkpoint_ttl_from_tinker_path(PATH, 10**9),
            r"to 315360000 \(ten years\)",
        ),
        (lambda rest: rest.set_checkpoint_ttl_from_tinker_path(PATH, 3600.5), "integer"),
        (lambda rest: rest.set_checkpoint_ttl_from_tinker_path(PATH, True), "integer"),
        (lambda rest: rest.get_training_run(""), "training_run_id"),
        (lambda rest: rest.get_training_run("../../admin"), "training_run_id"),
        (lambda rest: rest.get_sampler("../../x"), "cannot be part of a path"),
        (lambda rest: rest.list_training_runs(0), "limit must be at least 1"),
        (lambda rest: rest.list_user_checkpoints(5, -1), "offset not negative"),
        (lambda rest: rest.list_sessions(access_scope="mine"), "owned, accessible"),
        (lambda rest: rest.get_session("s", "everything"), "owned, accessible"),
        (lambda rest: rest.assign_session_project("a/../b", "p"), "session_id"),
        (lambda rest: rest.export_session_trace(".."), "session_id"),
    ],
)
def test_wrong_arguments_are_refused_on_the_users_line(
    rest: Rest, wire: Any, call: Callable[[Rest], object], message: str
) -> None:
    """Invalid arguments raise ValueError from the call itself, and nothing is sent."""
    with pytest.raises(ValueError, match=message):
        call(rest)
    assert wire.exchanges == []


def test_copies_are_made_once(rest: Rest, wire: Any) -> None:
    """A retried copy carries the same idempotency key, and the access token only in a header."""
    wire.drop("copy_weights", apply=False)
    wire.fail("copy_weights", 503)
    wire.fail("copy_weights", 200, body={"tinker_path": "tinker://copy/weights/1"})
    copied = rest.copy_weights(PATH, "p", weights_access_token="wtok").result(10)
    assert copied == "tinker://copy/weights/1"
    sent = wire.requests("copy_weights")
    assert len(sent) == 3
    assert len({one.request.headers["x-idempotency-key"] for one in sent}) == 1
    assert {one.request.headers["x-tinker-weights-access-token"] for one in sent} == {"wtok"}
    assert b"wtok" not in sent[0].body


def test_secrets_stay_out_of_errors(rest: Rest, wire: Any) -> None:
    """The error of a refused copy shows neither the key nor the access token."""
    wire.fail("copy_weights", 403)
    with pytest.raises(tinker.PermissionDeniedError) as caught:
        rest.copy_weights(PATH, "p", weights_access_token="wtok").result(10)
    shown = f"{caught.value!r} {caught.value.request.headers} {caught.value.__dict__}"
    assert "wtok" not in shown
    assert "tml-secret" not in shown


def test_project_of_the_environment(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies without a project go to the project of the environment."""
    monkeypatch.setenv("TINKER_PROJECT_ID", "proj-env")
    rest = Rest(base_url="http://server", api_key="tml-secret", transport=wire)
    wire.fail("copy_weights", 200, body={"tinker_path": "tinker://copy/weights/1"})
    rest.copy_weights(PATH).result(10)
    assert wire.requests("copy_weights")[0].json["destination_project_id"] == "proj-env"


@pytest.mark.parametrize("status", [402, 404, 405, 409])
def test_permanent_errors_are_raised_at_once(rest: Rest, wire: Any, status: int) -> None:
    """An unpaid bill, a missing object or operation and a conflict are requested once."""
    kinds = {404: tinker.NotFoundError, 405: tinker.APIStatusError, 409: tinker.ConflictError}
    kinds[402] = tinker.BillingError
    operation = f"{CHECKPOINT}/publish"
    wire.fail(operation, status)
    with pytest.raises(kinds[status]) as caught:
        rest.publish_checkpoint_from_tinker_path(PATH).result(10)
    assert caught.value.status_code == status
    assert len(wire.requests(operation)) == 1


def test_waiting_ends_after_a_minute(rest: Rest, wire: Any, clock: Any) -> None:
    """A server that only fails is retried for a minute; the error has the last failure."""
    wire.fail("sessions", 503, times=10)
    started = clock.now
    with pytest.raises(tinker.InternalServerError, match="503") as caught:
        rest.list_sessions().result(10)
    assert clock.now - started <= 60
    assert "10 attempts" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("polls", "last", "outcome"),
    [
        (3, {"status": "ready", "url": "https://x/trace"}, "https://x/trace"),
        (0, {"status": "failed", "error": "no events"}, "no events"),
        (360, {"status": "pending"}, "pending after 1800 s"),
    ],
    ids=["ready", "failed", "never"],
)
def test_trace_is_waited_for(
    rest: Rest, wire: Any, clock: Any, polls: int, last: dict[str, str], outcome: str
) -> None:
    """A trace is polled every five seconds for half an hour; a failed one is an error."""
    wire.fail(f"sessions/{SESSION}/trace_export", 200, body={"status": "pending"}, times=polls)
    wire.fail(f"sessions/{SESSION}/trace_export", 200, body=last)
    future = rest.export_session_trace(SESSION)
    if last["status"] == "ready":
        assert future.result(10) == outcome
    else:
        with pytest.raises((tinker.RequestFailedError, TimeoutError), match=outcome):
            future.result(10)
    assert clock.slept == [5.0] * polls


ARCHIVE = f"{CHECKPOINT}/archive"


@pytest.mark.parametrize("expires", ["Fri, 02 Jan 2026 03:04:05 GMT", "soon", None])
def test_archive_of_a_redirect(rest: Rest, wire: Any, clock: Any, expires: str | None) -> None:
    """The target of the redirect is the URL; it is not fetched, and expires in a quarter hour."""
    wire.fail(ARCHIVE, 503, headers={"retry-after": "3"})
    headers = {"location": "https://storage.example/a?sig=1", "expires": expires}
    given = {name: value for name, value in headers.items() if value is not None}
    wire.fail(ARCHIVE, 302, headers=given, body=b"")
    found = rest.get_checkpoint_archive_url_from_tinker_path(PATH).result(10)
    assert isinstance(found, types.CheckpointArchiveUrlResponse)
    assert found.url == "https://storage.example/a?sig=1"
    assert found.expires.tzinfo is not None
    is_given = expires is not None and expires.endswith("GMT")
    assert found.expires.timestamp() == (1767323045 if is_given else clock.now + 900)
    assert {exchange.request.url.host for exchange in wire.exchanges} == {"server"}


def test_archive_in_the_body(rest: Rest, wire: Any) -> None:
    """A server may also return the URL in the body, or report that it has no archives."""
    expires = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    body = {"url": "https://storage.example/b", "expires": expires.isoformat()}
    wire.fail(ARCHIVE, 200, body=body)
    found = rest.get_checkpoint_archive_url("run-1", "weights/0001").result(10)
    assert (found.url, found.expires) == ("https://storage.example/b", expires)
    wire.fail(ARCHIVE, 404)
    with pytest.raises(tinker.NotFoundError):
        rest.get_checkpoint_archive_url("run-1", "weights/0001").result(10)


def token(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"eyJhbGciOiJub25lIn0.{payload}.sig"


@pytest.mark.parametrize(("email", "told"), [("dev@example.com", "dev@example.com"), ("", None)])
def test_whoami(rest: Rest, wire: Any, email: str, told: str | None) -> None:
    """The token that the server issues for the key identifies its owner."""
    claims = {"sub": "tml:user:u1", "org_id": "o1", "email": email, "iat": 0, "exp": 3600}
    wire.fail("client/config", 200, body={"pjwt_auth_enabled": True})
    wire.fail("auth/token", 200, body={"jwt": token(**claims)})
    who = rest.whoami().result(10)
    told_of = {"user_urn": "tml:user:u1", "org_urn": "tml:organization:o1", "email": told}
    assert who == types.WhoamiResponse(**told_of)
    assert who.model_dump() == told_of


def test_whoami_of_a_key(wire: Any, rest: Rest) -> None:
    """Neither a key nor a token without user or organization says who owns it."""
    for claims in ({"sub": "tml:user:u1"}, {"org_id": "o1"}):
        wire.fail("client/config", 200, body={"pjwt_auth_enabled": True})
        wire.fail("auth/token", 200, body={"jwt": token(**claims, iat=0, exp=3600)})
        other = Rest(base_url="http://server", api_key=f"tml-{len(claims)}", transport=wire)
        with pytest.raises(tinker.UnknownIdentityError):
            other.whoami().result(10)
    words = "this server does not say who owns a key"
    with pytest.raises(tinker.UnknownIdentityError, match=words) as caught:
        rest.whoami().result(10)
    assert {tinker.TinkerError, RuntimeError} <= set(tinker.UnknownIdentityError.__mro__)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), tinker.UnknownIdentityError)


def test_constructing_sends_nothing(wire: Any) -> None:
    """A client, created directly or from a service, sends nothing before the first call."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest = Rest(base_url="http://server", transport=wire)
        service = tinker.ServiceClient(base_url="http://server", transport=wire)
        service.create_rest_client()
    assert rest.get_telemetry() is None
    with pytest.raises(ValueError, match="pass neither"):
        Rest(service._runtime(), base_url="http://other")
    service.close().result(10)
    assert wire.exchanges == []


def test_on_the_connections_of_a_service(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any
) -> None:
    """A service's REST client requests no settings again, and ends with the service."""
    connected = service.create_rest_client()
    connected.get_server_capabilities().result(10)
    assert len(wire.requests("client/config")) == 1
    with pytest.raises(ValueError, match="destination_project_id"):
        service.copy_weights(PATH)
    service.close().result(10)
    with pytest.raises(tinker.ClientClosedError, match="this ServiceClient is closed"):
        connected.get_server_capabilities().result(10)
    assert len(wire.requests("get_server_capabilities")) == 1


def test_a_call_of_an_abandoned_client_completes(wire: Any) -> None:
    """A call completes even if its client is dropped at once."""
    rest = Rest(base_url="http://server", api_key="tml-secret", transport=wire)
    made = rest.get_server_capabilities()
    del rest
    assert made.result(10).supported_models


def test_console_addresses(service: tinker.ServiceClient, training: tinker.TrainingClient) -> None:
    """Services, runs and checkpoints know their console pages; without a session, the list."""
    console = "https://tinker.thinkingmachines.ai"
    assert tinker.ServiceClient(base_url="local://toy").get_console_url() == f"{console}/sessions"
    session_id = training.model_id.partition(":")[0]
    assert service.get_console_url() == f"{console}/sessions/{session_id}"
    assert training.get_console_url() == f"{console}/training_runs/{training.model_id}"
    saved = training.save_state("a").result(10).get_console_url()
    assert saved.endswith(f"/checkpoints/{quote(training.model_id, safe='')}/weights%2Fa")


def test_missing_objects_are_not_found(rest: Rest) -> None:
    """The error for a missing run or checkpoint contains "not found", which programs test for."""
    missing = "tinker://no-run/weights/nothing"
    for future in (
        rest.get_training_run("no-run"),
        rest.delete_checkpoint_from_tinker_path(missing),
    ):
        with pytest.raises(tinker.NotFoundError, match="was not found on this server"):
            future.result(10)
