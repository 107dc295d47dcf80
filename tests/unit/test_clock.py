"""Deadlines on a client's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tinker._loop import Deadline
from tinker.testing import SteppedClock

Act = Callable[[Deadline, SteppedClock], Awaitable[object]]


def run_until(seconds: float, act: Act) -> tuple[float, BaseException | None]:
    """Run a block with a deadline: how long it took, and what ended it. It leaves nothing behind."""
    stepped = SteppedClock()
    began = stepped.now

    async def run() -> None:
        async with stepped.clock().deadline(seconds) as deadline:
            await act(deadline, stepped)
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    try:
        asyncio.run(run())
    except TimeoutError as error:
        return stepped.now - began, error
    return stepped.now - began, None


@pytest.mark.parametrize(("sleep", "took", "ends"), [(4.0, 4.0, False), (9.0, 5.0, True)])
def test_work_and_its_time(sleep: float, took: float, ends: bool) -> None:
    """A block ends by itself and leaves nothing behind, or at its deadline by the client's clock."""
    found, error = run_until(5.0, lambda _, clock: clock.sleep(sleep))
    assert (found, error is not None) == (took, ends)


def test_more_time() -> None:
    """A deadline can be extended, and is never shortened."""

    async def act(deadline: Deadline, clock: SteppedClock) -> None:
        await clock.sleep(4.0)
        deadline.extend(6.0)
        deadline.extend(1.0)
        await clock.sleep(5.5)
        await clock.sleep(5.5)

    took, error = run_until(5.0, act)
    assert (took, type(error)) == (10.0, TimeoutError)


def test_a_deadline_of_work_that_has_ended() -> None:
    """A deadline that is released late ends nothing any more."""
    stepped = SteppedClock()

    async def scenario() -> None:
        async with stepped.clock().deadline(5.0) as deadline:
            deadline.hold(100.0, "a model loads")
        deadline.release()

    asyncio.run(scenario())
    assert not stepped._sleepers


def test_a_wait_that_is_cancelled_leaves_no_timer() -> None:
    """A background wait that nobody needs any longer is not waited for."""
    stepped = SteppedClock()

    async def scenario() -> None:
        waiting = asyncio.create_task(stepped.clock().timer(5.0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(scenario())
    assert not stepped._sleepers


def test_held_deadlines() -> None:
    """While a deadline is held its time does not run; the rest runs on when it is released."""

    async def act(deadline: Deadline, clock: SteppedClock) -> None:
        await clock.sleep(4.0)
        deadline.hold(100.0, "slow")
        await clock.sleep(9.0)
        await clock.sleep(9.0)
        deadline.release()
        await clock.sleep(9.0)

    took, error = run_until(5.0, act)
    assert took == 4.0 + 18.0 + 1.0
    assert (type(error), error and error.args) == (TimeoutError, ())


def test_held_deadlines_are_limited() -> None:
    """A deadline held for too long ends with the reason; after it nothing holds any more."""
    stepped = SteppedClock()
    began = stepped.now

    async def held(deadline: Deadline) -> None:
        async with deadline:
            deadline.hold(7.0, "slow")
            await stepped.sleep(9.0)

    async def scenario() -> None:
        deadline = stepped.clock().deadline(5.0)
        with pytest.raises(TimeoutError, match="slow"):
            await held(deadline)
        deadline.hold(7.0, "late")
        deadline.release()
        await stepped.sleep(9.0)

    asyncio.run(scenario())
    assert stepped.now - began == 7.0 + 9.0


def test_errors_and_cancellations_pass() -> None:
    """Exceptions of the block are raised, and a cancellation from outside cancels it."""

    async def scenario() -> None:
        clock = SteppedClock().clock()
        with pytest.raises(LookupError):
            async with clock.deadline(5.0):
                raise LookupError
        begun = asyncio.Event()

        async def held() -> None:
            async with clock.deadline(5.0):
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(held())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(scenario())


def test_ending_a_deadline_now() -> None:
    """A deadline can be ended before its time."""

    async def act(deadline: Deadline, _: SteppedClock) -> None:
        deadline.expire()
        deadline.expire()
        await asyncio.Event().wait()

    took, error = run_until(5.0, act)
    assert (took, type(error)) == (0.0, TimeoutError)
