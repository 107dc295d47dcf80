"""A circuit breaker: an evaluation asks a server that is down three times, not for minutes, and
continues when it is back.
"""

from __future__ import annotations

import tinker
from tinker.observing import CircuitChange, Event
from tinker.testing import SteppedClock, toy_server

PROMPT = tinker.ModelInput.from_ints(list(b"To be, or"))
PARAMS = tinker.SamplingParams(max_tokens=4, seed=1)


def tell(event: Event) -> None:
    """Print what an observer of a client is told about circuits."""
    if isinstance(event, CircuitChange):
        print(f"the circuit {event.circuit.rpartition(' ')[2]!r} is {event.state}")


def main() -> None:
    """Sample before, in and after an outage."""
    clock = SteppedClock()
    breaker = tinker.CircuitBreaker(failures=3, reset_seconds=30, clock=clock)
    with toy_server(clock=clock) as server:
        service = server.service(circuit_breaker=breaker, observers=[tell])
        sampler = service.create_sampling_client(base_model="tinker/toy").result(timeout=60)
        server.fail_next("asample", status=503, times=3)
        answered, refused, wait = 0, 0, 0.0
        for _ in range(10):
            try:
                sampler.sample(PROMPT, 1, PARAMS).result(timeout=60)
                answered += 1
            except tinker.CircuitOpenError as error:
                refused += 1
                wait = error.retry_after
        print(
            f"{answered} answered, {refused} refused at once; the last one says to "
            f"come back in {wait:.0f} s"
        )
        assert (answered, refused) == (0, 10)
        clock.advance(30)  # as time would
        assert sampler.sample(PROMPT, 1, PARAMS).result(timeout=60).sequences
        assert all(circuit.state == "closed" for circuit in breaker.circuits())


if __name__ == "__main__":
    main()
