"""The certificate and the key with which a server speaks TLS."""

from __future__ import annotations

import functools
import ssl
from pathlib import Path

CERTIFICATE_MARK = "-----BEGIN CERTIFICATE-----"
KEY_MARK = "PRIVATE KEY-----"


def load_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of a server: HTTP/1.1 over TLS 1.2 or 1.3, with these files in PEM
    format.

    ``certificate`` holds the server's own certificate first, then those that lead to its issuer.
    Raises ValueError, which names the file in one sentence: it cannot be read or holds something
    else, the key has a passphrase or is another certificate's.
    """
    _check_mark(certificate, CERTIFICATE_MARK, "certificate")
    _check_mark(key, KEY_MARK, "private key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # with which a client could make the server compute as often as it likes
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, functools.partial(_refuse_passphrase, key))
    except ssl.SSLError as error:
        raise ValueError(_describe(error, certificate, key)) from error
    return context


def _refuse_passphrase(key: Path) -> str:
    """Answer OpenSSL, which would ask for the passphrase on the terminal."""
    raise ValueError(
        f"the private key in {str(key)!r} has a passphrase; write it without one: "
        "openssl pkey -in FILE -out FILE"
    )


def _check_mark(file: Path, mark: str, what: str) -> None:
    try:
        # what stands around the blocks may be of any encoding
        text = file.read_text(encoding="latin-1")
    except OSError as error:
        raise ValueError(f"the {what} in {str(file)!r} cannot be read: {error.strerror}") from error
    if mark not in text:
        raise ValueError(f"{str(file)!r} holds no {what} in PEM format")


def _describe(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return (
            f"the private key in {str(key)!r} is not that of the first certificate in "
            f"{str(certificate)!r}"
        )
    reason = (error.reason or "damaged").replace("_", " ").lower()
    return (
        f"the certificate in {str(certificate)!r} and the private key in "
        f"{str(key)!r} cannot be used: {reason}"
    )
