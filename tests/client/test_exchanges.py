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
    """Allow redirected requests, and the user's additions, to deviate from the contract."""
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
    """No credential goes to another origin, which the same host may be too."""
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
    """Credentials that were removed do not come back with a redirect to the first origin."""
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
    ("operation", "status", "followed"),
    [
        *(("get_server_capabilities", status, True) for status in (301, 302, 303, 307, 308)),
        ("get_server_capabilities", 304, False),
        *(("optim_step", status, False) for status in (301, 302, 303)),
        *(("optim_step", status, True) for status in (307, 308)),
        ("retrieve_future", 307, True),
    ],
)
def test_which_redirects_are_followed(
    training: tinker.TrainingClient,
    service: tinker.ServiceClient,
    wire: Any,
    operation: str,
    status: int,
    followed: bool,
) -> None:
    """GET requests follow every kind of redirect; a body is sent again only if the redirect
    preserves the method, as others would turn the request into a GET.
    """
    before = len(wire.requests(operation))
    wire.fail(operation, status, headers={"location": f"/api/v1/{operation}"}, outside=PROXY)
    future = ask(service) if operation == "get_server_capabilities" else training.optim_step(ADAM)
    assert (future.exception(10) is None) is followed
    sent = wire.requests(operation)[before:]
    assert len({(one.request.method, one.body) for one in sent}) == 1


def test_attempts_share_an_idempotency_key(training: tinker.TrainingClient, wire: Any) -> None:
    """Attempts of one request share a key, other requests have others, and GETs none."""
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


FAULTS = [
    {"loc": ["body", "data", 0, "rank"], "msg": "Input should be an integer", "input": "x"},
    {"msg": "Value error"},
]
EXPLAINED: list[tuple[object, str]] = [
    ({"detail": "no"}, "no"),
    ({"detail": {"msg": "out of disk"}}, "out of disk"),
    ({"detail": {"message": "out of disk", "code": 7}}, "out of disk"),
    ({"error": {"message": "no such model", "type": "not_found"}}, "no such model"),
    ({"error": "not_found", "message": "no such model"}, "no such model"),
    ({"detail": FAULTS}, "body.data.0.rank: Input should be an integer; Value error"),
    ({"detail": {"errors": 5}}, "{'detail': {'errors': 5}}"),
    ({"detail": [*FAULTS, 5]}, str({"detail": [*FAULTS, 5]})),
]


@pytest.mark.parametrize(
    ("body", "kept", "said"),
    [
        (b"", None, ""),
        (b"plain words", "plain words", "plain words"),
        (b"\xff\xfe", None, ""),
        (b"[5]", [5], "[5]"),
        *((json.dumps(body).encode(), body, said) for body, said in EXPLAINED),
    ],
)
def test_bodies_of_errors(
    training: tinker.TrainingClient, wire: Any, body: bytes, kept: object, said: str
) -> None:
    """The body of an error is its JSON, else its text, else None; the message has the server's
    sentence, in whatever form of JSON, else the body, and the operation.
    """
    wire.fail("save_weights", 403, body=body, outside="any answer")
    error = training.save_state("x").exception(10)
    assert isinstance(error, tinker.PermissionDeniedError)
    assert error.body == kept
    assert str(error) == f"Error code: 403{said and ' - '}{said} (save_weights)"


@pytest.mark.parametrize(("body", "said"), EXPLAINED)
def test_the_reason_of_a_failed_result(
    training: tinker.TrainingClient, wire: Any, body: object, said: str
) -> None:
    """A result has only the server's sentence as its reason, too."""
    content = json.dumps(body).encode()
    wire.fail("retrieve_future", 400, body=content, outside="other servers' forms")
    error = training.optim_step(ADAM).exception(10)
    assert isinstance(error, tinker.RequestFailedError)
    assert said.startswith("{") or error.reason == said


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
    service: tinker.ServiceClient, wire: Any, body: Any, code: str | None
) -> None:
    """The code beside the detail is read where it is a word, and else None."""
    wire.fail("get_server_capabilities", 403, body=body, outside="any server's answer")
    error = ask(service).exception(10)
    assert isinstance(error, tinker.PermissionDeniedError)
    assert error.code == pickle.loads(pickle.dumps(error)).code == code


@pytest.mark.usefixtures("anywhere")
def test_an_attempt_without_refused_fields_keeps_its_headers(
    training: tinker.TrainingClient, wire: Any
) -> None:
    """Without refused fields, every header but length and key of the body stays."""
    refusal = {"type": "extra_forbidden", "loc": ["body", "overwrite"], "msg": "Extra inputs"}
    wire.fail("save_weights", 422, body={"detail": [refusal]}, outside="a stricter server's")
    training.save_state("n" * 200_000).exception(10)
    sent = wire.requests("save_weights")
    first, second = (dict(one.request.headers) for one in sent)
    lengths = [int(headers.pop("content-length")) for headers in (first, second)]
    assert lengths == [len(one.body) for one in sent]
    assert first.pop("x-idempotency-key") != second.pop("x-idempotency-key")
    assert first == second


def test_errors_have_the_request(training: tinker.TrainingClient, wire: Any) -> None:
    """An error's request has the sent headers, without the key and, lacking a body, a length."""
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
    """An event has the status, None without a response, and the error, None after a success."""
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
