"""Sessions: start, heartbeats, end, and the contents of requests."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from errno import ECONNREFUSED
from typing import Any

import httpx
import pytest

import tinker
from tinker.local import running_server
from tinker.testing import SteppedClock

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()


def test_nothing_is_sent_before_it_is_needed(connect: Connect, wire: Any) -> None:
    """Neither creating a client nor closing it unused sends anything."""
    connect().close().result(10)
    assert wire.exchanges == []


def test_start_up(connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is created with the client's metadata, and all clients of one
    service share it.
    """
    monkeypatch.setenv("TINKER_TAGS", "a,b,a")
    monkeypatch.setenv("TINKER_PROJECT_ID", "p")
    service = connect(user_metadata={"who": "me"}, display_name="night")
    service.create_lora_training_client("tinker/toy").result(10)
    service.create_sampling_client(base_model="tinker/toy").result(10)
    (created,) = wire.requests("create_session")
    assert created.json == {
        "tags": ["a", "b"],
        "user_metadata": {"who": "me"},
        "sdk_version": "0.38.0",
        "project_id": "p",
        "display_name": "night",
        "type": "create_session",
    }
    assert wire.requests("client/config")[0].json == {"sdk_version": "0.38.0"}


def test_identity(connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user agent names this client; the version on the wire is that of the official surface and
    can be overridden.
    """
    monkeypatch.setenv("TINKER_SDK_VERSION", "0.7.0")
    connect(default_headers_overrides={"X-Team": "blue"}).create_lora_training_client(
        "tinker/toy"
    ).result(10)
    headers = wire.exchanges[0].request.headers
    assert headers["user-agent"].startswith("tinker-open-client/0.38.0")
    assert (headers["x-team"], headers["x-api-key"]) == ("blue", "tml-secret")
    assert wire.requests("create_session")[0].json["sdk_version"] == "0.7.0"


def test_heartbeats(connect: Connect, wire: Any, clock: Any) -> None:
    """A heartbeat is sent at once and every ten seconds, also after failures, until the server ends
    the session.
    """
    service = connect()
    service.create_lora_training_client("tinker/toy").result(10)
    wire.wait_for("session_heartbeat", 1)
    for expected in (2, 3):
        clock.advance(10)
        wire.wait_for("session_heartbeat", expected)
    wire.fail("session_heartbeat", 503)
    clock.advance(10)
    wire.wait_for("session_heartbeat", 4)
    wire.fail("session_heartbeat", 410)
    clock.advance(10)
    wire.wait_for("session_heartbeat", 5)
    for _ in range(3):
        # by now the response was read, and one more heartbeat would have been sent
        service.get_server_capabilities()
        clock.advance(10, idle=True)
    assert len(wire.requests("session_heartbeat")) == 5


def test_silence_is_reported_once(
    connect: Connect, wire: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Two minutes without a successful heartbeat cause one warning."""
    connect().create_lora_training_client("tinker/toy").result(10)
    wire.wait_for("session_heartbeat", 1)
    wire.fail("session_heartbeat", 503, times=15)
    with caplog.at_level(logging.WARNING, "tinker"):
        for beat in range(15):
            clock.advance(10)
            wire.wait_for("session_heartbeat", beat + 2)
        clock.advance(10)
    assert sum("no heartbeat has succeeded" in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(None, "success"), (ValueError, "errored"), (KeyboardInterrupt, "interrupted")],
)
def test_a_with_block_finishes_the_session(
    connect: Connect, wire: Any, error: type[BaseException] | None, reason: str
) -> None:
    """Leaving a with block finishes the session with the reason; later calls on the client are
    refused.
    """
    service = connect()

    def block() -> None:
        with service:
            service.create_lora_training_client("tinker/toy").result(10)
            if error is not None:
                raise error

    if error is None:
        block()
    else:
        with pytest.raises(error):
            block()
    (finish,) = [one for one in wire.exchanges if one.operation.endswith("/finish")]
    assert finish.json == {"reason": {"type": reason}, "detail": None}
    with pytest.raises(tinker.ClientClosedError):
        service.create_sampling_client(base_model="x")


def test_closing_fails_pending_futures(connect: Connect, wire: Any) -> None:
    """A future whose client is closed before the result arrives raises an error that says so."""
    service = connect()
    training = service.create_lora_training_client("tinker/toy").result(10)
    wire.fail(
        "retrieve_future",
        200,
        body={"type": "try_again", "request_id": "x", "queue_state": "active"},
        times=10**9,
    )
    future = training.optim_step(tinker.AdamParams())
    wire.wait_for("retrieve_future", len(wire.requests("retrieve_future")) + 1)
    service.close().result(10)
    with pytest.raises(tinker.ClientClosedError, match="the client is closed"):
        future.result(10)
    wire.faults.clear()


def test_messages_of_the_server_are_logged(
    connect: Connect, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages of the server for the user are logged at their level."""
    wire.fail(
        "create_session",
        200,
        body={"session_id": "s", "warning_message": "old client", "error_message": "very old"},
    )
    wire.fail("create_model", 400)
    with caplog.at_level(logging.INFO, "tinker"):
        connect().create_lora_training_client("tinker/toy").exception(10)
    levels = {record.message: record.levelname for record in caplog.records}
    assert levels["old client"] == "WARNING"
    assert levels["very old"] == "ERROR"


def test_failed_start_is_retried(connect: Connect, wire: Any) -> None:
    """A session that could not be created fails the requests that wait for it; the next request
    tries again.
    """
    service = connect()
    wire.fail("create_session", 401, body={"detail": "bad key"})
    with pytest.raises(tinker.AuthenticationError, match="bad key"):
        service.create_lora_training_client("tinker/toy").result(10)
    service.create_lora_training_client("tinker/toy").result(10)


def test_start_gives_up(connect: Connect, wire: Any, clock: Any) -> None:
    """If the server is unreachable, the first request fails after a minute of attempts."""
    wire.drop("client/config", apply=False, times=1000)
    began = clock.now
    with pytest.raises(tinker.APIConnectionError):
        connect().create_lora_training_client("tinker/toy").result(10)
    assert clock.now - began <= 61
    wire.faults.clear()


def test_missing_key_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the hosted service, a missing key is refused on the user's line, with advice; other
    servers need none.
    """
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(tinker.TinkerError, match="local://"):
        tinker.ServiceClient().create_lora_training_client("x")
    with pytest.raises(ValueError, match="base_url must start with"):
        tinker.ServiceClient(base_url="server").create_lora_training_client("x")


def test_unknown_arguments_warn() -> None:
    """Unknown arguments are named in a warning and ignored."""
    with pytest.warns(FutureWarning, match="unknown arguments: speed, volume"):
        tinker.ServiceClient(speed=1, volume=2)


def error_of(future: tinker.APIFuture[Any]) -> BaseException:
    error = future.exception(10)
    assert error is not None
    return error


def test_errors_hold_no_secrets_and_pickle(connect: Connect, wire: Any) -> None:
    """An error keeps request and response, without the key, through pickle and deepcopy."""
    wire.fail(
        "create_model", 422, body={"detail": "no"}, headers={"x-trace": "t1", "set-cookie": "key=1"}
    )
    original = error_of(connect().create_lora_training_client("tinker/toy"))
    assert not {"request", "response"} & original.__dict__.keys(), (
        "these are made only when somebody looks"
    )
    for error in (original, pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert isinstance(error, tinker.UnprocessableEntityError)
        assert (error.status_code, error.body, error.operation) == (
            422,
            {"detail": "no"},
            "create_model",
        )
        assert error.response.headers["x-trace"] == "t1"
        assert error.response.request is error.request
        seen = (
            f"{error!r} {error} {error.request.headers!r} {error.response.headers!r} "
            f"{error.__dict__!r}"
        )
        assert "tml-secret" not in seen
        assert "key=1" not in seen


def test_keys_do_not_follow_to_another_host(connect: Connect, wire: Any) -> None:
    """A redirect to another origin is followed without credentials; one on the same origin with
    them.
    """
    there = {"location": "http://elsewhere/api/v1/get_server_capabilities"}
    wire.fail("get_server_capabilities", 302, headers=there, outside="a proxy's redirect")
    service = connect(default_headers_overrides={"Authorization": "Bearer b"})
    service.get_server_capabilities()
    here = {"location": "/api/v1/get_server_capabilities"}
    wire.fail("get_server_capabilities", 307, headers=here, outside="a proxy's redirect")
    service.get_server_capabilities()
    headers = [one.request.headers for one in wire.requests("get_server_capabilities")]
    assert ["x-api-key" in one for one in headers] == [True, False, True, True]
    assert ["authorization" in one for one in headers] == [True, False, True, True]


@pytest.mark.parametrize("status", [307, 308])
def test_access_tokens_do_not_follow_to_another_host(
    connect: Connect, wire: Any, status: int
) -> None:
    """A request with an access token in its body is not sent to another origin; one on the same
    origin receives it.
    """
    training = connect().create_lora_training_client("tinker/toy").result(10)
    path = training.save_state("a").result(10).path
    there = {"location": "http://elsewhere/api/v1/load_weights"}
    wire.fail("load_weights", status, headers=there, outside="a proxy's redirect")
    with pytest.raises(tinker.APIStatusError) as caught:
        training.load_state(path, weights_access_token="hush").result(10)
    assert caught.value.status_code == status
    assert "not sent to another server" in caught.value.__notes__[0]
    assert [one.request.url.host for one in wire.requests("load_weights")] == ["server"]
    other = connect().create_lora_training_client("tinker/toy").result(10)
    wire.fail(
        "load_weights",
        status,
        headers={"location": "/api/v1/load_weights"},
        outside="a proxy's redirect",
    )
    other.load_state(path, weights_access_token="hush").exception(10)
    assert [one.json["weights_access_token"] for one in wire.requests("load_weights")] == [
        "hush"
    ] * 3
    elsewhere = connect().create_lora_training_client("tinker/toy").result(10)
    wire.fail("load_weights", status, headers=there, outside="a proxy's redirect")
    elsewhere.load_state(path).exception(10)
    assert wire.requests("load_weights")[-1].request.url.host == "elsewhere"


def test_headers_of_the_user_stay_with_the_server(connect: Connect, wire: Any) -> None:
    """The user's default headers do not follow a redirect to another origin."""
    service = connect(default_headers_overrides={"X-Gateway": "hush"})
    there = {"location": "http://elsewhere/api/v1/get_server_capabilities"}
    wire.fail("get_server_capabilities", 302, headers=there, outside="a proxy's redirect")
    service.get_server_capabilities()
    first, second = (one.request.headers for one in wire.requests("get_server_capabilities"))
    assert first["x-gateway"] == "hush"
    assert "x-gateway" not in second


def test_headers_and_queries_of_the_user_are_in_no_error(connect: Connect) -> None:
    """They are sent, but do not appear in the text, the request or the pickle of an error."""
    asked: list[httpx.Request] = []

    class Refusing(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            asked.append(request)
            return httpx.Response(404)

    service = connect(
        default_headers_overrides={"X-Gateway": "hush"},
        default_query={"token": "hush"},
        transport=Refusing(),
    )
    with pytest.raises(tinker.NotFoundError) as caught:
        service.create_rest_client().list_sessions(limit=3).result(10)
    assert (asked[-1].headers["x-gateway"], dict(asked[-1].url.params)["token"]) == ("hush", "hush")
    error = caught.value
    assert "limit=3" in str(error.request.url)
    assert b"hush" not in pickle.dumps(error)
    assert "hush" not in (
        f"{error} {error.request.url} {error.request.headers.raw} "
        f"{error.response.request.headers.raw}"
    )


def test_key_is_in_no_repr(connect: Connect) -> None:
    """Neither the client nor its settings show the key."""
    service = connect()
    service.create_lora_training_client("tinker/toy").result(10)
    assert "tml-secret" not in repr(service) + repr(vars(service)) + repr(service._opened)


def test_paths_cannot_be_escaped(connect: Connect) -> None:
    """An id that would change the path of a request is refused on the user's line."""
    rest = tinker.RestClient(
        base_url="http://server", transport=httpx.MockTransport(lambda _: httpx.Response(500))
    )
    with pytest.raises(ValueError, match="cannot be part of a path"):
        rest.get_sampler("../../x")


def test_import_loads_little() -> None:
    """Importing the package loads neither torch, transformers, rich and click nor an HTTP stack."""
    heavy = "{'torch', 'transformers', 'rich', 'click', 'httpx', 'httpunk', 'numpy'}"
    code = f"import sys, tinker; print({heavy} & sys.modules.keys())"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "set()"
    )


def test_numpy_is_imported_with_the_first_array() -> None:
    """numpy is loaded with the first array: the package's names and clients that send no arrays do
    not need it.
    """
    with running_server(engine="toy") as url:
        code = (
            "import sys, tinker\n"
            "tinker.ServiceClient, tinker.Datum, tinker.ModelInput, tinker.TensorData, "
            "tinker.SamplingParams(max_tokens=2)\n"
            f"tinker.ServiceClient(base_url={url!r}).create_rest_client().list_sessions().result(30)\n"
            "print('numpy' in sys.modules, "
            "tinker.ModelInput.from_ints([1]).length, 'numpy' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert done.stdout.split() == ["False", "1", "True"]


def test_a_server_without_tls() -> None:
    """If a server responds in plain text to https://, the error says to write http://."""
    with running_server(engine="toy") as url:
        rest = tinker.ServiceClient(
            base_url=url.replace("http:", "https:"), patience_seconds=0
        ).create_rest_client()
        with pytest.raises(
            tinker.APIConnectionError, match="does not use TLS: write http:// instead of https://"
        ):
            rest.list_training_runs().result(30)


@pytest.mark.httpunk("httpx does not say why it could not connect")
def test_an_unreachable_server() -> None:
    """The error states the address that refuses the connection, the system's message, and what to
    check.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    rest = tinker.ServiceClient(
        base_url=f"http://127.0.0.1:{port}", patience_seconds=0
    ).create_rest_client()
    words = (
        rf"could not connect to 127.0.0.1:{port}: {os.strerror(ECONNREFUSED)}. Check that the "
        r"server is running .*, and its address"
    )
    with pytest.raises(tinker.APIConnectionError, match=words):
        rest.list_sessions().result(10)


@pytest.mark.httpunk("httpx does not say why it could not connect")
@pytest.mark.parametrize("wrong", ["port", "scheme", "host"])
@pytest.mark.parametrize("patience", [None, 30.0])
def test_probably_wrong_addresses_fail_early(
    wrong: str, patience: float | None, clock: SteppedClock
) -> None:
    """TLS errors of a plain server, refusals on this machine and unknown hosts end within ten
    seconds unless a patience is set.
    """
    began = clock.now
    with running_server(engine="toy") as url:
        used = url.replace("http:", "https:") if wrong == "scheme" else "http://[fe80::1%25unknown]"
        if wrong == "port":
            with socket.create_server(("127.0.0.1", 0)) as listener:
                used = f"http://127.0.0.1:{listener.getsockname()[1]}"
        service = tinker.ServiceClient(
            base_url=used, clock=clock.clock(), patience_seconds=patience
        )
        with pytest.raises(tinker.APIConnectionError) as caught:
            service.create_lora_training_client("tinker/toy").result(30)
        assert caught.value.wrong_address
        assert (clock.now - began <= 10) == (patience is None)


def test_a_local_server_that_restarts(clock: SteppedClock) -> None:
    """A server that has responded before is retried for as long as any other."""
    with running_server(engine="toy") as url:
        rest = tinker.ServiceClient(base_url=url, clock=clock.clock()).create_rest_client()
        rest.list_sessions().result(30)
    began = clock.now
    with pytest.raises(tinker.APIConnectionError) as caught:
        rest.list_sessions().result(30)
    assert not caught.value.wrong_address
    assert clock.now - began > 30


def test_closing_ends_requests_that_wait_for_the_session(
    connect: Connect, wire: Any, clock: Any
) -> None:
    """Closing a client while its first request gets no response ends it after some seconds, with an
    error that says so.
    """
    service = connect()
    release = wire.hold("create_session")
    training = service.create_lora_training_client("tinker/toy")
    wire.wait_for("create_session")
    closed = service.close()
    clock.advance(5)
    closed.result(10)
    with pytest.raises(tinker.ClientClosedError):
        training.result(10)
    release()


def test_requests_after_closing(
    connect: Connect, wire: Any, datum: Callable[..., tinker.Datum]
) -> None:
    """A request made after closing reports that the client is closed, not that it was closed in the
    meantime.
    """
    service = connect()
    training = service.create_lora_training_client("tinker/toy").result(10)
    service.close().result(10)
    sent = len(wire.exchanges)
    with pytest.raises(tinker.ClientClosedError, match="is closed"):
        training.forward_backward([datum()], "cross_entropy").result(10)
    assert len(wire.exchanges) == sent


def test_reports_are_sent_while_the_session_lasts(connect: Connect, wire: Any, clock: Any) -> None:
    """If the user allows reports, they are sent after ten seconds, not only at the end."""
    service = connect(telemetry=True)
    service.create_lora_training_client("tinker/toy").result(10)
    clock.advance(10)
    assert [event["event"] for event in wire.wait_for("telemetry")[0].json["events"]] == [
        "SESSION_START"
    ]


def test_unfinished_requests_are_logged(
    connect: Connect, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing a client with unfinished requests logs their number."""
    service = connect()
    release = wire.hold("create_model")
    service.create_lora_training_client("tinker/toy").save_state("final")
    wire.wait_for("create_model")
    closed = service.close()
    release()
    closed.result(10)
    (said,) = [
        record.getMessage() for record in caplog.records if "may be lost" in record.getMessage()
    ]
    assert said.startswith(
        "2 requests, create_lora_training_client to save_state, had not finished "
        "when the client was closed"
    )


def test_a_client_without_unfinished_requests_logs_nothing(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing a client whose requests have finished, or which was interrupted, logs nothing."""
    service = connect()
    service.create_lora_training_client("tinker/toy").save_state("final").result(10)
    service.close().result(10)
    interrupted = connect()
    interrupted.create_lora_training_client("tinker/toy")
    interrupted.close("interrupted").result(10)
    assert "may be lost" not in caplog.text


@pytest.mark.parametrize("closes", [False, True])
def test_a_program_that_does_not_wait(closes: bool) -> None:
    """A program that ends without waiting logs once which requests may be lost."""
    end = "service.close().result()" if closes else ""
    script = f"""
import tinker
service = tinker.ServiceClient(base_url="local://toy")
service.create_lora_training_client("tinker/toy").save_state("final")
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (
        done.stderr.count("create_lora_training_client to save_state, had not finished when the")
        == 1
    )
    assert ("the client was closed" if closes else "the program ended") in done.stderr


END = """
import tinker
service = tinker.ServiceClient(base_url="local://toy")
training = service.create_lora_training_client("tinker/toy")
{then}
"""


@pytest.mark.parametrize(
    ("then", "last_line"),
    [
        ("", ""),
        ("raise KeyError('mine')", "KeyError: 'mine'"),
        (
            "[training.save_state(str(n)) for n in range(40)][0].result(); raise KeyError('mine')",
            "call .result() on the last request to wait",
        ),
        (
            "[training.save_state(str(n)) for n in range(40)][0].result()",
            "call .result() on the last request to wait",
        ),
    ],
)
def test_log_at_the_end_of_a_program(then: str, last_line: str) -> None:
    """Requests ended by the end of the program are logged in one line, after a traceback too."""
    done = subprocess.run(
        [sys.executable, "-c", END.format(then=then)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.rstrip().endswith(last_line)
    assert done.stderr.count("may be lost") == last_line.endswith("to wait")
    assert "failed" not in done.stderr


def test_user_records_at_the_end_of_a_program() -> None:
    """Records that the program logs under the package's name at exit are still shown."""
    script = (
        "import atexit, logging\natexit.register(logging.getLogger('tinker').warning, 'mine')\n"
        + END.format(then="")
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.rstrip().endswith("mine")
