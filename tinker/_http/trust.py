"""Failed TLS handshakes: whether another attempt can succeed, and which setting to change."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from typing import cast
from urllib.parse import urlsplit

from tinker._config import explain_missing_certificates, show_url
from tinker._http.messages import ConnectionFacts, ExchangeFailed, out_of_memory

#: What OpenSSL calls the answer of a server that does not use TLS.
_PLAIN_TEXT_REASONS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME = 10, 9, (62, 64)
_ALERT = re.compile(r"alert ([a-z ]+[a-z])")
_NO_CERTIFICATE = "certificate required"
#: Alerts of a server that does not accept the certificate of the client.
_REFUSALS = (
    *(f"{word} certificate" for word in ("bad", "unsupported")),
    *(f"certificate {word}" for word in ("expired", "revoked", "unknown")),
    "unknown ca",
    "access denied",
)
#: Alerts of a server with which no handshake can succeed.
_LASTING = (
    _NO_CERTIFICATE,
    *_REFUSALS,
    "handshake failure",
    "protocol version",
    "unrecognized name",
)


def is_lasting(error: ssl.SSLError) -> bool:
    """Return whether the next handshake fails too, unless a setting is changed."""
    return (
        isinstance(error, ssl.SSLCertVerificationError)
        or _is_without_tls(error)
        or _alert_of(error) in _LASTING
    )


def lacks_protocol(error: ssl.SSLError) -> bool:
    """Return whether the server speaks none of the application protocols that were offered."""
    return _alert_of(error) == "no application protocol"


def describe(error: ssl.SSLError, where: str, setting: str) -> str:
    """Describe a failed handshake in one line that names the setting to change; ``setting`` has the
    address.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _describe_certificate(error, where, setting)
    if _is_without_tls(error):
        return f"{where} does not use TLS: write http:// instead of https:// in {setting}"
    alert = _alert_of(error)
    if alert == _NO_CERTIFICATE:
        return f"{where} requires a client certificate: set client_cert (TINKER_CLIENT_CERT)"
    if alert in _REFUSALS:
        return (
            f"{where} does not accept the client certificate ({alert}): check client_cert "
            "(TINKER_CLIENT_CERT)"
        )
    if alert == "handshake failure":
        return (
            f"{where} refused the TLS handshake; if it requires a client certificate, set "
            "client_cert (TINKER_CLIENT_CERT)"
        )
    return f"the TLS handshake with {where} failed: {alert or error.reason or error}"


def find_refusal(error: Exception | None, where: str) -> ExchangeFailed | None:
    """Return the failure of a connection that was lost because the server refuses the client's
    certificate, or wants one.

    TLS 1.3 does so after the handshake; no request has run. Or because memory was missing for what
    it sent. None if the connection was lost for another reason.
    """
    if isinstance(error, MemoryError):
        return out_of_memory()
    if isinstance(error, ssl.SSLError) and _alert_of(error) in (_NO_CERTIFICATE, *_REFUSALS):
        return _as_failure(error, where)
    return None


def explain_handshake(error: Exception, url: str) -> ExchangeFailed | None:
    """Return the failure of an exchange by httpx among whose causes is one of TLS that lasts; None
    if there is none.
    """
    import httpx

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    where = urlsplit(url).netloc.rpartition("@")[2]
    if cause is None or not isinstance(error, httpx.ConnectError):
        return find_refusal(error if cause is None else cause, where)
    return _as_failure(cause, where) if is_lasting(cause) else None


def _as_failure(error: ssl.SSLError, where: str) -> ExchangeFailed:
    message = describe(error, where, "base_url (TINKER_BASE_URL)")
    return ExchangeFailed(message, never_connected=True, wrong_address=True, says_what_to_do=True)


def find_issuer(secured: ssl.SSLObject) -> str | None:
    """Return the names of the issuer of the peer's certificate; None without one."""
    issuer = cast(
        "Iterable[Iterable[tuple[str, str]]]", (secured.getpeercert() or {}).get("issuer", ())
    )
    names = dict(pair for part in issuer for pair in part)
    return (
        ", ".join(names[kind] for kind in ("organizationName", "commonName") if kind in names)
        or None
    )


def describe_connection(
    engine: str, http_version: str, secured: ssl.SSLObject | None, proxy: str | None
) -> ConnectionFacts:
    """Describe a connection that is open."""
    tls_version, issuer = (
        (None, None) if secured is None else (secured.version(), find_issuer(secured))
    )
    shown = None if proxy is None else show_url(proxy)
    return ConnectionFacts(engine, http_version, tls_version, issuer, shown)


def _describe_certificate(error: ssl.SSLCertVerificationError, where: str, setting: str) -> str:
    why = error.verify_message.rstrip(".")
    if error.verify_code in _OTHER_NAME:
        return f"the certificate of {where} is for another name ({why}): check {setting}"
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return (
            f"the certificate of {where} is not valid now ({why}): renew it, or set "
            "the clock of this machine"
        )
    advice = (
        "name its authority in ca_file (TINKER_CA_FILE, "
        f"SSL_CERT_FILE){explain_missing_certificates()}"
    )
    return f"the certificate of {where} is not trusted ({why}): {advice}"


def _is_without_tls(error: ssl.SSLError) -> bool:
    return error.reason in _PLAIN_TEXT_REASONS


def _alert_of(error: ssl.SSLError) -> str | None:
    """Return the alert that the other side has sent, in the words of the standard; the names in
    OpenSSL differ by version.
    """
    found = _ALERT.search(str(error))
    return None if found is None else found[1]
