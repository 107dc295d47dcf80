"""One poll for all samples of a client, and cancelled samples."""

from __future__ import annotations

import asyncio
from typing import Any

from support.api import PROTO, Api, Clock, CountingEngine, MakeApi, occupied


def told(api: Api, sampler: str, cursor: int = 0, client: int = 0, **fields: Any) -> Any:
    """Return the completions after a cursor."""
    target = {
        "type": "sampling_session",
        "sampling_session_id": sampler,
        "cloned_sampler_id": client,
    }
    return api.ok("retrieve_futures", {"target": target, "prev_cursor": cursor, **fields})


def ids(answer: Any) -> list[str]:
    return [one["request_id"] for one in answer["completions"]]


def test_completions_are_listed_in_order_from_a_cursor(api: Api, sampler: str) -> None:
    """Samples are listed as they finish, with their size unless they failed, after a cursor."""
    futures = [
        api.sample(sampler, 0),
        api.sample(sampler, 1, params={"top_p": 7.0}),
        api.sample(sampler, 2),
    ]
    api.results(futures)
    answer = told(api, sampler)
    assert answer["cursor"] == 3
    assert ids(answer) == [future["request_id"] for future in futures]
    assert [one["state"] for one in answer["completions"]] == ["finished", "failed", "finished"]
    body = api.retrieve(futures[0], headers=PROTO).content
    assert answer["completions"][0]["response_payload_uncompressed_size"] == len(body)
    assert ids(told(api, sampler, 2)) == [futures[2]["request_id"]]
    assert told(api, sampler, 3, timeout=0) == {"completions": [], "cursor": 3}


def test_a_poll_is_held_until_something_completes(make_api: MakeApi) -> None:
    """A poll that comes first is answered with the first completion; ``timeout`` 0 never waits."""
    api, engine, _ = occupied(make_api)
    sampler = api.sampler(api.session())
    future = api.sample(sampler)
    assert told(api, sampler, timeout=0.0) == {"completions": [], "cursor": 0}
    body = {"target": {"type": "sampling_session", "sampling_session_id": sampler}}

    async def poll_then_open() -> Any:
        polls = [asyncio.create_task(api.acall("retrieve_futures", body)) for _ in range(2)]
        await asyncio.sleep(0)
        engine.gate.set()
        return [answer.json() for answer in await asyncio.gather(*polls)]

    for answer in api.runner.run(poll_then_open()):
        assert ids(answer) == [future["request_id"]]


def test_a_poll_is_held_for_a_limited_time(make_api: MakeApi) -> None:
    """After the hold the response is empty, whatever timeout the client requested."""
    api = make_api(hold_seconds=0.01)
    assert told(api, api.sampler(api.session()), timeout=60.0) == {"completions": [], "cursor": 0}


def test_each_client_of_a_session_has_its_own_order(api: Api, sampler: str) -> None:
    """Completions of client k, numbered from k times 10^9, are listed for client k only."""
    mine, other = api.sample(sampler, 5), api.sample(sampler, 3 * 10**9 + 5)
    api.results((mine, other))
    assert ids(told(api, sampler)) == [mine["request_id"]]
    assert ids(told(api, sampler, client=3)) == [other["request_id"]]
    assert ids(told(api, sampler, client=4, timeout=0)) == []


def test_results_that_were_fetched_are_released(api: Api, sampler: str) -> None:
    """Acknowledging an id frees its result at once: 410; other and unknown ids are unaffected."""
    futures = [api.sample(sampler, number) for number in range(2)]
    api.results(futures)
    told(api, sampler, 2, timeout=0, retrieved_request_ids=[futures[0]["request_id"], "nobody"])
    assert api.refused("retrieve_future", {"request_id": futures[0]["request_id"]})[0] == 410
    assert "sequences" in api.result(futures[1])
    assert api.sample(sampler, 0) == futures[0]


def test_what_is_gone_is_told_without_a_size(make_api: MakeApi, clock: Clock) -> None:
    """A completion whose result has expired is listed without a size."""
    api = make_api(clock=clock, result_seconds=10.0)
    sampler = api.sampler(api.session())
    api.result(api.sample(sampler))
    clock.seconds += 11
    (one,) = told(api, sampler)["completions"]
    assert (one["state"], "response_payload_uncompressed_size" in one) == ("finished", False)


# Cancelling


def test_a_cancelled_sample_is_never_computed(make_api: MakeApi) -> None:
    """A cancelled sample leaves the queue, fails and is listed; the others are sampled."""
    api, engine, _ = occupied(make_api)
    sampler = api.sampler(api.session())
    gone, kept = api.sample(sampler, 0), api.sample(sampler, 1)
    assert api.call("cancel_future", {"request_id": gone["request_id"]}).status_code == 204
    assert api.failure(gone) == ("user", "the request was cancelled by its client")
    engine.gate.set()
    assert "sequences" in api.result(kept)
    assert engine.sampled == 1
    answer = told(api, sampler)
    assert [(one["state"], one["request_id"]) for one in answer["completions"]] == [
        ("failed", gone["request_id"]),
        ("finished", kept["request_id"]),
    ]
    assert api.sample(sampler, 0) == gone


class GatedSampling(CountingEngine):
    """An engine that waits in the middle of sampling."""

    def sample(self, jobs: Any) -> Any:
        self.entered.set()
        assert self.gate.wait(30)
        return super().sample(jobs)


def test_the_result_of_a_running_sample_is_thrown_away(make_api: MakeApi) -> None:
    """The result of a sample that is cancelled while it runs is discarded."""
    engine = GatedSampling()
    api = make_api(engine)
    sampler = api.sampler(api.session())
    future = api.sample(sampler)
    assert engine.entered.wait(30)
    api.ok("cancel_future", {"request_id": future["request_id"]})
    engine.gate.set()
    api.result(api.sample(sampler, 1))
    assert "cancelled" in api.failure(future)[1]
    assert engine.sampled == 2


def test_cancelling_something_else_changes_nothing(api: Api, sampler: str) -> None:
    """Cancelling a finished or a training request has no effect and is no error."""
    sample, loss = api.sample(sampler), api.loss(api.model(), 1)
    api.result(sample)
    for future in (sample, loss):
        api.ok("cancel_future", {"request_id": future["request_id"]})
    assert "sequences" in api.result(sample)
    assert api.metrics(loss)
