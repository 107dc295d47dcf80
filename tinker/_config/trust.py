"""Whom a client trusts, and what it shows of itself: the contexts of TLS, made from
the settings.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs


@attrs.frozen
class Trust:
    """Certificates besides those of the system: of an authority, and of the client with its private
    key, as PEM files.
    """

    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    _contexts: dict[tuple[str, ...], ssl.SSLContext] = attrs.field(
        factory=dict[tuple[str, ...], ssl.SSLContext], init=False, eq=False, repr=False
    )

    def context(self, *protocols: str) -> ssl.SSLContext:
        """Return the context for connections with these application protocols, best first; it is
        made once.

        The system's certificates are those of OpenSSL, which follows ``SSL_CERT_FILE`` and
        ``SSL_CERT_DIR``.

        Raises:
            ValueError: A file cannot be used.
        """
        context = self._contexts.get(protocols)
        if context is None:
            context = ssl.create_default_context()
            if not context.get_ca_certs() and not _has_folder():
                _add_packaged(context)
            self._add_files(context)
            context.set_alpn_protocols(list(protocols))
            self._contexts[protocols] = context
        return context

    def check(self) -> None:
        """Raise ValueError if a file cannot be used."""
        if self.client_key is not None and self.client_cert is None:
            raise ValueError(
                "client_key (TINKER_CLIENT_KEY) needs client_cert "
                "(TINKER_CLIENT_CERT), which it belongs to"
            )
        if self.ca_file is not None or self.client_cert is not None:
            self._add_files(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _add_files(self, context: ssl.SSLContext) -> None:
        try:
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
        except OSError as error:  # which an SSLError is
            raise ValueError(
                f"ca_file (TINKER_CA_FILE) cannot be used: {_explain(error, self.ca_file)}"
            ) from None
        try:
            if self.client_cert is not None:
                context.load_cert_chain(
                    self.client_cert, self.client_key, password=_refuse_encrypted
                )
        except OSError as error:
            setting = "client_cert (TINKER_CLIENT_CERT)"
            if self.client_key is not None:
                setting += " with client_key (TINKER_CLIENT_KEY)"
            raise ValueError(
                f"{setting} cannot be used: {_explain(error, self.client_cert, self.client_key)}"
            ) from None


def _refuse_encrypted() -> str:
    """Refuse a key that needs a password, instead of asking for it on the terminal."""
    raise OSError("the private key is encrypted; store it without a password")


def _explain(error: OSError, *files: Path | None) -> str:
    """Say what is wrong with which file."""
    missing = next((file for file in files if file is not None and not file.is_file()), None)
    if missing is not None:
        return f"there is no file {missing}"
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror or str(error)
    shown = " and ".join(str(file) for file in files if file is not None)
    return f"{shown}: {_REASONS.get(reason or _UNNAMED, reason)}"


_UNNAMED = "PEM lib"
#: OpenSSL's words for what is wrong with a file, in ours.
_REASONS = {
    _UNNAMED: "a certificate and its private key are needed, in the PEM format",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it has no certificate in the PEM format",
    "NO_START_LINE": "it has no certificate in the PEM format",
    "KEY_VALUES_MISMATCH": "the private key belongs to another certificate",
}


def _has_folder() -> bool:
    """Return whether OpenSSL has a folder of certificates, which it reads when it needs one."""
    paths = ssl.get_default_verify_paths()
    return bool(paths.capath) and any(Path(paths.capath).glob("*.[0-9]"))


def _add_packaged(context: ssl.SSLContext) -> None:
    """Add the certificates that httpx brings, where OpenSSL finds none of the system."""
    import certifi

    context.load_verify_locations(certifi.where())
