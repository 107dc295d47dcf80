"""Server-sent events parsed by the rules of the HTML standard, wherever the stream is split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker import _wire
from tinker._wire import EventDecoder, ServerEvent

EXAMPLES = {
    "lines of data": (b"data: YHOO\ndata: +2\ndata: 10\n\n", [ServerEvent("YHOO\n+2\n10")]),
    "comment, id, empty id": (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        [
            ServerEvent("first event", event_id="1"),
            ServerEvent("second event"),
            ServerEvent(" third event"),
        ],
    ),
    "empty data, and an event that is cut off": (
        b"data\n\ndata\ndata\n\ndata:",
        [ServerEvent(""), ServerEvent("\n")],
    ),
    "a space or none": (b"data:test\n\ndata: test\n\n", [ServerEvent("test"), ServerEvent("test")]),
    "carriage returns": (
        b"data: a\r\rdata: b\r\n\r\ndata: c\n\r\n",
        [ServerEvent("a"), ServerEvent("b"), ServerEvent("c")],
    ),
    "names": (b"event: add\ndata: 1\n\ndata: 2\n\n", [ServerEvent("1", "add"), ServerEvent("2")]),
    "a name without data": (b"event: add\n\ndata: 2\n\n", [ServerEvent("2")]),
    "retry": (
        b"retry: 5\ndata: 1\n\nretry: 5x\ndata: 2\n\n",
        [ServerEvent("1", retry_ms=5), ServerEvent("2")],
    ),
    "an id with a zero": (
        b"id: 1\ndata: 1\n\nid: \0\ndata: 2\n\n",
        [ServerEvent("1", event_id="1"), ServerEvent("2", event_id="1")],
    ),
    "unknown fields": (b"datum: 1\n data: 1\ndata: 2\n\n", [ServerEvent("2")]),
    "a byte order mark": (b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n", [ServerEvent("1")]),
    "broken text": (b"data: \xff\xe2\x82\n\n", [ServerEvent("\ufffd\ufffd")]),
}


@pytest.mark.parametrize(("stream", "expected"), EXAMPLES.values(), ids=EXAMPLES.keys())
def test_rules_of_the_standard(stream: bytes, expected: list[ServerEvent]) -> None:
    """The standard's examples and rules hold, also when a stream is split at every byte."""
    assert list(EventDecoder().feed(stream)) == expected
    decoder = EventDecoder()
    assert [event for byte in stream for event in decoder.feed(bytes([byte]))] == expected


TEXT = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=8)
END = st.sampled_from(["\n", "\r\n", "\r"])


@given(
    sent=st.lists(st.tuples(st.lists(TEXT, min_size=1, max_size=3), TEXT, END), max_size=4),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_what_is_written_is_read(sent: list[tuple[list[str], str, str]], cuts: list[int]) -> None:
    """Events with any line ends are read as they were written, however the stream is split."""
    stream = "".join(
        f": comment{end}event: {name}{end}" + "".join(f"data: {line}{end}" for line in lines) + end
        for lines, name, end in sent
    ).encode()
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    decoder = EventDecoder()
    found = [event for a, b in itertools.pairwise(places) for event in decoder.feed(stream[a:b])]
    assert found == [ServerEvent("\n".join(lines), name or "message") for lines, name, _ in sent]


@pytest.mark.parametrize("line", [b"data: 12345678", b"data: 1234\ndata: 5678\n"])
def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    """An event that never ends is refused before it fills the memory."""
    monkeypatch.setattr(_wire, "MAX_EVENT_CHARACTERS", 6)
    with pytest.raises(ValueError, match="longer than 6"):
        list(EventDecoder().feed(line))
