"""Single exchanges: redirects and credentials, idempotency keys, lengths."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tinker
from tinker.observing import Event, RequestAttempt

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()
PROXY = "a proxy's redirect"
PATH = "/api/v1/get_server_capabilities"
CREDENTIALS = ("x-api-key", "authorization", "x-gateway")


@pytest.fixture
def anywhere(wire: Any) -> Iterator[None]:
    """Allow requests that follow a redirect, or carry the user's additions, to deviate from the
    contract.
    """
    yield
    wire.judge.bad_requests.clear()


def ask(service: tinker.ServiceClient) -> Any:
    return service.create_rest_client().get_server_capabilities()


def redirect(wire: Any, *locations: str, status: int = 307) -> None:
    for location in locations:
        wire.fail("get_server_capabilities", status, headers={"location": location}, outside=PROXY)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("base_url", "location", "kept"),
    [
        ("https://server", "http://server" + PATH, False),
        ("http://server", "https://server" + PATH, False),
        ("http://server", "http://server:8080" + PATH, False),
        ("http://server", "http://server.example" + PATH, False),
        ("http://server", "//other" + PATH, False),
        ("https://server", "https://server" + PATH, True),
        ("http://server", PATH, True),
        ("http://server", "get_server_capabilities?again=1", True),
    ],
)
def test_credentials_stay_within_their_origin(
    connect: Connect, wire: Any, base_url: str, location: str, kept: bool
) -> None:
    """No credential is sent to another origin, including the same host with another
    scheme or port.
    """
    service = connect(
        base_url=base_url, default_headers_overrides={"Authorization": "b", "X-Gateway": "g"}
    )
    redirect(wire, location)
    wire.fail("get_server_capabilities", 200, body={"supported_models": []})
    assert ask(service).result(10)
    first, second = (one.request.headers for one in wire.requests("get_server_capabilities"))
    assert all(name in first for name in CREDENTIALS)
    assert [name in second for name in CREDENTIALS] == [kept] * 3


@pytest.mark.usefixtures("anywhere")
def test_credentials_do_not_come_back(connect: Connect, wire: Any) -> None:
    """Credentials removed for another origin are not sent to the first origin either, if a later
    redirect returns there.
    """
    redirect(wire, "http://elsewhere" + PATH, "http://server" + PATH)
    wire.fail("get_server_capabilities", 200, body={"supported_models": []})
    assert ask(connect()).result(10)
    assert [
        "x-api-key" in one.request.headers for one in wire.requests("get_server_capabilities")
    ] == [True, False, False]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("count", "followed"), [(5, True), (6, False)])
def test_redirects_end(connect: Connect, wire: Any, count: int, followed: bool) -> None:
    """Five redirects are followed; a sixth is raised as an error with its status."""
    redirect(wire, *[f"{PATH}?number={number}" for number in range(count)])
    asked = ask(connect())
    if followed:
        assert asked.result(10).supported_models
    else:
        with pytest.raises(tinker.APIStatusError, match="307"):
            asked.result(10)
    assert len(wire.requests("get_server_capabilities")) == 6


@pytest.mark.parametrize(
    ("status", "followed"),
    [(301, True), (302, True), (303, True), (307, True), (308, True), (304, False)],
)
def test_redirects_of_get_requests(
    connect: Connect, wire: Any, status: int, followed: bool
) -> None:
    """GET requests follow every kind of redirect; other 3xx responses are errors."""
    redirect(wire, PATH, status=status)
    error = ask(connect()).exception(10)
    assert (error is None) is followed


@pytest.mark.parametrize(
    ("status", "followed"), [(301, False), (302, False), (303, False), (307, True), (308, True)]
)
def test_redirects_of_submissions(
    training: tinker.TrainingClient, wire: Any, status: int, followed: bool
) -> None:
    """A body is sent again only if the redirect preserves the method; other redirects would turn
    the submission into a GET.
    """
    wire.fail("optim_step", status, headers={"location": "/api/v1/optim_step"}, outside=PROXY)
    error = training.optim_step(ADAM).exception(10)
    assert (error is None) is followed
    assert {one.request.method for one in wire.requests("optim_step")} == {"POST"}
    assert len({one.body for one in wire.requests("optim_step")}) == 1


def test_a_poll_follows_a_redirect(training: tinker.TrainingClient, wire: Any) -> None:
    """A redirect of a poll by a proxy is followed."""
    wire.fail(
        "retrieve_future", 307, headers={"location": "/api/v1/retrieve_future"}, outside=PROXY
    )
    assert training.optim_step(ADAM).result(10)


def test_attempts_share_an_idempotency_key(training: tinker.TrainingClient, wire: Any) -> None:
    """All attempts of one request carry one idempotency key, every other request another one, and
    GET requests none.
    """
    wire.fail("optim_step", 503, times=2)
    for _ in range(2):
        training.optim_step(ADAM).result(10)
    keys = [one.request.headers["x-idempotency-key"] for one in wire.requests("optim_step")]
    assert len(set(keys[:3])) == 1
    assert len(set(keys)) == 2
    others = [
        one
        for one in wire.exchanges
        if one.request.method == "POST" and one.operation != "optim_step"
    ]
    assert (
        len({one.request.headers["x-idempotency-key"] for one in others} | set(keys))
        == len(others) + 2
    )
    assert all(
        "x-idempotency-key" not in one.request.headers
        for one in wire.exchanges
        if one.request.method == "GET"
    )


def test_bodies_have_a_content_length(
    training: tinker.TrainingClient, wire: Any, datum: Callable[..., tinker.Datum]
) -> None:
    """A long body, or one of several pieces, is sent with its length, not chunked."""
    training.forward_backward([datum(list(range(200)))], "cross_entropy").result(10)
    (exchange,) = wire.requests("forward_backward")
    assert exchange.request.headers["content-length"] == str(len(exchange.body))


def test_long_error_bodies_are_truncated(training: tinker.TrainingClient, wire: Any) -> None:
    """An error keeps only the beginning of a long response body."""
    wire.fail("optim_step", 404, body=b"x" * (1 << 20), outside="a proxy's page")
    error = training.optim_step(ADAM).exception(10)
    assert isinstance(error, tinker.NotFoundError)
    assert len(str(error)) < 10_000
    assert len(error.response.content) <= 65536


@pytest.mark.parametrize(
    ("body", "kept", "shown"),
    [
        (b"", None, ""),
        (b'{"detail": "no"}', {"detail": "no"}, " - no"),
        (b"plain words", "plain words", " - plain words"),
        (b"\xff\xfe", None, ""),
        (b"[5]", [5], " - [5]"),
    ],
)
def test_bodies_of_errors(
    training: tinker.TrainingClient, wire: Any, body: bytes, kept: object, shown: str
) -> None:
    """The body of an error is its JSON, else its text, else None; the message has the server's text
    and the operation.
    """
    wire.fail("optim_step", 404, body=body, outside="any answer")
    error = training.optim_step(ADAM).exception(10)
    assert isinstance(error, tinker.NotFoundError)
    assert error.body == kept
    assert str(error) == f"Error code: 404{shown} (optim_step)"


FAULTS = [
    {"loc": ["body", "data", 0, "rank"], "msg": "Input should be an integer", "input": "x"},
    {"msg": "Value error"},
]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"detail": {"msg": "out of disk"}}, "out of disk"),
        ({"detail": {"message": "out of disk", "code": 7}}, "out of disk"),
        ({"error": {"message": "no such model", "type": "not_found"}}, "no such model"),
        ({"error": "not_found", "message": "no such model"}, "no such model"),
        ({"detail": FAULTS}, "body.data.0.rank: Input should be an integer; Value error"),
        ({"detail": {"errors": 5}}, "{'detail': {'errors': 5}}"),
        ({"detail": [*FAULTS, 5]}, str({"detail": [*FAULTS, 5]})),
    ],
)
def test_the_explanation_of_a_refusal(
    training: tinker.TrainingClient, wire: Any, body: object, said: str
) -> None:
    """The message has only the server's sentence, in whatever form of JSON, of a call and of a
    result; else the body.
    """
    wire.fail("save_weights", 403, body=json.dumps(body).encode(), outside="other servers' forms")
    error = training.save_state("x").exception(10)
    assert str(error) == f"Error code: 403 - {said} (save_weights)"
    wire.fail(
        "retrieve_future", 400, body=json.dumps(body).encode(), outside="other servers' forms"
    )
    failed = training.optim_step(ADAM).exception(10)
    assert isinstance(failed, tinker.RequestFailedError)
    assert said.startswith("{") or failed.reason == said


@pytest.mark.usefixtures("anywhere")
def test_the_default_query_is_sent_with_every_request(connect: Connect, wire: Any) -> None:
    """A default query is added to every request; a parameter of the request itself takes
    precedence.
    """
    rest = connect(default_query={"team": "blue", "limit": "7"}).create_rest_client()
    rest.list_sessions(limit=3).result(10)
    rest.get_server_capabilities().result(10)
    asked, other = (
        wire.requests(name)[0].request.url.params
        for name in ("sessions", "get_server_capabilities")
    )
    assert (asked["team"], asked.get_list("limit")) == ("blue", ["3"])
    assert dict(other) == {"team": "blue", "limit": "7"}


@pytest.mark.usefixtures("anywhere")
def test_an_attempt_without_refused_fields_keeps_its_headers(
    training: tinker.TrainingClient, wire: Any
) -> None:
    """If default fields are left out after a refusal, every header except length and key of the
    body is unchanged.
    """
    refusal = [
        {
            "type": "extra_forbidden",
            "loc": ["body", "overwrite"],
            "msg": "Extra inputs",
            "input": False,
        }
    ]
    wire.fail("save_weights", 422, body={"detail": refusal}, outside="a stricter server's")
    name = "n" * 200_000
    training.save_state(name).exception(10)
    first, second = (dict(one.request.headers) for one in wire.requests("save_weights"))
    for headers, body in zip(
        (first, second), (one.body for one in wire.requests("save_weights")), strict=True
    ):
        assert headers.pop("content-length") == str(len(body))
    assert first.pop("x-idempotency-key") != second.pop("x-idempotency-key")
    assert first == second


def test_errors_have_the_request(training: tinker.TrainingClient, wire: Any) -> None:
    """The request of an error has the headers that were sent, without the key and the length, as it
    has no body.
    """
    wire.fail("optim_step", 404)
    error = training.optim_step(ADAM).exception(10)
    assert isinstance(error, tinker.NotFoundError)
    sent, shown = wire.requests("optim_step")[0].request.headers, error.request.headers
    for name in ("accept", "content-type", "user-agent", "x-idempotency-key"):
        assert shown[name] == sent[name]
    assert "x-api-key" not in shown
    assert shown.get("content-length", "0") == "0"


@pytest.mark.parametrize("status", [None, 200, 400, 404, 503])
def test_attempt_events(connect: Connect, wire: Any, status: int | None) -> None:
    """An attempt event has the status, None without a response, and the error, None after a
    success.
    """
    heard: list[RequestAttempt] = []

    def listen(event: Event) -> None:
        if isinstance(event, RequestAttempt) and event.operation == "optim_step":
            heard.append(event)

    training = (
        connect(observers=[listen]).create_lora_training_client("tinker/toy", rank=2).result(10)
    )
    if status is None:
        wire.drop("optim_step", apply=False)
    elif status != 200:
        wire.fail("optim_step", status)
    training.optim_step(ADAM).exception(10)
    (told, *_) = heard
    assert told.status == status
    assert (told.error is None) == (status == 200)
    assert getattr(told.error, "status_code", None) == (None if status == 200 else status)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"detail": "no", "code": "limit_reached"}, "limit_reached"),
        ({"detail": "no", "code": "of tomorrow"}, "of tomorrow"),
        ({"detail": "no"}, None),
        ({"detail": "no", "code": 404}, None),
        ({"error": {"message": "no", "code": "model_not_found"}}, None),
        ("no", None),
    ],
)
def test_an_error_has_the_code_of_the_server(
    connect: Connect, wire: Any, body: Any, code: str | None
) -> None:
    """The code beside the detail is read where it is a word; errors of servers without it have
    None.
    """
    wire.fail("get_server_capabilities", 403, body=body, outside="any server's answer")
    with pytest.raises(tinker.PermissionDeniedError, match="no") as caught:
        ask(connect()).result(10)
    assert caught.value.code == code
    assert pickle.loads(pickle.dumps(caught.value)).code == code
