"""Submission limits: how much a session submits at once, and how it reacts to rate limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import tinker
from tinker._http.limits import (
    LARGE_COOL_DOWN_SECONDS,
    SMALL_COOL_DOWN_SECONDS,
    THROTTLED_SECONDS,
    THROTTLED_SLOTS,
    SampleAdmission,
    _spare_descriptors,
)
from tinker.testing import SteppedClock

Connect = Callable[..., tinker.ServiceClient]
MakeLimits = Callable[..., Any]
DISPATCH_SLOTS = tinker.Config().sample_submissions


@asynccontextmanager
async def admitted(limits: Any, nbytes: int) -> AsyncGenerator[None]:
    """Hold the budget that an attempt to submit a sample needs."""
    admission = SampleAdmission(limits, nbytes)
    if not admission.try_enter():
        await admission.enter()
    try:
        yield
    finally:
        admission.leave()


@pytest.fixture
def make_limits(connect: Connect, wire: Any) -> MakeLimits:
    """Create the limits of a session with a byte budget for prompts."""

    def make(nbytes: int = 10**9, **options: Any) -> Any:
        wire.fail("client/config", 200, body={"sample_dispatch_bytes_semaphore_size": nbytes})
        service = connect(**{"api_key": f"tml-{nbytes}", **options})
        sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
        return sampler._sampler.runtime.session.context.limits

    return make


def too_much() -> tinker.RateLimitError:
    request = httpx.Request("POST", "http://server/api/v1/asample")
    return tinker.RateLimitError("429", response=httpx.Response(429, request=request), body=None)


def entered(block: Callable[[], Any], count: int) -> int:
    """Return how many of this many tasks are in a block at once."""

    async def run() -> int:
        inside = 0

        async def submit() -> None:
            nonlocal inside
            async with block():
                inside += 1
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(submit()) for _ in range(count)]
        for _ in range(100):  # more loop turns than the clock waits before it jumps
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return inside

    return asyncio.run(run())


def dispatched(limits: Any, nbytes: int, count: int) -> int:
    """Return how many of this many samples of that size are being submitted at once."""
    return entered(lambda: admitted(limits, nbytes), count)


def test_connections_leave_room_for_other_files() -> None:
    """Of the files that a process may open, connections take half at most, less some in use."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare_descriptors = _spare_descriptors.__wrapped__  # without its cache
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))
        assert spare_descriptors() == 168
        resource.setrlimit(resource.RLIMIT_NOFILE, (90, before[1]))
        assert spare_descriptors() == 16
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_submissions_are_bounded_by_slots_and_by_bytes(make_limits: MakeLimits) -> None:
    """400 submissions run at once, and fewer if the bytes of their prompts reach the limit."""
    assert dispatched(make_limits(), 1, 1000) == DISPATCH_SLOTS
    assert [dispatched(make_limits(n), 100, 50) for n in (999, 1000, 1001)] == [10, 10, 11]


@pytest.mark.parametrize(("asks_for_results", "at_once"), [(False, 3), (True, 50)])
def test_waiting_samples_are_bounded(
    connect: Connect, wire: Any, asks_for_results: bool, at_once: int
) -> None:
    """A server that holds a request for each sample says how many; one that is asked need not."""
    limit = {"sample_max_concurrent_requests": 3, "sample_use_retrieve_futures": asks_for_results}
    wire.fail("client/config", 200, body=limit)
    sampler = connect().create_sampling_client(base_model="tinker/toy").result(10)
    assert entered(lambda: sampler._sampler.runtime.session.context.limits.samples, 50) == at_once


def test_an_attempt_without_room_for_its_bytes_takes_no_slot(make_limits: MakeLimits) -> None:
    """Attempts that find a slot but no bytes leave every slot free."""
    limits = make_limits(100)
    first = SampleAdmission(limits, 100)
    assert first.try_enter()
    assert not any(SampleAdmission(limits, 1).try_enter() for _ in range(2 * DISPATCH_SLOTS))
    first.leave()
    assert dispatched(limits, 0, 1000) == DISPATCH_SLOTS


def test_a_gate_stays_closed_for_the_longest_cool_down(make_limits: MakeLimits, clock: Any) -> None:
    """A shorter cool-down does not shorten a longer one; a longer one extends it."""
    limits = make_limits()
    del clock.slept[:]
    limits.cool_down.close_for(too_much(), 9.0)
    limits.cool_down.close_for(too_much(), 5.0)
    assert dispatched(limits, 1, 1) == 1
    assert clock.slept == [9.0]
    limits.cool_down.close_for(too_much(), 5.0)
    limits.cool_down.close_for(too_much(), 8.0)
    clock.now += 3
    for _ in range(2):
        assert dispatched(limits, 1, 1) == 1
        assert clock.slept == [9.0, 5.0]


def test_a_throttling_server_receives_less(make_limits: MakeLimits, clock: Any) -> None:
    """After a cool-down there are ten slots, and each prompt counts twenty times, for a while."""
    for nbytes, size, slots in ((10**9, 1, THROTTLED_SLOTS), (1000, 10, 5)):
        limits = make_limits(nbytes)
        limits.cool_down.close_for(too_much(), 1.0)
        clock.now += 1.0
        assert dispatched(limits, size, 50) == slots
    clock.now += THROTTLED_SECONDS
    assert dispatched(limits, 10, 50) == 50


def test_failing_fast_raises_before_a_submission(make_limits: MakeLimits, clock: Any) -> None:
    """A client that fails fast raises while the gate is closed, and holds no budget then."""
    limits = make_limits(1000, fail_fast=True)
    limits.cool_down.close_for(too_much(), 5.0)
    del clock.slept[:]

    async def submit() -> None:
        async with admitted(limits, 1000):
            pass

    for _ in range(DISPATCH_SLOTS + 1):
        with pytest.raises(tinker.RateLimitError):
            asyncio.run(submit())
    assert clock.slept == []
    clock.now += 5.0
    asyncio.run(submit())


def test_accounts_of_different_commands_do_not_slow_each_other(
    make_limits: MakeLimits, clock: SteppedClock
) -> None:
    """A 429 for the credential of one command does not pause clients that use another command."""
    shared = clock.clock()

    def limits_of(account: str) -> Any:
        config = tinker.Config.load(base_url="http://server", credential_cmd=f"echo {account}")
        return make_limits(api_key=None, config=config, clock=shared)

    one, other, same = limits_of("one"), limits_of("other"), limits_of("one")
    one.cool_down.close_for(too_much(), 60)
    assert (same.cool_down.throttled, other.cool_down.throttled) == (True, False)


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(3, SMALL_COOL_DOWN_SECONDS), (20_000, LARGE_COOL_DOWN_SECONDS)]
)
def test_a_cool_down_without_retry_after(
    connect: Connect, wire: Any, clock: Any, tokens: int, seconds: float
) -> None:
    """Without a Retry-After the pause depends on the size of the request, plus a jitter."""
    sampler = connect(api_key=f"tml-{tokens}").create_sampling_client(base_model="tinker/toy")
    sampler.result(10)
    wire.fail("asample", 429)
    before = clock()
    prompt = tinker.ModelInput.from_ints([1] * tokens)
    sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=1)).result(30)
    assert seconds <= clock() - before <= seconds + 1.5
