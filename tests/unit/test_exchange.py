"""An exchange: how long it waits for a response. Time is simulated."""

from __future__ import annotations

import asyncio

import pytest
from simulation.loop import SimulatedLoop

from tinker._http import messages
from tinker._http.connections import Exchange
from tinker._http.messages import ExchangeFailed, PreparedRequest

SILENCE_SECONDS = 60.0


class Connection:
    """What a response comes from; nothing holds it back."""

    def consume(self, exchange: Exchange, nbytes: int) -> None:
        return


def begin(loop: SimulatedLoop) -> Exchange:
    request = PreparedRequest(
        method="GET", url="http://server/", headers={}, body=(), silence_seconds=SILENCE_SECONDS
    )
    return Exchange(request, loop)


async def receive(exchange: Exchange, pieces: int, seconds: float) -> None:
    """Receive a head, and pieces of a body at intervals."""
    exchange.begin(200, {}, Connection())
    for _ in range(pieces):
        await asyncio.sleep(seconds)
        exchange.add(b"x")


def test_a_body_may_take_longer_than_silence_may_last() -> None:
    """Each piece of a response is a sign of life."""
    loop = SimulatedLoop(1)
    exchange = begin(loop)
    loop.run_until_complete(receive(exchange, 5, 0.9 * SILENCE_SECONDS))
    exchange.end()
    loop.run_until_complete(exchange.receive())


@pytest.mark.parametrize(
    ("pieces", "seconds", "reason"),
    [
        (None, 0.0, "no response within 60 s"),
        (1, 1.0, "the response started, then nothing more arrived for 60 s"),
        (100, 59.0, "the response started but was not complete after 600 s"),
    ],
)
def test_a_response_that_does_not_end(pieces: int | None, seconds: float, reason: str) -> None:
    """The failure says how far the response had come, and comes no later than the limits say."""
    loop = SimulatedLoop(1)
    began, exchange = loop.time(), begin(loop)
    if pieces is not None:
        receiving = loop.create_task(receive(exchange, pieces, seconds))
    with pytest.raises(ExchangeFailed, match=f"^{reason}$"):
        loop.run_until_complete(exchange.receive())
    assert loop.time() - began <= max(messages.ANSWER_SECONDS, SILENCE_SECONDS + seconds)
    if pieces is not None:
        receiving.cancel()
