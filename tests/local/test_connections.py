"""Connections on which too little comes, and more of them than there may be."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tinker.local import Settings, running_server
from tinker.local.connections import Connections

SECONDS = 30.0  # until a test gives up
HEAD = b"POST /api/v1/create_session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def serving(path: Path, **settings: Any) -> Generator[tuple[str, int]]:
    """A server with these settings."""
    with running_server(Settings(data_dir=path, **settings)) as url:
        yield "127.0.0.1", httpx.URL(url).port or 0


def connect(place: tuple[str, int], content: bytes = b"") -> socket.socket:
    """A connection on which something was sent."""
    connection = socket.create_connection(place, timeout=SECONDS)
    connection.sendall(content)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection; fails after SECONDS. Whether it answered nothing."""
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionError:
            return True


def get(place: tuple[str, int], connection: socket.socket | None = None) -> bytes:
    """Ask for the health of a server; the first bytes of the answer."""
    connection = connection or connect(place)
    connection.sendall(b"GET /api/v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return connection.recv(15)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD], ids=["nothing", "half a line", "no end"])
def test_a_head_that_does_not_end(tmp_path: Path, sent: bytes) -> None:
    """A connection on which no head of a request is complete in time is closed."""
    with serving(tmp_path, head_seconds=0.05) as place:
        assert is_closed(connect(place, sent))


def test_a_head_that_does_not_end_behind_an_answer(tmp_path: Path) -> None:
    """The second request of a connection has as much time, which begins with its first byte."""
    with serving(tmp_path, head_seconds=0.2) as place:
        connection = connect(place)
        answer = get(place, connection)
        while b'"ok"' not in answer:
            answer += connection.recv(1000)
        connection.sendall(HEAD)
        assert is_closed(connection)


@pytest.mark.parametrize("length", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("key", [None, "tml-key"], ids=["open", "refused before it is read"])
def test_a_body_that_does_not_end(tmp_path: Path, length: bytes, key: str | None) -> None:
    """A connection on which the body of a request does not come is closed, also where it was answered already."""
    with serving(tmp_path, body_seconds=0.05, api_key=key) as place:
        connection = connect(place, HEAD + length + b"\r\n\r\n")
        with connection:
            while connection.recv(1000):
                pass


def test_a_long_body_has_the_time_it_needs(tmp_path: Path) -> None:
    """The time for a body grows with every byte of it that has come."""
    body = b'{"tags": [], "sdk_version": "0"' + b" " * 50_000
    with serving(tmp_path, body_seconds=0.0) as place:
        connection = connect(place, HEAD + b"Content-Length: %d\r\n\r\n" % (len(body) + 1) + body)
        assert get(place)  # the loop has turned, with the body not yet complete
        connection.sendall(b"}")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_an_answer_has_all_the_time_it_needs(tmp_path: Path) -> None:
    """A poll that is held is not a client that is slow."""
    with serving(tmp_path, head_seconds=0.05, body_seconds=0.05, hold_seconds=0.3) as place:
        url = f"http://127.0.0.1:{place[1]}/api/v1"
        with httpx.Client(base_url=url, timeout=SECONDS) as client:
            session = client.post("/create_session", json={"tags": [], "sdk_version": "0"}).json()["session_id"]
            body = {"session_id": session, "model_seq_id": 0, "base_model": "tinker/toy", "lora_config": {"rank": 1}}
            model = client.post("/create_model", json=body).json()["model_id"]
            late = {"model_id": model, "seq_id": 2, "adam_params": {"learning_rate": 0.1}}
            future = {"request_id": client.post("/optim_step", json=late).json()["request_id"]}
            assert "waiting for the request" in client.post("/retrieve_future", json=future).json()["detail"]


def test_others_need_the_place(tmp_path: Path) -> None:
    """Beyond the limit the connection without a request for the longest is closed; one more request is answered at once."""
    with serving(tmp_path, max_connections=3) as place:
        connections = [connect(place) for _ in range(3)]
        assert get(place, connections[0]) == b"HTTP/1.1 200 OK"
        assert get(place) == b"HTTP/1.1 200 OK"
        assert is_closed(connections[1])
        assert get(place, connections[0])


def test_requests_in_work_keep_their_places(tmp_path: Path) -> None:
    """Where every connection has a request in work, one more connection is closed."""
    with serving(tmp_path, max_connections=2) as place:
        held = [connect(place, HEAD + b"Expect: 100-continue\r\nContent-Length: 31\r\n\r\n") for _ in range(2)]
        for connection in held:
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        assert is_closed(connect(place))
        for connection in held:
            connection.sendall(b'{"tags": [], "sdk_version":"0"}')
            assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_descriptors_run_out_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """However often the loop reports that there is none, the log has one line of it."""

    class Loop:
        def time(self) -> float:
            return 1.0

    limits = Connections(1.0, 1.0, 1)
    with caplog.at_level(logging.ERROR, "tinker.local"):
        for _ in range(100):
            limits.report(Loop(), {"message": "socket.accept() out of system resource"})  # type: ignore[arg-type]
    assert len(caplog.records) == 1


SERVE = """
import resource, tinker.local
from tinker.local.connections import count_descriptors, limit_connections
def report(url, engines):
    print(count_descriptors(), limit_connections(1, 1, None).max_connections, flush=True)
    raise SystemExit
tinker.local.serve(engine="toy", port=0, settings=tinker.local.Settings(data_dir={path!r}), started=report)
"""


def test_a_server_takes_the_descriptors_it_may_have(tmp_path: Path) -> None:
    """The soft limit of a server is raised to the hard one, and there are fewer connections than descriptors."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400))  # noqa: E731
    script = SERVE.format(path=str(tmp_path))
    found = subprocess.run([sys.executable, "-c", script], preexec_fn=limit, capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["400", str(400 - 50 - 64)], found.stderr
