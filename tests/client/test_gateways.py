"""Proxies and gateways: proxy settings, and the headers, queries and project ids that gateways
require.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.proxies import TunnelProxy, tunnel_proxy

import tinker
from tinker._basics import config as _config
from tinker.testing import FaultyServer, toy_server

NAMES = ("http", "https", "all", "no")
VARIABLES = ("TINKER_PROXY", *(f"{name}_proxy" for name in NAMES))
HOST = "http://server.invalid"


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    """Yield a server under a name that only the proxy can resolve."""
    with toy_server() as server:
        yield server


@pytest.fixture
def proxy(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TunnelProxy]:
    """Yield a running proxy in front of the server; no environment variable names it yet."""
    for name in VARIABLES:
        for spelled in (name, name.upper()):
            monkeypatch.delenv(spelled, raising=False)
    with server.on_port() as url, tunnel_proxy(url) as proxy:
        yield proxy


def address(proxy: TunnelProxy, password: str = "") -> str:
    return f"http://{password}127.0.0.1:{proxy.port}"


def ask(**arguments: Any) -> None:
    with tinker.ServiceClient(api_key="key", **{"base_url": HOST, **arguments}) as service:
        assert service.get_server_capabilities().supported_models


@pytest.mark.parametrize(
    "variable", ["TINKER_PROXY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
)
def test_everything_goes_through_it(
    proxy: TunnelProxy, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Requests go through the proxy that a variable names, under the server's name."""
    monkeypatch.setenv(variable, address(proxy))
    ask()
    assert all(one.target.startswith(f"{HOST}/") for one in proxy.asked)


def test_tinker_proxy_takes_precedence(proxy: TunnelProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """TINKER_PROXY takes precedence over the general proxy variables, including NO_PROXY."""
    monkeypatch.setenv("TINKER_PROXY", address(proxy))
    monkeypatch.setenv("HTTP_PROXY", "http://nobody.invalid:1")
    monkeypatch.setenv("NO_PROXY", "*")
    ask()
    assert proxy.asked


def test_headers_for_the_proxy(
    proxy: TunnelProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every request that the proxy reads has them and its password, polls and files too."""
    monkeypatch.setenv("HTTP_PROXY", address(proxy, "me:hush@"))
    monkeypatch.setenv("TINKER_PROXY_HEADERS", '{"X-Team": "research"}')
    with tinker.ServiceClient(base_url=HOST, api_key="key") as service:
        training = service.create_lora_training_client("tinker/toy", rank=4).result(30)
        path = training.save_weights_external("e").result(30).path
        tinker.checkpoints.download(path, tmp_path / "files", service=service).result(30)
    assert {urlsplit(one.target).path.split("/")[1] for one in proxy.asked} == {"api", "files"}
    assert {one.headers["x-team"] for one in proxy.asked} == {"research"}
    assert {one.headers["proxy-authorization"] for one in proxy.asked} == {"Basic bWU6aHVzaA=="}


@pytest.mark.parametrize(
    ("url", "no_proxy", "through"),
    [
        ("http://server.invalid/x", "", True),
        ("http://server.invalid/x", "other.invalid", True),
        ("http://server.invalid/x", "other.invalid, server.invalid", False),
        ("http://a.server.invalid/x", ".server.invalid", False),
        ("http://server.invalid:8000/x", "server.invalid:8000", False),
        ("http://server.invalid:8000/x", "server.invalid:9000", True),
        ("http://server.invalid/x", "*", False),
        ("http://server.invalid/x", "server.invalid:80", False),
        ("http://a.server.invalid/x", "*.server.invalid", False),
        ("http://notserver.invalid/x", "server.invalid", True),
        ("http://[fd00::1]/x", "fd00::1", False),
        ("http://10.0.0.1/x", "10.0.0.1", False),
        ("http://localhost:8000/x", "", False),
        ("http://127.0.0.1:8000/x", "", False),
        ("http://[::1]:8000/x", "", False),
        ("https://server.invalid/x", "", "http://secure:1"),
        ("ftp://server.invalid/x", "", False),
    ],
)
def test_exceptions(url: str, no_proxy: str, through: bool | str) -> None:
    """Names in NO_PROXY, this machine, and schemes without a proxy are reached directly."""
    environ = {"HTTP_PROXY": "http://proxy:1", "HTTPS_PROXY": "http://secure:1"}
    environ["NO_PROXY"] = no_proxy
    found = _config.load_config(base_url=HOST, environ=environ).proxies
    assert found.of(url) == ("http://proxy:1" if through is True else through or None)


def test_unsupported_proxies() -> None:
    """A proxy with an unsupported scheme is refused, naming the variable but not the password, which
    no settings show; ``local://`` uses no proxy.
    """
    environ = {"ALL_PROXY": "socks4://me:hush@proxy:1"}
    with pytest.raises(ValueError, match=r"ALL_PROXY.*'socks4'") as caught:
        _config.load_config(base_url=HOST, environ=environ)
    assert "hush" not in str(caught.value)
    with pytest.raises(ValueError, match="proxy must be a proxy address with http"):
        tinker.Config.load(base_url=HOST, proxy="socks4://host")
    local = _config.load_config(base_url="local://toy", environ=environ)
    assert local.proxies.of("http://local/x") is None
    environ = {"ALL_PROXY": "http://me:hush@proxy:1"}
    assert "hush" not in repr(_config.load_config(base_url=HOST, environ=environ))


@pytest.fixture(params=["http", "httpx"])
def engine(
    request: pytest.FixtureRequest, proxy: TunnelProxy, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return the arguments of a client whose requests go through the proxy, with either engine."""
    if request.param == "httpx":
        return {"base_url": HOST, "transport": httpx.AsyncHTTPTransport(proxy=address(proxy))}
    monkeypatch.setenv("TINKER_PROXY", address(proxy))
    return {"base_url": HOST}


def test_headers_and_queries(
    engine: dict[str, Any], server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests have them once: arguments override the environment, which overrides ours."""
    monkeypatch.setenv("TINKER_DEFAULT_HEADERS", json.dumps({"X-Team": "red", "X-Room": "1"}))
    monkeypatch.setenv("TINKER_DEFAULT_QUERY", json.dumps({"zone": "eu", "limit": "7"}))
    headers = {"X-Team": "blue", "user-agent": "mine", "Authorization": "Bearer b"}
    engine |= {"default_headers_overrides": headers, "default_query": {"zone": "us & them"}}
    with tinker.ServiceClient(api_key="key", **engine) as service:
        service.create_lora_training_client("tinker/toy", rank=4).result(30)
        service.create_rest_client().list_training_runs(limit=3).result(30)
    wanted = {**headers, "X-Room": "1", "X-API-Key": "key"}
    for one in server.requests():
        # several of a name would be joined
        assert {name: one.headers[name] for name in wanted} == wanted
        assert "zone=us+%26+them" in urlsplit(one.url).query
    (listed,) = [one.url for one in server.requests("list_training_runs")]
    assert "limit=3" in listed
    assert "limit=7" not in listed


def test_a_key_as_a_header(engine: dict[str, Any], server: FaultyServer) -> None:
    """A header given by the user overrides the header of the key."""
    ask(default_headers_overrides={"x-api-key": "other"}, **engine)
    assert {one.headers["x-api-key"] for one in server.requests()} == {"other"}


@pytest.mark.parametrize(
    ("argument", "variable", "sent"),
    [("p-1", "p-2", "p-1"), (None, "p-2", "p-2"), (None, "", None)],
)
def test_projects(
    engine: dict[str, Any],
    server: FaultyServer,
    monkeypatch: pytest.MonkeyPatch,
    argument: str | None,
    variable: str,
    sent: str | None,
) -> None:
    """The project is that of the argument, else TINKER_PROJECT_ID, unless it is empty."""
    monkeypatch.setenv("TINKER_PROJECT_ID", variable)
    with tinker.ServiceClient(project_id=argument, api_key="key", **engine) as service:
        service.create_lora_training_client("tinker/toy", rank=4).result(30)
    (session,) = server.requests("create_session")
    assert session.json.get("project_id") == sent


@pytest.mark.parametrize("value", ["no json", "[1]", '{"a": 1}'])
def test_invalid_defaults(value: str) -> None:
    """A value that is not a JSON object of strings is refused, naming the variable."""
    with pytest.raises(ValueError, match="TINKER_DEFAULT_HEADERS"):
        _config.load_config(base_url=HOST, environ={"TINKER_DEFAULT_HEADERS": value})
