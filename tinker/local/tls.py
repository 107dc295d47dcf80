"""The certificate and the key with which a server speaks TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

CERTIFICATE_MARK = "-----BEGIN CERTIFICATE-----"
KEY_MARK = "PRIVATE KEY-----"


def load_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return what a server needs for TLS: HTTP/1.1 over TLS 1.2 or 1.3, with these files in PEM format.

    ``certificate`` holds the server's own certificate first, then those that lead to its issuer. Raises ValueError in one sentence
    that names the file: one that cannot be read or holds something else, a key with a passphrase, a key of another certificate.
    """
    _check_mark(certificate, CERTIFICATE_MARK, "certificate")
    _check_mark(key, KEY_MARK, "private key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.options |= ssl.OP_NO_RENEGOTIATION  # with which a client could make the server compute as often as it likes
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, _Refusal(key))
    except ssl.SSLError as error:
        raise ValueError(_describe(error, certificate, key)) from error
    return context


class _Refusal:
    """The answer to OpenSSL where it asks for a passphrase, which it would otherwise ask for on the terminal."""

    def __init__(self, key: Path) -> None:
        self._key = key

    def __call__(self) -> str:
        raise ValueError(f"the private key in {str(self._key)!r} has a passphrase; `openssl pkey -in FILE` writes it without one")


def _check_mark(file: Path, mark: str, what: str) -> None:
    try:
        text = file.read_text(encoding="latin-1")  # what stands around the blocks may be of any encoding
    except OSError as error:
        raise ValueError(f"the {what} in {str(file)!r} cannot be read: {error.strerror}") from error
    if mark not in text:
        raise ValueError(f"{str(file)!r} holds no {what} in PEM format")


def _describe(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return f"the private key in {str(key)!r} is not that of the first certificate in {str(certificate)!r}"
    reason = (error.reason or "damaged").replace("_", " ").lower()
    return f"the certificate in {str(certificate)!r} and the private key in {str(key)!r} cannot be used: {reason}"
