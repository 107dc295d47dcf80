"""Requests from web pages and other machines: what a server without a key refuses, and how to give
a server a key.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from support.api import model_body
from support.tls import make_certificates
from tinker_wire.operations import OPERATIONS

from tinker.cli import main
from tinker.local import Settings, running_server, serve
from tinker.local.serving import guard_app

CREATE = OPERATIONS["create_session"].path
SESSION = {"tags": [], "sdk_version": "1"}


async def fine(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=200)(scope, receive, send)


def status(
    headers: dict[str, str], host: str = "127.0.0.1", method: str = "POST", **settings: object
) -> int:
    """Return the status with which a server that listens on ``host`` answers a request with these
    headers.
    """
    app = guard_app(fine, Settings(**settings), host)  # type: ignore[arg-type]

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            return await client.request(method, "/", headers=headers)

    return asyncio.run(ask()).status_code


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LOCALHOST.",
        "a.localhost:1",
        "127.0.0.1",
        "127.9.9.9:8",
        "[::1]:8000",
        "10.1.2.3:80",
    ],
)
def test_names_of_this_machine_and_addresses_are_taken(host: str) -> None:
    """Names and addresses of this machine are accepted: no name server can point them elsewhere."""
    assert status({"host": host}) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io", "[", ""],
)
def test_other_names_are_refused(host: str) -> None:
    """A page whose name was rebound to this machine is refused."""
    assert status({"host": host}) == 403
    assert status({"host": host}, host="0.0.0.0") == 403


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://localhost.evil.example",
        "http://6.6.6.6",
        "null",
        "",
        "file://",
        "http://[",
    ],
)
def test_pages_from_elsewhere_are_refused(origin: str) -> None:
    """A request that a browser sends for another page is refused, whatever its body."""
    headers = {"host": "localhost:8000", "origin": origin, "content-type": "text/plain"}
    assert status(headers) == 403


@pytest.mark.parametrize(
    ("site", "answer"),
    [("cross-site", 403), ("same-site", 200), ("same-origin", 200), ("none", 200)],
)
def test_a_page_that_does_not_say_where_it_is_from_is_refused(site: str, answer: int) -> None:
    """Without ``Origin`` a request that a browser sends for another site is refused; a link that
    leads here is followed.
    """
    headers = {"host": "localhost:8000", "sec-fetch-site": site}
    assert status(headers) == answer
    assert status(headers, method="GET") == 200


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1:8000", "http://[::1]"]
)
def test_pages_of_this_machine_are_taken(origin: str) -> None:
    """Pages served by this machine are trusted."""
    assert status({"host": "localhost:8000", "origin": origin}) == 200


def test_what_the_server_was_told_is_taken() -> None:
    """The server accepts its host, its host name if it listens on every address, its public URL's
    and the allowed hosts.
    """
    assert status({"host": "gpu.lan:8000"}, host="gpu.lan") == 200
    assert status({"host": f"{socket.gethostname()}:8000"}, host="0.0.0.0") == 200
    assert status({"host": "t.example"}, public_url="https://T.example/path") == 200
    assert status({"host": "x.example"}, allowed_hosts=["X.example"]) == 200
    assert status({"host": "10.1.2.3:80", "origin": "http://10.1.2.3:80"}) == 200
    assert status({"host": "10.1.2.3:80", "origin": "http://10.1.2.3:81"}) == 403


def test_a_key_makes_the_checks_needless() -> None:
    """With a key every host name is accepted: a page does not know the key."""
    assert status({"host": "evil.example", "origin": "http://evil.example"}, api_key="k") == 200


def test_a_server_on_a_port_is_guarded(tmp_path: Path) -> None:
    """A request under a foreign name is 403 with advice in its text, and has no effect."""
    with running_server(Settings(data_dir=tmp_path)) as url:
        answer = httpx.post(url + CREATE, json=SESSION, headers={"host": "evil.example"})
        assert answer.status_code == 403
        assert "--allow-host evil.example" in answer.json()["detail"]
        assert httpx.get(url + OPERATIONS["list_sessions"].path).json() == {"sessions": []}


def test_an_open_server_says_so(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A server open to others without a key, or with a key sent without TLS, logs one warning;
    other servers log none.
    """
    tls = make_certificates(tmp_path).make_server_context()

    def warnings(host: str, tls: ssl.SSLContext | None = None, **settings: Any) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tinker.local"), pytest.raises(_Enough):
            serve(
                engine="toy",
                host=host,
                port=0,
                settings=Settings(data_dir=Path(tempfile.mkdtemp(dir=tmp_path)), **settings),
                ssl_context=tls,
                started=enough,
            )
        return caplog.messages

    def enough(*_: object) -> None:
        raise _Enough

    for encryption in (None, tls):
        (warning,) = warnings("0.0.0.0", encryption)
        assert "no key" in warning
    (warning,) = warnings("0.0.0.0", api_key="secret")
    assert re.fullmatch(
        r"clients send their key to http://0\.0\.0\.0:\d+ unencrypted: give --tls-cert .+", warning
    )
    assert warnings("0.0.0.0", tls, api_key="secret") == []
    assert warnings("127.0.0.1", api_key="secret") == []
    assert warnings("127.0.0.1") == []


class _Enough(Exception):
    pass


def started(tmp_path: Path, *options: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """Start ``tinker serve`` in a process; return it and its URL."""
    command = [
        sys.executable,
        "-m",
        "tinker.cli",
        "serve",
        "--engine",
        "toy",
        "--port",
        "0",
        *options,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), **environment},
    )
    assert process.stdout is not None
    found = re.search(r"http://[^ )]+", process.stdout.readline())
    assert found is not None
    return process, found[0]


def test_serve_takes_folder_and_key_from_the_environment(tmp_path: Path) -> None:
    """TINKER_LOCAL_DIR sets where checkpoints go, and TINKER_SERVE_API_KEY the key that clients
    must send.
    """
    process, url = started(
        tmp_path, TINKER_LOCAL_DIR=str(tmp_path / "mine"), TINKER_SERVE_API_KEY="tml-env"
    )
    with process, httpx.Client(base_url=url, headers={"x-api-key": "tml-env"}) as client:
        assert httpx.post(url + CREATE, json=SESSION).status_code == 401
        session = client.post(CREATE, json=SESSION).json()["session_id"]
        model = model_body(session)
        client.post(OPERATIONS["create_model"].path, json=model)
        save = {"model_id": f"{session}:train:0", "seq_id": 1, "path": "a"}
        future = client.post(OPERATIONS["save_weights"].path, json=save).json()
        result = client.post(
            OPERATIONS["retrieve_future"].path, json={"request_id": future["request_id"]}
        )
        process.terminate()
    assert "path" in result.json()
    assert list((tmp_path / "mine").rglob("checkpoint.json"))
    assert not (tmp_path / ".tinker").exists()


def test_serve_reads_the_key_from_a_file(tmp_path: Path) -> None:
    """The key is the file's text without surrounding white space, and overrides the
    environment's.
    """
    file = tmp_path / "key"
    file.write_text("tml-file\n")
    process, url = started(tmp_path, "--api-key-file", str(file), TINKER_SERVE_API_KEY="tml-env")
    with process:
        wanted = {"tml-file": 200, "tml-env": 401}
        got = {
            key: httpx.post(url + CREATE, json=SESSION, headers={"x-api-key": key}).status_code
            for key in wanted
        }
        process.terminate()
    assert got == wanted


def test_a_key_must_be_one(tmp_path: Path) -> None:
    """Two keys, or an empty one, are a command-line error and do not start an open server."""
    (tmp_path / "key").write_text(" \n")
    for options in (
        ["--api-key-file", "nothing"],
        ["--api-key", ""],
        ["--api-key-file", str(tmp_path / "key")],
        ["--api-key", "a", "--api-key-file", "key"],
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            result = CliRunner().invoke(main, ["serve", "--engine", "toy", "--port", "0", *options])
        assert result.exit_code == 2, result.output
        assert "key" in result.output
        assert (
            options[1] != "nothing"
            or "Invalid value for '--api-key-file': File 'nothing' does not exist." in result.output
        )
