"""The progress of an exchange, which determines what its failure means; and the limits that both engines share."""

from __future__ import annotations

import errno
import ipaddress
import os
import ssl
from typing import TYPE_CHECKING

import msgspec

from tinker._http.messages import ExchangeFailed, PreparedRequest

if TYPE_CHECKING:
    import aiohttp

ANSWER_SECONDS = 600.0  # for the body of a response whose head has come, so that one that trickles in ends as well
MAX_ANSWER_NBYTES = 2 << 30
#: What OpenSSL calls the answer of a server that does not use TLS.
_PLAIN_TEXT_REASONS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


class Phase(msgspec.Struct):
    """The progress of an exchange, which determines what its failure means."""

    request: PreparedRequest
    has_begun: bool = False

    def failure(self, error: Exception) -> ExchangeFailed:
        """Describe a failure."""
        import aiohttp
        import httpx

        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return ExchangeFailed(self._lateness(error), timed_out=True)
        if isinstance(error, aiohttp.ClientConnectorError):
            return ExchangeFailed(_unreachable(error), never_connected=True, wrong_address=_is_wrong(error))
        said = error.message if isinstance(error, aiohttp.ClientResponseError) else error  # which shows the whole address
        return ExchangeFailed(f"{type(error).__name__}: {said}", never_connected=isinstance(error, httpx.ConnectError))

    def _lateness(self, error: Exception) -> str:
        if type(error) is TimeoutError and error.args:
            return str(error)  # of a deadline that says why it was held
        if not self.has_begun:
            return f"no response within {self.request.silence_seconds:g} s"
        if type(error) is TimeoutError:  # ours; engines have classes of their own for a server that sends nothing
            return f"the response started but was not complete after {ANSWER_SECONDS:g} s"
        return f"the response started, then nothing more arrived for {self.request.silence_seconds:g} s"


def _is_wrong(error: aiohttp.ClientConnectorError) -> bool:
    """Return whether the server does not use TLS, or no program of this machine listens at the address."""
    failure = error.os_error
    if isinstance(failure, ssl.SSLError):
        return failure.reason in _PLAIN_TEXT_REASONS
    return failure.errno == errno.ECONNREFUSED and is_loopback(error.host)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _unreachable(error: aiohttp.ClientConnectorError) -> str:
    """Describe a connection failure with the system's error message, except for TLS errors and unknown host names."""
    failure = error.os_error
    if isinstance(failure, ssl.SSLError) and failure.reason in _PLAIN_TEXT_REASONS:
        return f"{error.host}:{error.port} does not use TLS: write http:// instead of https://"
    if isinstance(failure, ssl.SSLError) or not failure.errno:
        return f"{type(error).__name__}: {error}"
    why = os.strerror(failure.errno) if failure.errno > 0 else failure.strerror
    return f"could not connect to {error.host}:{error.port}: {why}"


def extend(received: bytearray, piece: bytes) -> None:
    received += piece
    if len(received) > MAX_ANSWER_NBYTES:
        raise ValueError(f"the response is larger than {MAX_ANSWER_NBYTES} bytes")
