"""Pass redacted exchanges to the logs that asked for them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tinker._clock import Clock
from tinker._http.messages import ExchangeFailed, HTTPEngine, PreparedRequest, RawResponse
from tinker._http.redaction import Redactor
from tinker.observing import ExchangeRecord, ExchangeSink

logger = logging.getLogger("tinker")


async def send_logged(engine: HTTPEngine, request: PreparedRequest, clock: Clock, sinks: Sequence[ExchangeSink]) -> RawResponse:
    """Make one exchange and report it to the sinks."""
    began = clock.monotonic()
    try:
        response = await engine.send(request)
    except BaseException as error:
        _tell(request, None, clock.monotonic() - began, error, sinks)
        raise
    _tell(request, response, clock.monotonic() - began, None, sinks)
    return response


def _tell(
    request: PreparedRequest,
    response: RawResponse | None,
    seconds: float,
    error: BaseException | None,
    sinks: Sequence[ExchangeSink],
) -> None:
    try:
        record = _record(request, response, seconds, error)
        for sink in sinks:
            sink(record)
    except Exception:
        logger.exception("could not log an exchange")


def _record(
    request: PreparedRequest, response: RawResponse | None, seconds: float, error: BaseException | None
) -> ExchangeRecord:
    shown = Redactor(request)
    reason = f"{type(error).__name__}: {error}" if isinstance(error, ExchangeFailed) else type(error).__name__
    return ExchangeRecord(
        operation=request.operation,
        method=request.method,
        path=shown.path(),
        request_headers=shown.headers(request.headers),
        request_nbytes=request.nbytes,
        request_body=shown.request_body(),
        status=None if response is None else response.status,
        response_headers={} if response is None else shown.headers(response.headers),
        response_nbytes=0 if response is None else len(response.content),
        response_body=None if response is None else shown.response_body(response),
        seconds=seconds,
        error=None if error is None else shown.text(reason),
    )
