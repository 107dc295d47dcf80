"""Responses that are larger than they may be, or than the memory that is left: a typed error of
their request alone.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from support.calls import CALLS
from support.http2_server import http2_server
from support.raw_server import RawServer, raw, raw_server
from support.tls import server_context, write_authority
from tinker_wire.operations import OPERATIONS

import tinker
from tinker._http import messages
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine
from tinker.testing import SteppedClock
from tinker.testing.server import FaultyServer

TOO_LARGE = messages.MAX_ANSWER_NBYTES + 1
JSON = {"content-type": "application/json"}


def test_which_operations_have_large_responses() -> None:
    """Those whose result may be protobuf, by the contract: arrays."""
    assert {
        name
        for name, one in OPERATIONS.items()
        if "application/x-protobuf" in one.response_media_types
    } == (messages.RESULT_OPERATIONS)


FORMS = {
    "with its length": b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % TOO_LARGE
    + bytes(100_000),
    "without a length": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(TOO_LARGE),
    "packed": raw(200, gzip.compress(bytes(TOO_LARGE), 1), {**JSON, "content-encoding": "gzip"}),
    "of an error": raw(500, bytes(TOO_LARGE), JSON),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawServer]:
    """Yield the server, for all tests of this module."""
    with raw_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.mark.parametrize("own_transport", [False, True], ids=["", "httpx"])
@pytest.mark.parametrize("form", FORMS)
def test_a_small_response_that_is_large(server: RawServer, form: str, own_transport: bool) -> None:
    """The error names operation, limit and size, after three attempts; the next request works."""
    asked = {"client_config", "asample", "list_sessions"}
    if form == "with its length" and not own_transport:
        asked = CALLS.keys() - messages.RESULT_OPERATIONS
    for operation in sorted(asked):
        server.forget()
        server.script(operation, FORMS[form])
        transport = httpx.AsyncHTTPTransport() if own_transport else None
        service = tinker.ServiceClient(
            base_url=server.url,
            api_key="tml-key",
            transport=transport,
            patience_seconds=5,
            clock=SteppedClock().clock(),
        )
        error = CALLS[operation](service).exception(30)
        assert isinstance(error, tinker.ResponseTooLargeError), (operation, error)
        assert str(error).startswith(
            f"{operation}: the response is larger than 16,777,216 bytes: it has at least 16,"
        )
        assert server.asked[operation] == 3, operation
        server.forget()
        assert service.create_rest_client().get_server_capabilities().exception(30) is None
        service.close().result(30)


CHILD = """
import resource, sys
import httpx
import tinker

url, kind, room = sys.argv[1:]
prompt, params = tinker.ModelInput.from_ints([104, 105]), tinker.SamplingParams(max_tokens=2, stop=[])
transport = httpx.AsyncHTTPTransport() if kind == "httpx" else None
service = tinker.ServiceClient(base_url=url, api_key="tml-key", transport=transport, patience_seconds=20)
sampler = service.create_sampling_client(base_model="tinker/toy").result(60)
sampler.sample(prompt, 1, params).result(60)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(room), resource.RLIM_INFINITY))
print("ready", flush=True)
sys.stdin.readline()
error = sampler.sample(prompt, 1, params).exception(100)
print(type(error).__name__, isinstance(error, tinker.TinkerError), error, flush=True)
sys.stdin.readline()
print(len(sampler.sample(prompt, 1, params).result(60).sequences[0].tokens), flush=True)
"""
ROOM = 192 << 20
TOKENS = (
    b'{"type": "sample", "sequences": [{"stop_reason": "length", "tokens": [1'
    + b",1" * (24 << 20)
    + b"]}]}"
)
BODIES: dict[str, Callable[[], tuple[bytes, dict[str, str]]]] = {
    "larger than the memory": lambda: (bytes(384 << 20), JSON),
    "larger when it is joined": lambda: (bytes(120 << 20), JSON),
    "larger when it is unpacked": lambda: (
        gzip.compress(bytes(240 << 20), 1),
        {**JSON, "content-encoding": "gzip"},
    ),
    "larger when it is decoded": lambda: (TOKENS, JSON),
}
# the others go through the same lines
OF_EACH_ENGINE = ("larger than the memory", "larger when it is joined")


@attrs.define(eq=False)
class Large:
    """The toy server, whose next results have another body while ``body`` is set."""

    app: ASGIApp
    body: tuple[bytes, dict[str, str]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            self.body is None
            or scope["type"] != "http"
            or not scope["path"].endswith("/retrieve_future")
        ):
            await self.app(scope, receive, send)
            return
        content, given = self.body
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
        headers.append((b"content-length", str(len(content)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (one, body)
        for one in ("http/1.1", "h2", "httpx")
        for body in BODIES
        if one == "http/1.1" or body in OF_EACH_ENGINE
    ],
)
def test_a_response_that_does_not_fit_into_memory(kind: str, body: str, tmp_path: Path) -> None:
    """The request has a typed error, the program lives, and its next request works."""
    state = State(ToyEngine, Settings(data_dir=tmp_path / "server", hold_seconds=0.1))
    app = Large(create_app(state))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as stack:
        stack.callback(state.close)
        if kind == "h2":
            environment["SSL_CERT_FILE"] = str(write_authority(tmp_path))
            url = stack.enter_context(http2_server(app=app, ssl_context=server_context("h2"))).url
        else:
            url = stack.enter_context(FaultyServer(app).on_port())
        command = [sys.executable, "-c", CHILD, url, kind, str(ROOM)]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        stack.callback(child.kill)
        shown = [child.stdout.readline().decode()]
        for to_come in (BODIES[body](), None):
            app.body = to_come
            child.stdin.write(b"\n")
            child.stdin.flush()
            shown.append(child.stdout.readline().decode())
        _, stderr = child.communicate(timeout=60)
    assert (shown[0], shown[2], child.returncode) == ("ready\n", "2\n", 0), (shown, stderr.decode())
    assert shown[1].startswith("ResponseTooLargeError True retrieve_future: "), shown
