"""The sequencer and the limits, on a plain loop without a network."""

from __future__ import annotations

import asyncio

import pytest

from tinker._http.limits import Budget
from tinker._http.submission import Findings
from tinker._training.order import Sequencer, Turn
from tinker.errors import PrecedingRequestFailed
from tinker.futures import APIFuture


def open_sequencer() -> Sequencer:
    """Open the queue of a run whose failures mean what they say."""
    return Sequencer(Findings())


def take(sequencer: Sequencer, operation: str = "") -> Turn:
    """Take a turn for an operation that is called now."""
    return sequencer.take_turn(APIFuture(operation), sequencer.now())


def test_turns_come_in_the_order_of_the_calls() -> None:
    """A turn that is ready late still comes before those taken after it."""

    async def scenario() -> list[int]:
        sequencer, log = open_sequencer(), list[int]()
        gate = asyncio.Event()

        async def use(number: int, *, wait: bool) -> None:
            turn = take(sequencer)
            if wait:
                await gate.wait()
            async with turn:
                log.append(number)

        tasks = [asyncio.create_task(use(i, wait=i == 0)) for i in range(4)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
        return log

    assert asyncio.run(scenario()) == [0, 1, 2, 3]


def test_a_cancelled_turn_lets_the_next_one_go_in_its_turn() -> None:
    """A cancelled turn neither blocks the queue nor lets a later one overtake an earlier one; it
    uses no number.
    """

    async def scenario() -> tuple[list[str], int]:
        sequencer, log = open_sequencer(), list[str]()
        release = asyncio.Event()

        async def use(name: str, hold: asyncio.Event | None = None) -> None:
            async with take(sequencer) as numbers:
                numbers.take()
                if hold:
                    await hold.wait()
                log.append(name)

        first = asyncio.create_task(use("first", release))
        second = asyncio.create_task(use("second"))
        third = asyncio.create_task(use("third"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        assert not third.done()
        release.set()
        await asyncio.gather(first, third)
        return log, sequencer.numbers.take()

    assert asyncio.run(scenario()) == (["first", "third"], 3)


def test_a_failure_stops_later_turns_until_it_is_received() -> None:
    """Places after a failure raise; earlier ones and those of calls after the receipt do not."""

    async def scenario() -> None:
        sequencer = open_sequencer()
        before, failed = take(sequencer, "one"), APIFuture[None]("two")
        failing, behind = sequencer.take_turn(failed, sequencer.now()), take(sequencer, "three")
        sequencer.block(failing, ValueError("boom"))
        failing.leave()
        async with before:
            pass
        with pytest.raises(
            PrecedingRequestFailed,
            match="three was not sent, because the two before it failed: ValueError: boom",
        ):
            async with behind:
                pass
        called_early = sequencer.now()
        failed.set_exception(ValueError("boom"))
        assert failed.exception()
        with pytest.raises(PrecedingRequestFailed):
            async with sequencer.take_turn(APIFuture("four"), called_early):
                pass
        async with take(sequencer, "five"):
            pass

    asyncio.run(scenario())


def test_budget_admits_one_larger_than_itself() -> None:
    """A request larger than the whole budget runs alone; the next one waits for it, first come
    first served.
    """

    async def scenario() -> list[str]:
        budget, log = Budget(100), list[str]()
        release = asyncio.Event()

        async def use(name: str, amount: int) -> None:
            async with budget.take(amount):
                log.append(name)
                await release.wait()

        tasks = [
            asyncio.create_task(use(name, amount))
            for name, amount in (("big", 500), ("a", 1), ("b", 1))
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        assert log == ["big"]
        release.set()
        await asyncio.gather(*tasks)
        return log

    assert asyncio.run(scenario()) == ["big", "a", "b"]


def test_cancelled_waiter_does_not_lose_the_budget() -> None:
    """A waiter cancelled at the moment it is woken passes its turn on."""

    async def scenario() -> None:
        budget = Budget(1)
        held = budget.take()
        await held.__aenter__()
        first = asyncio.create_task(budget.take().__aenter__())
        second = asyncio.create_task(budget.take().__aenter__())
        await asyncio.sleep(0)
        await held.__aexit__(None, None, None)
        first.cancel()
        await asyncio.wait_for(second, 5)
        assert first.cancelled()
        with pytest.raises(TimeoutError):
            # the second waiter gets the only turn
            await asyncio.wait_for(budget.take().__aenter__(), 0)

    asyncio.run(scenario())
