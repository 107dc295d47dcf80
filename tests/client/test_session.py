"""Sessions: start, heartbeats, end, and the contents of requests."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from errno import ECONNREFUSED
from typing import Any

import httpx
import pytest
from support.addresses import refusing_address
from support.queue_news import waiting
from support.tls import server_context

import tinker
from tinker.local import running_server
from tinker.testing import SteppedClock, toy_server

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()


def test_start_up(connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is created with the client's metadata, and all clients of a service share it."""
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
    """The user agent names this client; the version on the wire is the official or a given one."""
    monkeypatch.setenv("TINKER_SDK_VERSION", "0.7.0")
    service = connect(default_headers_overrides={"X-Team": "blue"})
    service.create_lora_training_client("tinker/toy").result(10)
    headers = wire.exchanges[0].request.headers
    assert headers["user-agent"].startswith("tinker-open-client/0.38.0")
    assert (headers["x-team"], headers["x-api-key"]) == ("blue", "tml-secret")
    assert wire.requests("create_session")[0].json["sdk_version"] == "0.7.0"


def test_heartbeats(connect: Connect, wire: Any, clock: Any) -> None:
    """A heartbeat is sent every ten seconds, also after failures, until the session is ended."""
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


@pytest.mark.parametrize(
    ("error", "reason"),
    [(None, "success"), (ValueError, "errored"), (KeyboardInterrupt, "interrupted")],
)
def test_a_with_block_finishes_the_session(
    connect: Connect, wire: Any, error: type[BaseException] | None, reason: str
) -> None:
    """Leaving a with block finishes the session with the reason, and later calls are refused."""
    service = connect()
    with contextlib.suppress(error or ()), service:
        service.create_lora_training_client("tinker/toy").result(10)
        if error is not None:
            raise error
    (finish,) = [one for one in wire.exchanges if one.operation.endswith("/finish")]
    assert finish.json == {"reason": {"type": reason}, "detail": None}
    with pytest.raises(tinker.ClientClosedError):
        service.create_sampling_client(base_model="x")


def test_closing_fails_pending_futures(connect: Connect, wire: Any) -> None:
    """A future whose client is closed before the result arrives raises an error that says so."""
    service = connect()
    training = service.create_lora_training_client("tinker/toy").result(10)
    wire.fail("retrieve_future", 200, body=waiting("active"), times=10**9)
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
    said = {"warning_message": "old client", "error_message": "very old"}
    wire.fail("create_session", 200, body={"session_id": "s", **said})
    wire.fail("create_model", 400)
    with caplog.at_level(logging.INFO, "tinker"):
        connect().create_lora_training_client("tinker/toy").exception(10)
    levels = {record.message: record.levelname for record in caplog.records}
    assert levels["old client"] == "WARNING"
    assert levels["very old"] == "ERROR"


def test_failed_start_is_retried(connect: Connect, wire: Any) -> None:
    """A session that cannot be created fails what waits for it; the next request tries again."""
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


def test_errors_hold_no_secrets_and_pickle(connect: Connect, wire: Any) -> None:
    """An error keeps request and response, without the key, through pickle and deepcopy."""
    headers = {"x-trace": "t1", "set-cookie": "key=1"}
    wire.fail("create_model", 422, body={"detail": "no"}, headers=headers)
    original = connect().create_lora_training_client("tinker/toy").exception(10)
    # these are made only when somebody looks
    assert not {"request", "response"} & original.__dict__.keys()
    for error in (original, pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert isinstance(error, tinker.UnprocessableEntityError)
        assert (error.status_code, error.operation) == (422, "create_model")
        assert error.body == {"detail": "no"}
        assert error.response.headers["x-trace"] == "t1"
        assert error.response.request is error.request
        seen = f"{error!r} {error} {error.request.headers!r} {error.response.headers!r}"
        for secret in ("tml-secret", "key=1"):
            assert secret not in f"{seen} {error.__dict__!r}"


@pytest.mark.parametrize("status", [307, 308])
def test_access_tokens_do_not_follow_to_another_host(
    connect: Connect, wire: Any, status: int
) -> None:
    """A body with an access token is not sent to another origin; to the same one it is."""
    path = "tinker://some-run/weights/a"

    def load(origin: str, **given: str) -> tuple[BaseException | None, list[str]]:
        """Return the error, and the hosts that were asked, of a load that is redirected."""
        training = connect().create_lora_training_client("tinker/toy").result(10)
        before = len(wire.requests("load_weights"))
        to = {"location": f"{origin}/api/v1/load_weights"}
        wire.fail("load_weights", status, headers=to, outside="a proxy's redirect")
        error = training.load_state(path, **given).exception(10)
        asked = wire.requests("load_weights")[before:]
        assert [one.json.get("weights_access_token") for one in asked] == (
            [given.get("weights_access_token")] * len(asked)
        )
        return error, [one.request.url.host for one in asked]

    error, hosts = load("http://elsewhere", weights_access_token="hush")
    assert isinstance(error, tinker.APIStatusError)
    assert (error.status_code, hosts) == (status, ["server"])
    assert "not sent to another server" in error.__notes__[0]
    assert load("", weights_access_token="hush")[1] == ["server"] * 2
    assert load("http://elsewhere")[1] == ["server", "elsewhere"]


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
    error, request = caught.value, caught.value.request
    assert "limit=3" in str(request.url)
    assert b"hush" not in pickle.dumps(error)
    assert "hush" not in f"{error} {request.url} {request.headers.raw} {error.response.request!r}"
    assert "hush" not in f"{error.response.request.headers.raw}"


def test_key_is_in_no_repr(connect: Connect) -> None:
    """Neither the client nor its settings show the key."""
    service = connect()
    service.create_lora_training_client("tinker/toy").result(10)
    assert "tml-secret" not in repr(service) + repr(vars(service)) + repr(service._opened)


@pytest.mark.httpunk("httpx does not say why it could not connect")
def test_an_unreachable_server() -> None:
    """The error states the address, the system's message, and what to check."""
    advice = r"Check that the server is running .*, and its address"
    with refusing_address() as where:
        service = tinker.ServiceClient(base_url=f"http://{where}", patience_seconds=0)
        refused = rf"could not connect to {where}: {os.strerror(ECONNREFUSED)}. "
        with pytest.raises(tinker.APIConnectionError, match=refused + advice):
            service.create_rest_client().list_sessions().result(10)


@pytest.mark.httpunk("httpx does not say why it could not connect")
@pytest.mark.parametrize("wrong", ["port", "scheme", "host", "certificate"])
@pytest.mark.parametrize("patience", [None, 30.0])
def test_probably_wrong_addresses_fail_early(
    wrong: str, patience: float | None, clock: SteppedClock
) -> None:
    """TLS errors, local refusals and unknown hosts end early, unless a patience is set."""
    began = clock.now
    context = server_context("http/1.1") if wrong == "certificate" else None
    with running_server(engine="toy", ssl_context=context) as url, refusing_address() as where:
        used = {
            "port": f"http://{where}",
            "scheme": url.replace("http:", "https:"),
            "host": "http://[fe80::1%25unknown]",
            "certificate": url,
        }[wrong]
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
    """Closing a client ends a first request that gets no response, after some seconds."""
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
    """A request made after closing reports that the client is closed."""
    service = connect()
    training = service.create_lora_training_client("tinker/toy").result(10)
    service.close().result(10)
    sent = len(wire.exchanges)
    with pytest.raises(tinker.ClientClosedError, match="is closed"):
        training.forward_backward([datum()], "cross_entropy").result(10)
    assert len(wire.exchanges) == sent


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


# Programs


def run_program(code: str) -> tuple[str, str]:
    """Return what a program prints and logs."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip(), done.stderr.rstrip()


def test_import_loads_little() -> None:
    """Importing the package loads neither torch, transformers, rich and click nor an HTTP stack."""
    heavy = "{'torch', 'transformers', 'rich', 'click', 'httpx', 'httpunk', 'numpy'}"
    said = run_program(f"import sys, tinker; print({heavy} & sys.modules.keys())")
    assert said == ("set()", "")


def test_numpy_is_imported_with_the_first_array() -> None:
    """Neither the package's names nor clients that send no arrays load numpy or OpenTelemetry."""
    with running_server(engine="toy") as url:
        said = run_program(f"""
import sys, tinker
tinker.ServiceClient, tinker.Datum, tinker.TensorData, tinker.SamplingParams(max_tokens=2)
tinker.ServiceClient(base_url={url!r}).create_rest_client().list_sessions().result(30)
print([name for name in sys.modules if name.startswith("opentelemetry")])
print('numpy' in sys.modules, tinker.ModelInput.from_ints([1]).length, 'numpy' in sys.modules)
""")
    assert said == ("[]\nFalse 1 True", "")


PROGRAM = """
import tinker
service = tinker.ServiceClient(base_url="local://toy")
training = service.create_lora_training_client("tinker/toy")
"""
FINAL, MANY = (
    "training.save_state('final')",
    "[training.save_state(str(n)) for n in range(40)][0].result()",
)
FROM_TO = "2 requests, create_lora_training_client to save_state, had not finished when the"
TO_WAIT = "call .result() on the last request to wait"


@pytest.mark.parametrize(
    ("then", "words", "last_line"),
    [
        ("", "", ""),
        ("raise KeyError('mine')", "", "KeyError: 'mine'"),
        (f"{MANY}; raise KeyError('mine')", "KeyError: 'mine'", TO_WAIT),
        (MANY, "", TO_WAIT),
        (FINAL, f"{FROM_TO} program ended", TO_WAIT),
        (f"{FINAL}; service.close().result()", f"{FROM_TO} client was closed", TO_WAIT),
    ],
)
def test_log_at_the_end_of_a_program(then: str, words: str, last_line: str) -> None:
    """Requests that the end of a program ends are logged in one line, after a traceback too."""
    with toy_server() as server, server.on_port() as url:
        # however late the program ends, no more than the first save has finished
        if MANY in then:
            server.delay_next("save_weights", 0.0)
        server.hang_next("save_weights" if MANY in then else "create_model", times=100)
        _, said = run_program(PROGRAM.replace("local://toy", url) + then)
        server.forget()
    assert said.endswith(last_line)
    assert words in said
    assert said.count("may be lost") == (last_line == TO_WAIT)
    assert "failed" not in said


def test_user_records_at_the_end_of_a_program() -> None:
    """Records that the program logs under the package's name at exit are still shown."""
    first = "import atexit, logging\natexit.register(logging.getLogger('tinker').warning, 'mine')"
    assert run_program(first + PROGRAM)[1].endswith("mine")
