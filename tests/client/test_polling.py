"""Polling: the meaning of each response, from every kind of server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.queue_news import waiting

import tinker

ADAM = tinker.AdamParams()
OTHERS = "servers and proxies say it in ways of their own"
SIZE = {"status": "complete_metadata", "request_id": "x", "response_payload_size": 10**9}
JSON, PROTO = ({"content-type": f"application/{kind}"} for kind in ("json", "x-protobuf"))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, waiting("active")),
        (200, waiting("a state of tomorrow")),
        (200, {"status": "pending"}),
        (201, {"status": "queued"}),
        (408, {"detail": "still running"}),
        (408, {"queue_state": "paused_rate_limit", "queue_state_reason": "too many"}),
        (408, b"not JSON"),
        (408, b""),
        (500, {"detail": "oops"}),
        (503, b"<html>bad gateway</html>"),
        (429, {"detail": "slow down"}),
        (402, {"detail": "pay"}),
        (400, b""),
    ],
)
def test_pending_and_transient_failures_are_polled_again(
    training: tinker.TrainingClient, wire: Any, status: int, body: object
) -> None:
    """A response that means 'later', or a transient failure, is followed by another poll."""
    wire.fail("retrieve_future", status, body=body, times=2, outside=OTHERS)
    assert training.optim_step(ADAM).result(10).metrics is not None


@pytest.mark.parametrize(
    ("held", "slept"),
    [
        ([0] * 8, [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]),
        ([0.4] * 3, [0.02, 0.04, 0.08]),
        ([0.6] * 3, []),
        ([0, 0, 0, 5, 0, 0], [0.02, 0.04, 0.08, 0.02, 0.04]),
    ],
)
def test_pauses_between_polls(
    training: tinker.TrainingClient, wire: Any, clock: Any, held: list[float], slept: list[float]
) -> None:
    """Pauses after quick responses grow; a held poll has none, and they start short again."""
    for seconds in held:

        def answer(_: httpx.Request, __: bytes, seconds: float = seconds) -> httpx.Response:
            clock.now += seconds
            return httpx.Response(200, json=waiting("active"))

        wire.answer("retrieve_future", answer)
    del clock.slept[:]
    training.optim_step(ADAM).result(10)
    assert clock.slept == slept


@pytest.mark.parametrize(
    ("status", "body", "category", "text"),
    [
        (200, {"error": "bad luck", "category": "server"}, "server", "bad luck"),
        (200, {"error": "your fault", "category": "User"}, "user", "your fault"),
        (200, {"error": "my fault", "category": "SERVER"}, "server", "my fault"),
        (200, {"error": "no fault", "category": "Nobody"}, "unknown", "no fault"),
        (200, {"error": {"code": 7}, "category": "user"}, "user", '{"code":7}'),
        (200, {"status": "failed", "detail": "no room"}, "unknown", "no room"),
        (400, {"detail": "loss exploded"}, "unknown", "loss exploded"),
        (422, {"error": "wrong shape", "category": "user"}, "unknown", "wrong shape"),
        (422, b"plain words", "unknown", "plain words"),
    ],
)
def test_failures_end_the_wait_at_once(
    training: tinker.TrainingClient, wire: Any, status: int, body: object, category: str, text: str
) -> None:
    """However a server reports a failure, the future fails with its text after that one poll."""
    before = len(wire.requests("retrieve_future"))
    wire.fail("retrieve_future", status, body=body, outside=OTHERS)
    future = training.optim_step(ADAM)
    with pytest.raises(tinker.RequestFailedError) as caught:
        future.result(10)
    assert caught.value.reason == text
    assert text in str(caught.value)
    assert (caught.value.category, caught.value.request_id) == (category, future.request_id)
    # the exception that scripts for the official client catch
    assert isinstance(caught.value, ValueError) == (status >= 400)
    assert len(wire.requests("retrieve_future")) == before + 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, tinker.AuthenticationError),
        (403, tinker.PermissionDeniedError),
        (404, tinker.NotFoundError),
        (410, tinker.errors.APIStatusError),
    ],
)
def test_permanent_statuses_keep_their_type(
    training: tinker.TrainingClient, wire: Any, status: int, kind: type[Exception]
) -> None:
    """A status that no retry can help is raised as the matching error type."""
    wire.fail("retrieve_future", status)
    with pytest.raises(kind):
        training.optim_step(ADAM).result(10)


def test_errors_of_lost_results(training: tinker.TrainingClient, wire: Any) -> None:
    """The error of a lost result names call, request, the time since it was accepted, and state."""
    wire.fail("retrieve_future", 200, body=waiting("paused_capacity"), times=3)
    wire.fail("retrieve_future", 410, body={"detail": "expired"})
    future = training.optim_step(ADAM)
    with pytest.raises(tinker.APIStatusError) as caught:
        future.result(10)
    (note,) = caught.value.__notes__
    accepted = f"optim_step: request {future.request_id} was accepted 0.1 s before; "
    assert note.startswith(f"{accepted}the last queue state was")
    unknown = "the server no longer has its result, and the client does not know whether it ran"
    assert f"paused_capacity; {unknown}" in note


def test_a_size_instead_of_the_result(
    training: tinker.TrainingClient, wire: Any, clock: Any
) -> None:
    """After the size the result itself is requested; a size in its place is polled three times."""
    wire.fail("retrieve_future", 200, body=SIZE)
    before = len(wire.requests("retrieve_future"))
    training.optim_step(ADAM).result(10)
    asked = [one.json["allow_metadata_only"] for one in wire.requests("retrieve_future")[before:]]
    assert asked == [True, False]
    wire.fail("retrieve_future", 200, body=SIZE, times=4)
    del clock.slept[:]
    words = "sent the size again instead of the result"
    with pytest.raises(tinker.APIResponseValidationError, match=words):
        training.optim_step(ADAM).result(10)
    assert len(clock.slept) == 2
    wire.fail("retrieve_future", 200, body=SIZE, times=2)
    assert training.optim_step(ADAM).result(10)


def test_paused_work_is_reported_once_a_minute(
    service: tinker.ServiceClient, wire: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Paused work is one line a minute, with the server's reason or ours for this kind of work."""
    training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    prompt, params = tinker.ModelInput.from_ints([1]), tinker.SamplingParams(max_tokens=1)
    steps = [
        ("capacity", "big run", training),
        ("capacity", None, training),
        ("rate_limit", None, training),
        ("rate_limit", None, sampler),
    ]
    for state, reason, client in steps:
        wire.fail("retrieve_future", 200, body=waiting(f"paused_{state}", reason), times=5)
        is_sampler = client is sampler
        (sampler.sample(prompt, 1, params) if is_sampler else training.optim_step(ADAM)).result(10)
        clock.now += 61
    reasons = ("big run", "no free capacity", "training clients", "sampler weights")
    lines = [message for message in caplog.messages if "paused by the server" in message]
    assert [[one for one in reasons if one in line] for line in lines] == [[one] for one in reasons]


def test_polls_are_numbered_and_named(training: tinker.TrainingClient, wire: Any) -> None:
    """Each poll has its number and the type of the result, the first one how long the call took."""
    before = len(wire.requests("retrieve_future"))
    wire.fail("retrieve_future", 408, times=2)
    training.optim_step(ADAM).result(10)
    headers = [one.request.headers for one in wire.requests("retrieve_future")[before:]]
    assert [one["x-tinker-request-iteration"] for one in headers] == ["0", "1", "2"]
    assert {one["x-tinker-request-type"] for one in headers} == {"OptimStep"}
    timed = ["x-tinker-create-promise-roundtrip-time" in one for one in headers]
    assert timed == [True, False, False]


@pytest.mark.parametrize(
    ("headers", "body", "fault"),
    [
        (JSON, b"{", "optim_step|retrieve_future"),
        (JSON, b"[1]", "optim_step|retrieve_future"),
        (JSON, b'{"metrics": "many"}', "optim_step|retrieve_future"),
        (PROTO, b"\x01\x02", "optim_step|retrieve_future"),
        (JSON, {**waiting("active"), "request_id": "another"}, "of the request another, not of"),
        (JSON, {**SIZE, "request_id": "another"}, "of the request another"),
        (JSON, {"type": "try_again", "queue_state": 7}, "Expected `str"),
        (JSON, b"7", "Expected `object`, got `int`"),
    ],
)
def test_malformed_responses(
    training: tinker.TrainingClient, wire: Any, headers: dict[str, str], body: object, fault: str
) -> None:
    """A response that is no result or status of this request is polled again, twice."""
    before = len(wire.requests("retrieve_future"))
    spoiled = {"headers": headers, "body": body, "outside": "no answer makes sense"}
    wire.fail("retrieve_future", 200, times=2, **spoiled)
    assert training.optim_step(ADAM).result(10).metrics
    wire.fail("retrieve_future", 200, times=3, **spoiled)
    with pytest.raises(tinker.APIResponseValidationError, match=fault) as caught:
        training.optim_step(ADAM).result(10)
    assert "3 attempts" in caught.value.__notes__[0]
    assert len(wire.requests("retrieve_future")) == before + 6


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (502, b""),
        (408, b""),
        (408, b"7"),
        (408, b"<html>timeout</html>"),
        (408, b"[" * 1000 + b"]" * 1000),
        (408, b'{"request_id": "another"}'),
    ],
)
def test_a_server_that_only_fails_ends_the_wait(
    training: tinker.TrainingClient, wire: Any, status: int, body: bytes
) -> None:
    """Failures, and a 408 without a status of the request, end the wait after some minutes."""
    wire.fail("retrieve_future", status, body=body, times=10**9, outside="what proxies answer")
    with pytest.raises(tinker.APIStatusError) as caught:
        training.optim_step(ADAM).result(30)
    assert caught.value.status_code == status
    assert "attempts in" in caught.value.__notes__[0]
    assert "was accepted" in str(caught.value.__notes__)
    wire.faults.clear()


def test_unknown_fields_are_ignored(training: tinker.TrainingClient, wire: Any) -> None:
    """Unknown fields are ignored, and those of a status with unknown values make no status."""
    promise = {"request_id": "f", "future_id": 3, "status": "new", "zone": {}}
    result = {"metrics": {"a:sum": 1.0}, "type": "v2", "status": "complete", "more": [1]}
    wire.fail("optim_step", 202, body=promise, outside="a server of tomorrow")
    wire.fail("retrieve_future", 202, body=result, outside="a server of tomorrow")
    response = training.optim_step(ADAM).result(10)
    assert (response.metrics, response.type) == ({"a:sum": 1.0}, "v2")
