"""Proxies and gateways: proxy settings, and the headers, queries and project ids that gateways
require.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import httpx
import pytest

import tinker
from tinker._basics import config as _config
from tinker.local import Settings, running_server

VARIABLES = (
    "TINKER_PROXY",
    *(
        name
        for one in ("http", "https", "all", "no")
        for name in (f"{one}_proxy", f"{one.upper()}_PROXY")
    ),
)
HOST = "http://server.invalid"


@attrs.frozen
class Asked:
    """A request as the proxy received it."""

    method: str
    target: str
    headers: http.client.HTTPMessage
    body: bytes


@attrs.define
class Proxy:
    """A proxy that forwards every name to one server; it refuses tunnels."""

    url: str
    asked: list[Asked] = attrs.field(factory=list)

    def targets(self) -> set[str]:
        return {one.target for one in self.asked}


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Yield a running proxy in front of a running server; no environment variable names it yet."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    settings = Settings(data_dir=tmp_path, allowed_hosts=[str(urlsplit(HOST).hostname)])
    with running_server(settings) as url, listening(url) as proxy:
        yield proxy


@contextlib.contextmanager
def listening(upstream: str) -> Iterator[Proxy]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            proxy.asked.append(Asked(self.command, self.path, self.headers, body))
            parts = urlsplit(self.path)
            connection = http.client.HTTPConnection(urlsplit(upstream).netloc)
            with contextlib.closing(connection):
                path = f"{parts.path}?{parts.query}" if parts.query else parts.path
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if not name.lower().startswith("proxy-")
                }
                connection.request(self.command, path, body, headers)
                response = connection.getresponse()
                content = response.read()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in (
                    "content-length",
                    "transfer-encoding",
                    "date",
                    "server",
                    "connection",
                ):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def do_CONNECT(self) -> None:
            proxy.asked.append(Asked(self.command, self.path, self.headers, b""))
            self.send_error(502, "no tunnels")

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing on the terminal."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        proxy = Proxy(f"http://127.0.0.1:{server.server_port}")
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "variable", ["TINKER_PROXY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
)
def test_everything_goes_through_it(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    """Requests, polls and checkpoint files all go through the proxy, under the server's name."""
    monkeypatch.setenv(variable, proxy.url)
    with tinker.ServiceClient(base_url=HOST, api_key="key") as service:
        training = service.create_lora_training_client("tinker/toy", rank=4).result(30)
        path = training.save_weights_external("e").result(30).path
        tinker.checkpoints.download(path, tmp_path / "files", base_url=HOST, api_key="key").result(
            30
        )
    assert all(target.startswith(f"{HOST}/") for target in proxy.targets())
    parts = {urlsplit(target).path.split("/")[1] for target in proxy.targets()}
    assert parts == {"api", "files"}


def test_tinker_proxy_takes_precedence(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """TINKER_PROXY takes precedence over the general proxy variables, including NO_PROXY."""
    monkeypatch.setenv("TINKER_PROXY", proxy.url)
    monkeypatch.setenv("HTTP_PROXY", "http://nobody.invalid:1")
    monkeypatch.setenv("NO_PROXY", "*")
    assert (
        tinker.RestClient(base_url=HOST, api_key="key")
        .get_server_capabilities()
        .result(30)
        .supported_models
    )
    assert proxy.asked


def test_tunnels(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """An https address is reached by a tunnel; a refused tunnel is an APIConnectionError without
    the proxy's password.
    """
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//me:hush@"))
    service = tinker.ServiceClient(
        base_url="https://server.invalid", api_key="key", patience_seconds=0
    )
    with pytest.raises(tinker.APIConnectionError) as caught:
        service.get_server_capabilities()
    assert {(one.method, one.target) for one in proxy.asked} == {("CONNECT", "server.invalid:443")}
    assert "hush" not in f"{caught.value!r} {caught.value} {vars(service)}"


def test_passwords(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name and password in the proxy's address are sent to the proxy only."""
    monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:hush@"))
    assert (
        tinker.RestClient(base_url=HOST, api_key="key")
        .get_server_capabilities()
        .result(30)
        .supported_models
    )
    assert {one.headers["proxy-authorization"] for one in proxy.asked} == {"Basic bWU6aHVzaA=="}
    assert "hush" not in repr(_config.load_config(base_url=HOST))


def test_headers_for_the_proxy(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are in every request that the proxy reads, including those for files, along with its
    password if it has one.
    """
    monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:hush@"))
    monkeypatch.setenv("TINKER_PROXY_HEADERS", '{"X-Team": "research"}')
    with tinker.ServiceClient(base_url=HOST, api_key="key") as service:
        training = service.create_lora_training_client("tinker/toy", rank=4).result(30)
        path = training.save_weights_external("e").result(30).path
        tinker.checkpoints.download(path, tmp_path / "files", base_url=HOST, api_key="key").result(
            30
        )
    assert {urlsplit(target).path.split("/")[1] for target in proxy.targets()} == {"api", "files"}
    assert {one.headers["x-team"] for one in proxy.asked} == {"research"}
    assert {one.headers["proxy-authorization"] for one in proxy.asked} == {"Basic bWU6aHVzaA=="}


def test_headers_for_a_tunnel(proxy: Proxy) -> None:
    """For an https address they are sent with the CONNECT request."""
    config = tinker.Config.load(
        base_url="https://server.invalid",
        api_key="key",
        proxy=proxy.url,
        proxy_headers={"X-Team": "a"},
        patience_seconds=0,
    )
    with pytest.raises(tinker.APIConnectionError):
        tinker.ServiceClient(config=config).get_server_capabilities()
    assert {(one.method, one.headers["x-team"]) for one in proxy.asked} == {("CONNECT", "a")}
    with pytest.raises(ValueError, match="proxy must be a proxy address with http"):
        tinker.Config.load(base_url=HOST, proxy="socks4://host")


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
        ("https://server.invalid/x", "", False),
    ],
)
def test_exceptions(url: str, no_proxy: str, through: bool) -> None:
    """Names in NO_PROXY, this machine, and schemes without a proxy are reached directly."""
    found = _config.load_config(
        base_url=HOST, environ={"HTTP_PROXY": "http://proxy:1", "NO_PROXY": no_proxy}
    ).proxies
    assert found.of(url) == ("http://proxy:1" if through else None)


def test_unsupported_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy with an unsupported scheme is refused, naming the variable but not the password;
    ``local://`` uses no proxy.
    """
    environ = {"ALL_PROXY": "socks4://me:hush@proxy:1"}
    with pytest.raises(ValueError, match=r"ALL_PROXY.*'socks4'") as caught:
        _config.load_config(base_url=HOST, environ=environ)
    assert "hush" not in str(caught.value)
    assert (
        _config.load_config(base_url="local://toy", environ=environ).proxies.of("http://local/x")
        is None
    )


@pytest.fixture(params=["http", "httpx"])
def engine(
    request: pytest.FixtureRequest, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return the arguments of a client whose requests go through the proxy, with either engine."""
    if request.param == "httpx":
        return {"base_url": HOST, "transport": httpx.AsyncHTTPTransport(proxy=proxy.url)}
    monkeypatch.setenv("TINKER_PROXY", proxy.url)
    return {"base_url": HOST}


def test_headers_and_queries(
    engine: dict[str, Any], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request has them once, in any spelling: arguments override the environment, which
    overrides our own.
    """
    monkeypatch.setenv("TINKER_DEFAULT_HEADERS", json.dumps({"X-Team": "red", "X-Room": "1"}))
    monkeypatch.setenv("TINKER_DEFAULT_QUERY", json.dumps({"zone": "eu", "limit": "7"}))
    headers = {"X-Team": "blue", "user-agent": "mine", "Authorization": "Bearer b"}
    with tinker.ServiceClient(
        api_key="key",
        default_headers_overrides=headers,
        default_query={"zone": "us & them"},
        **engine,
    ) as service:
        service.create_lora_training_client("tinker/toy", rank=4).result(30)
        service.create_rest_client().list_training_runs(limit=3).result(30)
    for one in proxy.asked:
        found = {
            name: one.headers.get_all(name)
            for name in ("X-Team", "X-Room", "User-Agent", "Authorization", "X-API-Key")
        }
        assert found == {
            "X-Team": ["blue"], "X-Room": ["1"], "User-Agent": ["mine"], "Authorization": ["Bearer b"], "X-API-Key": ["key"],
        }  # fmt: skip
        assert "zone=us+%26+them" in urlsplit(one.target).query
    (listed,) = [one.target for one in proxy.asked if "/training_runs?" in one.target]
    assert "limit=3" in listed
    assert "limit=7" not in listed


def test_a_key_as_a_header(engine: dict[str, Any], proxy: Proxy) -> None:
    """A header given by the user overrides the header of the key."""
    with tinker.ServiceClient(
        api_key="key", default_headers_overrides={"x-api-key": "other"}, **engine
    ) as service:
        service.get_server_capabilities()
    assert {tuple(one.headers.get_all("X-API-Key") or ()) for one in proxy.asked} == {("other",)}


@pytest.mark.parametrize(
    ("argument", "variable", "sent"),
    [("p-1", "p-2", "p-1"), (None, "p-2", "p-2"), (None, "", None)],
)
def test_projects(
    engine: dict[str, Any],
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    argument: str | None,
    variable: str,
    sent: str | None,
) -> None:
    """The session's project is that of the argument, else TINKER_PROJECT_ID; an empty one counts as
    none.
    """
    monkeypatch.setenv("TINKER_PROJECT_ID", variable)
    with tinker.ServiceClient(project_id=argument, api_key="key", **engine) as service:
        service.create_lora_training_client("tinker/toy", rank=4).result(30)
    (session,) = [
        json.loads(one.body)
        for one in proxy.asked
        if one.target.split("?")[0].endswith("/create_session")
    ]
    assert session.get("project_id") == sent


@pytest.mark.parametrize("value", ["no json", "[1]", '{"a": 1}'])
def test_invalid_defaults(value: str) -> None:
    """A value that is not a JSON object of strings is refused, naming the variable."""
    with pytest.raises(ValueError, match="TINKER_DEFAULT_HEADERS"):
        _config.load_config(base_url=HOST, environ={"TINKER_DEFAULT_HEADERS": value})
