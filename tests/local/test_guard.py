"""Requests from web pages and other machines: what a server without a key refuses, and keys."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from support.served import served
from support.tls import make_certificates
from tinker_wire.operations import OPERATIONS

import tinker
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
    """Return the status with which a server on ``host`` answers these headers."""
    app = guard_app(fine, Settings(**settings), host)  # type: ignore[arg-type]

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            return await client.request(method, "/", headers=headers)

    return asyncio.run(ask()).status_code


HERE = "localhost:8000"


TAKEN_HOSTS = (
    HERE,
    "localhost",
    "LOCALHOST.",
    "a.localhost:1",
    "127.0.0.1",
    "127.9.9.9:8",
    "[::1]:8000",
)


REFUSED_HOSTS = (
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "[",
    "",
)


TAKEN_ORIGINS = ("http://localhost:3000", "http://127.0.0.1:8000", "http://[::1]")


REFUSED_ORIGINS = (
    "http://evil.example",
    "https://localhost.evil.example",
    "http://6.6.6.6",
    "http://[",
)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        # no name server can point these elsewhere
        *(({"host": name}, 200) for name in (*TAKEN_HOSTS, "10.1.2.3:80")),
        *(({"host": name}, 403) for name in REFUSED_HOSTS),
        *(({"host": HERE, "origin": origin}, 200) for origin in TAKEN_ORIGINS),
        *(
            ({"host": HERE, "origin": one}, 403)
            for one in (*REFUSED_ORIGINS, "null", "", "file://")
        ),
        ({"host": "10.1.2.3:80", "origin": "http://10.1.2.3:80"}, 200),
        ({"host": "10.1.2.3:80", "origin": "http://10.1.2.3:81"}, 403),
        ({"host": HERE, "sec-fetch-site": "cross-site"}, 403),
        *(
            ({"host": HERE, "sec-fetch-site": site}, 200)
            for site in ("same-site", "same-origin", "none")
        ),
    ],
)
def test_what_comes_from_this_machine_is_taken(
    host: str, headers: dict[str, str], expected: int
) -> None:
    """Names and pages of this machine are trusted; other names and foreign pages are 403."""
    assert status(headers, host) == expected


def test_what_the_server_was_told_is_taken() -> None:
    """The names of the host, of the public URL and of allowed hosts are taken, and all with a key."""
    assert status({"host": "gpu.lan:8000"}, host="gpu.lan") == 200
    assert status({"host": f"{socket.gethostname()}:8000"}, host="0.0.0.0") == 200
    assert status({"host": "t.example"}, public_url="https://T.example/path") == 200
    assert status({"host": "x.example"}, allowed_hosts=["X.example"]) == 200
    assert status({"host": "evil.example", "origin": "http://evil.example"}, api_key="k") == 200
    # a link that leads here is followed
    assert status({"host": HERE, "sec-fetch-site": "cross-site"}, method="GET") == 200


def test_a_server_on_a_port_is_guarded(tmp_path: Path) -> None:
    """A request under a foreign name is 403 with advice in its text, and has no effect."""
    with running_server(Settings(data_dir=tmp_path)) as url:
        answer = httpx.post(url + CREATE, json=SESSION, headers={"host": "evil.example"})
        assert answer.status_code == 403
        assert "--allow-host evil.example" in answer.json()["detail"]
        assert httpx.get(url + OPERATIONS["list_sessions"].path).json() == {"sessions": []}


def test_an_open_server_says_so(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A server open to others without a key or TLS logs one warning; other servers log none."""
    tls = make_certificates(tmp_path).make_server_context()

    def warnings(host: str, tls: ssl.SSLContext | None = None, **settings: Any) -> list[str]:
        def enough(*_: object) -> None:
            raise _Enough

        caplog.clear()
        chosen = Settings(data_dir=Path(tempfile.mkdtemp(dir=tmp_path)), **settings)
        where: dict[str, Any] = {"host": host, "port": 0, "settings": chosen, "ssl_context": tls}
        with caplog.at_level(logging.WARNING, "tinker.local"), pytest.raises(_Enough):
            serve(engine="toy", started=enough, **where)
        return caplog.messages

    for encryption in (None, tls):
        (warning,) = warnings("0.0.0.0", encryption)
        assert "no key" in warning
    (warning,) = warnings("0.0.0.0", api_key="secret")
    said = r"clients send their key to http://0\.0\.0\.0:\d+ unencrypted: give --tls-cert .+"
    assert re.fullmatch(said, warning)
    assert warnings("0.0.0.0", tls, api_key="secret") == []
    assert warnings("127.0.0.1", api_key="secret") == []
    assert warnings("127.0.0.1") == []


class _Enough(Exception):
    pass


def test_serve_takes_folder_and_key_from_the_environment(tmp_path: Path) -> None:
    """TINKER_LOCAL_DIR is where checkpoints go, TINKER_SERVE_API_KEY what clients must send."""
    folder = str(tmp_path / "mine")
    named = {"TINKER_LOCAL_DIR": folder, "TINKER_SERVE_API_KEY": "tml-env", "HOME": str(tmp_path)}
    with served(cwd=tmp_path, **named) as server:
        assert httpx.post(server.url + CREATE, json=SESSION).status_code == 401
        with tinker.ServiceClient(base_url=server.url, api_key="tml-env") as service:
            service.create_lora_training_client("tinker/toy", rank=1).save_state("a").result(30)
    assert list((tmp_path / "mine").rglob("checkpoint.json"))
    assert not (tmp_path / ".tinker").exists()


def test_serve_reads_the_key_from_a_file(tmp_path: Path) -> None:
    """The key is the file's text without white space, and overrides the environment's."""
    file = tmp_path / "key"
    file.write_text("tml-file\n")
    options = ("--data", tmp_path, "--api-key-file", file)
    with served(*options, TINKER_SERVE_API_KEY="tml-env") as server:
        for key, status in (("tml-file", 200), ("tml-env", 401)):
            answer = httpx.post(server.url + CREATE, json=SESSION, headers={"x-api-key": key})
            assert answer.status_code == status


def test_a_key_must_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys, or an empty one, are a command-line error and do not start an open server."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text(" \n")
    absent = "Invalid value for '--api-key-file': File 'nothing' does not exist."
    for options, said in (
        (["--api-key-file", "nothing"], absent),
        (["--api-key", ""], "key"),
        (["--api-key-file", "key"], "key"),
        (["--api-key", "a", "--api-key-file", "key"], "key"),
    ):
        result = CliRunner().invoke(main, ["serve", "--engine", "toy", "--port", "0", *options])
        assert result.exit_code == 2, result.output
        assert said in result.output
