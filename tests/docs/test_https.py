"""What the page about servers says of HTTPS: the self-made certificate, and nginx in front of a
server, really run.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.tls import Certificates, make_certificates

from tinker.local import Settings, running_server
from tinker.local.serving import load_tls

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "servers.md").read_text(encoding="utf-8")
SECONDS = 30.0  # until a test gives up
BODY = b"b" * (2 << 20)  # more than what nginx takes by default, and than the sockets hold

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command"
)
needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")


@needs_openssl
def test_the_self_made_certificate_is_trusted(tmp_path: Path) -> None:
    """The page's command makes files that the server takes and a strict client trusts."""
    command = re.findall(r"^openssl req .*?[^\\]$", PAGE, re.MULTILINE | re.DOTALL)[0]
    words = shlex.split(command.replace("\\\n", ""))
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=SECONDS)
    trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # the default since Python 3.13
    tls = load_tls(tmp_path / "cert.pem", tmp_path / "key.pem")
    with running_server(Settings(data_dir=tmp_path), ssl_context=tls) as url:
        assert httpx.get(f"{url}/api/v1/healthz", verify=trusting).json() == {"status": "ok"}


@contextlib.contextmanager
def run_nginx(folder: Path, certificates: Certificates, port_behind: int) -> Generator[int]:
    """Run nginx with the configuration of the page in front of a port, and yield its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (site,) = re.findall(r"^```nginx\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for written, here in {
        "127.0.0.1:8000": f"127.0.0.1:{port_behind}",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/tinker/cert.pem": str(certificates.chain),
        "/etc/ssl/tinker/key.pem": str(certificates.key),
    }.items():
        assert written in site
        site = site.replace(written, here)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
    head = f"pid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
    (folder / "nginx.conf").write_text(f"{head}http {{ access_log off;\n{paths}{site}}}\n")
    start = ["nginx", "-c", str(folder / "nginx.conf")]
    subprocess.run(start, check=True, capture_output=True, timeout=SECONDS)
    try:
        yield port
    finally:
        os.kill(int((folder / "nginx.pid").read_text()), signal.SIGTERM)


@needs_nginx
def test_a_server_behind_nginx(tmp_path: Path) -> None:
    """HTTP/2 is offered, large bodies arrive, and links begin with the address of clients."""
    certificates = make_certificates(tmp_path)
    with (
        running_server(Settings(data_dir=tmp_path)) as url,
        run_nginx(tmp_path, certificates, urlsplit(url).port or 0) as port,
        httpx.Client(verify=certificates.make_client_context(), timeout=SECONDS) as client,
    ):
        assert choose_protocol(port, certificates) == "h2"
        body = b'{"tags": [], "sdk_version": "0"' + b" " * len(BODY) + b"}"
        root, kind = f"https://localhost:{port}", {"content-type": "application/json"}
        answer = client.post(f"{root}/api/v1/create_session", content=body, headers=kind)
        export = f"{root}/api/v1/sessions/{answer.json()['session_id']}/trace_export"
        exports = (client.get(export).json() for _ in range(1000))
        trace = next(one["url"] for one in exports if "url" in one)  # the first ones are pending
        assert trace.startswith(f"{root}/")
        assert client.get(trace).status_code == 200


def choose_protocol(port: int, certificates: Certificates) -> str | None:
    """Return what a server makes of the offer of HTTP/2 and HTTP/1.1."""
    context = certificates.make_client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as encrypted,
    ):
        return encrypted.selected_alpn_protocol()


@needs_nginx
def test_nothing_is_held_back_by_nginx(tmp_path: Path) -> None:
    """Requests and events arrive before their end, and a client's end is passed on."""
    certificates = make_certificates(tmp_path)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        run_nginx(tmp_path, certificates, listener.getsockname()[1]) as port,
        ThreadPoolExecutor(1) as pool,
    ):
        listener.settimeout(SECONDS)
        accepted = pool.submit(listener.accept)
        client = http.client.HTTPSConnection(
            "localhost", port, timeout=SECONDS, context=certificates.make_client_context()
        )
        client.putrequest("POST", "/api/v1/stream_sample")
        client.putheader("Content-Length", str(2 * len(BODY)))
        client.endheaders(BODY)
        server = accepted.result()[0]
        server.settimeout(SECONDS)
        with server, server.makefile("rb") as request:
            while request.readline() != b"\r\n":
                pass
            assert request.read(len(BODY)) == BODY
            client.send(BODY)
            assert request.read(len(BODY)) == BODY
            server.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            answer = client.getresponse()
            for event in (b"data: 1\n\n", b"data: 2\n\n"):
                server.sendall(b"%x\r\n%s\r\n" % (len(event), event))
                assert answer.read(len(event)) == event
            answer.close()
            client.close()
            assert request.read(1) == b""
