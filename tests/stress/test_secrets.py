"""Keys and passwords do not appear in tracebacks, logs or pickles."""

from __future__ import annotations

import base64
import gzip
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from httpunk import H2Reason
from support.http2_server import Connection, Request, http2_server
from support.raw_server import RawServer, raw, raw_server
from support.tls import authority, server_context

import tinker
from tinker._http import messages as _messages

KEY, PASSWORD, TOKEN = "tml-very-secret", "hush-hush", "eyJh.token-secret.x"
PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawServer]:
    """Yield the server, for all tests of this module."""
    with raw_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(shared: RawServer) -> Iterator[RawServer]:
    """Yield the server, with nothing scripted."""
    shared.forget()
    yield shared
    shared.forget()


def variables(error: BaseException | None) -> Iterator[str]:
    """Yield every variable of every frame of an error and its causes, as error reporting tools show
    them.
    """
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            yield from (
                f"{frame.f_code.co_qualname}: {name} = {value!r}"
                for name, value in frame.f_locals.items()
            )
        yield f"{error!r} {error.__dict__!r}"
        error = error.__cause__ or error.__context__


def leaks(error: BaseException | None) -> list[str]:
    basic = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    secrets = (KEY, PASSWORD, TOKEN, basic)
    return [line for line in variables(error) if any(secret in line for secret in secrets)]


WAYS: dict[str, Callable[[RawServer], None]] = {
    "broken": lambda server: server.script("*", b""),
    "garbled": lambda server: server.script("*", b"\xff\xff\r\n\r\n"),
    "refused": lambda server: server.script("*", raw(401, b'{"detail": "no"}', JSON)),
    "unreadable": lambda server: server.script("*", raw(200, b"7", JSON)),
    "redirected": lambda server: server.script(
        "*", raw(307, b"", {"location": "http://127.0.0.1:9/"})
    ),
}


@pytest.mark.parametrize("way", [*WAYS, "unreachable", "through a proxy"])
def test_frames_of_errors_hold_no_secrets(
    way: str, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails, no variable of ours on the way up to the error shows the key, a password or a
    secret of the query.
    """
    url = server.url.replace("//", f"//me:{PASSWORD}@")
    if way == "unreachable":
        url = f"http://me:{PASSWORD}@127.0.0.1:9"
    if way == "through a proxy":
        monkeypatch.setenv("TINKER_PROXY", f"http://me:{PASSWORD}@127.0.0.1:9")
    WAYS.get(way, lambda _: None)(server)
    service = tinker.ServiceClient(
        base_url=url, api_key=KEY, default_query={"q": TOKEN}, patience_seconds=0
    )
    error = service.create_sampling_client(base_model="tinker/toy").exception(30)
    assert isinstance(error, tinker.APIError)
    assert leaks(error) == []
    service.close().result(30)


def reset(connection: Connection, request: Request) -> None:
    connection.reset(request, H2Reason.INTERNAL_ERROR)


def break_off(connection: Connection, _: Request) -> None:
    connection.break_off()


def break_the_protocol(connection: Connection, _: Request) -> None:
    connection.send(b"no frame" * 9)


@pytest.mark.parametrize("end", [reset, break_off, break_the_protocol])
def test_frames_of_errors_over_http2_hold_no_secrets(
    end: Callable[[Connection, Request], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable of a failed HTTP/2 connection shows a secret."""

    async def script(connection: Connection) -> None:
        while True:
            request = await connection.head()
            if request.path.endswith("/create_session"):
                end(connection, request)
            else:
                await connection.answer(request)

    authority().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("TINKER_CA_FILE", str(tmp_path / "ca.pem"))
    with (
        http2_server(script, ssl_context=server_context("h2")) as server,
        tinker.ServiceClient(base_url=server.url, api_key=KEY, patience_seconds=0) as service,
    ):
        error = service.create_sampling_client(base_model="tinker/toy").exception(30)
    assert isinstance(error, tinker.APIConnectionError)
    assert "certificate" not in str(error)
    assert leaks(error) == []


def test_frames_of_errors_of_a_transport_hold_no_secrets() -> None:
    """No variable of a failed transport of the user's shows a secret."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no way")

    transport = httpx.MockTransport(refuse)
    service = tinker.ServiceClient(
        base_url="http://server", api_key=KEY, transport=transport, patience_seconds=0
    )
    error = service.create_sampling_client(base_model="tinker/toy").exception(30)
    assert isinstance(error, tinker.APIConnectionError)
    assert leaks(error) == []


def test_frames_of_errors_of_the_exchange_hold_no_secrets(server: RawServer) -> None:
    """No variable of a failed token exchange, or of a request with the token, shows a secret."""
    for answer in (raw(500, b"{}", JSON), raw(200, b'{"jwt": 7}', JSON)):
        server.forget()
        server.script("client_config", raw(200, b'{"pjwt_auth_enabled": true}', JSON), times=1)
        server.script("auth_token", answer)
        with tinker.ServiceClient(base_url=server.url, api_key=KEY, patience_seconds=0) as service:
            assert (
                leaks(service.create_sampling_client(base_model="tinker/toy").exception(30)) == []
            )
    server.forget()
    server.script("client_config", raw(200, b'{"pjwt_auth_enabled": true}', JSON), times=1)
    server.script("auth_token", raw(200, f'{{"jwt": "{TOKEN}"}}'.encode(), JSON))
    server.script("create_session", b"")
    with tinker.ServiceClient(base_url=server.url, api_key=KEY, patience_seconds=0) as service:
        error = service.create_sampling_client(base_model="tinker/toy").exception(30)
    assert server.headers["create_session"]["x-api-key"] == TOKEN
    assert leaks(error) == []


@pytest.mark.parametrize("printed", [f"{KEY}\nmore".encode(), b"", f"{KEY} \xff".encode("latin-1")])
def test_what_a_command_prints_is_in_no_error(
    printed: bytes, server: RawServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A command whose output cannot be a credential fails the request with an error that shows
    nothing of it.
    """
    (tmp_path / "printed").write_bytes(printed)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", f"cat {tmp_path / 'printed'}")
    with tinker.ServiceClient(base_url=server.url, patience_seconds=0) as service:
        error = service.create_sampling_client(base_model="tinker/toy").exception(30)
    assert isinstance(error, tinker.TinkerError)
    assert "TINKER_CREDENTIAL_CMD" in str(error)
    assert leaks(error) == []


def test_a_password_in_the_address(server: RawServer, caplog: pytest.LogCaptureFixture) -> None:
    """It is sent to the server, and is in no handle, pickle, log or error."""
    url = server.url.replace("//", f"//me:{PASSWORD}@")
    with caplog.at_level(logging.DEBUG), tinker.ServiceClient(base_url=url, api_key=KEY) as service:
        sampler = service.create_sampling_client(base_model="tinker/toy").result(30)
        assert sampler.sample(PROMPT, 1, PARAMS).result(30).sequences
        server.script("asample", raw(400, b'{"detail": "no"}', JSON))
        error = sampler.sample(PROMPT, 1, PARAMS).exception(30)
        handle = sampler.get_sampler_handle()
        travelling = [base64.urlsafe_b64decode(handle), pickle.dumps(sampler), pickle.dumps(error)]
    assert (
        base64.b64decode(server.headers["asample"]["authorization"].removeprefix("Basic "))
        == f"me:{PASSWORD}".encode()
    )
    assert server.url in handle or server.url.encode() in travelling[0]
    assert not any(PASSWORD.encode() in one or b"bWU6" in one for one in travelling)
    assert PASSWORD not in caplog.text + str(error) + repr(error)


def test_a_bomb(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that unpacks to far more than it was is an error of this package, which says so."""
    monkeypatch.setattr(_messages, "MAX_UNPACKED_NBYTES", 1 << 20)
    server.script(
        "client_config",
        raw(200, gzip.compress(bytes(64 << 20)), {**JSON, "content-encoding": "gzip"}),
    )
    with tinker.ServiceClient(base_url=server.url, api_key=KEY, patience_seconds=0) as service:
        error = service.create_sampling_client(base_model="tinker/toy").exception(30)
    assert isinstance(error, tinker.ResponseTooLargeError)
    assert "larger than 1,048,576 bytes" in str(error)
