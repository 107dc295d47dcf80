"""Server-sent events (``text/event-stream``), decoded as the HTML standard says, from pieces that
end anywhere.

A decoder of our own, as the kept ones belong to one HTTP client each, and two HTTP engines are in
use here.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import msgspec

EVENT_STREAM = "text/event-stream"
#: An event longer than this is not one.
MAX_EVENT_CHARACTERS = 16 << 20


class ServerEvent(msgspec.Struct, frozen=True):
    """One event. ``event_id`` is the last id that was given, here or before; ``retry_ms`` is what
    this event asks for.
    """

    data: str
    event: str = "message"
    event_id: str = ""
    retry_ms: int | None = None


class EventDecoder:
    """Takes the pieces of a stream and gives the events that they complete. What the end cuts off
    is no event.
    """

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_start = True
        self._line = ""
        self._after_return = False
        self._data: list[str] = []
        self._nbytes = 0
        self._event = ""
        self._event_id = ""
        self._retry_ms: int | None = None

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Yield the events that end in this piece. ValueError for one that is too long."""
        text = self._text.decode(piece)
        if self._is_start and text:
            self._is_start = False
            text = text.removeprefix("\ufeff")
        for line in self._lines(text):
            if (event := self._take(line)) is not None:
                yield event
        if self._nbytes + len(self._line) > MAX_EVENT_CHARACTERS:
            raise ValueError(f"an event is longer than {MAX_EVENT_CHARACTERS} characters")

    def _lines(self, text: str) -> Iterator[str]:
        """Yield the lines that are complete: a line ends with CR LF, LF or CR, and the LF may come
        in the next piece.
        """
        if self._after_return and text:
            self._after_return = False
            text = text.removeprefix("\n")
        if "\r" in text:
            self._after_return = text.endswith("\r")
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        first, *others = text.split("\n")
        self._line += first
        for following in others:
            line, self._line = self._line, following
            yield line

    def _take(self, line: str) -> ServerEvent | None:
        """Take a line; the event that it ends."""
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._nbytes += len(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._event_id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) < 16:
            self._retry_ms = int(value)
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, event, retry_ms = self._data, self._event, self._retry_ms
        self._data, self._nbytes, self._event, self._retry_ms = [], 0, "", None
        return (
            ServerEvent("\n".join(data), event or "message", self._event_id, retry_ms)
            if data
            else None
        )
