"""The headers of a request: those that many requests of a client share, its own, and those of the caller's trace."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from tinker._http.auth import Credential

if TYPE_CHECKING:
    from httpunk import HeaderMap


logger = logging.getLogger("tinker")
#: A program that has not imported this has no span, so it is not imported for that.
TRACING_MODULE = "opentelemetry.trace"


class SharedHeaders(dict[str, str]):
    """Headers that many requests have, of one credential; made once and never changed.

    ``encoded`` is how they are sent, once an engine has made that.
    """

    __slots__ = ("credential", "encoded")

    def __init__(self, headers: Mapping[str, str], credential: Credential | None = None) -> None:
        super().__init__(headers)
        self.credential: Credential | None = credential
        self.encoded: HeaderMap | None = None

    def __repr__(self) -> str:
        """Return the names; values may be secret."""
        return f"SharedHeaders({', '.join(self)})"


@attrs.define(eq=False, repr=False)
class Headers(Mapping[str, str]):
    """All headers of one request: the ``shared`` ones and its ``own``, of which no name is in both."""

    shared: SharedHeaders
    own: Mapping[str, str]

    def __attrs_post_init__(self) -> None:
        if not self.shared.keys().isdisjoint(self.own):  # the user's settings name a header of this operation
            kept = {name: value for name, value in self.shared.items() if name not in self.own}
            self.shared = SharedHeaders(kept, self.shared.credential)

    def __getitem__(self, name: str) -> str:
        return self.own[name] if name in self.own else self.shared[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.shared
        yield from self.own

    def __len__(self) -> int:
        return len(self.shared) + len(self.own)

    def __repr__(self) -> str:
        """Return the names; values may be secret."""
        return f"Headers({', '.join(self)})"


def read_trace_headers() -> Mapping[str, str] | None:
    """Return the headers of W3C Trace Context for the caller's OpenTelemetry span; None without one."""
    headers: dict[str, str] = {}
    try:
        tracecontext: Any = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        tracecontext.TraceContextTextMapPropagator().inject(headers)
    except Exception as error:  # noqa: BLE001 - a program whose tracing is broken still trains
        logger.debug("no trace context: %s", error)
    return headers or None
