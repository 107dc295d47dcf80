"""Scripted faults: what a client meets under each, in the process and on a port."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tinker
from tinker.testing import FaultyServer, SteppedClock, toy_server
from tinker.testing.faults import KINDS, Fault, chances, garble, operation_of

HEALTH = "/api/v1/healthz"
SESSION = {"tags": [], "sdk_version": "1"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """Yield a server in this process, in simulated time."""
    with toy_server(tmp_path, clock=SteppedClock()) as server:
        yield server


def get(server: FaultyServer, path: str = HEALTH, *, read: float = 30.0) -> httpx.Response:
    async def exchange() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=server.transport, base_url="http://server", timeout=read
        ) as client:
            return await client.get(path)

    return asyncio.run(exchange())


# In the process


@pytest.mark.parametrize("status", [400, 409, 422])
def test_a_scripted_refusal_has_read_the_number(tmp_path: Path, status: int) -> None:
    """After a scripted refusal the run goes on: the server does not wait for its number."""
    with toy_server(tmp_path, gap_seconds=3600.0) as server:
        training = server.service().create_lora_training_client("tinker/toy", rank=4)
        training.optim_step(tinker.AdamParams()).result(timeout=30)
        server.fail_next("optim_step", status=status)
        with pytest.raises(tinker.APIStatusError):
            training.optim_step(tinker.AdamParams()).result(timeout=30)
        assert training.optim_step(tinker.AdamParams()).result(timeout=30)


def test_without_faults_it_is_the_server(server: FaultyServer) -> None:
    """An exchange that is not scripted is the server's own, and is noted."""
    assert get(server).json() == {"status": "ok"}
    (exchange,) = server.requests("healthz")
    assert (exchange.method, exchange.status, exchange.fault) == ("GET", 200, None)


def test_statuses(server: FaultyServer) -> None:
    """A scripted status comes so often, with its headers and body; then the server answers."""
    server.fail_next("healthz", 429, headers={"retry-after": "7"}, times=2)
    server.fail_next("healthz", 503, body=b"<html>")
    answers = [get(server) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [429, 429, 503, 200]
    assert (answers[0].headers["retry-after"], answers[0].json()) == (
        "7",
        {"detail": "scripted 429"},
    )
    assert answers[2].content == b"<html>"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (lambda server: server.drop_next("healthz"), httpx.ReadError),
        (lambda server: server.truncate_next("healthz"), httpx.RemoteProtocolError),
        (lambda server: server.hang_next("healthz"), httpx.ReadTimeout),
        (lambda server: server.hang_next("healthz", seconds=3), httpx.ReadError),
        (lambda server: server.delay_next("healthz", 31), httpx.ReadTimeout),
        (lambda server: server.slow_next("healthz", 31), httpx.ReadTimeout),
        (lambda server: server.trickle_next("healthz", 31), httpx.ReadTimeout),
        (lambda server: server.inform_next("healthz", seconds=31), httpx.ReadTimeout),
        (lambda server: server.go_silent(), httpx.ReadTimeout),
        (lambda server: server.go_down(), httpx.ConnectError),
    ],
)
def test_broken_exchanges(
    server: FaultyServer, script: Callable[[FaultyServer], None], error: type[Exception]
) -> None:
    """Each way to break an exchange is the error of httpx for it; then the server answers."""
    script(server)
    with pytest.raises(error):
        get(server)
    server.come_up()
    assert get(server).status_code == 200


def test_what_takes_time_takes_simulated_time(server: FaultyServer) -> None:
    """A delay, a slow body and a time-out move the clock by their seconds, and nobody waits."""
    clock = server._clock
    assert clock is not None
    began = clock.now
    server.delay_next("healthz", 20)
    assert get(server).json() == {"status": "ok"}
    assert clock.now == began + 20
    server.slow_next("healthz", 2)
    assert get(server).json() == {"status": "ok"}
    assert clock.now == began + 36
    server.trickle_next("healthz", 1, count=5)
    server.inform_next("healthz", seconds=2, count=2)
    assert get(server).json() == {"status": "ok"}
    assert get(server).json() == {"status": "ok"}
    assert clock.now == began + 45
    server.hang_next("healthz")
    with pytest.raises(httpx.ReadTimeout):
        get(server, read=45.0)
    assert clock.now == began + 90


def test_the_port_takes_headers_in_any_encoding(server: FaultyServer) -> None:
    """A header value that is not ASCII is handed on as its bytes, on the port as in-process."""
    with server.on_port() as url:
        answer = httpx.get(f"{url}/api/v1/healthz", headers=[(b"x-user", b"caf\xe9")])
    assert answer.status_code == 200
    assert server.exchanges[-1].headers["x-user"] == "caf\xe9"


def test_the_repr_names_what_is_to_come(server: FaultyServer) -> None:
    """The repr says how the server stands, where it listens, and which faults are to come."""
    assert repr(server) == "<FaultyServer, up; faults to come: none>"
    server.fail_next("healthz", times=2)
    with server.on_port() as url:
        assert repr(server).startswith(f"<FaultyServer on {url}, up; faults to come: healthz: ")
    get(server)
    get(server)


def test_corrupt_bodies_have_their_length(server: FaultyServer) -> None:
    """A corrupt answer keeps its status and says nothing in as many bytes, or what it is given."""
    server.corrupt_next("healthz")
    server.corrupt_next("healthz", body=b"[[")
    for content in (b"\xff" * len(b'{"status":"ok"}'), b"[["):
        answer = get(server)
        assert (answer.status_code, answer.content) == (200, content)


NO_ERROR = "200 is not an error status; pass a status from 300 to 599, or the body of the response"


SECONDS = "seconds must be at least 0, got"


@pytest.mark.parametrize("value", [b"caf\xe9", "café", b"\xff"])
def test_headers_in_any_bytes(server: FaultyServer, value: str | bytes) -> None:
    """A header has the bytes that were given, text in UTF-8, with either kind of answer."""
    sent = value.encode() if isinstance(value, str) else value
    server.header_next("healthz", "x-tea", value)
    server.fail_next("healthz", 503, headers={"x-tea": value})
    for status in (200, 503):
        answer = get(server)
        assert (answer.status_code, dict(answer.headers.raw)[b"x-tea"]) == (status, sent)
    assert get(server).headers.get("x-tea") is None


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("fail_next", {"times": 0}, "times must be at least 1, got 0"),
        ("fail_next", {"status": 200}, NO_ERROR),
        ("fail_next", {"status": 103}, "status must be from 200 to 599, got 103"),
        ("fail_next", {"status": "503"}, "status must be an int, got '503'"),
        ("fail_next", {"status": True}, "status must be an int, got True"),
        ("drop_next", {"times": -1}, "times must be at least 1, got -1"),
        ("hang_next", {"seconds": -1}, f"{SECONDS} -1"),
        ("delay_next", {"seconds": -0.5}, f"{SECONDS} -0.5"),
        ("delay_next", {"seconds": math.nan}, f"{SECONDS} nan"),
        ("slow_next", {"seconds": -1}, f"{SECONDS} -1"),
        ("trickle_next", {"seconds": 1, "count": 0}, "count must be at least 1, got 0"),
        ("trickle_next", {"seconds": -1, "count": 2}, f"{SECONDS} -1"),
        ("trickle_next", {"seconds": 0, "count": None}, "seconds must be greater than 0"),
        ("inform_next", {"seconds": -1}, f"{SECONDS} -1"),
        ("inform_next", {"count": -2}, "count must be at least 1, got -2"),
        ("inform_next", {"count": None}, "seconds must be greater than 0"),
        ("inform_next", {"status": 200}, "200 is not an informational status"),
        ("fail_randomly", {"rate": 1.5}, "rate must be from 0 to 1, got 1.5"),
        ("fail_randomly", {"rate": -0.1}, "rate must be from 0 to 1, got -0.1"),
        ("fail_randomly", {"rate": 0.1, "hang_seconds": -1}, f"hang_{SECONDS} -1"),
        ("fail_randomly", {"rate": 0.1, "longest_seconds": -1}, f"longest_{SECONDS} -1"),
    ],
)
def test_numbers_that_script_nothing(
    server: FaultyServer, method: str, arguments: dict[str, Any], words: str
) -> None:
    """What happens never, in negative time or is no fault is refused on the line of the test."""
    of = {"seed": 1} if method == "fail_randomly" else {"operation": "healthz"}
    with pytest.raises((ValueError, TypeError), match=f"^{words}"):
        getattr(server, method)(**of, **arguments)
    server.verify()


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ("retrieve_futur", r"did you mean .*retrieve_future"),
        ("step", r"contract; it has healthz, .*optim_step.*asample"),
        ("sample", r"'sample' is not an operation of the contract; did you mean asample\?$"),
        ("save_state_async", r"did you mean save_weights\?$"),
    ],
)
def test_unknown_operations_are_refused(server: FaultyServer, operation: str, words: str) -> None:
    """A misspelt operation, or the name of a method, is refused with those it may mean, or all."""
    for ask in (server.fail_next, server.requests, server.wait_for):
        with pytest.raises(ValueError, match=words):
            ask(operation)


def test_what_is_scripted_for_any_operation(server: FaultyServer) -> None:
    """A fault may be of every operation, and a success with its body in place of the server's."""
    server.fail_next("*")
    server.fail_next("healthz", 200, body={"status": "scripted"})
    assert get(server).status_code == 503
    assert get(server).json() == {"status": "scripted"}


@pytest.mark.parametrize("fault", ["fail_next", "drop_next", "hang_next"])
@pytest.mark.parametrize("applied", [False, True])
def test_before_and_after(fault: str, applied: bool) -> None:
    """An applied fault loses the answer of what was carried out, another one the request."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    server = FaultyServer(app, clock=SteppedClock())
    getattr(server, fault)("healthz", applied=applied)
    with contextlib.suppress(httpx.HTTPError):
        get(server)
    assert seen == [HEALTH] * applied


def test_a_restart_loses_the_session_and_keeps_what_was_saved(server: FaultyServer) -> None:
    """A client goes on after a pause; after a restart it raises, and what was saved is there."""
    service = server.service()
    training = service.create_lora_training_client("tinker/toy", rank=4)
    path = training.save_state("kept").result(10).path
    server.go_down()
    server.come_up()
    assert training.optim_step(tinker.AdamParams()).result(10).metrics is not None
    server.restart()
    with pytest.raises(tinker.SessionLostError):
        training.save_state("lost").result(10)
    service.create_training_client_from_state(path).save_state("later").result(10)


def test_a_server_of_another_application_cannot_restart() -> None:
    """Only `toy_server` knows how its server starts."""

    async def app(*_: object) -> None: ...

    with pytest.raises(ValueError, match="toy_server"):
        FaultyServer(app).restart()


def test_faults_that_do_not_happen_are_named(server: FaultyServer) -> None:
    """What was scripted and did not happen fails the check, with its name and how often."""
    server.verify()
    server.fail_next("asample", 429, times=3)
    server.drop_next("healthz", applied=True)
    with pytest.raises(
        AssertionError, match=r"asample: status 429, 3 left; healthz: drop after, 1 left"
    ):
        server.verify()
    server.forget()
    server.verify()


def loss(training: tinker.TrainingClient) -> tinker.APIFuture[tinker.ForwardBackwardOutput]:
    """One training request."""
    inputs: Any = {"target_tokens": [2, 3, 4]}
    data = [tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 2, 3]), loss_fn_inputs=inputs)]
    return training.forward_backward(data, "cross_entropy")


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422])
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_scripted_refusal_reaches_the_caller(
    server: FaultyServer, status: int, earlier: int
) -> None:
    """The first training request can be refused as any other, though it has two forms."""
    training = server.service().create_lora_training_client("tinker/toy", rank=4).result(30)
    for _ in range(earlier):
        loss(training).result(30)
    server.fail_next("forward_backward", status=status)
    with pytest.raises(tinker.APIStatusError, match=f"scripted {status}"):
        loss(training).result(30)
    server.verify()
    again = server.service().create_lora_training_client("tinker/toy", rank=4).result(30)
    assert loss(again).result(30).loss > 0


@pytest.mark.parametrize("applied", [False, True])
def test_a_scripted_failure_is_met_once(server: FaultyServer, applied: bool) -> None:
    """A failure of the first training request is waited out; the gradient is computed once."""
    training = server.service().create_lora_training_client("tinker/toy", rank=4).result(30)
    server.fail_next("forward_backward", status=500, applied=applied)
    expected = loss(training).result(30).loss
    server.verify()
    sent = server.requests("forward_backward")
    assert [exchange.status for exchange in sent] == [500, 500, 200]
    assert loss(training).result(30).loss == expected


@pytest.mark.parametrize("operation", ["optim_step", "retrieve_future"])
@pytest.mark.parametrize("seconds", [5, 10, 60])
def test_the_time_a_server_asks_for_passes_at_once(
    tmp_path: Path, operation: str, seconds: int
) -> None:
    """A retry waits as long as Retry-After says, in simulated time."""
    clock = SteppedClock()
    with toy_server(tmp_path, clock=clock) as server:
        training = server.service().create_lora_training_client("tinker/toy", rank=4).result(30)
        server.fail_next(operation, status=503, headers={"Retry-After": str(seconds)})
        began = clock.now
        assert training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result(30)
        assert clock.now >= began + seconds
        server.verify()


def test_waiting_for_requests(server: FaultyServer) -> None:
    """A test can wait until an operation was asked for so many times."""
    thread = threading.Thread(target=lambda: [get(server) for _ in range(3)])
    thread.start()
    assert len(server.wait_for("healthz", 3)) >= 3
    thread.join()


def test_all_requests(server: FaultyServer) -> None:
    """Without an operation, and for ``*``, the log has every request in the order of arrival."""
    get(server)
    get(server, "/api/v1/get_server_capabilities")
    assert [one.operation for one in server.requests()] == ["healthz", "get_server_capabilities"]
    assert server.requests("*") == server.wait_for("*", 2) == server.requests()


# Chance


def fates(seed: int, rate: float = 0.1, **options: Any) -> list[Fault | None]:
    chance = chances(rate, seed, **options)
    return [chance("asample", number) for number in range(2000)]


def test_chance_depends_on_the_seed_only() -> None:
    """The n-th exchange of an operation has one fate for one seed, whatever happens elsewhere."""
    assert fates(1) == fates(1)
    assert fates(1) != fates(2)


def test_chance_hits_its_rate_in_every_way() -> None:
    """A rate of ten percent fails about that share, in each of the ways, and 0 none."""
    met = [fate for fate in fates(3) if fate is not None]
    assert 150 < len(met) < 250
    assert all(
        {True, False} == {one.answer is None for one in met if one.kind == kind}
        for kind in ("header", "deep")
    )
    assert {fate.kind for fate in met} == set(KINDS)
    assert all(fate.kind == "drop" for fate in fates(3, kinds=["drop"]) if fate)
    assert not any(fates(3, 0.0))


def test_a_client_gets_through_any_chance(server: FaultyServer) -> None:
    """With a third of all exchanges lost, but readable answers, training goes on."""
    training = server.service().create_lora_training_client("tinker/toy").result(30)
    server.fail_randomly(
        0.33,
        seed=5,
        kinds=["status", "drop", "hang", "delay", "truncate", "slow"],
        longest_seconds=50,
    )
    steps = [training.optim_step(tinker.AdamParams()) for _ in range(20)]
    assert all(step.result(30).metrics is not None for step in steps)
    assert server.totals["exchanges"] > 40


# On a port


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[FaultyServer, str]]:
    """Yield a server on a port, in real time."""
    with toy_server(tmp_path) as server, server.on_port() as url:
        yield server, url


def test_a_port_serves(live: tuple[FaultyServer, str]) -> None:
    """On a port it is an HTTP server like any other, also for large bodies."""
    server, url = live
    assert httpx.get(url + HEALTH).json() == {"status": "ok"}
    body = {**SESSION, "user_metadata": {"long": "x" * 5_000_000}}
    assert httpx.post(f"{url}/api/v1/create_session", json=body).status_code == 200
    assert len(server.requests("create_session")[0].body) > 5_000_000


def test_broken_connections(live: tuple[FaultyServer, str]) -> None:
    """Breaks and silence before, between and within answers are those of real sockets."""
    server, url = live
    with httpx.Client(base_url=url) as client:
        server.truncate_next("healthz")
        with pytest.raises(httpx.RemoteProtocolError, match=r"incomplete|without sending complete"):
            client.get(HEALTH)
        server.hang_next("healthz", seconds=0.01)
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            client.get(HEALTH)
        server.corrupt_next("healthz")
        assert client.get(HEALTH).content == garble(b'{"status":"ok"}')
        server.hang_next("healthz")
        server.go_silent()
        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                client.get(HEALTH, timeout=0.05)


def raw_answer(url: str) -> bytes:
    """All bytes that come for one request."""
    parsed = httpx.URL(url)
    with socket.create_connection((parsed.host, parsed.port or 80), timeout=10) as connection:
        connection.sendall(
            f"GET {HEALTH} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
        )
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_what_http_libraries_do_not_send(live: tuple[FaultyServer, str]) -> None:
    """Header bytes arrive as they are, heads byte by byte, and informational answers first."""
    server, url = live
    server.header_next("healthz", "x-tea", b"gr\xfcn")
    assert b"\r\nx-tea: gr\xfcn\r\n" in raw_answer(url)
    server.fail_next("healthz", 599, headers={"x-tea": b"\xff"})
    assert raw_answer(url).startswith(b"HTTP/1.1 599 Unknown\r\n")
    server.trickle_next("healthz", 0.001, count=3)
    assert b"\r\nx-trickle: ...\r\n" in raw_answer(url)
    server.inform_next("healthz", 102, count=2)
    assert raw_answer(url).startswith(
        b"HTTP/1.1 102 Processing\r\n\r\n" * 2 + b"HTTP/1.1 200 OK\r\n"
    )
    server.trickle_next("healthz", 0.001)
    server.inform_next("healthz", seconds=0.001)
    assert [httpx.get(url + HEALTH).json() for _ in range(3)] == [{"status": "ok"}] * 3


@pytest.mark.parametrize("script", ["trickle_next", "inform_next"])
def test_heads_without_end(live: tuple[FaultyServer, str], script: str) -> None:
    """A head that never ends goes on as long as somebody listens, and ends with the port."""
    server, url = live
    getattr(server, script)("healthz", seconds=0.001, count=None)
    parsed = httpx.URL(url)
    with socket.create_connection((parsed.host, parsed.port or 80), timeout=10) as connection:
        connection.sendall(f"GET {HEALTH} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        received = b"".join(connection.recv(1) for _ in range(200))
    assert received.count(b"HTTP/1.1 103") >= 4 or received.endswith(b"." * 100)


def test_a_port_leaves_nothing_behind(tmp_path: Path) -> None:
    """The end of the block ends the thread and what hangs; clients see their connections end."""
    before = set(threading.enumerate())

    def hang(url: str) -> None:
        with pytest.raises(httpx.TransportError):
            httpx.get(url + HEALTH, timeout=30)

    with toy_server(tmp_path) as server:
        with server.on_port() as url:
            server.hang_next("healthz")
            thread = threading.Thread(target=hang, args=(url,))
            thread.start()
            server.wait_for("healthz")
        thread.join(10)
        assert not thread.is_alive()
    assert set(threading.enumerate()) <= before


# Parts


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("POST", "/api/v1/asample", "asample"),
        ("POST", "/api/v1/sessions/a:b/finish", "finish_session"),
        ("GET", "/api/v1/training_runs/s:train:0", "get_training_run"),
        ("DELETE", "/api/v1/training_runs/s:train:0/checkpoints/weights/01", "delete_checkpoint"),
        ("GET", "/elsewhere", "GET /elsewhere"),
    ],
)
def test_operations_have_the_names_of_the_contract(method: str, path: str, operation: str) -> None:
    """A request is called what the contract calls it, also with ids in its path."""
    assert operation_of(method, path) == operation
