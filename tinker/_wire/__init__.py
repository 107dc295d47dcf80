"""Payload bytes in both directions: JSON, protobuf and server-sent events. No I/O, no clients, no
retry.
"""

from __future__ import annotations

from tinker._wire import compression as compression
from tinker._wire import json as json
from tinker._wire import proto as proto
from tinker._wire.bodies import BUFFERS as BUFFERS
from tinker._wire.bodies import INLINE_NBYTES as INLINE_NBYTES
from tinker._wire.bodies import Piece as Piece
from tinker._wire.bodies import as_pieces as as_pieces
from tinker._wire.bodies import count_nbytes as count_nbytes
from tinker._wire.bodies import datum_nbytes as datum_nbytes
from tinker._wire.bodies import prompt_nbytes as prompt_nbytes
from tinker._wire.bodies import slices as slices
from tinker._wire.events import EVENT_STREAM as EVENT_STREAM
from tinker._wire.events import EventDecoder as EventDecoder
