"""Our server with a record of every request, in front of its application."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import uvicorn

from tinker.local import Settings, State, create_app
from tinker.local.engines import open_engine

Event = MutableMapping[str, Any]


@attrs.frozen
class Recorded:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    content: bytes


class Recorder:
    """An ASGI application that notes requests and hands them on."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self.requests: list[Recorded] = []

    async def __call__(
        self, scope: Event, receive: Callable[[], Awaitable[Event]], send: Any
    ) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        content = await self._noted(scope, receive)
        events: list[Event] = [{"type": "http.request", "body": content, "more_body": False}]

        async def again() -> Event:
            return events.pop() if events else await receive()

        await self._app(scope, again, send)

    async def _noted(self, scope: Event, receive: Callable[[], Awaitable[Event]]) -> bytes:
        content, more = b"", True
        while more:
            event = await receive()
            content, more = content + event.get("body", b""), event.get("more_body", False)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        path, query = scope["raw_path"].decode(), scope["query_string"].decode()
        self.requests.append(Recorded(scope["method"], path, query, headers, content))
        return content


@contextmanager
def recording_server(**settings: Any) -> Generator[tuple[str, list[Recorded]]]:
    """Yield a fresh server with the packaged model: its address, and the requests it gets."""
    with tempfile.TemporaryDirectory() as folder:
        state = State(lambda: open_engine("torch"), Settings(data_dir=Path(folder), **settings))
        recorder = Recorder(create_app(state))
        server = uvicorn.Server(
            uvicorn.Config(recorder, port=0, log_level="warning", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.01)
        try:
            port = server.servers[0].sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}", recorder.requests
        finally:
            state.begin_close()
            server.should_exit = True
            thread.join()
