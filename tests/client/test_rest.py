"""RestClient: its requests, compared with recordings of the official client, its results, and the
arguments it refuses.
"""

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
from urllib.parse import parse_qsl, quote

import pytest

import tinker
from tinker import types

GOLDEN = Path(__file__).parents[1] / "golden"
SESSION = "5e551011-0000-4000-8000-000000000001"
PATH = "tinker://run-1/weights/0001"
Rest = tinker.RestClient


def recorded(name: str) -> dict[int, dict[str, Any]]:
    """Return the exchanges of one recording by number."""
    lines = (GOLDEN / f"{name}.jsonl").read_text().splitlines()
    return {exchange["n"]: exchange for exchange in map(json.loads, lines)}


RECORDED = recorded("rest_client")
SEARCH = types.SessionSearchRequest(
    project_ids=["proj-1"],
    user_metadata={"a": "b"},
    display_name="nightly",
    owner=types.UserSearchOwner(owner_urns=["u1"]),
    statuses=[
        types.ClientFinishedSessionStatusQuery(reasons=["success"]),
        types.FailedSessionStatusQuery(),
    ],
)
NEXT = types.SessionSearchRequest(
    session_id=SESSION,
    cursor=types.SessionSearchCursor.model_validate(
        {"last_created_at": "2026-01-02T03:04:05Z", "last_session_id": SESSION}
    ),
)

CALLS: list[tuple[int, Callable[[Rest], tinker.APIFuture[Any]], Any]] = [
    (3, lambda rest: rest.get_server_capabilities(), types.GetServerCapabilitiesResponse),
    (4, lambda rest: rest.get_training_run("run-1"), types.TrainingRun),
    (5, lambda rest: rest.get_training_run("run-1", "accessible"), types.TrainingRun),
    (6, lambda rest: rest.get_training_run_by_tinker_path(PATH), types.TrainingRun),
    (7, lambda rest: rest.get_weights_info_by_tinker_path(PATH), types.WeightsInfoResponse),
    (8, lambda rest: rest.list_training_runs(), types.TrainingRunsResponse),
    (
        9,
        lambda rest: rest.list_training_runs(5, 10, "accessible", "proj 1/é"),
        types.TrainingRunsResponse,
    ),
    (10, lambda rest: rest.list_checkpoints("run-1"), types.CheckpointsListResponse),
    (11, lambda rest: rest.list_user_checkpoints(), types.CheckpointsListResponse),
    (12, lambda rest: rest.list_user_checkpoints(3, 6), types.CheckpointsListResponse),
    (
        13,
        lambda rest: rest.get_external_weights_urls("tinker://run-1/external_weights/e1"),
        types.ExternalWeightsUrlsResponse,
    ),
    (14, lambda rest: rest.delete_checkpoint("run-1", "weights/0001"), None),
    (
        15,
        lambda rest: rest.delete_checkpoint_from_tinker_path("tinker://run-1/sampler_weights/s1"),
        None,
    ),
    (16, lambda rest: rest.publish_checkpoint_from_tinker_path(PATH), None),
    (17, lambda rest: rest.unpublish_checkpoint_from_tinker_path(PATH), None),
    (18, lambda rest: rest.set_checkpoint_ttl_from_tinker_path(PATH, 86400), None),
    (19, lambda rest: rest.set_checkpoint_ttl_from_tinker_path(PATH, None), None),
    (16, lambda rest: rest.publish_checkpoint("run-1", "weights/0001"), None),
    (17, lambda rest: rest.unpublish_checkpoint("run-1", "weights/0001"), None),
    (18, lambda rest: rest.set_checkpoint_ttl("run-1", "weights/0001", 86400), None),
    (
        20,
        lambda rest: rest.copy_weights(
            PATH, "proj-2", ttl_seconds=7200, weights_access_token="wtok"
        ),
        "tinker://copied-run/weights/0001",
    ),
    (21, lambda rest: rest.get_session(SESSION), types.GetSessionResponse),
    (22, lambda rest: rest.list_sessions(), types.ListSessionsResponse),
    (23, lambda rest: rest.list_sessions(2, 2, "accessible"), types.ListSessionsResponse),
    (24, lambda rest: rest.assign_session_project(SESSION, "proj-1"), None),
    (
        25,
        lambda rest: rest.export_session_trace(SESSION),
        "https://storage.example/trace.pftrace?sig=1",
    ),
    (26, lambda rest: rest.get_sampler(f"{SESSION}:sample:0"), types.GetSamplerResponse),
    (27, lambda rest: rest.search_sessions(SEARCH), types.SessionSearchResponse),
    (28, lambda rest: rest.search_sessions(NEXT), types.SessionSearchResponse),
]


@pytest.fixture
def rest(wire: Any, clock: Any) -> Rest:
    """Return a REST client on the transport."""
    return Rest(base_url="http://server", api_key="tml-secret", transport=wire, clock=clock.clock())


def operation_of(exchange: dict[str, Any]) -> str:
    return str(exchange["request"]["path"]).rpartition("/api/v1/")[2]


def json_of(message: dict[str, Any]) -> Any:
    return None if message["body"] is None else message["body"]["json"]


@pytest.mark.filterwarnings("ignore::tinker.ExperimentalWarning")
@pytest.mark.parametrize(
    ("number", "call", "expected"), CALLS, ids=lambda value: value if isinstance(value, int) else ""
)
def test_requests_and_answers_are_those_recorded(
    rest: Rest, wire: Any, number: int, call: Callable[[Rest], tinker.APIFuture[Any]], expected: Any
) -> None:
    """Each call sends what the official client sends, and returns the response as the declared
    type.
    """
    exchange = RECORDED[number]
    operation = operation_of(exchange)
    answer = json_of(exchange["response"])
    wire.fail(operation, exchange["response"]["status"], body=b"" if answer is None else answer)
    result = call(rest).result(10)
    (sent,) = wire.requests(operation)
    request = exchange["request"]
    assert (sent.request.method, sent.request.url.path) == (request["method"], request["path"])
    assert parse_qsl(sent.request.url.query.decode()) == parse_qsl(request.get("query") or "")
    assert (json.loads(sent.body) if sent.body else None) == json_of(request)
    assert result == (expected.model_validate(answer) if isinstance(expected, type) else expected)


def test_health_is_requested_once(wire: Any, service: tinker.ServiceClient) -> None:
    """The response of a healthy server is returned; an unhealthy one raises at once, and no other
    request is sent.
    """
    assert service.check_health().status == "ok"
    assert asyncio.run(service.check_health_async()).status == "ok"
    wire.fail("healthz", 503)
    with pytest.raises(tinker.InternalServerError):
        service.check_health()
    assert [one.operation for one in wire.exchanges] == ["healthz"] * 3


def test_open_unions_are_read(rest: Rest, wire: Any) -> None:
    """A session's status has the type named by its kind; a status of unknown kind stays a
    dictionary.
    """
    answer = json_of(RECORDED[27]["response"])
    (session,) = answer["sessions"]
    unknown = {**session, "status": {"type": "asleep", "since": 5}}
    wire.fail(
        "sessions/search",
        200,
        body={**answer, "sessions": [session, unknown]},
        outside="a status of tomorrow",
    )
    with pytest.warns(tinker.ExperimentalWarning, match="search_sessions") as caught:
        found = rest.search_sessions(types.SessionSearchRequest()).result(10).sessions
    assert caught[0].filename == __file__
    assert isinstance(found[0].status, types.ClientSessionFinished)
    assert found[1].status == {"type": "asleep", "since": 5}


def test_twins_give_the_result(rest: Rest, training: tinker.TrainingClient) -> None:
    """Each async twin takes the arguments of its method and returns the result when
    awaited once.
    """
    path = training.save_state("a").result(10).path

    async def scenario() -> None:
        sampler = await training.save_weights_and_get_sampling_client()
        found = await rest.get_sampler_async(sampler_id=sampler._sampling_session_id or "")
        assert found.base_model == "tinker/toy"
        with pytest.raises(ValueError, match="is not the path of a checkpoint"):
            await rest.delete_checkpoint_from_tinker_path_async("tinker://x")

    asyncio.run(scenario())
    names = [name for name in dir(rest) if name.endswith("_async")]
    assert len(names) >= 27
    for name in names:
        assert asyncio.iscoroutinefunction(getattr(rest, name))
    assert path.startswith("tinker://")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda rest: rest.get_training_run_by_tinker_path("run-1/weights/1"),
            "is not the path of a checkpoint",
        ),
        (
            lambda rest: rest.delete_checkpoint_from_tinker_path("tinker://run-1/weights"),
            "is not the path of a checkpoint",
        ),
        (
            lambda rest: rest.publish_checkpoint_from_tinker_path("tinker://run-1/other/1"),
            "is not the path of a checkpoint",
        ),
        (
            lambda rest: rest.unpublish_checkpoint_from_tinker_path("x"),
            "is not the path of a checkpoint",
        ),
        (
            lambda rest: rest.set_checkpoint_ttl_from_tinker_path("x", 3600),
            "is not the path of a checkpoint",
        ),
        (
            lambda rest: rest.get_checkpoint_archive_url_from_tinker_path("x"),
            "is not the path of a checkpoint",
        ),
        (lambda rest: rest.copy_weights("x", "p"), "is not the path of a checkpoint"),
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
    assert (
        rest.copy_weights(PATH, "p", weights_access_token="wtok").result(10)
        == "tinker://copy/weights/1"
    )
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


def test_project_of_the_environment(wire: Any, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies without a project go to the project of the environment."""
    monkeypatch.setenv("TINKER_PROJECT_ID", "proj-env")
    rest = Rest(base_url="http://server", api_key="tml-secret", transport=wire, clock=clock.clock())
    wire.fail("copy_weights", 200, body={"tinker_path": "tinker://copy/weights/1"})
    rest.copy_weights(PATH).result(10)
    assert wire.requests("copy_weights")[0].json["destination_project_id"] == "proj-env"


@pytest.mark.parametrize("status", [404, 405, 409])
def test_permanent_errors_are_raised_at_once(rest: Rest, wire: Any, status: int) -> None:
    """A missing object, a missing operation and a conflict are requested once, and raised
    unchanged.
    """
    kinds = {404: tinker.NotFoundError, 405: tinker.APIStatusError, 409: tinker.ConflictError}
    operation = "training_runs/run-1/checkpoints/weights/0001/publish"
    wire.fail(operation, status)
    with pytest.raises(kinds[status]) as caught:
        rest.publish_checkpoint_from_tinker_path(PATH).result(10)
    assert caught.value.status_code == status
    assert len(wire.requests(operation)) == 1


def test_waiting_ends_after_a_minute(rest: Rest, wire: Any, clock: Any) -> None:
    """A server that only fails is retried for a minute; the error has its last failure and the
    number of attempts.
    """
    wire.fail("sessions", 503, times=10)
    started = clock.now
    with pytest.raises(tinker.InternalServerError, match="503") as caught:
        rest.list_sessions().result(10)
    assert clock.now - started <= 60
    assert "10 attempts" in caught.value.__notes__[0]


def test_blocked_account_fails_at_once(rest: Rest, wire: Any, clock: Any) -> None:
    """A list request of a blocked account fails at once instead of waiting until
    the bill is paid.
    """
    wire.fail("sessions", 402)
    with pytest.raises(tinker.BillingError):
        rest.list_sessions().result(10)
    assert clock.slept == []


def test_trace_is_waited_for(rest: Rest, wire: Any, clock: Any) -> None:
    """A trace that is not ready is polled every five seconds."""
    wire.fail(f"sessions/{SESSION}/trace_export", 200, body={"status": "pending"}, times=3)
    wire.fail(
        f"sessions/{SESSION}/trace_export", 200, body={"status": "ready", "url": "https://x/trace"}
    )
    assert rest.export_session_trace(SESSION).result(10) == "https://x/trace"
    assert clock.slept == [5.0, 5.0, 5.0]


def test_trace_that_fails(rest: Rest, wire: Any) -> None:
    """A trace that the server cannot write raises an error with the reason."""
    wire.fail(
        f"sessions/{SESSION}/trace_export", 200, body={"status": "failed", "error": "no events"}
    )
    with pytest.raises(tinker.RequestFailedError, match="no events"):
        rest.export_session_trace(SESSION).result(10)


def test_trace_that_never_comes(rest: Rest, wire: Any, clock: Any) -> None:
    """A trace that stays pending raises an error after half an hour."""
    wire.fail(f"sessions/{SESSION}/trace_export", 200, body={"status": "pending"}, times=361)
    with pytest.raises(TimeoutError, match="pending after 1800 s"):
        rest.export_session_trace(SESSION).result(10)
    assert set(clock.slept) == {5.0}


ARCHIVE = "training_runs/run-1/checkpoints/weights/0001/archive"


@pytest.mark.parametrize("expires", ["Fri, 02 Jan 2026 03:04:05 GMT", "soon", None])
def test_archive_of_a_redirect(rest: Rest, wire: Any, clock: Any, expires: str | None) -> None:
    """The target of the redirect is the URL; it is not fetched, and expires after a quarter of an
    hour by default.
    """
    wire.fail(ARCHIVE, 503, headers={"retry-after": "3"})
    headers = {
        "location": "https://storage.example/a?sig=1",
        **({} if expires is None else {"expires": expires}),
    }
    wire.fail(ARCHIVE, 302, headers=headers, body=b"")
    found = rest.get_checkpoint_archive_url_from_tinker_path(PATH).result(10)
    assert isinstance(found, types.CheckpointArchiveUrlResponse)
    assert found.url == "https://storage.example/a?sig=1"
    assert found.expires.tzinfo is not None
    assert found.expires.timestamp() == (
        1767323045 if expires == "Fri, 02 Jan 2026 03:04:05 GMT" else clock.now + 900
    )
    assert {exchange.request.url.host for exchange in wire.exchanges} == {"server"}


def test_archive_in_the_body(rest: Rest, wire: Any) -> None:
    """A server may also return the URL in the body, or report that it has no archives."""
    expires = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    wire.fail(
        ARCHIVE, 200, body={"url": "https://storage.example/b", "expires": expires.isoformat()}
    )
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
    wire.fail("client/config", 200, body={"pjwt_auth_enabled": True})
    wire.fail(
        "auth/token",
        200,
        body={"jwt": token(sub="tml:user:u1", org_id="o1", email=email, iat=0, exp=3600)},
    )
    who = rest.whoami().result(10)
    assert who == types.WhoamiResponse(
        user_urn="tml:user:u1", org_urn="tml:organization:o1", email=told
    )
    assert who.model_dump() == {
        "user_urn": "tml:user:u1",
        "org_urn": "tml:organization:o1",
        "email": told,
    }


@pytest.mark.parametrize("claims", [{"sub": "tml:user:u1"}, {"org_id": "o1"}])
def test_whoami_of_half_a_token(rest: Rest, wire: Any, claims: dict[str, str]) -> None:
    """A token without the user or without the organization does not say who owns it."""
    wire.fail("client/config", 200, body={"pjwt_auth_enabled": True})
    wire.fail("auth/token", 200, body={"jwt": token(**claims, iat=0, exp=3600)})
    with pytest.raises(tinker.UnknownIdentityError):
        rest.whoami().result(10)


def test_whoami_of_a_key(rest: Rest) -> None:
    """On a server without tokens the owner of a key cannot be found."""
    with pytest.raises(
        tinker.UnknownIdentityError, match="this server does not say who owns a key"
    ) as caught:
        rest.whoami().result(10)
    assert isinstance(caught.value, tinker.TinkerError)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), tinker.UnknownIdentityError)


def test_constructing_sends_nothing(wire: Any) -> None:
    """A client, created directly or from a service, sends nothing before the first call."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest = Rest(base_url="http://server", transport=wire)
        service = tinker.ServiceClient(base_url="http://server", transport=wire)
        service.create_rest_client()
    assert rest.get_telemetry() is None
    assert wire.exchanges == []
    with pytest.raises(ValueError, match="pass neither"):
        Rest(service._runtime(), base_url="http://other")


@pytest.fixture
def connected(service: tinker.ServiceClient) -> Rest:
    """Return the REST client of a service."""
    return service.create_rest_client()


def test_on_the_connections_of_a_service(
    connected: Rest, service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any
) -> None:
    """A service's REST client does not request settings again, and copies into the project of the
    service.
    """
    connected.get_server_capabilities().result(10)
    assert len(wire.requests("client/config")) == 1
    with pytest.raises(ValueError, match="destination_project_id"):
        service.copy_weights(PATH)
    assert service.get_telemetry() is training.get_telemetry() is None


def test_after_the_end_of_the_service(
    connected: Rest, service: tinker.ServiceClient, wire: Any
) -> None:
    """The REST client of a closed service raises an error that says so."""
    service.close().result(10)
    with pytest.raises(tinker.ClientClosedError, match="this ServiceClient is closed"):
        connected.get_server_capabilities().result(10)
    assert wire.exchanges == []


def test_a_call_of_an_abandoned_client_completes(wire: Any, clock: Any) -> None:
    """A call completes even if its client is dropped at once."""
    rest = Rest(base_url="http://server", api_key="tml-secret", transport=wire, clock=clock.clock())
    made = rest.get_server_capabilities()
    del rest
    assert made.result(10).supported_models


def test_console_addresses(service: tinker.ServiceClient, training: tinker.TrainingClient) -> None:
    """Services, runs and checkpoints know their console pages; a service without a session links to
    the list.
    """
    fresh = tinker.ServiceClient(base_url="local://toy")
    assert fresh.get_console_url() == "https://tinker.thinkingmachines.ai/sessions"
    session_id = training.model_id.partition(":")[0]
    assert service.get_console_url() == f"https://tinker.thinkingmachines.ai/sessions/{session_id}"
    run = f"https://tinker.thinkingmachines.ai/training_runs/{training.model_id}"
    assert training.get_console_url() == run
    saved = training.save_state("a").result(10)
    assert saved.get_console_url().endswith(
        f"/checkpoints/{quote(training.model_id, safe='')}/weights%2Fa"
    )


def test_missing_objects_are_not_found(rest: Rest) -> None:
    """The text of the error for a missing run or checkpoint contains "not found", which programs
    test for.
    """
    for ask in (rest.get_training_run, rest.delete_checkpoint_from_tinker_path):
        with pytest.raises(tinker.NotFoundError, match="was not found on this server"):
            ask(
                "tinker://no-run/weights/nothing"
                if ask == rest.delete_checkpoint_from_tinker_path
                else "no-run"
            ).result(10)
