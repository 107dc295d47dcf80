"""Certificates: of servers and of clients, and the errors of failed handshakes."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trustme
from support.tls import NAMES, authority, server_context

import tinker
from tinker.testing import toy_server

Configured: TypeAlias = dict[str, Any]
STRANGERS = trustme.CA(organization_name="Strangers")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a client certificate of that authority with its private key, in one file."""
    path = tmp_path / "client.pem"
    authority().issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


@contextlib.contextmanager
def serving(folder: Path, context: ssl.SSLContext | None) -> Iterator[str]:
    """Yield a server with these certificates."""
    with toy_server(folder / "server") as server, server.on_port(ssl_context=context) as url:
        yield url


def mutual(*protocols: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Return a server context that requires a client certificate of the authority."""
    context = server_context(*protocols)
    context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    authority().configure_trust(context)
    return context


@contextlib.contextmanager
def refusing(context: ssl.SSLContext) -> Iterator[str]:
    """Yield a server that sends the alerts of OpenSSL, which asyncio does not send."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                greet(listener.accept()[0])

    def greet(plain: socket.socket) -> None:
        with plain, contextlib.suppress(OSError):
            plain.settimeout(5)
            with contextlib.suppress(ssl.SSLError):
                context.wrap_socket(plain.dup(), server_side=True).close()
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(1 << 16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def ask(url: str, **configured: Any) -> bool:
    """Return whether the server responds to a client with these settings and the usual retries."""
    service = tinker.ServiceClient(
        config=tinker.Config.load(base_url=url, api_key="key", **configured)
    )
    try:
        return bool(service.get_server_capabilities().supported_models)
    finally:
        service.close().result(10)


def refuse(url: str, **configured: Any) -> str:
    """Return the client's error without the request; it must give up at once."""
    with pytest.raises(tinker.APIConnectionError) as caught:
        ask(url, patience_seconds=0, **configured)
    assert caught.value.wrong_address
    assert caught.value.never_ran
    cause = caught.value.__cause__
    assert cause is not None
    assert (cause.__cause__, cause.__context__) == (None, None)
    message = str(caught.value)
    assert "\n" not in message
    assert "Check that the server is running" not in message
    return re.sub(r".*?/api/v1/\S+: ", "", message.replace(url.partition("//")[2], "SERVER"))


@pytest.mark.parametrize("way", ["ca_file", "TINKER_CA_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"])
@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_a_custom_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ca_file: Path, way: str, protocol: str
) -> None:
    """A custom authority can be trusted by a setting, by our variable and by the system's two."""
    configured: Configured = {}
    if way == "ca_file":
        configured = {"ca_file": ca_file}
    elif way == "SSL_CERT_DIR":  # OpenSSL finds a certificate in a folder by its hash
        command = ["openssl", "x509", "-hash", "-noout", "-in", str(ca_file)]
        name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        folder = tmp_path / "hashed"
        folder.mkdir()
        (folder / f"{name}.0").write_bytes(ca_file.read_bytes())
        monkeypatch.setenv(way, str(folder))
    else:
        monkeypatch.setenv(way, str(ca_file))
    with serving(tmp_path, server_context(protocol)) as url:
        assert ask(url, **configured)


@pytest.mark.parametrize(
    ("variable", "what"), [("SSL_CERT_FILE", "file"), ("SSL_CERT_DIR", "folder")]
)
@pytest.mark.parametrize("instead", ["nothing", "the other kind", "a list"])
def test_a_variable_that_names_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, what: str, instead: str
) -> None:
    """The system's variables may name what does not exist; the refusal of a certificate says so."""
    path = tmp_path / "named"
    if instead == "the other kind":
        path.mkdir() if what == "file" else path.touch()
    named = f"{path}{os.pathsep}{path}" if instead == "a list" else str(path)
    monkeypatch.setenv(variable, named)
    with serving(tmp_path, server_context("http/1.1")) as url:
        said = refuse(url)
    missing = f"there is no {what} {named}, which {variable} names."
    assert said.endswith(f"(TINKER_CA_FILE, SSL_CERT_FILE); {missing}")


def test_an_authority_is_added_to_the_system_s(ca_file: Path) -> None:
    """With ``ca_file``, every certificate that is trusted by default still is."""
    known, more = (
        tinker.Config(**given).trust.context().get_ca_certs(binary_form=True)
        for given in ({}, {"ca_file": ca_file})
    )
    assert len(more) == len(known) + 1 > 1


def test_a_system_without_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If OpenSSL finds no certificates, those of certifi are used."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    import certifi

    packaged = ssl.create_default_context(cafile=certifi.where())
    found = tinker.Config().trust.context().get_ca_certs(binary_form=True)
    assert set(found) == set(packaged.get_ca_certs(binary_form=True))


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_client_certificate(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ca_file: Path,
    bundle: Path,
    protocol: str,
    apart: bool,
) -> None:
    """It is sent to a server that requires one; its private key is in the same file or apart."""
    configured: Configured = {"ca_file": ca_file, "client_cert": bundle}
    if apart:
        key, certificate = (tmp_path / name for name in ("key.pem", "certificate.pem"))
        issued = authority().issue_cert("client")
        issued.private_key_pem.write_to_path(str(key))
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        monkeypatch.setenv("TINKER_CLIENT_CERT", str(certificate))
        monkeypatch.setenv("TINKER_CLIENT_KEY", str(key))
        del configured["client_cert"]
    with serving(tmp_path, mutual(protocol)) as url:
        assert ask(url, **configured)


AFTER_THE_HANDSHAKE = pytest.mark.httpunk("httpx drops a refusal that comes after the handshake")
REQUIRED = "SERVER requires a client certificate: set client_cert (TINKER_CLIENT_CERT)."
MAYBE_REQUIRED = (
    "SERVER refused the TLS handshake; if it requires a client certificate, set client_cert "
    "(TINKER_CLIENT_CERT)."
)


@pytest.mark.parametrize(
    ("protocol", "version", "expected"),
    [
        pytest.param("h2", ssl.TLSVersion.TLSv1_3, REQUIRED, marks=AFTER_THE_HANDSHAKE),
        pytest.param("http/1.1", ssl.TLSVersion.TLSv1_3, REQUIRED, marks=AFTER_THE_HANDSHAKE),
        ("h2", ssl.TLSVersion.TLSv1_2, MAYBE_REQUIRED),  # where the handshake fails
    ],
)
def test_a_server_that_requires_a_certificate(
    ca_file: Path, protocol: str, version: ssl.TLSVersion, expected: str
) -> None:
    """Its refusal names the setting, in TLS 1.2 with less certainty; no request has run."""
    with refusing(mutual(protocol, version=version)) as url:
        assert refuse(url, ca_file=ca_file) == expected


@AFTER_THE_HANDSHAKE
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_certificate_that_the_server_does_not_know(
    tmp_path: Path, ca_file: Path, version: ssl.TLSVersion
) -> None:
    """The refusal names the setting and the server's reason."""
    path = tmp_path / "stranger.pem"
    STRANGERS.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(path))
    with refusing(mutual("http/1.1", version=version)) as url:
        said = refuse(url, ca_file=ca_file, client_cert=path)
    assert said == (
        "SERVER does not accept the client certificate (unknown ca): check client_cert "
        "(TINKER_CLIENT_CERT)."
    )


THE_CERTIFICATE = "the certificate of SERVER is "
PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
A_DAY = {"not_before": PAST, "not_after": PAST + datetime.timedelta(days=1)}


@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        (
            lambda: authority().issue_cert("other.example"),
            "for another name (Hostname mismatch, certificate is not valid for 'localhost'): "
            "check base_url (TINKER_BASE_URL).",
        ),
        (
            lambda: authority().issue_cert(*NAMES, **A_DAY),
            "not valid now (certificate has expired): renew it, or set the clock of this machine.",
        ),
        (
            lambda: STRANGERS.issue_cert(*NAMES),
            "not trusted (unable to get local issuer certificate): name its authority in ca_file "
            "(TINKER_CA_FILE, SSL_CERT_FILE).",
        ),
        (None, "write http:// instead of https:// in base_url (TINKER_BASE_URL)."),
    ],
    ids=["name", "expired", "unknown", "none"],
)
def test_certificates_that_are_refused(
    tmp_path: Path, ca_file: Path, certificate: Callable[[], trustme.LeafCert] | None, said: str
) -> None:
    """A one-line error says what is wrong with the server's certificate, and what to change."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        certificate().configure_cert(context)
    with serving(tmp_path, context if certificate else None) as url:
        found = refuse(url.replace("http:", "https:"), ca_file=ca_file)
    expected = THE_CERTIFICATE if certificate else "SERVER does not use TLS: "
    assert found == expected + said


_ENCRYPTED_KEY = b"""-----BEGIN ENCRYPTED PRIVATE KEY-----
MIH0MF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAkBBCWC2tSDfbXODfDyPyu
cBKgAgIIADAMBggqhkiG9w0CCQUAMB0GCWCGSAFlAwQBKgQQcROGBBhjMeMbKnpa
cObk+wSBkHdRrmyKdfS4XjeBAScTvrUZNXavXnNpN1xWaT5tgWcxSCBZAwL1tfgO
sR/tuqGd7pIvBd0/G26EL127jvQ9A+wROCpJn+jlEse6ut96bbInktt5XouVRCMh
CXE7sgGUouDSeZT+qUjkdDSeNVMg9qOsUceBtqSwKyy5+XvRBnhklZkJV5CB2RC8
mSicCkt+sQ==
-----END ENCRYPTED PRIVATE KEY-----
"""


CA, CERT, KEY = (
    rf"{name} \(TINKER_{name.upper()}\)" for name in ("ca_file", "client_cert", "client_key")
)


@pytest.mark.parametrize(
    ("configured", "said"),
    [
        ({"ca_file": "missing"}, f"^{CA} cannot be used: there is no file .*missing$"),
        ({"ca_file": "text"}, f"^{CA} .*text: it has no certificate in the PEM format$"),
        ({"client_cert": "missing"}, f"^{CERT} cannot be used: there is no file .*missing$"),
        (
            {"client_cert": "certificate"},
            "certificate: a certificate and its private key are needed, in the PEM format$",
        ),
        (
            {"client_cert": "certificate", "client_key": "other_key"},
            f"^{CERT} with {KEY} .*belongs to another certificate$",
        ),
        (
            {"client_cert": "certificate", "client_key": "encrypted"},
            "the private key is encrypted; store it without a password",
        ),
        ({"client_key": "other_key"}, f"^{KEY} needs {CERT}"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, configured: dict[str, str], said: str) -> None:
    """They are refused with the settings, before any request and without asking for a password."""
    certificates = [authority().issue_cert(name) for name in ("one", "other")]
    certificates[0].cert_chain_pems[0].write_to_path(str(tmp_path / "certificate"))
    certificates[1].private_key_pem.write_to_path(str(tmp_path / "other_key"))
    (tmp_path / "text").write_bytes(b"no certificate")
    (tmp_path / "encrypted").write_bytes(_ENCRYPTED_KEY)
    given: Configured = {name: tmp_path / file for name, file in configured.items()}
    with pytest.raises(ValueError, match=said):
        tinker.Config.load(base_url="https://server.invalid", **given)


def test_files_of_the_environment_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused by the first call, and nothing is sent."""
    monkeypatch.setenv("TINKER_CA_FILE", str(tmp_path / "missing"))
    service = tinker.ServiceClient(base_url="https://server.invalid", api_key="key")
    with pytest.raises(ValueError, match=f"^{CA} cannot be used: there is no file .*missing$"):
        service.get_server_capabilities()
