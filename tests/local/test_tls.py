"""A server with TLS: the command, its files, and the URLs that clients receive."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from support.served import served
from support.tls import Certificates, make_certificates
from tinker_wire.operations import OPERATIONS

from tinker.cli import main
from tinker.local import Settings, running_server
from tinker.local.serving import load_tls

SECONDS = 30.0  # until a test gives up
HEALTH = OPERATIONS["healthz"].path


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Make a certificate for this machine, its chain and its key."""
    return make_certificates(tmp_path)


def test_serve_with_a_certificate(tmp_path: Path, certificates: Certificates) -> None:
    """The command serves HTTPS with the chain, prints its URL, and stops though a client is idle."""
    files = ("--tls-cert", certificates.chain, "--tls-key", certificates.key)
    with served("--data", tmp_path, *files, "--api-key", "tml-k") as server:
        said = "".join([server.first, *server.lines(9)])
        assert set(re.findall(r"https?://[\w.]+:\d+", said)) == {server.url}
        assert "use a name of the certificate in place of 127.0.0.1" in said
        client = connect(server.url, certificates.make_client_context())
        client.request("GET", HEALTH)
        assert client.getresponse().read() == b'{"status":"ok"}'
        assert server.end() == "Stopped.\n"
        client.close()
    assert server.process.returncode == 0


def connect(url: str, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    port = urlsplit(url).port
    return http.client.HTTPSConnection("localhost", port, timeout=SECONDS, context=context)


def running(folder: Path, context: ssl.SSLContext) -> AbstractContextManager[str]:
    return running_server(Settings(data_dir=folder), ssl_context=context)


def test_links_are_of_the_same_kind(tmp_path: Path, certificates: Certificates) -> None:
    """A link to a file of a server with TLS uses https."""
    trusting = certificates.make_client_context()
    with (
        running(tmp_path, certificates.make_server_context()) as url,
        httpx.Client(base_url=url, verify=trusting, timeout=SECONDS) as client,
    ):
        body = {"tags": [], "sdk_version": "1"}
        session = client.post(OPERATIONS["create_session"].path, json=body).json()["session_id"]
        path = OPERATIONS["trace_export"].path.format(session_id=session)
        # pending until another thread has made it
        exports = (client.get(path).json() for _ in range(1000))
        trace = next(export["url"] for export in exports if export["status"] == "ready")
        assert trace.startswith(f"{url}/")
        assert client.get(trace).status_code == 200


def test_http_1_1_over_new_versions_of_tls_only(tmp_path: Path, certificates: Certificates) -> None:
    """Clients that prefer HTTP/2 get HTTP/1.1; TLS 1.1 and renegotiations are refused."""
    context = load_tls(certificates.chain, certificates.key)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    with running(tmp_path, context) as url:
        trusting = certificates.make_client_context()
        trusting.set_alpn_protocols(["h2", "http/1.1"])
        client = connect(url, trusting)
        client.connect()
        assert isinstance(client.sock, ssl.SSLSocket)
        assert client.sock.selected_alpn_protocol() == "http/1.1"
        client.close()


def take_other_key(files: Certificates) -> str:
    files.key.write_bytes(make_certificates(files.key.parent, "other").key.read_bytes())
    return "the private key in {key} is not that of the first certificate in {chain}"


def set_passphrase(files: Certificates) -> str:
    key = load_pem_private_key(files.key.read_bytes(), None)
    secret = BestAvailableEncryption(b"secret")
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    return (
        "the private key in {key} has a passphrase; write it without one: openssl "
        "pkey -in FILE -out FILE"
    )


def remove_chain(files: Certificates) -> str:
    files.chain.unlink()
    return "the certificate in {chain} cannot be read: No such file or directory"


def remove_key(files: Certificates) -> str:
    files.key.unlink()
    return "the private key in {key} cannot be read: No such file or directory"


def exchange_files(files: Certificates) -> str:
    chain, key = files.chain.read_bytes(), files.key.read_bytes()
    files.chain.write_bytes(key)
    files.key.write_bytes(chain)
    return "{chain} holds no certificate in PEM format"


def damage_key(files: Certificates) -> str:
    files.key.write_text("-----BEGIN PRIVATE KEY-----\nnothing\n-----END PRIVATE KEY-----\n")
    return "the certificate in {chain} and the private key in {key} cannot be used"


@pytest.mark.parametrize(
    "spoil", [take_other_key, set_passphrase, remove_chain, remove_key, exchange_files, damage_key]
)
def test_files_that_cannot_be_used(
    certificates: Certificates, spoil: Callable[[Certificates], str]
) -> None:
    """An invalid file is one line that names it, before the port is opened and the model loaded."""
    chain, key = str(certificates.chain), str(certificates.key)
    said = spoil(certificates).format(key=repr(key), chain=repr(chain))
    model = ["--engine", "torch", "--model", "/no/such/model", "--port", "0"]
    files = ["--tls-cert", chain, "--tls-key", key]
    result = CliRunner().invoke(main, ["serve", *model, *files])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {said}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--tls-cert", "--tls-key"])
def test_one_file_alone(certificates: Certificates, option: str) -> None:
    """A certificate without its key, or a key without its certificate, is a command-line error."""
    result = CliRunner().invoke(
        main, ["serve", "--engine", "toy", "--port", "0", option, str(certificates.chain)]
    )
    assert result.exit_code == 2
    assert "Give --tls-cert and --tls-key together." in result.stderr
