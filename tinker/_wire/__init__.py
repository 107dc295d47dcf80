"""Payload bytes in both directions: JSON and protobuf. No I/O, no clients, no retry."""

from __future__ import annotations

from tinker._wire import compression, json, proto
from tinker._wire.bodies import BUFFERS, INLINE_NBYTES, Piece, as_pieces, count_nbytes, slices

__all__ = ["BUFFERS", "INLINE_NBYTES", "Piece", "as_pieces", "compression", "count_nbytes", "json", "proto", "slices"]
