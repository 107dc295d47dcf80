"""All kinds of proxies in front of all kinds of servers: tunnels, credentials, refusals, files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.proxies import TunnelProxy, tunnel_proxy
from support.tls import server_context

import tinker
from tinker.testing import FaultyServer, toy_server

HOST = "server.invalid"
PASSWORD = (
    "write the proxy's user name and password into its address (TINKER_PROXY): "
    "http://name:password@host:port."
)
OWN_WORDS = pytest.mark.httpunk("httpx reports a proxy in words of its own")
KINDS = ("http", "https", "socks5", "socks5h")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """Yield a server under a name that only the proxy can resolve."""
    with toy_server(tmp_path / "server") as server:
        yield server


class Way:
    """A server behind a proxy, and the settings that lead to it."""

    def __init__(
        self, server: FaultyServer, proxy: TunnelProxy, kind: str, scheme: str, ca_file: Path
    ) -> None:
        self.server, self.proxy = server, proxy
        self._proxy_url = f"{kind}://@localhost:{proxy.port}"
        self.configured: dict[str, Any] = {
            "base_url": f"{scheme}://{HOST}",
            "api_key": "key",
            "ca_file": ca_file,
        }

    def service(self, credential: str = "", **more: Any) -> tinker.ServiceClient:
        """Return a client that uses this proxy."""
        proxy = self._proxy_url.replace("@", f"{credential}@" if credential else "")
        config = tinker.Config.load(**self.configured, proxy=proxy, **more)
        return tinker.ServiceClient(config=config)

    def ask(self, credential: str = "", **more: Any) -> bool:
        """Return whether the server responds."""
        service = self.service(credential, **more)
        try:
            return bool(service.get_server_capabilities().supported_models)
        finally:
            service.close().result(10)

    def refuse(self, credential: str = "", **more: Any) -> tuple[str, bool]:
        """Return the error message, and whether the client considers the address wrong."""
        with pytest.raises(tinker.APIConnectionError) as caught:
            self.ask(credential, patience_seconds=0, **more)
        message = f"{caught.value}"
        assert "hush" not in f"{message} {caught.value!r} {caught.value.__cause__!r}"
        assert "\n" not in message
        assert caught.value.never_ran
        said = message.partition("client/config: ")[2]
        said = said.replace(f"localhost:{self.proxy.port}", "PROXY")
        return said, caught.value.wrong_address

    def save(self, service: tinker.ServiceClient) -> str:
        """Return the path of a checkpoint of files."""
        training = service.create_lora_training_client("tinker/toy", rank=4)
        return training.save_weights_external("e").result(30).path


@pytest.fixture
def way(request: pytest.FixtureRequest, server: FaultyServer, ca_file: Path) -> Iterator[Way]:
    """Yield a route through a kind of proxy to a server with a scheme, and a protocol."""
    kind, scheme, *protocols = request.param.split()
    context = server_context(*protocols, names=(HOST, "localhost")) if scheme == "https" else None
    proxy_context = server_context("http/1.1", names=("localhost",)) if kind == "https" else None
    with (
        server.on_port(ssl_context=context) as url,
        tunnel_proxy(url.replace("localhost", "127.0.0.1"), proxy_context) as proxy,
    ):
        yield Way(server, proxy, kind, scheme, ca_file)


ALL = [f"{kind} {server}" for kind in KINDS for server in ("http", "https h2", "https http/1.1")]


@pytest.mark.parametrize("way", ALL, indirect=True)
def test_a_server_behind_a_proxy(way: Way, request: pytest.FixtureRequest) -> None:
    """Every kind of proxy connects to every kind of server, and resolves its name."""
    assert way.ask()
    kind, scheme = request.node.callspec.params["way"].split()[:2]
    port = {"https": 443, "http": 80}[scheme]
    method = "SOCKS" if kind.startswith("socks") else "CONNECT" if scheme == "https" else "POST"
    first = way.proxy.asked[0]
    assert first.method == method
    assert first.target.startswith(f"http://{HOST}/" if method == "POST" else f"{HOST}:{port}")


@pytest.mark.parametrize("way", ["http https h2", "https https h2", "https http"], indirect=True)
def test_proxy_credentials_and_headers(way: Way) -> None:
    """The proxy gets the credential of its address and the proxy headers, the server neither."""
    assert way.ask("me:hu%20sh", proxy_headers={"X-Team": "a"})
    asked = way.proxy.asked[0]
    assert (asked.headers["proxy-authorization"], asked.headers["x-team"]) == (
        "Basic bWU6aHUgc2g=",
        "a",
    )
    if asked.method == "CONNECT":
        received = {name.lower() for one in way.server.requests() for name in one.headers}
        assert received
        assert not {"proxy-authorization", "x-team"} & received


@OWN_WORDS
@pytest.mark.parametrize("way", ["socks5 https h2", "socks5 http"], indirect=True)
def test_a_password_of_a_socks_proxy(way: Way) -> None:
    """It is decoded and sent; if it is missing or wrong, a one-line error says so."""
    way.proxy.password = "hu sh"
    assert way.ask("me:hu%20sh")
    assert {one.headers["credential"] for one in way.proxy.asked} == {"me:hu sh"}
    for credential in ("", "me:hush"):
        said, is_wrong = way.refuse(credential)
        assert said.startswith("the proxy PROXY refused: ")
        assert said.endswith(PASSWORD)
        assert is_wrong


@OWN_WORDS
@pytest.mark.parametrize("way", ["socks5 https h2"], indirect=True)
def test_a_socks_proxy_that_cannot_connect(way: Way) -> None:
    """If a SOCKS proxy cannot reach the server, which may change, its address is not wrong."""
    way.proxy.refusal = 5
    said, is_wrong = way.refuse()
    assert said == "the proxy PROXY refused: Connection refused by destination host."
    assert not is_wrong


@OWN_WORDS
@pytest.mark.parametrize(
    ("kind", "port"), [("http", 80), ("https", 443), ("socks5", 1080), ("socks5h", 1080)]
)
def test_a_proxy_that_does_not_exist(kind: str, port: int) -> None:
    """The error has the system's words, and names the proxy with the usual port of its kind."""
    config = tinker.Config.load(
        base_url=f"https://{HOST}",
        api_key="key",
        proxy=f"{kind}://proxy.invalid",
        patience_seconds=0,
    )
    words = f"could not connect to proxy.invalid:{port}: "
    with pytest.raises(tinker.APIConnectionError, match=words) as caught:
        tinker.ServiceClient(config=config).get_server_capabilities()
    assert "Unknown error" not in str(caught.value)


@OWN_WORDS
@pytest.mark.parametrize("way", ["http https h2", "https https h2"], indirect=True)
@pytest.mark.parametrize(
    ("status", "is_wrong", "advice"),
    [
        (407, True, f": {PASSWORD}"),
        (403, True, ": see proxy (TINKER_PROXY)."),
        (503, False, "."),
    ],
)
def test_a_tunnel_that_is_refused(way: Way, status: int, is_wrong: bool, advice: str) -> None:
    """A one-line error has the proxy's response and advice; only some are retried for long."""
    way.proxy.refusal = status
    expected = f"the proxy PROXY answered the request for {HOST}:443 with {status}{advice}"
    assert way.refuse("me:hush") == (expected, is_wrong)


@pytest.mark.parametrize("way", ["http http"], indirect=True)
def test_a_proxy_that_asks_for_a_password(way: Way) -> None:
    """For a server without TLS the proxy's refusal is a response, which gets the same advice."""
    way.proxy.refusal = 407
    with pytest.raises(tinker.APIStatusError, match=rf"407.*{re.escape(PASSWORD[:-1])}"):
        way.ask(patience_seconds=0)


@OWN_WORDS
@pytest.mark.parametrize("way", ["https https h2", "https http"], indirect=True)
def test_a_proxy_that_is_not_trusted(way: Way, tmp_path: Path) -> None:
    """The error is about the certificate of the proxy."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    way.configured["ca_file"] = other
    said, is_wrong = way.refuse("me:hush")
    assert said.startswith("the certificate of PROXY is not trusted (")
    assert is_wrong


@OWN_WORDS
@pytest.mark.parametrize("way", ["http https h2"], indirect=True)
def test_a_server_that_is_not_trusted_behind_a_proxy(way: Way) -> None:
    """The error is about the certificate of the server."""
    way.configured["base_url"] = "https://other.invalid"
    said, is_wrong = way.refuse()
    assert said.startswith("the certificate of other.invalid:443 is for another name")
    assert said.endswith("check base_url (TINKER_BASE_URL).")
    assert is_wrong


@pytest.mark.httpunk("httpx sends the files over connections that are open")
@pytest.mark.parametrize("way", ALL, indirect=True)
def test_files_behind_a_proxy(way: Way, tmp_path: Path) -> None:
    """A checkpoint is downloaded through the proxy."""
    with way.service() as service:
        path = way.save(service)
        before = len(way.proxy.asked)
        tinker.checkpoints.download(path, tmp_path / "files", service=service).result(30)
    assert any((tmp_path / "files").iterdir())
    assert len(way.proxy.asked) > before


@OWN_WORDS
@pytest.mark.parametrize("way", ["http https h2"], indirect=True)
def test_a_file_that_cannot_be_reached(
    way: Way, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the error nor the log shows the token in the file's address."""
    with way.service(max_retries=1) as service:
        path = way.save(service)
        way.proxy.refusal = 503
        with pytest.raises(tinker.APIConnectionError, match="/files/<redacted>/") as caught:
            tinker.checkpoints.download(path, tmp_path / "files", service=service).result(30)
    assert "eyJ" not in f"{caught.value} {caplog.text}"
    assert "<redacted>" in caplog.text
