"""Budgets and the cool-down gate: admission, its order, and the release of everything acquired."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import attrs
import httpx
import pytest

from tinker import errors
from tinker._http import limits
from tinker._http.auth import Credential, CredentialCommand
from tinker._http.limits import THROTTLED_SECONDS, Budget, CoolDown, cool_down_for
from tinker._loop import Clock


class Users:
    """Users of a budget, each of which holds its amount until released."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def come(self, name: str, amount: int) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._use(name, amount))
        await settled()

    async def _use(self, name: str, amount: int) -> None:
        async with self.budget.take(amount):
            self.inside.append(name)
            await self._ends[name].wait()
            self.inside.remove(name)

    async def go(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await settled()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await settled()


async def settled() -> None:
    """Wait until every task has run as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


Scenario = Callable[[Users], Awaitable[None]]


def play(capacity: int, scenario: Scenario) -> None:
    async def run() -> None:
        users = Users(Budget(capacity))
        await scenario(users)
        for task in users.tasks.values():
            task.cancel()

    asyncio.run(run())


async def check_free(users: Users, capacity: int) -> None:
    """Check that exactly this much is free."""
    await users.come("most", capacity - 1)
    await users.come("last", 1)
    await users.come("one too many", 1)
    assert users.inside == ["most", "last"]


def test_the_whole_budget_is_released() -> None:
    """After users of all sizes, one larger than the budget, all of it is free again."""

    async def scenario(users: Users) -> None:
        for name, amount in (("a", 4), ("b", 3), ("huge", 25), ("c", 2), ("d", 9)):
            await users.come(name, amount)
        assert users.inside == ["a", "b", "huge"]
        for name in ("a", "huge", "b", "c", "d"):
            await users.go(name)
        assert users.inside == []
        await check_free(users, 10)

    play(10, scenario)


def test_cancelled_waiters_are_not_charged() -> None:
    """Users cancelled while they wait, or when they are admitted, leave nothing acquired."""

    async def scenario(users: Users) -> None:
        await users.come("holds all", 10)
        for name, amount in (("gone", 7), ("stays", 2), ("admitted and gone", 5)):
            await users.come(name, amount)
        await users.cancel("gone")
        users._ends["holds all"].set()
        while "stays" not in users.inside:
            await asyncio.sleep(0)
            users.tasks["admitted and gone"].cancel()
        await settled()
        assert users.inside == ["stays"]
        await users.go("stays")
        await check_free(users, 10)

    play(10, scenario)


@pytest.mark.parametrize("amount", [1, 10])
def test_new_users_queue_after_waiting_ones(amount: int) -> None:
    """No user overtakes a waiting one, not even if there is room for it."""

    async def scenario(users: Users) -> None:
        await users.come("holds", 10)
        await users.come("waits", 10)
        await users.come("late", amount)
        assert users.inside == ["holds"]
        users._ends["holds"].set()
        await settled()
        await users.come("later", 1)
        assert users.inside == ["waits"]
        await users.go("waits")
        assert users.inside[0] == "late"

    play(10, scenario)


def test_a_new_user_does_not_overtake_at_a_release() -> None:
    """Released budget belongs to the waiting users, before any other task can run."""

    async def scenario(users: Users) -> None:
        await users.come("holds", 1)
        await users.come("waits", 1)
        users._ends["holds"].set()
        await asyncio.sleep(0)  # there is room; the waiting user has not run yet
        await users.come("newcomer", 1)
        assert users.inside == ["waits"]

    play(1, scenario)


def test_all_waiters_that_fit_are_admitted_together() -> None:
    """When much is released at once, users are admitted until nothing is left."""

    async def scenario(users: Users) -> None:
        await users.come("holds", 4)
        for name in "abcde":
            await users.come(name, 1)
        await users.go("holds")
        assert users.inside == ["a", "b", "c", "d"]

    play(4, scenario)


# The cool-down gate


@attrs.define
class Time:
    """Simulated time."""

    now: float = 1000.0

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now, wall=lambda: self.now)


def too_much() -> errors.APIStatusError:
    request = httpx.Request("POST", "http://server/api/v1/asample")
    return errors.RateLimitError("429", response=httpx.Response(429, request=request), body=None)


def test_failing_fast_reports_the_remaining_seconds() -> None:
    """While the gate is closed every check raises what closed it, with the time left."""
    time = Time()
    gate = CoolDown(time.clock())
    gate.check()
    why = too_much()
    gate.close_for(why, 30.0)
    time.now += 10
    with pytest.raises(errors.RateLimitError) as caught:
        gate.check()
    assert caught.value.retry_after == 20.0
    assert repr(caught.value.__cause__) == repr(why)
    # it reports that the gate is closed, and does not close it for longer
    gate.close_for(caught.value, 100.0)
    time.now += 20
    gate.check()


def test_a_gate_does_not_keep_the_client_whose_request_closed_it() -> None:
    """A client that is dropped after a 429 can be collected, though the gate is shared."""

    class Client:
        def sample(self) -> None:
            raise too_much()

    gate, client = CoolDown(Time().clock()), Client()
    is_there = weakref.ref(client)
    try:
        client.sample()
    except errors.RateLimitError as error:
        gate.close_for(error, 30.0)
    del client
    assert is_there() is None


def test_throttling_ends_a_while_after_the_gate_has_opened() -> None:
    """The server counts as throttling from the first cool-down to some seconds after the last."""
    time = Time(now=0.25)
    gate = CoolDown(time.clock())
    assert not gate.throttled
    gate.close_for(too_much(), 0.5)
    assert gate.throttled
    time.now = 0.75 + THROTTLED_SECONDS - 0.01
    assert gate.throttled
    time.now = 0.75 + THROTTLED_SECONDS
    assert not gate.throttled


def test_gates_are_shared_by_server_and_key() -> None:
    """Clients share a gate if server, key or command, and clock are the same; others do not."""
    clock, other = Time().clock(), Time().clock()
    key, command = Credential("k"), CredentialCommand("k")
    gate, printed = cool_down_for("http://a", key, clock), cool_down_for("http://a", command, clock)
    assert cool_down_for("http://a", Credential("k"), clock) is gate
    assert cool_down_for("http://a", CredentialCommand("k"), clock) is printed is not gate
    assert cool_down_for("http://a", CredentialCommand("l"), clock) is not printed
    assert cool_down_for("http://a", None, clock) not in (gate, printed)
    assert cool_down_for("http://b", key, clock) is not gate
    assert cool_down_for("http://a", Credential("l"), clock) is not gate
    assert cool_down_for("http://a", key, clock) is gate
    assert cool_down_for("http://a", key, other) is not gate


def test_a_gate_is_freed_with_its_last_session() -> None:
    """The table holds no unused gates, so a program that keeps changing keys does not grow."""
    clock = Time().clock()
    gates = [cool_down_for("http://a", Credential(f"key {index}"), clock) for index in range(3)]
    assert len([server for server, _ in limits._cool_downs if server == "http://a"]) == len(gates)
    gates.clear()
    gc.collect()
    assert not [server for server, _ in limits._cool_downs if server == "http://a"]
