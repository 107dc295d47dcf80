"""Certificates: which servers the client trusts, client certificates, and the errors of failed
handshakes.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import socket
import ssl
import subprocess
import sys
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


def context_of(certificate: trustme.LeafCert, *protocols: str) -> ssl.SSLContext:
    """Return a server context with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    context.set_alpn_protocols(list(protocols or ("h2", "http/1.1")))
    return context


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


# ---------------------------------------------------------------------------------- trusted servers


def trusting(
    monkeypatch: pytest.MonkeyPatch, way: str, ca_file: Path, tmp_path: Path
) -> Configured:
    """Settings that name the authority in one of the possible ways."""
    if way == "ca_file":
        return {"ca_file": ca_file}
    if way == "SSL_CERT_DIR":
        folder = tmp_path / "hashed"
        folder.mkdir()
        name = ssl_hash(ca_file)
        (folder / f"{name}.0").write_bytes(ca_file.read_bytes())
        monkeypatch.setenv(way, str(folder))
        return {}
    monkeypatch.setenv(way, str(ca_file))
    return {}


def ssl_hash(certificate: Path) -> str:
    """Return the file name by which OpenSSL finds a certificate in a folder."""
    command = ["openssl", "x509", "-hash", "-noout", "-in", str(certificate)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("way", ["ca_file", "TINKER_CA_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"])
@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_a_custom_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ca_file: Path, way: str, protocol: str
) -> None:
    """A custom authority can be trusted by a setting, by our variable and by the system's two."""
    configured = trusting(monkeypatch, way, ca_file, tmp_path)
    with serving(tmp_path, server_context(protocol)) as url:
        assert ask(url, **configured)


@pytest.mark.parametrize(
    ("variable", "what"), [("SSL_CERT_FILE", "file"), ("SSL_CERT_DIR", "folder")]
)
@pytest.mark.parametrize("instead", ["nothing", "the other kind", "a list"])
def test_a_variable_that_names_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, what: str, instead: str
) -> None:
    """The system's variables may name what does not exist, as conda's do; the refusal of a
    certificate then says so.
    """
    path = tmp_path / "named"
    if instead == "the other kind":
        path.mkdir() if what == "file" else path.touch()
    named = f"{path}{os.pathsep}{path}" if instead == "a list" else str(path)
    monkeypatch.setenv(variable, named)
    with serving(tmp_path, server_context("http/1.1")) as url:
        said = refuse(url)
    assert said.endswith(
        f"(TINKER_CA_FILE, SSL_CERT_FILE); there is no {what} {named}, which {variable} names."
    )


def test_an_authority_is_added_to_the_system_s(ca_file: Path) -> None:
    """With ``ca_file``, every certificate that is trusted by default still is."""
    without, with_file = (
        tinker.Config(**one).trust.context() for one in ({}, {"ca_file": ca_file})
    )
    known = without.get_ca_certs(binary_form=True)
    assert known
    assert len(with_file.get_ca_certs(binary_form=True)) == len(known) + 1


def test_a_system_without_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If OpenSSL finds no certificates, those of certifi are used."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    import certifi

    packaged = ssl.create_default_context(cafile=certifi.where())
    found = tinker.Config().trust.context().get_ca_certs(binary_form=True)
    assert set(found) == set(packaged.get_ca_certs(binary_form=True))


# ------------------------------------------------------------------------------ client certificates


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
    """It is sent to a server that requires one; its private key is in the same file or in a
    separate one.
    """
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


@pytest.mark.httpunk("httpx drops a refusal that comes after the handshake")
@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_a_server_that_requires_a_certificate(ca_file: Path, protocol: str) -> None:
    """Its refusal, which comes after the handshake in TLS 1.3, names the setting; no request has
    run.
    """
    with refusing(mutual(protocol)) as url:
        said = refuse(url, ca_file=ca_file)
    assert said == "SERVER requires a client certificate: set client_cert (TINKER_CLIENT_CERT)."


def test_a_server_that_requires_a_certificate_in_tls_1_2(ca_file: Path) -> None:
    """The handshake fails; the error suggests a missing client certificate, as there may be other
    reasons.
    """
    with refusing(mutual("h2", version=ssl.TLSVersion.TLSv1_2)) as url:
        said = refuse(url, ca_file=ca_file)
    assert said == (
        "SERVER refused the TLS handshake; if it requires a client certificate, set client_cert "
        "(TINKER_CLIENT_CERT)."
    )


@pytest.mark.httpunk("httpx drops a refusal that comes after the handshake")
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


# --------------------------------------------------------------------------------- permanent errors


def _expired() -> trustme.LeafCert:
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    return authority().issue_cert(
        *NAMES, not_before=past, not_after=past + datetime.timedelta(days=1)
    )


@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        (
            lambda: authority().issue_cert("other.example"),
            "the certificate of SERVER is for another name (Hostname mismatch, certificate is not "
            "valid for 'localhost'): "
            "check base_url (TINKER_BASE_URL).",
        ),
        (
            _expired,
            (
                "the certificate of SERVER is not valid now (certificate has expired): renew it, "
                "or set the clock of this machine."
            ),
        ),
        (
            lambda: STRANGERS.issue_cert(*NAMES),
            "the certificate of SERVER is not trusted (unable to get local issuer certificate): "
            "name its authority in ca_file (TINKER_CA_FILE, SSL_CERT_FILE).",
        ),
    ],
    ids=["name", "expired", "unknown"],
)
def test_certificates_that_are_refused(
    tmp_path: Path, ca_file: Path, certificate: Callable[[], trustme.LeafCert], said: str
) -> None:
    """A one-line error says what is wrong with the server's certificate, and what to change."""
    with serving(tmp_path, context_of(certificate())) as url:
        assert refuse(url, ca_file=ca_file) == said


def test_a_server_without_tls(tmp_path: Path) -> None:
    """An https address of a plain HTTP server is a one-line error, too."""
    with serving(tmp_path, None) as url:
        said = refuse(url.replace("http:", "https:"))
    assert said == (
        "SERVER does not use TLS: write http:// instead of https:// in base_url (TINKER_BASE_URL)."
    )




def _files(folder: Path) -> dict[str, Path]:
    certificates = [authority().issue_cert(name) for name in ("one", "other")]
    made = {
        "certificate": certificates[0].cert_chain_pems[0].bytes(),
        "other_key": certificates[1].private_key_pem.bytes(),
        "text": b"no certificate",
        "encrypted": _ENCRYPTED_KEY,
    }
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in (*made, "missing")}


_ENCRYPTED_KEY = b"""-----BEGIN ENCRYPTED PRIVATE KEY-----
MIH0MF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAkBBCWC2tSDfbXODfDyPyu
cBKgAgIIADAMBggqhkiG9w0CCQUAMB0GCWCGSAFlAwQBKgQQcROGBBhjMeMbKnpa
cObk+wSBkHdRrmyKdfS4XjeBAScTvrUZNXavXnNpN1xWaT5tgWcxSCBZAwL1tfgO
sR/tuqGd7pIvBd0/G26EL127jvQ9A+wROCpJn+jlEse6ut96bbInktt5XouVRCMh
CXE7sgGUouDSeZT+qUjkdDSeNVMg9qOsUceBtqSwKyy5+XvRBnhklZkJV5CB2RC8
mSicCkt+sQ==
-----END ENCRYPTED PRIVATE KEY-----
"""


@pytest.mark.parametrize(
    ("configured", "said"),
    [
        (
            {"ca_file": "missing"},
            r"^ca_file \(TINKER_CA_FILE\) cannot be used: there is no file .*missing$",
        ),
        (
            {"ca_file": "text"},
            r"^ca_file \(TINKER_CA_FILE\) .*text: it has no certificate in the PEM format$",
        ),
        (
            {"client_cert": "missing"},
            r"^client_cert \(TINKER_CLIENT_CERT\) cannot be used: there is no file .*missing$",
        ),
        (
            {"client_cert": "certificate"},
            r"certificate: a certificate and its private key are needed, in the PEM format$",
        ),
        (
            {"client_cert": "certificate", "client_key": "other_key"},
            (
                r"^client_cert \(TINKER_CLIENT_CERT\) with client_key \(TINKER_CLIENT_KEY\) "
                r".*belongs to another certificate$"
            ),
        ),
        (
            {"client_cert": "certificate", "client_key": "encrypted"},
            "the private key is encrypted; store it without a password",
        ),
        (
            {"client_key": "other_key"},
            r"^client_key \(TINKER_CLIENT_KEY\) needs client_cert \(TINKER_CLIENT_CERT\)",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, configured: dict[str, str], said: str) -> None:
    """They are refused with the settings, before any request and without a prompt
    for a password.
    """
    files = _files(tmp_path)
    with pytest.raises(ValueError, match=said):
        tinker.Config.load(
            base_url="https://server.invalid",
            **{name: files[file] for name, file in configured.items()},
        )


def test_files_of_the_environment_that_cannot_be_used(tmp_path: Path) -> None:
    """They are refused by the first call, in a separate program, and nothing is sent."""
    program = (
        "import tinker\n"
        "try: tinker.ServiceClient(base_url='https://server.invalid', "
        "api_key='key').get_server_capabilities()\n"
        "except ValueError as error: print(error)\n"
    )
    environ = {"PATH": "", "HOME": str(tmp_path), "TINKER_CA_FILE": str(tmp_path / "missing")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert (
        done.stdout
        == f"ca_file (TINKER_CA_FILE) cannot be used: there is no file {tmp_path / 'missing'}\n"
    )
