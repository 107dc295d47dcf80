"""Simulated time: which sleeper wakes when, and in which order."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tinker.testing import SteppedClock


def test_short_sleeps_pass_in_order() -> None:
    """Sleepers wake in the order of their times, each at its own, and no real time passes."""

    async def scenario(clock: SteppedClock) -> list[tuple[str, float]]:
        log: list[tuple[str, float]] = []

        async def sleep(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            log.append((name, clock.now - 1000))

        await asyncio.gather(sleep("c", 9), sleep("a", 1), sleep("b", 5))
        return log

    assert asyncio.run(scenario(SteppedClock())) == [("a", 1.0), ("b", 5.0), ("c", 9.0)]


def test_a_timer_waits_for_time_to_come_that_far() -> None:
    """A timer does not move time, and ends when the time of others has passed it."""

    async def scenario() -> tuple[bool, float]:
        clock = SteppedClock()
        beat = asyncio.create_task(clock.clock().timer(10))
        await clock.sleep(9)
        early = beat.done()
        await clock.sleep(9)
        assert beat.done()
        return early, clock.now

    assert asyncio.run(scenario()) == (False, 1018.0)


def test_time_stands_while_something_happens() -> None:
    """Nobody's sleep ends while an exchange is under way, however long that takes."""

    async def scenario() -> None:
        clock = SteppedClock()
        with clock.busy():
            sleeping = asyncio.create_task(clock.sleep(1))
            for _ in range(500):
                await asyncio.sleep(0)
            assert not sleeping.done()
        await sleeping

    asyncio.run(scenario())


def test_cancelled_sleepers_are_forgotten() -> None:
    """A sleep that is cancelled neither moves time nor wakes anybody later."""

    async def scenario() -> float:
        clock = SteppedClock()
        sleeping = asyncio.create_task(clock.sleep(5))
        await asyncio.sleep(0)
        sleeping.cancel()
        await clock.sleep(1)
        return clock.now

    assert asyncio.run(scenario()) == 1001.0


def test_advance_wakes_everybody_on_the_way() -> None:
    """A test's thread moves time; a loop that sleeps again and again runs through all its turns."""
    clock, beats = SteppedClock(), list[float]()

    async def beat() -> None:
        while len(beats) < 360:
            await clock.clock().timer(10)
            beats.append(clock.now)

    thread = threading.Thread(target=asyncio.run, args=(beat(),))
    thread.start()
    clock.advance(3599)
    assert (clock.now, len(beats)) == (4599.0, 359)
    clock.advance(1)
    thread.join(10)
    assert beats == [1000.0 + 10 * (i + 1) for i in range(360)]


def test_advance_says_when_nobody_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving time for nobody is an error of the test, not a wait without end."""
    monkeypatch.setattr("tinker.testing.clock._PATIENCE_SECONDS", 0.01)
    with pytest.raises(AssertionError, match="no sleep ends"):
        SteppedClock().advance(10)
