"""How much a session submits at once, and what it does while the server says that it is too much."""

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
)
from tinker.testing import SteppedClock

Connect = Callable[..., tinker.ServiceClient]
MakeLimits = Callable[..., Any]
DISPATCH_SLOTS = tinker.Config().sample_submissions


@asynccontextmanager
async def admitted(limits: Any, nbytes: int) -> AsyncGenerator[None]:
    """Hold what an attempt to submit a sample needs."""
    admission = SampleAdmission(limits, nbytes)
    if not admission.try_enter():
        await admission.enter()
    try:
        yield
    finally:
        admission.leave()


@pytest.fixture
def make_limits(connect: Connect, wire: Any) -> MakeLimits:
    """Makes the limits of a session with a budget for the bytes of prompts."""

    def make(nbytes: int = 10**9, **options: Any) -> Any:
        wire.fail("client/config", 200, body={"sample_dispatch_bytes_semaphore_size": nbytes})
        service = connect(**{"api_key": f"tml-{nbytes}", **options})
        sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
        return sampler._sampler.runtime.session.context.limits

    return make


def too_much() -> tinker.RateLimitError:
    request = httpx.Request("POST", "http://server/api/v1/asample")
    return tinker.RateLimitError("429", response=httpx.Response(429, request=request), body=None)


def dispatched(limits: Any, nbytes: int, count: int) -> int:
    """How many of so many samples of that size are being submitted at once."""

    async def run() -> int:
        inside = 0

        async def submit() -> None:
            nonlocal inside
            async with admitted(limits, nbytes):
                inside += 1
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(submit()) for _ in range(count)]
        for _ in range(100):  # more turns than the clock waits before it jumps
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return inside

    return asyncio.run(run())


def test_submissions_are_bounded_by_slots_and_by_bytes(make_limits: MakeLimits) -> None:
    """400 submissions at once where prompts are small, and fewer where their bytes fill the budget first."""
    assert dispatched(make_limits(), 1, 1000) == DISPATCH_SLOTS
    assert dispatched(make_limits(1000), 100, 50) == 10
    assert dispatched(make_limits(999), 100, 50) == 10
    assert dispatched(make_limits(1001), 100, 50) == 11


def test_a_gate_stays_closed_for_the_longest_time_that_was_asked(make_limits: MakeLimits, clock: Any) -> None:
    """A shorter cool-down does not open a gate that a longer one has closed; a longer one prolongs it."""
    limits = make_limits()
    del clock.slept[:]
    limits.cool_down.close_for(too_much(), 9.0)
    limits.cool_down.close_for(too_much(), 5.0)
    assert dispatched(limits, 1, 1) == 1
    assert clock.slept == [9.0]
    limits.cool_down.close_for(too_much(), 5.0)
    limits.cool_down.close_for(too_much(), 8.0)
    clock.now += 3
    assert dispatched(limits, 1, 1) == 1
    assert clock.slept == [9.0, 5.0]
    assert dispatched(limits, 1, 1) == 1
    assert clock.slept == [9.0, 5.0]


def test_a_throttling_server_is_sent_less(make_limits: MakeLimits, clock: Any) -> None:
    """After a cool-down there are ten slots, and each prompt counts twenty times; a while later all is as before."""
    limits = make_limits()
    limits.cool_down.close_for(too_much(), 1.0)
    clock.now += 1.0
    assert dispatched(limits, 1, 50) == THROTTLED_SLOTS == 10
    limits = make_limits(1000)
    limits.cool_down.close_for(too_much(), 1.0)
    clock.now += 1.0
    assert dispatched(limits, 10, 50) == 5
    clock.now += THROTTLED_SECONDS
    assert dispatched(limits, 10, 50) == 50


def test_failing_fast_raises_before_a_submission(make_limits: MakeLimits, clock: Any) -> None:
    """A client that fails fast raises while the gate is closed instead of waiting for it, and holds nothing then."""
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


def test_accounts_of_different_commands_do_not_slow_each_other(make_limits: MakeLimits, clock: SteppedClock) -> None:
    """A 429 for the credential of one command does not pause clients whose credential another command prints."""
    shared = clock.clock()

    def limits_of(account: str) -> Any:
        config = tinker.Config.load(base_url="http://server", credential_cmd=f"echo {account}")
        return make_limits(api_key=None, config=config, clock=shared)

    one, other, same = limits_of("one"), limits_of("other"), limits_of("one")
    one.cool_down.close_for(too_much(), 60)
    assert (same.cool_down.throttled, other.cool_down.throttled) == (True, False)


@pytest.mark.parametrize(("tokens", "seconds"), [(3, SMALL_COOL_DOWN_SECONDS), (20_000, LARGE_COOL_DOWN_SECONDS)])
def test_a_cool_down_without_a_time(connect: Connect, wire: Any, clock: Any, tokens: int, seconds: float) -> None:
    """A server that does not say how long to wait gets a pause by the size of what it refused, longer than a second's jitter."""
    sampler = connect(api_key=f"tml-{tokens}").create_sampling_client(base_model="tinker/toy")
    sampler.result(10)
    wire.fail("asample", 429)
    before = clock()
    prompt = tinker.ModelInput.from_ints([1] * tokens)
    sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=1)).result(30)
    assert seconds <= clock() - before <= seconds + 1.5
