"""Invalid responses on a real port: each is a typed error, or retried if it may be temporary."""

from __future__ import annotations

import asyncio
import gc
import gzip
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.raw_server import RawServer, raw, raw_server

import tinker
from tinker._loop import Clock

PROMPT, PARAMS, ADAM = (
    tinker.ModelInput.from_ints([104, 105]),
    tinker.SamplingParams(max_tokens=4),
    tinker.AdamParams(),
)
DEEP = b"[" * 100_000 + b"]" * 100_000
LATIN = b"x-a: caf\xe9"
JSON = {"content-type": "application/json"}

BAD = {
    "latin-1 in a header of a 500": raw(500, b"{}", JSON, LATIN),
    "utf-8 in a header of a 503": raw(503, b"{}", JSON, "x-a: café ☃".encode()),
    "latin-1 in a header of a 429": raw(429, b"{}", JSON, LATIN, b"retry-after: \xe9"),
    "latin-1 in a header of a 400": raw(400, b'{"detail": "no"}', JSON, LATIN),
    "latin-1 in a header of a 401": raw(401, b"{}", JSON, b"www-authenticate: \xe9"),
    "latin-1 in a header of a useless 200": raw(200, b"7", JSON, LATIN),
    "latin-1 as the media type": raw(200, b"7", None, b"content-type: \xe9"),
    "deep JSON as a 200": raw(200, DEEP, JSON),
    "deep JSON as a 400": raw(400, DEEP, JSON),
    "deep JSON as a 500": raw(500, DEEP, JSON),
    "deep JSON as a 408": raw(408, DEEP, JSON),
    "deep JSON in an unknown field of a 200": raw(200, b'{"what": ' + DEEP + b"}", JSON),
    "deep JSON in an unknown field of a 500": raw(500, b'{"what": ' + DEEP + b"}", JSON),
    "JSON that is deep, but not too deep to read": raw(500, b"[" * 900 + b"]" * 900, JSON),
    "a redirect to no URL": raw(307, b"", {"location": "http://[::1:9/"}),
    "a redirect to a port that is none": raw(308, b"", {"location": "http://host:port/"}),
    "a redirect to another scheme": raw(307, b"", {"location": "file:///etc/passwd"}),
    "a redirect to bytes": raw(307, b"", None, b"location: http://\xe9\xff/\x01"),
    "a redirect to itself": raw(307, b"", {"location": ""}),
    "a redirect without an address": raw(307, b""),
    "a body of 5 MB": raw(500, b'{"detail": "' + b"x" * 5_000_000 + b'"}', JSON),
    "text of 5 MB": raw(400, "é".encode() * 2_500_000),
    "a body that is not packed": raw(200, b"{}", {**JSON, "content-encoding": "gzip"}),
    "a packed body that is cut": raw(
        200, gzip.compress(b"{}" * 1000)[:-9], {**JSON, "content-encoding": "gzip"}
    ),
    "a packing that nobody asked for": raw(200, b"{}", {**JSON, "content-encoding": "br"}),
    "a length below 0": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}",
    "a length without an end": b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000000000000\r\n\r\n{}",
    "chunks that are none": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}",
    "a head that is none": b"\xff\xfe\r\n\r\n",
    "a head that is too long": b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 100_000 + b"\r\n\r\n{}",
    "no body": raw(200, b"", JSON),
    "null": raw(200, b"null", JSON),
    "half a character": raw(200, b'{"detail": "\xc3', JSON),
    "numbers beyond all types": raw(
        200, b'{"request_id": 1e999, "metrics": {"loss:sum": 1e999}}', JSON
    ),
    "a size, again and again": raw(
        200, b'{"status": "complete_metadata", "response_payload_size": -3}', JSON
    ),
    "protobuf that is none": raw(200, b"\xff" * 100, {"content-type": "application/x-protobuf"}),
    "a hint beyond all times": raw(503, b"{}", {"retry-after": "9" * 400}),
    "a hint of a year that is none": raw(
        503, b"{}", {"retry-after": "Thu, 99 Xyz 99999 99:99:99 GMT"}
    ),
}

# What may pass: the second answer is the server's own.
PASSING = (
    "latin-1 in a header of a 500",
    "utf-8 in a header of a 503",
    "latin-1 in a header of a 429",
    "latin-1 in a header of a useless 200",
    "deep JSON as a 200",
    "deep JSON as a 500",
    "deep JSON as a 408",
    "deep JSON in an unknown field of a 500",
    "a redirect to no URL",
    "a redirect to bytes",
    "a body of 5 MB",
    "a packed body that is cut",
    "a packing that nobody asked for",
    "a head that is too long",
)

Ask = Callable[[tinker.ServiceClient], Any]


def training(service: tinker.ServiceClient) -> tinker.TrainingClient:
    return service.create_lora_training_client("tinker/toy", rank=2)


def sampling(service: tinker.ServiceClient) -> tinker.SamplingClient:
    return service.create_sampling_client(base_model="tinker/toy")


def datum() -> tinker.Datum:
    return tinker.Datum(
        model_input=PROMPT, loss_fn_inputs={"target_tokens": [1, 2], "weights": [1.0, 1.0]}
    )  # type: ignore[dict-item]


OPERATIONS: dict[str, Ask] = {
    "client_config": training,
    "create_session": training,
    "create_model": training,
    "get_info": training,
    "create_sampling_session": sampling,
    "forward_backward": lambda service: training(service).forward_backward(
        [datum()], "cross_entropy"
    ),
    "optim_step": lambda service: training(service).optim_step(ADAM),
    "save_weights": lambda service: training(service).save_state("a", overwrite=True),
    "asample": lambda service: sampling(service).sample(PROMPT, 1, PARAMS),
    "retrieve_future": lambda service: sampling(service).sample(PROMPT, 1, PARAMS),
    "get_server_capabilities": lambda service: (
        service.create_rest_client().get_server_capabilities()
    ),
}


@pytest.fixture(autouse=True)
def no_finalizers_of_others(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect no garbage while deep JSON is read: a finalizer run at the recursion limit would fail
    the test.
    """
    if "deep" in request.node.name:
        gc.collect()
        gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawServer]:
    """Yield the server, for all tests of this module."""
    with raw_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    """Return a clock on which retries take no time, and periodic work never runs."""
    now = [1000.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        await asyncio.sleep(0)

    class Never:
        """A call that never comes."""

        def cancel(self) -> None: ...

    return Clock(
        monotonic=lambda: now[0],
        wall=lambda: now[0],
        sleep=sleep,
        random=lambda: 0.5,
        call_later=lambda *_: Never(),
    )


@pytest.fixture
def connect(server: RawServer, clock: Clock) -> Iterator[Callable[..., tinker.ServiceClient]]:
    """Make clients of the server; they are closed at the end."""
    made: list[tinker.ServiceClient] = []
    server.forget()

    def make(**arguments: Any) -> tinker.ServiceClient:
        made.append(
            tinker.ServiceClient(
                **{"base_url": server.url, "api_key": "tml-key", "clock": clock, **arguments}
            )
        )
        return made[-1]

    yield make
    server.forget()
    for service in made:
        service.close().result(20)


def outcome(future: Any) -> BaseException | None:
    """Return the error of a future, which is one of ours, short, readable, and
    survives a pickle.
    """
    error = future.exception(30)
    if error is not None:
        assert isinstance(error, tinker.TinkerError), repr(error)
        assert len(str(error)) < 10_000
        assert str(error).encode()
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize("bad", BAD)
# one half of the operations, or all
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.soak)])
def test_a_server_that_answers_nothing_else(
    bad: str, step: int, server: RawServer, connect: Callable[..., Any]
) -> None:
    """Whatever a server answers to an operation, again and again, the future fails with an error of
    this package, if it does.
    """
    for operation, ask in list(OPERATIONS.items())[list(BAD).index(bad) % step :: step]:
        if (bad, operation) == ("deep JSON as a 408", "retrieve_future"):
            continue  # a server that says that it goes on is alive
        server.forget()
        server.script(operation, BAD[bad])
        outcome(ask(connect(patience_seconds=2.0)))
        assert server.asked[operation], operation


@pytest.mark.parametrize("bad", PASSING)
def test_a_temporary_fault_is_retried(
    bad: str, server: RawServer, connect: Callable[..., Any]
) -> None:
    """A response that may be a temporary fault is retried, and the retry succeeds."""
    for operation, ask in OPERATIONS.items():
        server.forget()
        server.script(operation, BAD[bad], times=1)
        error = outcome(ask(connect()))
        assert error is None, f"{operation}: {error!r}"
        assert server.asked[operation] > 1, operation


@pytest.mark.parametrize("bad", BAD)
def test_closing_and_tokens(bad: str, server: RawServer, connect: Callable[..., Any]) -> None:
    """Closing succeeds whatever the server answers; a token that cannot be had is an error of this
    package.
    """
    service = connect(patience_seconds=2.0)
    assert outcome(training(service)) is None
    server.script("finish_session", BAD[bad])
    assert outcome(service.close()) is None
    server.script("client_config", raw(200, b'{"pjwt_auth_enabled": true}', JSON), times=1)
    server.script("auth_token", BAD[bad])
    assert outcome(training(connect(patience_seconds=2.0))) is not None


@pytest.mark.parametrize("jwt", ["two\\nlines", "caf\u00e9"])
def test_tokens_that_no_header_can_carry(
    jwt: str, server: RawServer, connect: Callable[..., Any]
) -> None:
    """A token that cannot be sent is an answer that does not fit, of which the
    error shows nothing.
    """
    server.script("client_config", raw(200, b'{"pjwt_auth_enabled": true}', JSON), times=1)
    server.script("auth_token", raw(200, f'{{"jwt": "{jwt}"}}'.encode(), JSON))
    error = outcome(training(connect()))
    assert isinstance(error, tinker.APIResponseValidationError)
    assert "token contains characters" in str(error)
    assert "caf" not in f"{error!r}{error.body!r}{error.response.text}"
    assert server.asked["auth_token"] >= 3


def test_error_bodies_are_shortened(
    server: RawServer, connect: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Of a body of megabytes the message and the log show the beginning and the length."""
    server.script("create_session", BAD["a body of 5 MB"])
    error = outcome(training(connect(patience_seconds=2.0)))
    assert isinstance(error, tinker.InternalServerError)
    assert error.body is not None
    assert max(len(record.getMessage()) for record in caplog.records) < 10_000
    server.script("create_session", raw(422, b'{"detail": ["' + b"x" * 100_000 + b'"]}', JSON))
    error = outcome(training(connect(patience_seconds=2.0)))
    assert isinstance(error, tinker.UnprocessableEntityError)
    assert "characters in total" in str(error)
    assert error.body == {"detail": ["x" * 100_000]}


def test_failure_texts_are_shortened(server: RawServer, connect: Callable[..., Any]) -> None:
    """The message of a failure of megabytes has its beginning and length;
    ``reason`` has all of it.
    """
    server.script(
        "retrieve_future",
        raw(200, b'{"category": "server", "error": "' + b"x" * 60_000 + b'"}', JSON),
    )
    error = outcome(training(connect(patience_seconds=2.0)))
    assert isinstance(error, tinker.RequestFailedError)
    assert "(60000 characters in total)" in str(error)
    assert len(str(error)) < 5000
    assert error.reason == "x" * 60_000
