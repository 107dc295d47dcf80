"""The timeline of a session's requests, as a file of Chrome's trace events, which Perfetto reads too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
import msgspec

TRACE_MEDIA_TYPE = "application/json"
QUEUE, WORK = 1, 2  # the two "processes" of the picture


@attrs.define(eq=False, kw_only=True)
class Span:
    """One request: its ``operation``, and the model or sampler whose ``track`` it is on. Times in seconds of the server's
    clock, None until they have come."""

    operation: str
    track: str
    request_id: str = ""
    submitted: float = 0.0
    started: float | None = None
    finished: float | None = None
    failed: bool = False

    def finish(self, at: float, *, failed: bool) -> None:
        """Note the outcome."""
        self.finished, self.failed = at, failed


def encode_trace(spans: Iterable[Span], since: float, until: float) -> bytes:
    """Encode requests as a trace. Times count from ``since``; unfinished requests end at ``until``."""
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": list(_events(list(spans), since, until))})


def _events(spans: list[Span], since: float, until: float) -> Iterator[dict[str, object]]:
    """Yield the events. Waiting overlaps, so it is drawn with asynchronous events; running does not."""
    tracks = {track: number for number, track in enumerate(dict.fromkeys(span.track for span in spans), 1)}
    for process, title in ((QUEUE, "waiting"), (WORK, "running")):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
        for track, number in tracks.items():
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": track}}
    for index, span in enumerate(spans, 1):
        begun = until if span.started is None else span.started
        ended = until if span.finished is None else span.finished
        about = {"request_id": span.request_id, "failed": span.failed, "finished": span.finished is not None}
        common = {"name": span.operation, "cat": "request", "tid": tracks[span.track]}
        waited = min(begun, ended)
        yield {**common, "ph": "b", "pid": QUEUE, "id": index, "ts": _micros(span.submitted - since), "args": about}
        yield {**common, "ph": "e", "pid": QUEUE, "id": index, "ts": _micros(waited - since)}
        if span.started is not None:
            duration = max(0, _micros(ended - begun))
            yield {**common, "ph": "X", "pid": WORK, "ts": _micros(begun - since), "dur": duration, "args": about}


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
