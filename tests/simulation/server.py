"""The local server on the simulated loop: its engine's thread is a callback, and it can be killed
and started again.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
from tinker_wire.api import training, weights

from simulation.effects import EffectLog, RecordingEngine
from simulation.loop import SimulatedLoop
from tinker._wire import proto
from tinker.local import Settings, State, create_app, scheduling
from tinker.local.app import HANDLERS
from tinker.local.scheduling import Worker
from tinker.local.state import recover

LONGEST_STEP_SECONDS = 0.2
NUMBERED = frozenset(
    one.__name__
    for one in (
        *(training.forward_backward, training.forward, training.optim_step),
        *(weights.save_weights, weights.load_weights, weights.save_weights_for_sampler),
    )
)
_OTHER_BODY = re.compile(rb"request '([^']+)' was submitted before with another body")


class Idle(Exception):
    """The engine's thread would wait for so many seconds; None without a limit."""


class _Wake(threading.Condition):
    """What the engine's thread waits for; a wait ends the turn of the callback that stands for the
    thread.
    """

    def wait(self, timeout: float | None = None) -> bool:
        raise Idle(timeout)


class LoopWorker(Worker):
    """The engine's thread as callbacks of the loop: a step is taken, and runs a random moment
    later.
    """

    def __init__(self, open_engine: Any, lock: Any, clock: Callable[[], float]) -> None:
        super().__init__(open_engine, lock, clock)
        self._wake = _Wake(lock)
        self._timer: asyncio.Handle | None = None
        self._is_running = False
        self.is_dead = False

    def notify(self) -> None:
        if not self._is_running and not self.is_dead:
            self._schedule(0.0)

    def _schedule(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._turn)

    def _turn(self) -> None:
        if self.is_dead:
            return
        try:
            found = self._next()
        except Idle as idle:
            if idle.args[0] is not None:
                self._schedule(idle.args[0])
            return
        if found is not None:
            self._is_running = True
            loop: Any = asyncio.get_running_loop()
            loop.call_later(loop.random.random() ** 4 * LONGEST_STEP_SECONDS, self._finish, *found)

    def _finish(self, *found: Any) -> None:
        self._is_running = False
        if not self.is_dead:
            self._carry_out(*found)
            self._schedule(0.0)

    def join(self) -> None:
        return


class SimulatedServer:
    """One server on one folder. ``state`` is None while it is down. Its wall clock may jump, by
    ``wall_offset``.
    """

    def __init__(
        self, loop: SimulatedLoop, folder: Path, effects: EffectLog, **settings: Any
    ) -> None:
        self._loop, self.effects = loop, effects
        self.settings = Settings(data_dir=folder, **settings)
        self.wall_offset = 0.0
        self.state: State | None = None
        self.lives = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        # by the ids of their futures, which have their numbers
        self._accepted: dict[str, Request] = {}
        self.reused: list[str] = []  # ids under which another request came

    async def start(self) -> None:
        """Start it, from its journal if it has one."""
        before, scheduling.Worker = scheduling.Worker, LoopWorker  # type: ignore[misc]
        try:
            state = State(
                lambda: RecordingEngine(self.effects),
                self.settings,
                clock=self._loop.time,
                now=lambda: 1.7e9 + self._loop.time() + self.wall_offset,
            )
        finally:
            scheduling.Worker = before  # type: ignore[misc]
        self._app = create_app(state)
        self.lives += 1
        await recover(state, HANDLERS)
        state.notify()
        self.state = state
        self.fill_disk(self.effects.is_disk_full)

    def kill(self) -> None:
        """End it as `kill -9` does: nothing more is written, and no handler goes on."""
        state, self.state = self.state, None
        if state is None:
            return
        state._worker.is_dead = True  # type: ignore[attr-defined]
        for task in tuple(self._tasks):
            task.cancel()
        state.journal.close()

    def fill_disk(self, is_full: bool = True) -> None:
        """Let every write fail that makes a file larger; or no longer."""
        self.effects.is_disk_full = is_full
        if self.state is not None and self.state.journal._database is not None:
            self.state.journal._database.execute(
                f"pragma max_page_count = {1 if is_full else (1 << 32) - 2}"
            )

    @property
    def has_written_everything(self) -> bool:
        """Return whether nothing waits for room on the disk, of which a kill would lose results, as
        the log says.
        """
        return (
            self.state is not None
            and not self.effects.is_disk_full
            and not self.state.journal._overdue
        )

    @property
    def is_up(self) -> bool:
        return self.state is not None

    def begin(self, call: Request, done: Callable[[Response | None], object]) -> None:
        """Carry out a request; call ``done`` with the response, or None when the server was killed
        meanwhile.
        """
        task = self._loop.create_task(_exchange(self._app, call))
        self._tasks[task] = None
        task.add_done_callback(lambda _: self._end(task, call, done))

    def _end(
        self, task: asyncio.Task[Response], call: Request, done: Callable[[Response | None], object]
    ) -> None:
        del self._tasks[task]
        if not task.cancelled() and call.operation in NUMBERED:
            self._note(call, task.result())
        done(None if task.cancelled() else task.result())

    def _note(self, call: Request, response: Response) -> None:
        """Note what is accepted under which number. The same request may come again, also in
        another form.
        """
        if response.status == 200:
            self._accepted.setdefault(msgspec.json.decode(response.content)["request_id"], call)
        elif found := _OTHER_BODY.search(response.content):
            before = self._accepted.get(found[1].decode())
            if before is not None and before.inputs() != call.inputs():
                self.reused.append(found[1].decode())


class Request:
    """A request as it arrives."""

    __slots__ = ("body", "headers", "method", "operation", "path", "query")

    def __init__(
        self, method: str, target: str, headers: Any, body: bytes, operation: str = ""
    ) -> None:
        self.method, self.headers, self.body, self.operation = method, headers, body, operation
        self.path, _, query = target.partition("?")
        self.query = query.encode()

    def inputs(self) -> object:
        """Return what the request is about: the tokens of a loss, in whatever form they are sent,
        or the body.
        """
        if self.headers.get("Content-Type", "").startswith(proto.MEDIA_TYPE):
            return [
                chunk.array.tolist()
                for one in proto.decode_forward_backward(self.body).data
                for chunk in one.model_input.chunks
            ]
        body = msgspec.json.decode(self.body)
        loss = body.get("forward_backward_input", body.get("forward_input"))
        return (
            body
            if loss is None
            else [chunk["tokens"] for one in loss["data"] for chunk in one["model_input"]["chunks"]]
        )


class Response:
    """A response as it leaves the server."""

    __slots__ = ("content", "headers", "is_cut", "status")

    def __init__(
        self, status: int, headers: dict[str, str], content: bytes, *, is_cut: bool = False
    ) -> None:
        self.status, self.headers, self.content, self.is_cut = status, headers, content, is_cut


async def _exchange(app: Any, call: Request) -> Response:
    """Let an ASGI application carry out one request."""
    status, headers, parts, body = 0, {}, [], [call.body]

    async def receive() -> dict[str, Any]:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in message.get("headers", ())
            )
        else:
            parts.append(message.get("body", b""))

    await app(_scope(call), receive, send)
    return Response(status, headers, b"".join(parts))


def _scope(call: Request) -> dict[str, Any]:
    raw: Sequence[tuple[bytes, bytes]] = [
        (name.lower().encode(), value.encode()) for name, value in call.headers.items()
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": call.method,
        "headers": [*raw, (b"host", b"server")],
        "scheme": "http",
        "path": unquote(call.path),
        "raw_path": call.path.encode(),
        "query_string": call.query,
        "server": ("server", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
