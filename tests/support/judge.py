"""Checks of every exchange of a test against the contract: on the way to a server,
or at its entry.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from support.contract import Contract, Fault, Operation, Reading, load
from tinker._wire import proto
from tinker.local import State, create_app

PARSERS = {
    "tinker_public.ForwardBackwardRequest": proto.decode_forward_backward,
    "tinker_public.ForwardBackwardOutput": proto.decode_loss_output,
    "tinker_public.SampleResponse": proto.decode_sample,
}


@cache
def strict_contract() -> Contract:
    """Return the contract, read once in a process, which also parses protobuf bodies."""
    return Contract(load(), PARSERS)


class Judge:
    """Holds exchanges against the contract. Remembers the faults, and which operations were asked
    and were done.

    A result is judged by what was submitted, where the submission was seen.
    """

    def __init__(self, contract: Contract | None = None) -> None:
        self.contract = contract or strict_contract()
        self.bad_requests: list[str] = []
        self.bad_answers: list[str] = []
        self.asked: set[str] = set()
        self.succeeded: set[str] = set()
        self.headers: dict[str, set[str]] = {}  # of every request of an operation
        self._results: dict[str, str | None] = {}

    @property
    def faults(self) -> list[str]:
        """Everything that did not fit."""
        return [*self.bad_requests, *self.bad_answers]

    def sent(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        content: bytes,
        reading: Reading = "sent",
    ) -> None:
        """Judge a request. The path is the one on the wire, nothing in it decoded."""
        try:
            body = plain(headers, content)
            operation = self.contract.check_request(method, path, query, headers, body, reading)
        except Fault as fault:
            self.bad_requests.append(str(fault))
        else:
            self.asked.add(operation.id)
            names = {name.lower() for name in headers}
            self.headers[operation.id] = self.headers.get(operation.id, names) & names

    def request(self, request: httpx.Request, content: bytes) -> None:
        """Judge a request on its way out."""
        path, _, query = request.url.raw_path.decode().partition("?")
        self.sent(request.method, path, query, request.headers, content)

    def response(self, request: httpx.Request, content: bytes, response: httpx.Response) -> None:
        """Judge the answer to a request that is in the contract."""
        path = request.url.raw_path.decode().partition("?")[0]
        self.received(
            request.method, path, content, response.status_code, response.headers, response.content
        )

    def received(
        self,
        method: str,
        path: str,
        asked: bytes,
        status: int,
        headers: Mapping[str, str],
        content: bytes,
    ) -> None:
        """As :meth:`answered`, where the operation has to be found."""
        try:
            operation = self.contract.find(method, path)
        except Fault:
            return
        self.answered(operation, asked, status, headers, content)

    def answered(
        self,
        operation: Operation,
        asked: bytes,
        status: int,
        headers: Mapping[str, str],
        content: bytes,
    ) -> None:
        """Judge a response, and record the promised result."""
        result = (
            self._results.get(field(asked, "request_id"))
            if operation.id == "retrieve_future"
            else None
        )
        try:
            self.contract.check_response(operation, status, headers, content, result)
        except Fault as fault:
            self.bad_answers.append(str(fault))
            return
        if status < 400:
            self.succeeded.add(operation.id)
        if operation.result is not None and status == 200:
            self._results[field(content, "request_id")] = operation.result


def plain(headers: Mapping[str, str], content: bytes) -> bytes:
    """Return the body before it was compressed."""
    if headers.get("content-encoding") != "zstd":
        return content
    import zstandard

    return zstandard.ZstdDecompressor().decompress(content)


def field(content: bytes, name: str) -> str:
    """Return a field of a JSON object; empty where there is none."""
    try:
        value: Any = json.loads(content)
    except ValueError:
        return ""
    return str(value.get(name, "")) if isinstance(value, dict) else ""


class Validating(httpx.BaseTransport):
    """A transport for servers under test: requests may be anything, answers have to fit."""

    def __init__(self, inner: httpx.BaseTransport, judge: Judge) -> None:
        self._inner, self._judge = inner, judge

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        response = self._inner.handle_request(request)
        response.read()
        self._judge.response(request, request.content, response)
        return response

    def close(self) -> None:
        self._inner.close()


class Judging:
    """An ASGI application around another one, which holds what arrives and what leaves against the
    contract.

    Paths other than those of the API belong to the server itself.
    """

    def __init__(self, inner: ASGIApp, judge: Judge) -> None:
        self._inner, self._judge = inner, judge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/api/v1/"):
            await self._inner(scope, receive, send)
            return
        asked, answered = bytearray(), bytearray()
        start: list[Message] = []
        given, path, query = (
            headers(scope),
            scope["raw_path"].decode(),
            scope["query_string"].decode(),
        )

        async def receiving() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.append(message)
                self._judge.sent(scope["method"], path, query, given, bytes(asked))
            answered.extend(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body"):
                body = plain(given, bytes(asked))
                self._judge.received(
                    scope["method"],
                    path,
                    body,
                    start[0]["status"],
                    headers(start[0]),
                    bytes(answered),
                )
            await send(message)

        await self._inner(scope, receiving, sending)


def headers(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of an ASGI message."""
    return {name.decode(): value.decode() for name, value in message["headers"]}


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Yield an application on a free port; yields its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        # connections wait in the listener until it runs
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def judged_server(state: State, judge: Judge) -> Iterator[str]:
    """Yield a server on a free port whose every exchange is judged; yields its URL."""
    try:
        with served(Judging(create_app(state), judge)) as url:
            try:
                yield url
            finally:
                state.begin_close()
    finally:
        state.close()
