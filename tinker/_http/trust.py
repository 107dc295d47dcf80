"""Whom a client trusts, and what it shows of itself: the contexts of TLS, made from the settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

#: What OpenSSL calls the answer of a server that does not use TLS.
_PLAIN_TEXT_REASONS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME = 10, 9, (62, 64)


class Trust(msgspec.Struct, frozen=True):
    """Certificates besides those of the system: of an authority, and of the client with its private key, as PEM files."""

    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None

    def context(self, *protocols: str) -> ssl.SSLContext:
        """Make a context for connections with these application protocols, best first.

        The system's certificates are those of OpenSSL, which follows ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``.

        Raises:
            ValueError: A file cannot be used.
        """
        context = ssl.create_default_context()
        if not context.get_ca_certs() and not _has_folder():
            _add_packaged(context)
        try:
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
        except OSError as error:  # which an SSLError is
            raise ValueError(f"the certificates in {self.ca_file} cannot be used (ca_file, TINKER_CA_FILE): {error}") from None
        try:
            if self.client_cert is not None:
                context.load_cert_chain(self.client_cert, self.client_key, password="")
        except OSError as error:
            shown = " and ".join(str(file) for file in (self.client_cert, self.client_key) if file is not None)
            setting = "client_cert and client_key, TINKER_CLIENT_CERT and TINKER_CLIENT_KEY"
            raise ValueError(f"the client certificate in {shown} cannot be used ({setting}): {error}") from None
        context.set_alpn_protocols(list(protocols))
        return context


def _has_folder() -> bool:
    """Return whether OpenSSL has a folder of certificates, which it reads when it needs one."""
    paths = ssl.get_default_verify_paths()
    return bool(paths.capath) and any(Path(paths.capath).glob("*.0"))


def _add_packaged(context: ssl.SSLContext) -> None:
    """Add the certificates that httpx brings, where OpenSSL was built without the system's."""
    import certifi

    context.load_verify_locations(certifi.where())


def is_without_tls(error: BaseException) -> bool:
    """Return whether a server of plain HTTP was asked for TLS."""
    return isinstance(error, ssl.SSLError) and error.reason in _PLAIN_TEXT_REASONS


def describe(error: ssl.SSLError, where: str) -> str:
    """Describe a failed handshake in one line that names the setting."""
    if is_without_tls(error):
        return f"{where} does not use TLS: write http:// instead of https://"
    if not isinstance(error, ssl.SSLCertVerificationError):
        if error.reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED":
            return f"{where} asks for a client certificate: set client_cert (TINKER_CLIENT_CERT)"
        return f"the TLS handshake with {where} failed: {error.reason or error}"
    why = error.verify_message.rstrip(".")
    if error.verify_code in _OTHER_NAME:
        return f"the certificate of {where} is for another name: {why}"
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return f"the certificate of {where} is not valid now ({why}): renew it, or set the clock of this machine"
    return f"the certificate of {where} is not trusted ({why}): name its authority in ca_file (TINKER_CA_FILE, SSL_CERT_FILE)"
