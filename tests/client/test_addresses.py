"""Server addresses: IPv6, names with several addresses of which some are unreachable, and addresses
without a listener.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pytest
from support.addresses import refusing_address
from support.proxies import tunnel_proxy
from support.tls import server_context

import tinker
from tinker.testing import toy_server

Resolve: TypeAlias = Callable[..., None]
NAME = "server.example"


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Make a name resolve to these addresses, in this order."""
    system = socket.getaddrinfo

    def choose(*addresses: str, name: str = NAME) -> None:
        def look_up(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            wanted = addresses if host in (name, name.encode()) else (host,)
            return [found for address in wanted for found in system(address, port, *args, **kwargs)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return choose


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Yield a server at 127.0.0.1, reached by name."""
    with toy_server(tmp_path / "server") as server, server.on_port() as url:
        yield url.replace("127.0.0.1", NAME)


@contextlib.contextmanager
def swallowing(address: str, port: int) -> Iterator[None]:
    """Yield an address that never responds, because the backlog of its listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        with pytest.raises(TimeoutError):
            socket.create_connection((address, port), 0.1)
        yield


def ask(url: str, **configured: Any) -> float:
    """Return the seconds until the server has responded."""
    began = time.monotonic()
    config = tinker.Config.load(base_url=url, api_key="key", **configured)
    with tinker.ServiceClient(config=config) as service:
        assert service.get_server_capabilities().supported_models
    return time.monotonic() - began


def test_the_first_address_refuses(resolve: Resolve, url: str) -> None:
    """If the first address refuses the connection, the next one is used at once."""
    resolve("127.0.0.7", "127.0.0.1")
    assert ask(url) < 5


def test_the_first_address_is_silent(resolve: Resolve, url: str) -> None:
    """If the first address is silent, the next is tried beside it, and later at once."""
    resolve("127.0.0.8", "127.0.0.7", "127.0.0.1")
    with swallowing("127.0.0.8", urlsplit(url).port or 0):
        assert ask(url) < 5


@pytest.mark.httpunk("httpx does not say why it could not connect")
@pytest.mark.parametrize(
    "addresses", [("127.0.0.1",), ("127.0.0.7", "127.0.0.1"), ("::1", "127.0.0.1")]
)
def test_every_address_refuses(resolve: Resolve, addresses: tuple[str, ...]) -> None:
    """If every address of ``localhost`` refuses, one line says so; the address counts as wrong."""
    resolve(*addresses, name="localhost")
    with refusing_address() as taken:
        where = f"localhost:{taken.rpartition(':')[2]}"
        said = rf"could not connect to {where}: Connection refused\. Check"
        with pytest.raises(tinker.APIConnectionError, match=said) as caught:
            ask(f"http://{where}", patience_seconds=0)
    assert caught.value.wrong_address
    assert caught.value.never_ran


@pytest.mark.httpunk("httpx does not say why it could not connect")
def test_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a remote name that does not resolve, the advice is to check the network."""

    def look_up(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(tinker.APIConnectionError) as caught:
        ask(f"https://{NAME}", patience_seconds=0)
    assert str(caught.value).endswith(
        f"could not connect to {NAME}:443: Name or service not known. "
        "Check this machine's connection to the network, and the address (base_url or "
        "TINKER_BASE_URL)."
    )


@pytest.mark.httpunk("httpx does not say why it could not connect")
@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
@pytest.mark.parametrize("is_direct", [True, False])
def test_ipv6(tmp_path: Path, ca_file: Path, protocol: str, is_direct: bool) -> None:
    """An IPv6 address is reached, with TLS for that address, directly and through a tunnel."""
    with (
        toy_server(tmp_path / "server") as server,
        server.on_port(ssl_context=server_context(protocol)) as url,
    ):
        with tunnel_proxy(
            url.replace("localhost", "127.0.0.1"), host="::1", relays=is_direct
        ) as proxy:
            if is_direct:
                ask(f"https://[::1]:{proxy.port}", ca_file=ca_file)
            else:
                ask("https://[::1]:8443", ca_file=ca_file, proxy=f"http://[::1]:{proxy.port}")
                assert {(one.target, one.headers["host"]) for one in proxy.asked} == {
                    ("[::1]:8443", "[::1]:8443")
                }
        assert {urlsplit(one.url).path for one in server.requests()} >= {
            "/api/v1/get_server_capabilities"
        }
