"""Slow or silent connections, and more connections than the limit."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import httpx
import pytest
from support.api import step_body
from support.tls import Certificates, make_certificates

from tinker.local import Settings, running_server
from tinker.local import serving as connections
from tinker.local.serving import Connections, raise_descriptor_limit

SECONDS = 30.0  # until a test gives up
GET = b"GET /api/v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HEAD = (
    b"POST /api/v1/create_session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
)


class Place(NamedTuple):
    """The address of a server, and how a client speaks TLS with it; None without TLS."""

    port: int
    tls: ssl.SSLContext | None


Serving: TypeAlias = Callable[..., AbstractContextManager[Place]]


@pytest.fixture(params=["plain", "TLS", "without httptools"])
def serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Serving:
    """Run servers without TLS, with it, and where neither httptools nor uvloop is installed."""
    if request.param == "without httptools":
        monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
        monkeypatch.setitem(sys.modules, "uvloop", None)
    return partial(
        run_server, tmp_path, make_certificates(tmp_path) if request.param == "TLS" else None
    )


@pytest.fixture
def serving_tls(tmp_path: Path) -> Serving:
    """Run servers with TLS, and with the settings given."""
    return partial(run_server, tmp_path, make_certificates(tmp_path))


@contextlib.contextmanager
def run_server(
    folder: Path, certificates: Certificates | None, **settings: Any
) -> Generator[Place]:
    tls = None if certificates is None else certificates.make_server_context()
    with running_server(Settings(data_dir=folder, **settings), ssl_context=tls) as url:
        yield Place(
            httpx.URL(url).port or 0,
            None if certificates is None else certificates.make_client_context(),
        )


def connect(place: Place, content: bytes = b"") -> socket.socket:
    """Open a connection and send some bytes."""
    connection = reach(place)
    if place.tls is not None:
        connection = place.tls.wrap_socket(connection, server_hostname="localhost")
    connection.sendall(content)
    return connection


def reach(place: Place) -> socket.socket:
    """Open a connection without TLS, whatever the server speaks."""
    return socket.create_connection(("127.0.0.1", place.port), timeout=SECONDS)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection, also below TLS; return whether it was silent."""
    try:
        answered = connection.recv(1)
        with socket.socket(fileno=connection.detach()) as below:
            below.settimeout(SECONDS)
            return answered == below.recv(1) == b""
    except ConnectionError:
        return True


def get(place: Place, connection: socket.socket | None = None) -> bytes:
    """Request the health of a server; return the first bytes of the response."""
    connection = connection or connect(place)
    connection.sendall(GET)
    return connection.recv(15)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD], ids=["nothing", "half a line", "no end"])
def test_a_head_that_does_not_end(serving: Serving, sent: bytes) -> None:
    """A connection is closed when the head of its request is not complete in time."""
    with serving(head_seconds=0.3) as place:
        assert is_closed(connect(place, sent))


def test_a_head_that_does_not_end_behind_an_answer(serving: Serving) -> None:
    """The second request on a connection has the full timeout, counted from its first byte."""
    with serving(head_seconds=0.5) as place:
        connection = connect(place)
        answer = get(place, connection)
        while b'"ok"' not in answer:
            answer += connection.recv(1000)
        connection.sendall(HEAD)
        assert is_closed(connection)


@pytest.mark.parametrize(
    "begun",
    [
        HEAD,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n",
    ],
    ids=["head", "extension of a chunk", "headers behind a body"],
)
def test_a_head_that_is_too_long(serving: Serving, begun: bytes) -> None:
    """More than 16 KiB that belong to no body are refused, and the connection is closed."""
    with serving(api_key="tml-key", head_seconds=600, body_seconds=600) as place:
        connection = connect(place, begun)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            for _ in range(400):  # one read of the server may bring 256 KiB
                connection.sendall(b"x: " + b"x" * 997)
        answer = bytearray()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while more := connection.recv(1000):
                answer += more
        assert b"HTTP/1.1 200" not in answer
        assert get(place)


def test_an_upgrade_that_is_offered(serving: Serving) -> None:
    """A request that offers HTTP/2, as Java's client does, is answered over HTTP/1.1."""
    head = (
        HEAD
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\nContent-Length: 31\r\n\r\n"
    )
    with serving() as place:
        connection = connect(place, head + b'{"tags": [], "sdk_version":"0"}')
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_headers_behind_a_body_are_ignored(serving: Serving) -> None:
    """A key that comes behind the body, where proxies do not look, is none."""
    head = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(api_key="tml-key") as place:
        connection = connect(place, head + b"2\r\n{}\r\n0\r\nX-API-Key: tml-key\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 401"


@pytest.mark.parametrize("length", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("key", [None, "tml-key"], ids=["open", "refused before it is read"])
def test_a_body_that_does_not_end(serving: Serving, length: bytes, key: str | None) -> None:
    """A connection whose body does not arrive is closed, even after the response."""
    with serving(body_seconds=0.05, api_key=key) as place:
        connection = connect(place, HEAD + length + b"\r\n\r\n")
        with connection:
            while connection.recv(1000):
                pass


def test_a_long_body_has_the_time_it_needs(serving: Serving) -> None:
    """The timeout of a body grows with every byte received."""
    body = b'{"tags": [], "sdk_version": "0"' + b" " * 50_000
    with serving(body_seconds=0.0) as place:
        connection = connect(place, HEAD + b"Content-Length: %d\r\n\r\n" % (len(body) + 1) + body)
        assert get(place)  # the loop has turned, with the body not yet complete
        connection.sendall(b"}")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_an_answer_has_all_the_time_it_needs(serving: Serving) -> None:
    """A client whose poll is held is not treated as slow."""
    with serving(head_seconds=0.5, body_seconds=0.5, hold_seconds=1.0) as place:
        url = f"http{'s' if place.tls else ''}://127.0.0.1:{place.port}/api/v1"
        with httpx.Client(base_url=url, timeout=SECONDS, verify=place.tls or False) as client:
            session = client.post("/create_session", json={"tags": [], "sdk_version": "0"}).json()[
                "session_id"
            ]
            body = {
                "session_id": session,
                "model_seq_id": 0,
                "base_model": "tinker/toy",
                "lora_config": {"rank": 1},
            }
            model = client.post("/create_model", json=body).json()["model_id"]
            late = step_body(model, 2, learning_rate=0.1)
            future = {"request_id": client.post("/optim_step", json=late).json()["request_id"]}
            assert (
                "waiting for the request"
                in client.post("/retrieve_future", json=future).json()["detail"]
            )


def test_others_need_the_place(serving: Serving) -> None:
    """Beyond the limit the connection that is idle for longest is closed for another one."""
    with serving(max_connections=3) as place:
        connections = [connect(place) for _ in range(3)]
        assert get(place, connections[0]) == b"HTTP/1.1 200 OK"
        assert get(place) == b"HTTP/1.1 200 OK"
        assert is_closed(connections[1])
        assert get(place, connections[0])


def test_requests_in_work_keep_their_places(serving: Serving) -> None:
    """When every connection has a request in work, a further connection is closed."""
    with serving(max_connections=2) as place:
        held = [
            connect(place, HEAD + b"Expect: 100-continue\r\nContent-Length: 31\r\n\r\n")
            for _ in range(2)
        ]
        for connection in held:
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        assert is_closed(reach(place))
        for connection in held:
            connection.sendall(b'{"tags": [], "sdk_version":"0"}')
            assert connection.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    "sent",
    [b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01"],
    ids=["nothing", "half a head", "no end"],
)
def test_a_handshake_that_does_not_end(serving_tls: Serving, sent: bytes) -> None:
    """The timeout for a head begins before the TLS handshake, and closes what does not end it."""
    with serving_tls(head_seconds=0.05) as place:
        connection = reach(place)
        connection.sendall(sent)
        assert is_closed(connection)


def test_handshakes_take_places(serving_tls: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    """Handshakes count as connections, can be closed for others, and delay no shutdown."""
    with serving_tls(max_connections=2) as place:
        silent = [reach(place) for _ in range(2)]
        connection = connect(place)
        assert get(place, connection) == b"HTTP/1.1 200 OK"
        assert is_closed(silent[0])
        assert get(place) == b"HTTP/1.1 200 OK"
        assert is_closed(silent[1])
        silent.append(reach(place))
        assert get(place) == b"HTTP/1.1 200 OK"
    assert capsys.readouterr().err == ""


def test_a_handshake_that_fails_frees_its_place(serving_tls: Serving) -> None:
    """A client without TLS, or that leaves, frees its place without closing others."""
    with serving_tls(max_connections=2) as place:
        first = connect(place)
        for sent in (GET, b"", GET):
            connection = reach(place)
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert is_closed(connection)
        assert get(place) == b"HTTP/1.1 200 OK"
        assert get(place, first) == b"HTTP/1.1 200 OK"


def test_a_request_in_one_packet_with_the_end_of_the_handshake(serving_tls: Serving) -> None:
    """A request that arrives with the end of the handshake is answered over TLS."""
    with serving_tls() as place, reach(place) as connection:
        assert place.tls is not None
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = place.tls.wrap_bio(received, to_send, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        connection.sendall(to_send.read())
        while not is_done(tls):
            received.write(connection.recv(1 << 16))
        tls.write(GET)
        connection.sendall(to_send.read())
        answer = b""
        while not answer:
            received.write(connection.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer = tls.read(15)
    assert answer == b"HTTP/1.1 200 OK"


def is_done(tls: ssl.SSLObject) -> bool:
    """Continue a handshake; return whether it is complete."""
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_https_is_told_to_speak_http(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A client that begins with TLS where there is none fails; the log says which URL is meant."""
    with run_server(tmp_path, None) as place:
        for _ in range(2):
            with pytest.raises(ssl.SSLError), reach(place) as connection:
                ssl.create_default_context().wrap_socket(connection, server_hostname="localhost")
        assert get(place) == b"HTTP/1.1 200 OK"
    expected = "a client sent HTTPS, and this server speaks HTTP: its URL begins with http://"
    assert [record.message for record in caplog.records] == [expected] * 2


def test_descriptors_run_out_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """However often the loop runs out of descriptors, the log has one line about it."""

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
from tinker.local.serving import Connections, count_descriptors
def report(url, engines):
    print(count_descriptors(), Connections(1, 1, None).max_connections, flush=True)
    raise SystemExit
tinker.local.serve(engine="toy", port=0, settings=tinker.local.Settings(data_dir={path!r}), started=report)
"""


def test_a_server_takes_the_descriptors_it_may_have(tmp_path: Path) -> None:
    """The server raises its soft limit, and allows fewer connections than descriptors."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400))  # noqa: E731
    script = SERVE.format(path=str(tmp_path))
    found = subprocess.run(
        [sys.executable, "-c", script],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout.split() == ["400", str(400 - 50 - 64)], found.stderr


def test_a_limit_that_is_high_enough_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A soft limit above the number of descriptors that is enough is not lowered to it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(connections, "ENOUGH_DESCRIPTORS", 200)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (400, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
