"""The ways to the stub server: plain HTTP, HTTPS with HTTP/2 through nginx, and the latter at a
distance.

Standard library only; openssl makes the certificate for the run. Clients trust it by
``SSL_CERT_FILE``, which names a file with the system's certificates too, so that a client's start
pays for reading those as it does for users.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROUND_TRIP_SECONDS = 0.05
OPEN_FILES = 65_536
INSTALL_NGINX = (
    "nginx is not on PATH, so only plain HTTP is measured: `apt install "
    "nginx-light` or `brew install nginx`"
)

# nginx 1.25 and newer accept `listen ... http2` with a warning. What is relative is in the folder
# of the run.
_NGINX = """
daemon off; master_process off; pid nginx.pid;
events {{ worker_connections 32768; }}
http {{
  access_log off; client_max_body_size 0; keepalive_requests 1000000;
  client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  upstream stub {{ server 127.0.0.1:{stub}; keepalive 16384; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} ssl http2 backlog=4096; http2_max_concurrent_streams 128;
    ssl_protocols TLSv1.3; ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
    location / {{
      proxy_pass http://stub; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off;
    }}
  }}
}}
"""
_CERTIFICATE = """
[req]
prompt = no
distinguished_name = name
x509_extensions = extensions
[name]
CN = localhost
[extensions]
subjectAltName = DNS:localhost, IP:127.0.0.1
basicConstraints = critical, CA:FALSE
"""


@contextlib.contextmanager
def _running(*command: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [str(one) for one in command], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def _script(name: str, *arguments: object) -> Iterator[int]:
    """Yield a script of this folder that prints its port."""
    with _running(sys.executable, HERE / name, *arguments) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextlib.contextmanager
def stub_server(sample_delay: float = 0.2) -> Iterator[str]:
    """Yield a stub server of its own process; its base URL."""
    with _script("stub_server.py", "--sample-delay", sample_delay) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def toy_server(python: str) -> Iterator[str]:
    """This project's server with the toy engine, of an environment that has it; its base URL."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _running(
            python, "-m", "tinker", "serve", "--engine", "toy", "--port", 0, "--data", folder
        ) as process,
    ):
        assert process.stdout is not None
        yield process.stdout.readline().split(" at ")[1].split()[0]


@contextlib.contextmanager
def front_end(stub_url: str, folder: Path) -> Iterator[str]:
    """nginx with TLS 1.3 and HTTP/2 before the stub server; its base URL. ``trusted(folder)`` is
    whom clients must trust.
    """
    _make_certificate(folder)
    port = _free_port()
    (folder / "nginx.conf").write_text(
        _NGINX.format(stub=stub_url.rpartition(":")[2], port=port, folder=folder)
    )
    with _running("nginx", "-p", folder, "-e", "stderr", "-c", folder / "nginx.conf") as process:
        _wait_for(port, process)
        yield f"https://localhost:{port}"


def trusted(folder: Path) -> Path:
    """Return the file for ``SSL_CERT_FILE``."""
    return folder / "trusted.pem"


@contextlib.contextmanager
def wires(sample_delay: float = 0.2) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Every wire that this machine can have, with its base URL; and the variables with which
    clients trust them.
    """
    _allow_open_files()
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(stub_server(sample_delay))
        if shutil.which("nginx") is None:
            print(INSTALL_NGINX, file=sys.stderr)
            yield {"plain": plain}, {}
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        https = stack.enter_context(front_end(plain, folder))
        port = stack.enter_context(
            _script("relay.py", https.rpartition(":")[2], "--round-trip", ROUND_TRIP_SECONDS)
        )
        yield (
            {"plain": plain, "https": https, "distant": f"https://localhost:{port}"},
            {"SSL_CERT_FILE": str(trusted(folder))},
        )


def _allow_open_files() -> None:
    """Ten thousand exchanges are as many connections of nginx to the stub server; child processes
    inherit the limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _make_certificate(folder: Path) -> None:
    (folder / "openssl.cnf").write_text(_CERTIFICATE)
    key = (
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-keyout",
        folder / "key.pem",
    )
    command = (
        "openssl",
        "req",
        "-x509",
        "-config",
        folder / "openssl.cnf",
        *key,
        "-out",
        folder / "cert.pem",
    )
    subprocess.run(command, check=True, capture_output=True)
    system = ssl.get_default_verify_paths().cafile
    known = Path(system).read_text() if system else ""
    trusted(folder).write_text((folder / "cert.pem").read_text() + known)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        with (
            contextlib.suppress(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", port)),
        ):
            return
        time.sleep(0.05)
    raise SystemExit("nginx did not start")
