"""The progress of an exchange, which determines what its failure means; and the limits that both engines share."""

from __future__ import annotations

import msgspec

from tinker._http import trust
from tinker._http.messages import ExchangeFailed, PreparedRequest

ANSWER_SECONDS = 600.0  # for the body of a response whose head has come, so that one that trickles in ends as well
MAX_ANSWER_NBYTES = 2 << 30
MAX_HEAD_NBYTES = 1 << 16


class Phase(msgspec.Struct):
    """The progress of an exchange through httpx."""

    request: PreparedRequest
    has_begun: bool = False

    def failure(self, error: Exception) -> ExchangeFailed:
        """Describe a failure."""
        import httpx

        if type(error) is TimeoutError and error.args:
            return ExchangeFailed(str(error), timed_out=True)  # of a deadline that says why it was held
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return late(self.request, self.has_begun, is_trickling=type(error) is TimeoutError)
        if (refusal := trust.explain(error, self.request.url)) is not None:
            return refusal
        return ExchangeFailed(f"{type(error).__name__}: {error}", never_connected=isinstance(error, httpx.ConnectError))


def late(request: PreparedRequest, has_begun: bool, *, is_trickling: bool) -> ExchangeFailed:
    """Describe a response that did not come in time, or did not end."""
    if not has_begun:
        message = f"no response within {request.silence_seconds:g} s"
    elif is_trickling:
        message = f"the response started but was not complete after {ANSWER_SECONDS:g} s"
    else:
        message = f"the response started, then nothing more arrived for {request.silence_seconds:g} s"
    return ExchangeFailed(message, timed_out=True)


def extend(received: bytearray, piece: bytes) -> None:
    """Add a piece to a body; ValueError beyond the limit."""
    received += piece
    if len(received) > MAX_ANSWER_NBYTES:
        raise ValueError(f"the response is larger than {MAX_ANSWER_NBYTES} bytes")
