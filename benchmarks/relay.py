"""A TCP relay that delays everything: what a client would meet at a distance. Standard library
only.

    python benchmarks/relay.py PORT --round-trip 0.05

passes on to 127.0.0.1:PORT; its first line of output is its own port. Each chunk is passed on half
a round trip after it came. The client's first one is later by the round trip that setting up a
connection takes. Bandwidth has no limit, and no packet is lost.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque


class Direction:
    """What one side sent and the other has not got yet, oldest first; None is the end."""

    def __init__(self, opened: float, delay: float, set_up: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay, self._not_before = delay, opened + delay + set_up
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self.to: asyncio.Transport | None = None

    def put(self, data: bytes | None) -> None:
        """Pass this on when it is due."""
        self._waiting.append((max(self._loop.time() + self._delay, self._not_before), data))
        if len(self._waiting) == 1:
            self._loop.call_at(self._waiting[0][0], self._pass_on)

    def _pass_on(self) -> None:
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now and self.to is not None:
            data = self._waiting.popleft()[1]
            if data is None:
                self.to.close()
            elif not self.to.is_closing():
                self.to.write(data)
        if self._waiting:
            self._loop.call_at(max(self._waiting[0][0], now + 0.001), self._pass_on)


class Side(asyncio.Protocol):
    """One end of a relayed connection; ``inward`` is where its chunks go, ``outward`` is what it
    sends out.
    """

    def __init__(self, inward: Direction, outward: Direction) -> None:
        self._inward, self._outward = inward, outward

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._outward.to = transport

    def data_received(self, data: bytes) -> None:
        self._inward.put(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._inward.put(None)


async def serve(port: int, round_trip: float) -> None:
    """Relay until killed."""
    loop = asyncio.get_running_loop()
    dialling: set[asyncio.Task[object]] = set()

    def accept() -> Side:
        up, down = (
            Direction(loop.time(), round_trip / 2, set_up=round_trip),
            Direction(loop.time(), round_trip / 2),
        )
        task: asyncio.Task[object] = loop.create_task(
            loop.create_connection(lambda: Side(down, up), "127.0.0.1", port)
        )
        dialling.add(task)
        task.add_done_callback(dialling.discard)
        return Side(up, down)

    server = await loop.create_server(accept, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve the port named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("--round-trip", type=float, default=0.05, help="seconds")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.round_trip))


if __name__ == "__main__":
    main()
