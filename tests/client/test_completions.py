"""Servers that report completed samples: one poller for all samples of a client, and each result
fetched once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

import tinker

PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=3, seed=7)
RESULT = {"sequences": [{"stop_reason": "stop", "tokens": [7], "logprobs": [-0.5]}]}


@pytest.fixture
def sampler(connect: Callable[..., tinker.ServiceClient], wire: Any) -> tinker.SamplingClient:
    """Return a sampler on a server that reports completions."""
    wire.fail("client/config", 200, body={"sample_use_retrieve_futures": True})
    return connect().create_sampling_client(base_model="tinker/toy").result(10)


def sample(sampler: tinker.SamplingClient) -> tinker.APIFuture[Any]:
    return sampler.sample(PROMPT, 1, PARAMS)


def accept(wire: Any, *names: str) -> None:
    """Accept the next samples under these ids."""
    for name in names:
        wire.fail("asample", 200, body={"request_id": name})


def tell(wire: Any, cursor: int, *names: str) -> None:
    """Report these samples as done in the next poll."""
    done = [
        {"state": "finished", "request_id": name, "response_payload_uncompressed_size": 9}
        for name in names
    ]
    wire.fail("retrieve_futures", 200, body={"completions": done, "cursor": cursor})


def results(wire: Any, count: int) -> None:
    """Make the results of this many samples available."""
    wire.fail("retrieve_future", 200, body=RESULT, times=count)


def round_trips(wire: Any) -> None:
    """Let the loop run until nothing is left to do."""
    for _ in range(3):
        tinker.RestClient(
            base_url="http://server", api_key="tml-secret", transport=wire
        ).get_sampler("s").exception(10)


def polls(wire: Any) -> list[tuple[int, list[str], float | None]]:
    """Return the cursor, the reports and the timeout of every poll."""
    sent = [one.json for one in wire.requests("retrieve_futures")]
    return [
        (one["prev_cursor"], one.get("retrieved_request_ids", []), one.get("timeout"))
        for one in sent
    ]


def reported(wire: Any, count: int) -> list[str]:
    """Wait until the polls report this much, and return it."""
    while len(found := [name for _, names, _ in polls(wire) for name in names]) < count:
        wire.wait_for("retrieve_futures", len(polls(wire)) + 1)
    return sorted(found)


def test_samples_of_our_own_server(sampler: tinker.SamplingClient, wire: Any) -> None:
    """Many concurrent samples get their results; each is fetched once, without a size-only
    response, and reported once.
    """
    futures = [sample(sampler) for _ in range(20)]
    for future in futures:
        assert future.result(10).sequences[0].tokens
    names = [str(future.request_id) for future in futures]
    assert sorted(one.json["request_id"] for one in wire.requests("retrieve_future")) == sorted(
        names
    )
    assert reported(wire, 20) == sorted(names)


def test_polls_continue_from_the_cursor(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A poll carries the client's cursor; it is held while a sample waits, and not held if it only
    reports.
    """
    accept(wire, "r1", "r2")
    tell(wire, 3)
    tell(wire, 5, "r1", "r2")
    tell(wire, 5)
    results(wire, 2)
    release = wire.hold("retrieve_futures")
    futures = [sample(sampler), sample(sampler)]
    wire.wait_for("asample", 2)
    round_trips(wire)
    release()
    assert [future.result(10).sequences[0].tokens for future in futures] == [[7], [7]]
    wire.wait_for("retrieve_futures", 3)
    assert [(cursor, timeout) for cursor, _, timeout in polls(wire)[:2]] == [(0, None), (3, None)]
    assert polls(wire)[2][::2] == (5, 0.0)


def test_a_sample_that_is_done_before_it_is_accepted(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """A completion that arrives before the response to its submission is kept for it."""
    accept(wire, "r1", "r2")
    tell(wire, 1, "r2")
    tell(wire, 2, "r1")
    tell(wire, 2)
    results(wire, 2)
    accepted = wire.hold("retrieve_futures")
    first = sample(sampler)
    wire.wait_for("retrieve_futures")
    answered = wire.hold("asample")
    second = sample(sampler)
    wire.wait_for("asample", 2)
    accepted()
    assert first.result(10)
    answered()
    assert second.result(10)
    assert second.request_id == "r2"
    wire.wait_for("retrieve_futures", 3)


def test_a_kept_completion_without_size(sampler: tinker.SamplingClient, wire: Any) -> None:
    """If a sample completed before it was accepted and its size is unknown, the first response may
    be its size.
    """
    accept(wire, "r1", "r2")
    unknown = {"state": "archived", "request_id": "r2"}
    wire.fail(
        "retrieve_futures",
        200,
        body={"completions": [unknown], "cursor": 1},
        outside="a state of tomorrow",
    )
    tell(wire, 2, "r1")
    tell(wire, 2)
    results(wire, 2)
    told = wire.hold("retrieve_futures")
    first = sample(sampler)
    wire.wait_for("retrieve_futures")
    answered = wire.hold("asample")
    second = sample(sampler)
    wire.wait_for("asample", 2)
    told()
    assert first.result(10)
    answered()
    assert second.result(10)
    asked = {
        one.json["request_id"]: one.json["allow_metadata_only"]
        for one in wire.requests("retrieve_future")
    }
    assert asked == {"r1": False, "r2": True}
    assert reported(wire, 2) == ["r1", "r2"]


def test_results_fetched_during_a_poll_are_reported_by_the_next(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """Every fetched result is reported in exactly one answered poll."""
    accept(wire, "r1", "r2", "r3")
    tell(wire, 2, "r1", "r2")
    tell(wire, 3, "r3")
    tell(wire, 3)
    results(wire, 3)
    held_poll = wire.hold("retrieve_futures")
    futures = [sample(sampler) for _ in range(3)]
    wire.wait_for("asample", 3)
    round_trips(wire)
    held_fetch = wire.hold("retrieve_future")
    second_poll = wire.hold("retrieve_futures")
    held_poll()
    wire.wait_for("retrieve_future", 2)
    wire.wait_for("retrieve_futures", 2)
    held_fetch()
    round_trips(wire)
    assert len(wire.requests("retrieve_futures")) == 2
    second_poll()
    assert all(future.result(10) for future in futures)
    assert reported(wire, 3) == ["r1", "r2", "r3"]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_the_endpoint(
    sampler: tinker.SamplingClient, wire: Any, status: int
) -> None:
    """Without the endpoint every sample polls for itself, and the endpoint is not
    requested again.
    """
    wire.fail("retrieve_futures", status)
    release = wire.hold("retrieve_futures")
    futures = [sample(sampler), sample(sampler)]
    wire.wait_for("asample", 2)
    wire.wait_for("retrieve_futures")
    round_trips(wire)
    release()
    for future in futures:
        assert future.result(10).sequences[0].tokens
    assert sample(sampler).result(10).sequences[0].tokens
    assert len(wire.requests("retrieve_futures")) == 1


def test_a_refused_poll_fails_every_waiting_sample(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """Each sample gets its own copy of the error; a later sample is polled for again."""
    wire.fail("retrieve_futures", 403)
    release = wire.hold("retrieve_futures")
    futures = [sample(sampler), sample(sampler)]
    wire.wait_for("asample", 2)
    wire.wait_for("retrieve_futures")
    round_trips(wire)
    release()
    found = [future.exception(10) for future in futures]
    assert all(isinstance(error, tinker.PermissionDeniedError) for error in found)
    assert found[0] is not found[1]
    assert sample(sampler).result(10).sequences[0].tokens


def test_transient_poll_failures_do_not_add_up(
    sampler: tinker.SamplingClient, wire: Any, clock: Any
) -> None:
    """Only failures without a success in between add up: a wait may last longer than the retry
    limit of polls.
    """
    accept(wire, "r1")
    body = {"completions": [], "cursor": 0}
    for _ in range(3):
        wire.fail("retrieve_futures", 503)

        def late(request: Any, _: bytes) -> Any:
            clock.now += 250
            return httpx.Response(200, json=body)

        wire.answer("retrieve_futures", late)
    tell(wire, 1, "r1")
    tell(wire, 1)
    results(wire, 1)
    assert sample(sampler).result(10).sequences[0].tokens == [7]
    wire.wait_for("retrieve_futures", 8)


def test_a_completion_of_an_unknown_kind(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A completion of unknown kind makes the client fetch the result, which tells the outcome."""
    accept(wire, "r1")
    unknown = {"state": "archived", "request_id": "r1"}
    wire.fail(
        "retrieve_futures",
        200,
        body={"completions": [unknown], "cursor": 1},
        outside="a state of tomorrow",
    )
    tell(wire, 1)
    results(wire, 1)
    assert sample(sampler).result(10).sequences[0].tokens == [7]
    assert wire.requests("retrieve_future")[0].json["allow_metadata_only"] is True
    wire.wait_for("retrieve_futures", 2)


def test_a_cancelled_sample_stops_its_polls(sampler: tinker.SamplingClient, wire: Any) -> None:
    """Cancelling a sample stops polls that no other waiter needs."""
    accept(wire, "r1")
    tell(wire, 1)
    release = wire.hold("retrieve_futures")
    future = sample(sampler)
    wire.wait_for("retrieve_futures")
    assert future.cancel()
    round_trips(wire)
    release()
    round_trips(wire)
    assert len(wire.requests("retrieve_futures")) == 1


def test_quick_responses_are_paced_until_a_completion(
    sampler: tinker.SamplingClient, wire: Any, clock: Any
) -> None:
    """Polls that return at once are followed by growing pauses while a sample waits; a completion
    resets the pauses.
    """
    accept(wire, "r1", "r2")
    for cursor, name in ((1, "r1"), (2, "r2")):
        for _ in range(3):
            tell(wire, cursor - 1)
        tell(wire, cursor, name)
    tell(wire, 2)
    results(wire, 2)
    release = wire.hold("retrieve_futures")
    futures = [sample(sampler), sample(sampler)]
    wire.wait_for("asample", 2)
    wire.wait_for("retrieve_futures")
    round_trips(wire)
    del clock.slept[:]
    release()
    assert all(future.result(10) for future in futures)
    assert reported(wire, 2) == ["r1", "r2"]
    round_trips(wire)
    assert clock.slept == [0.02, 0.04, 0.08] * 2


def test_a_sample_that_is_never_reported(
    sampler: tinker.SamplingClient, wire: Any, clock: Any
) -> None:
    """A server that was restarted may not know that a sample was done: after a quarter of an hour,
    the sample asks for itself.
    """

    def late(request: Any, _: bytes) -> Any:
        clock.now += 500
        return httpx.Response(200, json={"completions": [], "cursor": 0})

    accept(wire, "r1")
    for _ in range(2):
        wire.answer("retrieve_futures", late)
    tell(wire, 1)
    results(wire, 1)
    assert sample(sampler).result(10).sequences[0].tokens == [7]
    assert reported(wire, 1) == ["r1"]


def test_reports_of_a_refused_poll_are_not_repeated(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """A report that may have caused the refusal of a poll is left out of later polls."""
    accept(wire, "r1", "r2")
    tell(wire, 1, "r1")
    wire.fail("retrieve_futures", 403)
    tell(wire, 2, "r2")
    tell(wire, 2)
    results(wire, 2)
    assert sample(sampler).result(10)
    wire.wait_for("retrieve_futures", 2)
    round_trips(wire)
    assert sample(sampler).result(10)
    wire.wait_for("retrieve_futures", 4)
    assert [names for _, names, _ in polls(wire)] == [[], ["r1"], [], ["r2"]]


def test_a_defect_in_a_poll_fails_the_waiting_sample(
    sampler: tinker.SamplingClient, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception is raised as an error of the sample, and logged with
    its traceback.
    """
    wire.blow_up("retrieve_futures")
    with pytest.raises(tinker.TinkerError, match="a defect of the transport"):
        sample(sampler).result(10)
    (record,) = [
        one for one in caplog.records if "asking for completed samples failed" in one.message
    ]
    assert record.exc_info


def test_a_waiting_sample_shows_its_request_id(sampler: tinker.SamplingClient, wire: Any) -> None:
    """The future shows the request id and the time of acceptance before anything is fetched."""
    accept(wire, "r1")
    tell(wire, 1, "r1")
    tell(wire, 1)
    results(wire, 1)
    release = wire.hold("retrieve_futures")
    future = sample(sampler)
    wire.wait_for("retrieve_futures")
    assert future.request_id == "r1"
    assert future.timings.submitted is not None
    release()
    assert future.result(10)


def test_a_refused_sample_leaves_nothing_behind(sampler: tinker.SamplingClient, wire: Any) -> None:
    """After a refused submission, completions of unknown samples are still dropped."""
    wire.fail("asample", 422, body={"detail": "no"})
    assert sample(sampler).exception(10)
    accept(wire, "r1")
    tell(wire, 1, "unknown", "r1")
    tell(wire, 1)
    results(wire, 1)
    assert sample(sampler).result(10)
    poller = sampler._sampler.completions
    assert poller is not None
    assert poller._early == {}
