"""Deadlines on a client's own clock."""

from __future__ import annotations

import asyncio

import pytest

from tinker._loop import Deadline
from tinker.testing import SteppedClock


def test_work_that_ends_in_time() -> None:
    """A block that ends before its deadline returns its result, and leaves nothing behind."""

    async def scenario() -> int:
        stepped = SteppedClock()
        async with stepped.clock().deadline(5.0):
            await stepped.sleep(4.0)
        for _ in range(3):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(scenario()) == 1


def test_work_that_does_not_end_in_time() -> None:
    """A block that does not end in time raises TimeoutError by the client's clock."""

    async def scenario() -> float:
        stepped = SteppedClock()
        began = stepped.now
        with pytest.raises(TimeoutError):
            async with stepped.clock().deadline(5.0):
                await stepped.sleep(9.0)
        return stepped.now - began

    assert asyncio.run(scenario()) == 5.0


def test_more_time() -> None:
    """A deadline can be extended, and is never shortened."""

    stepped = SteppedClock()
    began = stepped.now

    async def held() -> None:
        async with stepped.clock().deadline(5.0) as deadline:
            await stepped.sleep(4.0)
            deadline.extend(6.0)
            deadline.extend(1.0)
            await stepped.sleep(5.5)
            await stepped.sleep(5.5)

    with pytest.raises(TimeoutError):
        asyncio.run(held())
    assert stepped.now - began == 10.0


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
    stepped = SteppedClock()
    began = stepped.now

    async def held() -> None:
        async with stepped.clock().deadline(5.0) as deadline:
            await stepped.sleep(4.0)
            deadline.hold(100.0, "slow")
            await stepped.sleep(9.0)
            await stepped.sleep(9.0)
            deadline.release()
            await stepped.sleep(9.0)

    with pytest.raises(TimeoutError) as error:
        asyncio.run(held())
    assert stepped.now - began == 4.0 + 18.0 + 1.0
    assert error.value.args == ()


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

    async def held() -> None:
        async with SteppedClock().clock().deadline(5.0) as deadline:
            deadline.expire()
            deadline.expire()
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(held())
