"""Payload bytes in both directions: JSON, protobuf and server-sent events. No I/O, no clients, no retry."""

from __future__ import annotations

from tinker._wire import compression, json, proto
from tinker._wire.bodies import BUFFERS, INLINE_NBYTES, Piece, as_pieces, count_nbytes, slices
from tinker._wire.events import MEDIA_TYPE as EVENT_STREAM
from tinker._wire.events import EventDecoder
from tinker._wire.sizes import datum_nbytes, prompt_nbytes

__all__ = [
    "BUFFERS",
    "EVENT_STREAM",
    "EventDecoder",
    "INLINE_NBYTES",
    "Piece",
    "as_pieces",
    "compression",
    "count_nbytes",
    "datum_nbytes",
    "json",
    "prompt_nbytes",
    "proto",
    "slices",
]
