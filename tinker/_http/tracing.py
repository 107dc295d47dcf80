"""The trace that a call belongs to, by W3C Trace Context: the headers that OpenTelemetry makes of the span at work."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("tinker")
#: A program that has not imported this has no span, so it is not imported for that.
TRACING_MODULE = "opentelemetry.trace"


def read_trace_headers() -> Mapping[str, str] | None:
    """Return ``traceparent`` and ``tracestate`` of the caller's span; None without one."""
    headers: dict[str, str] = {}
    try:
        tracecontext: Any = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        tracecontext.TraceContextTextMapPropagator().inject(headers)
    except Exception as error:  # noqa: BLE001 - a program whose tracing is broken still trains
        logger.debug("no trace context: %s", error)
    return headers or None
