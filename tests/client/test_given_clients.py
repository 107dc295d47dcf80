"""``http_client=``: requests are sent by a client of httpx or httpx2, and its failures mean the
same as those of our engine.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.addresses import refusing_address
from support.tls import client_context, server_context

import tinker
from tinker.testing import FaultyServer, toy_server

Make = Callable[..., tinker.ServiceClient]


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    """Return the library of the client."""
    pytest.importorskip(request.param)
    return importlib.import_module(request.param)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """Yield a server on a port."""
    with toy_server(tmp_path / "server") as server:
        yield server


@pytest.fixture
def url(server: FaultyServer) -> Iterator[str]:
    """Yield the server's address."""
    with server.on_port() as url:
        yield url


@pytest.fixture
def make() -> Iterator[Make]:
    """Create services and close them after the test."""
    made: list[tinker.ServiceClient] = []

    def make(client: Any, url: str, **arguments: Any) -> tinker.ServiceClient:
        made.append(
            tinker.ServiceClient(base_url=url, api_key="key", http_client=client, **arguments)
        )
        return made[-1]

    yield make
    for service in made:
        service.close().result(10)


def test_additions_of_the_client_are_sent(
    library: ModuleType, server: FaultyServer, url: str, make: Make
) -> None:
    """Headers, cookies, query and hooks are the client's where we have none; it stays open."""
    seen: list[str] = []

    async def note(request: Any) -> None:
        seen.append(request.url.path)

    client = library.AsyncClient(
        headers={"X-Given": "yes", "User-Agent": "theirs"},
        cookies={"a": "b"},
        params={"zone": "eu"},
        event_hooks={"request": [note]},
    )
    service = make(client, url)
    assert service.get_server_capabilities().supported_models
    service.close().result(10)
    assert "/api/v1/get_server_capabilities" in seen
    (received,) = server.requests("get_server_capabilities")
    headers = received.headers
    assert (headers["x-given"], headers["cookie"], headers["x-api-key"]) == ("yes", "a=b", "key")
    assert headers["user-agent"].startswith("tinker-open-client/")
    assert received.url.endswith("?zone=eu")
    assert not client.is_closed


@pytest.mark.usefixtures("server")
def test_a_whole_run(library: ModuleType, url: str, make: Make, tmp_path: Path) -> None:
    """Training, sampling, streams, large bodies and files go through it."""
    service = make(library.AsyncClient(), url)
    training = service.create_lora_training_client("tinker/toy", rank=4).result(30)
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1] * 30_000),
        loss_fn_inputs={"target_tokens": [1] * 30_000, "weights": [0.5] * 30_000},
    )
    assert training.forward_backward([datum] * 4, "cross_entropy").result(60).metrics
    sampling = training.save_weights_and_get_sampling_client()
    prompt = tinker.ModelInput.from_ints([1, 2])
    assert list(sampling.sample_stream(prompt, 1, tinker.SamplingParams(max_tokens=3)))
    path = training.save_weights_external("e").result(30).path
    tinker.checkpoints.download(path, tmp_path / "files", service=service).result(30)
    assert any((tmp_path / "files").iterdir())


def test_tls_settings_of_the_client(library: ModuleType, server: FaultyServer, make: Make) -> None:
    """The TLS settings of the given client apply, not ours."""
    with server.on_port(ssl_context=server_context("http/1.1")) as url:
        assert (
            make(library.AsyncClient(verify=client_context()), url)
            .get_server_capabilities()
            .supported_models
        )


def test_a_hook_that_reads_the_response(library: ModuleType, url: str, make: Make) -> None:
    """A body that the client has already read and decoded is used as it is."""

    async def read(response: Any) -> None:
        await response.aread()

    service = make(library.AsyncClient(event_hooks={"response": [read]}), url)
    assert service.get_server_capabilities().supported_models


def test_the_client_follows_no_redirects(
    library: ModuleType, server: FaultyServer, url: str, make: Make
) -> None:
    """Even if the client would follow redirects, no credential is sent to another origin."""
    other = url.replace("127.0.0.1", "localhost")
    server.fail_next(
        "get_server_capabilities",
        307,
        headers={"location": f"{other}/api/v1/get_server_capabilities"},
    )
    service = make(library.AsyncClient(follow_redirects=True), url)
    assert service.get_server_capabilities().supported_models
    first, second = server.requests("get_server_capabilities")
    assert ("x-api-key" in first.headers, "x-api-key" in second.headers) == (True, False)


def test_connection_refused(library: ModuleType, make: Make) -> None:
    """A connection that could not be established means that the request never ran."""
    with refusing_address() as where:
        service = make(library.AsyncClient(), f"http://{where}", patience_seconds=0)
        with pytest.raises(tinker.APIConnectionError) as caught:
            service.get_server_capabilities()
    assert not isinstance(caught.value, tinker.APITimeoutError)
    assert (caught.value.never_connected, caught.value.never_ran) == (True, True)


@pytest.mark.parametrize("fault", ["hang", "drop"])
def test_a_missing_response(
    library: ModuleType, server: FaultyServer, url: str, make: Make, fault: str
) -> None:
    """No response in our time, not the client's, is a timeout; a broken connection is none."""
    service = make(library.AsyncClient(timeout=None), url, patience_seconds=0, timeout=0.5)
    service.check_health()
    getattr(server, f"{fault}_next")("get_server_capabilities")
    with pytest.raises(tinker.APIConnectionError) as caught:
        service.get_server_capabilities()
    assert isinstance(caught.value, tinker.APITimeoutError) is (fault == "hang")
    assert not caught.value.never_ran


def test_a_body_that_breaks_off(
    library: ModuleType, server: FaultyServer, url: str, make: Make
) -> None:
    """A failure while the response is read is a connection error, too."""
    service = make(library.AsyncClient(), url, patience_seconds=0)
    service.check_health()
    server.truncate_next("get_server_capabilities")
    with pytest.raises(tinker.APIConnectionError, match="RemoteProtocolError") as caught:
        service.get_server_capabilities()
    assert not caught.value.never_ran
