"""Polling: the meaning of each response, from every kind of server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker.observing import Event, QueueChange

ADAM = tinker.AdamParams()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"type": "try_again", "request_id": "x", "queue_state": "active"}),
        (200, {"type": "try_again", "request_id": "x", "queue_state": "a state of tomorrow"}),
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
    """A response that means 'later', or a transient failure, is followed by another poll, and the
    result arrives.
    """
    wire.fail(
        "retrieve_future",
        status,
        body=body,
        times=2,
        outside="servers and proxies say it in ways of their own",
    )
    assert training.optim_step(ADAM).result(10).metrics is not None


def test_quick_responses_are_paced(training: tinker.TrainingClient, wire: Any, clock: Any) -> None:
    """A server that does not hold polls is polled at growing intervals, never in a tight loop."""
    wire.fail(
        "retrieve_future",
        200,
        body={"type": "try_again", "request_id": "x", "queue_state": "active"},
        times=8,
    )
    del clock.slept[:]
    training.optim_step(ADAM).result(10)
    assert clock.slept[:8] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


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
    """However a server reports that a request failed, the future fails with the server's text after
    that one poll.
    """
    before = len(wire.requests("retrieve_future"))
    wire.fail(
        "retrieve_future",
        status,
        body=body,
        outside="servers and proxies say it in ways of their own",
    )
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
    """The error of a lost result names the call and the request, the time since it was accepted,
    and its state.
    """
    wire.fail(
        "retrieve_future",
        200,
        body={"type": "try_again", "request_id": "x", "queue_state": "paused_capacity"},
        times=3,
    )
    wire.fail("retrieve_future", 410, body={"detail": "expired"})
    future = training.optim_step(ADAM)
    with pytest.raises(tinker.APIStatusError) as caught:
        future.result(10)
    (note,) = caught.value.__notes__
    assert note.startswith(
        f"optim_step: request {future.request_id} was accepted 0.1 s before; the "
        "last queue state was"
    )
    assert (
        "paused_capacity; the server no longer has its result, and the client "
        "does not know whether it ran"
    ) in note


def test_large_results_are_announced_first(training: tinker.TrainingClient, wire: Any) -> None:
    """After a response with the size, the result itself is requested."""
    wire.fail(
        "retrieve_future",
        200,
        body={"status": "complete_metadata", "request_id": "x", "response_payload_size": 10**9},
    )
    before = len(wire.requests("retrieve_future"))
    training.optim_step(ADAM).result(10)
    assert [
        one.json["allow_metadata_only"] for one in wire.requests("retrieve_future")[before:]
    ] == [True, False]


def test_a_size_instead_of_the_result(
    training: tinker.TrainingClient, wire: Any, clock: Any
) -> None:
    """A server that sends the size again in place of the result is polled three
    times, with pauses.
    """
    told = {"status": "complete_metadata", "request_id": "x", "response_payload_size": 7}
    wire.fail("retrieve_future", 200, body=told, times=4)
    del clock.slept[:]
    with pytest.raises(
        tinker.APIResponseValidationError, match="sent the size again instead of the result"
    ):
        training.optim_step(ADAM).result(10)
    assert len(clock.slept) == 2
    wire.fail("retrieve_future", 200, body=told, times=2)
    assert training.optim_step(ADAM).result(10)


def test_paused_work_is_reported_once_a_minute(
    training: tinker.TrainingClient, wire: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that the server pauses is logged in one line, with the server's reason or ours, and
    again a minute later.
    """
    paused = {"type": "try_again", "request_id": "x", "queue_state": "paused_capacity"}
    with caplog.at_level("WARNING", "tinker"):
        wire.fail("retrieve_future", 200, body={**paused, "queue_state_reason": "big run"}, times=5)
        training.optim_step(ADAM).result(10)
        clock.now += 61
        wire.fail("retrieve_future", 200, body=paused)
        training.optim_step(ADAM).result(10)
    lines = [message for message in caplog.messages if "paused by the server" in message]
    assert [("big run" in line, "no free capacity" in line) for line in lines] == [
        (True, False),
        (False, True),
    ]


def test_default_reasons_of_limits(
    service: tinker.ServiceClient, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit without a reason from the server is described as one of training clients or of
    sampler weights.
    """
    limited = {"type": "try_again", "request_id": "x", "queue_state": "paused_rate_limit"}
    training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("retrieve_future", 200, body=limited)
    training.optim_step(ADAM).result(10)
    wire.fail("retrieve_future", 200, body=limited)
    sampler.sample(tinker.ModelInput.from_ints([1]), 1, tinker.SamplingParams(max_tokens=1)).result(
        10
    )
    lines = [message for message in caplog.messages if "paused by the server" in message]
    assert [("training clients" in line, "sampler weights" in line) for line in lines] == [
        (True, False),
        (False, True),
    ]


def test_polls_are_numbered_and_named(training: tinker.TrainingClient, wire: Any) -> None:
    """Each poll has its number and the type of the result."""
    before = len(wire.requests("retrieve_future"))
    wire.fail("retrieve_future", 408, times=2)
    training.optim_step(ADAM).result(10)
    headers = [one.request.headers for one in wire.requests("retrieve_future")[before:]]
    assert [one["x-tinker-request-iteration"] for one in headers] == ["0", "1", "2"]
    assert {one["x-tinker-request-type"] for one in headers} == {"OptimStep"}
    assert ["x-tinker-create-promise-roundtrip-time" in one for one in headers] == [
        True,
        False,
        False,
    ]


def test_server_that_only_fails_ends_the_wait(
    training: tinker.TrainingClient, wire: Any, clock: Any
) -> None:
    """A server that responds only with errors ends the wait after some minutes, with the last error
    and the count.
    """
    wire.fail("retrieve_future", 502, times=200)
    with pytest.raises(tinker.InternalServerError) as caught:
        training.optim_step(ADAM).result(10)
    assert "attempts in" in caught.value.__notes__[0]
    for fault in wire.faults:
        fault.times = 0


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "application/json"}, b"{"),
        ({"content-type": "application/json"}, b"[1]"),
        ({"content-type": "application/json"}, b'{"metrics": "many"}'),
        ({"content-type": "application/x-protobuf"}, b"\x01\x02"),
    ],
)
def test_malformed_responses(
    training: tinker.TrainingClient, wire: Any, headers: dict[str, str], body: bytes
) -> None:
    """After a malformed or unexpected response the poll is repeated; the third one is a typed error
    naming the operation.
    """
    before = len(wire.requests("retrieve_future"))
    wire.fail(
        "retrieve_future", 200, headers=headers, body=body, times=2, outside="no answer makes sense"
    )
    training.optim_step(ADAM).result(10)
    wire.fail(
        "retrieve_future", 200, headers=headers, body=body, times=3, outside="no answer makes sense"
    )
    with pytest.raises(
        tinker.APIResponseValidationError, match=r"optim_step|retrieve_future"
    ) as caught:
        training.optim_step(ADAM).result(10)
    assert "3 attempts" in caught.value.__notes__[0]
    assert len(wire.requests("retrieve_future")) == before + 6


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (
            200,
            {"type": "try_again", "request_id": "another", "queue_state": "active"},
            "of the request another, not of",
        ),
        (
            200,
            {"status": "complete_metadata", "request_id": "another", "response_payload_size": 9},
            "of the request another",
        ),
        (200, {"type": "try_again", "queue_state": 7}, "Expected `str"),
        (200, 7, "Expected `object`, got `int`"),
    ],
)
def test_a_status_that_is_none(
    training: tinker.TrainingClient, wire: Any, status: int, body: object, fault: str
) -> None:
    """A status of another request, or one that cannot be read, is neither a sign of life nor a
    result: the third is an error.
    """
    wire.fail("retrieve_future", status, body=body, times=2, outside="no answer makes sense")
    assert training.optim_step(ADAM).result(10).metrics
    wire.fail("retrieve_future", status, body=body, times=3, outside="no answer makes sense")
    with pytest.raises(tinker.APIResponseValidationError, match=fault):
        training.optim_step(ADAM).result(10)


@pytest.mark.parametrize(
    "body",
    [b"", b"7", b"<html>timeout</html>", b"[" * 1000 + b"]" * 1000, b'{"request_id": "another"}'],
)
def test_a_408_that_says_nothing_of_the_request(
    training: tinker.TrainingClient, wire: Any, body: bytes
) -> None:
    """A 408 without a status of the request may be a proxy's: it is tried again like any failure,
    until the time limit.
    """
    wire.fail("retrieve_future", 408, body=body, times=10**9, outside="what proxies answer")
    with pytest.raises(tinker.APIStatusError) as caught:
        training.optim_step(ADAM).result(30)
    assert caught.value.status_code == 408
    assert "attempts in" in caught.value.__notes__[0]
    for fault in wire.faults:
        fault.times = 0


def test_unknown_fields_are_ignored(training: tinker.TrainingClient, wire: Any) -> None:
    """Fields unknown to this client are ignored."""
    promise = {"request_id": "f", "future_id": 3, "status": "new", "zone": {}}
    result = {"metrics": {"a:sum": 1.0}, "type": "optim_step_v2", "more": [1]}
    wire.fail("optim_step", 202, body=promise, outside="a server of tomorrow")
    wire.fail("retrieve_future", 202, body=result, outside="a server of tomorrow")
    response = training.optim_step(ADAM).result(10)
    assert (response.metrics, response.type) == ({"a:sum": 1.0}, "optim_step_v2")


def test_queue_changes_are_reported_to_observers(
    connect: Callable[..., tinker.ServiceClient], wire: Any
) -> None:
    """An observer of a service receives every change of a queue, once, with the request that waits
    in it.
    """
    heard: list[QueueChange] = []

    def listen(event: Event) -> None:
        if isinstance(event, QueueChange):
            heard.append(event)

    training = (
        connect(observers=[listen]).create_lora_training_client("tinker/toy", rank=2).result(10)
    )
    for state, reason in (("paused_capacity", "full"), ("active", None)):
        body = {
            "type": "try_again",
            "request_id": "x",
            "queue_state": state,
            "queue_state_reason": reason,
        }
        wire.fail("retrieve_future", 200, body=body, times=2)
    future = training.optim_step(ADAM)
    future.result(10)
    told = [(one.operation, one.request_id, one.state, one.reason) for one in heard]
    name = str(future.request_id)
    assert told == [
        ("optim_step", name, "paused_capacity", "full"),
        ("optim_step", name, "active", None),
    ]
