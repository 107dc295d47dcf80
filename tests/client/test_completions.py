"""Servers that report completed samples: one poller for all samples of a client, and each result
fetched once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import httpx
import pytest

import tinker

PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=3, seed=7)
RESULT = {"sequences": [{"stop_reason": "stop", "tokens": [7], "logprobs": [-0.5]}]}


@pytest.fixture
def service(connect: Callable[..., tinker.ServiceClient], wire: Any) -> tinker.ServiceClient:
    """Return a client of a server that reports completions."""
    wire.fail("client/config", 200, body={"sample_use_retrieve_futures": True})
    return connect()


def sample(sampler: tinker.SamplingClient) -> tinker.APIFuture[Any]:
    return sampler.sample(PROMPT, 1, PARAMS)


def script(wire: Any, *polls: list[str], unknown: str = "") -> None:
    """Accept samples under the names that these polls report as done, and have their results. One
    name may be done in a way that no client knows.
    """
    names = sorted(name for poll in polls for name in poll)
    for name in names:
        wire.fail("asample", 200, body={"request_id": name})
    for cursor, poll in enumerate(polls, 1):
        report(wire, cursor, poll, unknown)
    wire.fail("retrieve_future", 200, body=RESULT, times=len(names))


def report(wire: Any, cursor: int, names: Iterable[str], unknown: str = "") -> None:
    """Report these samples as done in the next poll."""
    done = [
        {"state": "archived", "request_id": name}
        if name == unknown
        else {"state": "finished", "request_id": name, "response_payload_uncompressed_size": 9}
        for name in names
    ]
    outside = "a state of tomorrow" if unknown else None
    body = {"completions": done, "cursor": cursor}
    wire.fail("retrieve_futures", 200, body=body, outside=outside)


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


def begin_two(sampler: tinker.SamplingClient, wire: Any) -> list[tinker.APIFuture[Any]]:
    """Return two samples that have been accepted before a poll is answered."""
    release = wire.hold("retrieve_futures")
    futures = [sample(sampler), sample(sampler)]
    wire.wait_for("asample", 2)
    wire.wait_for("retrieve_futures")
    round_trips(wire)
    release()
    return futures


def test_samples_of_our_own_server(sampler: tinker.SamplingClient, wire: Any) -> None:
    """Many samples get their results; each is fetched and reported once, without a size first."""
    futures = [sample(sampler) for _ in range(20)]
    for future in futures:
        assert future.result(10).sequences[0].tokens
    names = [str(future.request_id) for future in futures]
    assert sorted(one.json["request_id"] for one in wire.requests("retrieve_future")) == sorted(
        names
    )
    assert reported(wire, 20) == sorted(names)


def test_polls_continue_from_the_cursor(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A poll carries the cursor; it is held while a sample waits, not if it only reports."""
    script(wire, [], ["r1", "r2"], [])
    futures = begin_two(sampler, wire)
    assert [future.result(10).sequences[0].tokens for future in futures] == [[7], [7]]
    wire.wait_for("retrieve_futures", 3)
    held = [(cursor, timeout) for cursor, _, timeout in polls(wire)]
    assert held == [(0, None), (1, None), (2, 0.0)]


def test_a_sample_that_is_done_before_it_is_accepted(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """An early completion is kept for its sample, also while other submissions end."""
    script(wire, ["r2"], ["r1"], [], ["r3"], [])
    told = wire.hold("retrieve_futures")
    first = sample(sampler)
    wire.wait_for("retrieve_futures")
    answered = wire.hold("asample")
    second = sample(sampler)
    wire.wait_for("asample", 2)
    told()
    assert first.result(10)
    assert sample(sampler).result(10)
    answered()
    assert second.result(10)
    assert second.request_id == "r2"
    assert reported(wire, 3) == ["r1", "r2", "r3"]


def test_a_kept_completion_without_size(sampler: tinker.SamplingClient, wire: Any) -> None:
    """If an early completion has no size, the first response may be the size."""
    script(wire, ["r2"], ["r1"], [], unknown="r2")
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
    asked = [one.json for one in wire.requests("retrieve_future")]
    sizes_first = {one["request_id"]: one["allow_metadata_only"] for one in asked}
    assert sizes_first == {"r1": False, "r2": True}
    assert reported(wire, 2) == ["r1", "r2"]


def test_results_fetched_during_a_poll_are_reported_by_the_next(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """Every fetched result is reported in exactly one answered poll."""
    script(wire, ["r1", "r2"], ["r3"], [])
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
    """Without the endpoint, not asked for again, every sample polls for itself."""
    wire.fail("retrieve_futures", status)
    for future in [*begin_two(sampler, wire), sample(sampler)]:
        assert future.result(10).sequences[0].tokens
    assert len(wire.requests("retrieve_futures")) == 1


def test_a_refused_poll_fails_every_waiting_sample(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """Each sample gets its own copy of the error; a later sample is polled for again."""
    wire.fail("retrieve_futures", 403)
    found = [future.exception(10) for future in begin_two(sampler, wire)]
    assert all(isinstance(error, tinker.PermissionDeniedError) for error in found)
    assert found[0] is not found[1]
    assert sample(sampler).result(10).sequences[0].tokens


def test_an_unreadable_poll_is_repeated(sampler: tinker.SamplingClient, wire: Any) -> None:
    """An unreadable response about completed samples is followed by another poll."""
    deep = b"[" * 100_000 + b"]" * 100_000
    wire.fail("retrieve_futures", 500, body=deep, outside="a proxy's answer")
    assert sample(sampler).result(10).sequences


def after(clock: Any, seconds: float) -> Callable[[httpx.Request, bytes], httpx.Response]:
    """Return an answer to a poll that takes this long, and reports nothing."""

    def answer(_: httpx.Request, __: bytes) -> httpx.Response:
        clock.now += seconds
        return httpx.Response(200, json={"completions": [], "cursor": 0})

    return answer


def test_transient_poll_failures_do_not_add_up(
    sampler: tinker.SamplingClient, wire: Any, clock: Any
) -> None:
    """Only failures without a success in between add up, however long a wait lasts."""
    for _ in range(3):
        wire.fail("retrieve_futures", 503)
        wire.answer("retrieve_futures", after(clock, 250))
    script(wire, ["r1"], [])
    assert sample(sampler).result(10).sequences[0].tokens == [7]
    wire.wait_for("retrieve_futures", 8)


def test_a_completion_of_an_unknown_kind(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A completion of unknown kind makes the client fetch the result, which tells the outcome."""
    script(wire, ["r1"], [], unknown="r1")
    assert sample(sampler).result(10).sequences[0].tokens == [7]
    assert wire.requests("retrieve_future")[0].json["allow_metadata_only"] is True
    wire.wait_for("retrieve_futures", 2)


def test_a_cancelled_sample_stops_its_polls(sampler: tinker.SamplingClient, wire: Any) -> None:
    """Cancelling a sample stops polls that no other waiter needs."""
    wire.fail("asample", 200, body={"request_id": "r1"})
    report(wire, 1, [])
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
    """Polls answered at once pause for up to a second, growing until a completion."""
    script(wire, *[[]] * 3, ["r1"], *[[]] * 8, ["r2"], [])
    futures = begin_two(sampler, wire)
    assert all(future.result(10) for future in futures)
    assert reported(wire, 2) == ["r1", "r2"]
    round_trips(wire)
    growing = [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    assert clock.slept[-11:] == [*growing[:3], *growing]


def test_a_sample_that_is_never_reported(
    sampler: tinker.SamplingClient, wire: Any, clock: Any
) -> None:
    """A sample that a server does not report for a quarter of an hour asks for itself."""
    wire.fail("asample", 200, body={"request_id": "r1"})
    wire.fail("retrieve_future", 200, body=RESULT)
    for _ in range(2):
        wire.answer("retrieve_futures", after(clock, 500))
    report(wire, 1, [])
    assert sample(sampler).result(10).sequences[0].tokens == [7]
    assert reported(wire, 1) == ["r1"]


def test_reports_of_a_refused_poll_are_not_repeated(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """A report that may have caused the refusal of a poll is left out of later polls."""
    script(wire, ["r1"])
    wire.fail("retrieve_futures", 403)
    script(wire, ["r2"], [])
    assert sample(sampler).result(10)
    wire.wait_for("retrieve_futures", 2)
    round_trips(wire)
    assert sample(sampler).result(10)
    wire.wait_for("retrieve_futures", 4)
    assert [names for _, names, _ in polls(wire)] == [[], ["r1"], [], ["r2"]]


def test_a_defect_in_a_poll_fails_the_waiting_sample(
    sampler: tinker.SamplingClient, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect is the logged cause of the sample's error; later samples are polled for."""
    wire.blow_up("retrieve_futures")
    said = "asking for completed samples failed"
    with pytest.raises(tinker.TinkerError, match=f"{said}: LookupError: a defect") as caught:
        sample(sampler).result(10)
    assert isinstance(caught.value.__cause__, LookupError)
    (record,) = [one for one in caplog.records if said in one.message]
    assert record.exc_info
    assert sample(sampler).result(10).sequences


def test_a_waiting_sample_shows_its_request_id(sampler: tinker.SamplingClient, wire: Any) -> None:
    """The future shows the request id and the time of acceptance before anything is fetched."""
    script(wire, ["r1"], [])
    release = wire.hold("retrieve_futures")
    future = sample(sampler)
    wire.wait_for("retrieve_futures")
    assert future.request_id == "r1"
    assert future.timings.submitted is not None
    release()
    assert future.result(10)


def test_completions_of_unknown_samples_are_dropped(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """What nobody waits for, or will, is not kept, also after a refused submission."""
    wire.fail("asample", 422, body={"detail": "no"})
    assert sample(sampler).exception(10)
    wire.fail("asample", 200, body={"request_id": "r1"})
    wire.fail("retrieve_future", 200, body=RESULT)
    report(wire, 1, [*(f"given up {i}" for i in range(50)), "r1"])
    report(wire, 1, [])
    assert sample(sampler).result(10)
    assert sampler._sampler.completions is not None
    assert sampler._sampler.completions._early == {}


def test_closing_ends_samples_that_wait_for_their_completion(
    service: tinker.ServiceClient, sampler: tinker.SamplingClient, wire: Any
) -> None:
    """Closing the client ends samples that wait for the shared poll of completions."""
    empty = {"completions": [], "cursor": 0}
    wire.fail("retrieve_futures", 200, body=empty, times=10**9)
    future = sample(sampler)
    wire.wait_for("retrieve_futures")
    service.close().result(10)
    assert isinstance(future.exception(10), tinker.errors.ClientClosedError)
    wire.faults.clear()
