"""The states of a circuit breaker: what opens it, which calls pass half open, its messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from support.tolerances import FLOAT64, near

import tinker
from tinker._http.auth import Credential
from tinker._http.circuits import MAX_CIRCUITS, Circuit, CircuitGuard, CircuitRegistry
from tinker._http.limits import Budget, Holding
from tinker.circuit_breaker import CircuitStatus
from tinker.errors import status_error_type
from tinker.observing import CircuitChange

REQUEST = httpx.Request("POST", "http://server/api/v1/x")


class Time:
    """A clock that tests advance."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def breaker(time: Time) -> tinker.CircuitBreaker:
    """Return a breaker that opens after three failures, for ten seconds."""
    return tinker.CircuitBreaker(failures=3, reset_seconds=10, clock=time)


@contextlib.contextmanager
def attempt(breaker: tinker.CircuitBreaker, name: str = "fail") -> Iterator[None]:
    """Make one attempt of a request whose circuit has this name."""
    registry: CircuitRegistry = vars(breaker)["_registry"]
    guard = CircuitGuard(registry.circuit(name), registry.tell, None)
    asyncio.run(guard.enter())
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        guard.leave(error)


def try_to(
    breaker: tinker.CircuitBreaker,
    error: BaseException | None = None,
    times: int = 1,
    name: str = "fail",
) -> None:
    """Make failing attempts."""
    error = error or tinker.APIConnectionError(request=REQUEST)
    for _ in range(times):
        with pytest.raises(type(error)), attempt(breaker, name):
            raise error


def status(code: int, body: object = "why", **headers: str) -> tinker.APIStatusError:
    response = httpx.Response(code, headers=headers, request=REQUEST)
    return status_error_type(code)(f"Error code: {code}", response=response, body=body)


def test_failures_in_a_row_open_it(breaker: tinker.CircuitBreaker) -> None:
    """The third failure opens it; the next call is not made, and its error states for how long."""
    try_to(breaker, times=3)
    with pytest.raises(
        tinker.CircuitOpenError,
        match=r"the circuit of 'fail' is open \(after 3 failures in a row\)",
    ) as caught:
        try_to(breaker)
    assert (caught.value.circuit, caught.value.retry_after) == ("fail", 10.0)
    assert breaker.circuits() == [
        CircuitStatus(circuit="fail", state="open", failures=3, retry_after=10.0)
    ]


def test_a_success_starts_the_count_again(breaker: tinker.CircuitBreaker) -> None:
    """Failures count only if no success comes between them."""
    for _ in range(5):
        try_to(breaker, times=2)
        with attempt(breaker):
            pass
    assert breaker.state("fail") == "closed"


def test_time_makes_it_half_open_and_a_probe_decides(
    breaker: tinker.CircuitBreaker, time: Time
) -> None:
    """After the reset time one call passes: its failure opens the circuit again, success closes."""
    try_to(breaker, times=3)
    time.now += 9.9
    with pytest.raises(tinker.CircuitOpenError) as caught:
        try_to(breaker)
    assert caught.value.retry_after == near(0.1, 2, time.now, FLOAT64)
    time.now += 0.1
    assert breaker.state("fail") == "half_open"
    try_to(breaker)
    assert breaker.state("fail") == "open"
    time.now += 10
    with attempt(breaker):
        assert breaker.state("fail") == "half_open"
    assert breaker.circuits()[0] == CircuitStatus(
        circuit="fail", state="closed", failures=0, retry_after=0.0
    )


@pytest.mark.parametrize("probes", [1, 3])
def test_half_open_admits_exactly_the_probes(time: Time, probes: int) -> None:
    """Of forty threads exactly the probes pass; the others learn how long to wait."""
    breaker = tinker.CircuitBreaker(failures=1, probes=probes, reset_seconds=10, clock=time)
    try_to(breaker)
    time.now += 10
    count, passed, refused = 40, list[int](), list[float]()
    together, all_came = threading.Barrier(count), threading.Event()

    def come() -> None:
        together.wait(10)
        try:
            with attempt(breaker):
                passed.append(1)
                assert all_came.wait(10)
        except tinker.CircuitOpenError as error:
            refused.append(error.retry_after)
        if len(refused) == count - probes:
            all_came.set()

    threads = [threading.Thread(target=come) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(passed), len(refused)) == (probes, count - probes)
    assert set(refused) == {1.0}
    assert breaker.state("fail") == "closed"


def test_a_hanging_probe_does_not_block_forever(breaker: tinker.CircuitBreaker, time: Time) -> None:
    """A hanging probe blocks others for the reset time at most, and its late success counts."""
    try_to(breaker, times=3)
    time.now += 10
    with attempt(breaker):
        with pytest.raises(tinker.CircuitOpenError, match="another call is testing it"):
            try_to(breaker)
        time.now += 10
        another = attempt(breaker)
        another.__enter__()
    assert breaker.state("fail") == "closed"
    another.__exit__(None, None, None)


def test_a_cancelled_probe_makes_room(breaker: tinker.CircuitBreaker, time: Time) -> None:
    """A cancelled probe is neither a success nor a failure; another one takes its place."""
    try_to(breaker, times=3)
    time.now += 10
    with pytest.raises(asyncio.CancelledError), attempt(breaker):
        raise asyncio.CancelledError
    assert breaker.state("fail") == "half_open"
    with attempt(breaker):
        pass
    assert breaker.state("fail") == "closed"


def test_calls_that_began_before_it_opened_change_nothing(breaker: tinker.CircuitBreaker) -> None:
    """A call from before it opened neither closes it by a late success, nor extends it."""
    with attempt(breaker):
        try_to(breaker, times=3)
    assert breaker.circuits()[0] == CircuitStatus(
        circuit="fail", state="open", failures=3, retry_after=10.0
    )


FAILURES: list[BaseException] = [
    tinker.APIConnectionError(request=REQUEST),
    tinker.APITimeoutError(REQUEST),
    tinker.APIResponseValidationError(httpx.Response(200, request=REQUEST), None),
    status(408),
    status(400, None),  # of a proxy
    status(500),
    status(503, **{"x-should-retry": "false"}),
]
#: They refuse a request, and so the server works.
REFUSED = (400, 401, 402, 403, 404, 409, 410, 422, 425, 429, 501, 505)
SUCCESSES: list[BaseException] = [status(code) for code in REFUSED]
NEITHER: list[BaseException] = [
    OSError("disk"),
    ValueError("x"),
    TypeError("x"),
    tinker.ClientClosedError(),
    tinker.RequestFailedError("why", "id", "user"),
    tinker.CircuitOpenError("open", "other", 1.0),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize(
    ("error", "states"),
    [
        *((error, ("open", "open")) for error in FAILURES),
        *((error, ("closed", "closed")) for error in SUCCESSES),
        *((error, ("closed", "open")) for error in NEITHER),
    ],
    ids=repr,
)
def test_what_an_error_says_of_the_server(
    breaker: tinker.CircuitBreaker, error: BaseException, states: tuple[str, str]
) -> None:
    """An error ends a series of failures, adds to it, or, where it says nothing, does neither."""
    try_to(breaker, times=2)
    try_to(breaker, error)
    found = breaker.state("fail")
    if found == "closed":
        try_to(breaker)
    assert (found, breaker.state("fail")) == states


def test_a_user_function_decides_what_counts(time: Time) -> None:
    """A function of the user decides, also against the default."""
    breaker = tinker.CircuitBreaker(
        failures=1, clock=time, counts=lambda error: isinstance(error, tinker.NotFoundError)
    )
    try_to(breaker, times=3)
    assert breaker.state("fail") == "closed"
    try_to(breaker, status(404))
    assert breaker.state("fail") == "open"


def test_a_user_function_that_raises_frees_its_place(time: Time) -> None:
    """If ``counts`` itself raises, the caller gets that, and the probe's place is free again."""

    def broken(_: BaseException) -> bool:
        raise LookupError("a defect")

    verdicts: list[Callable[[BaseException], bool]] = [lambda _: True, broken, lambda _: False]
    breaker = tinker.CircuitBreaker(
        failures=1, clock=time, counts=lambda error: verdicts.pop(0)(error)
    )
    try_to(breaker)
    time.now += 30
    with pytest.raises(LookupError):
        try_to(breaker)
    try_to(breaker)
    assert breaker.state("fail") == "half_open"


def test_on_change_is_called(time: Time, caplog: pytest.LogCaptureFixture) -> None:
    """The user's function gets every change in order; when it raises, the call continues."""
    changes: list[CircuitChange] = []

    def note(change: CircuitChange) -> None:
        changes.append(change)
        raise RuntimeError("a defect of on_change")

    breaker = tinker.CircuitBreaker(failures=2, clock=time, on_change=note)
    with caplog.at_level(logging.ERROR, "tinker"):
        try_to(breaker, times=2)
        time.now += 30
        with attempt(breaker):
            pass
        breaker.reset()
        assert [(change.circuit, change.state, change.failures) for change in changes] == [
            ("fail", "open", 2),
            ("fail", "half_open", 2),
            ("fail", "closed", 0),
        ]
        try_to(breaker, times=2)
        breaker.reset()
        breaker.reset()
    assert [change.state for change in changes[3:]] == ["open", "closed"]
    assert "on_change of a circuit breaker failed; the circuit 'fail' is open" in caplog.text


def test_reset(breaker: tinker.CircuitBreaker) -> None:
    """A reset closes the circuits of one name, or all of them."""
    for name in ("a", "b"):
        try_to(breaker, times=3, name=name)
    breaker.reset("a")
    assert (breaker.state("a"), breaker.state("b")) == ("closed", "open")
    breaker.reset()
    assert [one.failures for one in breaker.circuits()] == [0, 0]


def test_a_timeout_of_the_caller_ends_the_wait() -> None:
    """A TimeoutError that is not the circuit's own is raised."""
    rules = CircuitRegistry(failures=1, reset_seconds=10, probes=1, monotonic=lambda: 0.0)
    guard = CircuitGuard(Circuit("a", rules), lambda change: None, None)

    async def sleep(seconds: float) -> None:
        raise TimeoutError("the caller's own")

    with pytest.raises(TimeoutError, match="the caller's own"):
        asyncio.run(guard.sleep(sleep, 5.0))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"failures": 0}, ValueError, "failures must be at least 1, got 0"),
        ({"failures": 2.0}, TypeError, "failures must be an integer, got float"),
        ({"failures": True}, TypeError, "failures must be an integer, got bool"),
        ({"probes": 0}, ValueError, "probes must be at least 1"),
        ({"probes": "1"}, TypeError, "probes must be an integer"),
        ({"reset_seconds": 0}, ValueError, "reset_seconds must be above 0, got 0"),
        ({"reset_seconds": float("nan")}, ValueError, "reset_seconds"),
        ({"reset_seconds": float("inf")}, ValueError, "reset_seconds"),
        ({"reset_seconds": "30"}, TypeError, "reset_seconds must be a number"),
        ({"counts": 5}, TypeError, "counts must be a function, got int"),
        ({"on_change": 5}, TypeError, "on_change must be a function"),
        ({"clock": 5}, TypeError, "clock must be a function"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """Invalid arguments are refused at once, by name."""
    with pytest.raises(error, match=message):
        tinker.CircuitBreaker(**arguments)


def test_wrong_breakers() -> None:
    """A service client accepts only breakers."""
    with pytest.raises(TypeError, match="circuit_breaker must be a CircuitBreaker, got int"):
        tinker.ServiceClient(circuit_breaker=5)  # type: ignore[arg-type]


def test_repr_of_a_breaker(breaker: tinker.CircuitBreaker) -> None:
    """The repr shows the breaker's settings."""
    try_to(breaker)
    assert repr(breaker) == "CircuitBreaker(failures=3, reset_seconds=10, probes=1, circuits=1)"


def test_unused_circuits_are_dropped() -> None:
    """Of many circuits those without failures are dropped, and those that count some are kept."""
    registry = CircuitRegistry(failures=3, reset_seconds=10, probes=1, monotonic=lambda: 0.0)
    failing = registry.circuit("a", Credential("failing"))
    failing.settle(failing.admit(lambda change: None), success=False, tell=lambda change: None)
    for index in range(3 * MAX_CIRCUITS):
        registry.circuit("a", Credential(f"key {index}"))
    assert len(registry.circuits) <= MAX_CIRCUITS
    assert registry.circuit("a", Credential("failing")) is failing


def test_an_attempt_waits_for_what_else_it_needs(breaker: tinker.CircuitBreaker) -> None:
    """Behind a circuit, an attempt waits until the client's limit has room, and frees its part."""

    async def scenario() -> None:
        registry: CircuitRegistry = vars(breaker)["_registry"]
        budget = Budget(1)
        first, second = (
            CircuitGuard(registry.circuit("a"), registry.tell, Holding(budget, 1)) for _ in range(2)
        )
        await first.enter()
        waiting = asyncio.ensure_future(second.enter())
        await asyncio.sleep(0)
        assert not waiting.done()
        first.leave(None)
        await waiting
        assert not budget.try_acquire()
        second.leave(None)
        assert budget.try_acquire()

    asyncio.run(scenario())
