"""Samples that are handed out token by token: from the engine's thread to the client, as
server-sent events.

The engine takes no notice of how fast a client reads: what it has drawn waits here, and what was
drawn meanwhile goes as one event. A client that is gone ends the work at the next token.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncGenerator, Iterable

import attrs
from tinker_wire import models

from tinker._wire import json
from tinker.local.errors import APIProblem
from tinker.local.state import State
from tinker.local.storage.futures import Notifier, RequestFailure, RequestOutcome, ServerFuture
from tinker.types.results import SampleResponse

EVENT_STREAM = "text/event-stream"
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
#: Clients give up a connection that is silent for a minute.
KEEP_ALIVE_SECONDS = 10.0
KEEP_ALIVE = b": waiting\n\n"
_CANCELLED = RequestFailure("the client closed the stream", "user")


def check_sample(request: models.SampleRequest, max_samples: int) -> None:
    """Raise APIProblem 400 for a number of samples that is out of range, and for a request whose
    answer would be empty.
    """
    if not 1 <= request.num_samples <= max_samples:
        raise APIProblem(
            400, f"num_samples is {request.num_samples}; it must be 1 to {max_samples}"
        )
    if request.sampling_params.max_tokens == 0 and not any(_prompt_scores(request).values()):
        raise APIProblem(
            400,
            "max_tokens is 0; it must be at least 1, unless log-probabilities of "
            "the prompt are requested",
        )


def _prompt_scores(request: models.SampleRequest) -> dict[str, object]:
    """Return the fields that ask for scores of the prompt, with falsy values where they ask for
    none.
    """
    return {
        "prompt_logprobs": request.prompt_logprobs,
        "topk_prompt_logprobs": request.topk_prompt_logprobs,
        "target_prompt_logprobs": request.target_prompt_logprobs is not None,
        "prompt_alt_tokens_k": request.prompt_alt_tokens_k,
    }


def needs_engine(request: models.SampleRequest) -> bool:
    """Return whether the engine itself has to sample: samplers that are elsewhere score no prompts
    and read no images.
    """
    is_text = all(isinstance(chunk, models.EncodedTextChunk) for chunk in request.prompt.chunks)
    return not is_text or any(_prompt_scores(request).values())


def check_stream(request: models.SampleRequest, max_samples: int) -> None:
    """Raise APIProblem 400 as :func:`check_sample` does, and for scores, which are not streamed."""
    check_sample(request, max_samples)
    wanted = {**_prompt_scores(request), "topk_sample_logprobs": request.topk_sample_logprobs}
    if named := [name for name, value in wanted.items() if value]:
        raise APIProblem(400, f"{', '.join(named)} cannot be streamed; use asample")


@attrs.frozen
class DrawnToken:
    """One token of the sample ``index``; ``stop_reason`` is that of its last one."""

    index: int
    token: int
    logprob: float
    stop_reason: str | None


class TokenStream:
    """The tokens of one request, between the engine's thread, which puts them in, and the loop of
    the connection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notifier = Notifier()
        self._waiting: list[DrawnToken] = []
        self._begun: set[int] = set()
        self._closed = False

    # In the engine's thread

    def take(self, index: int, token: int, logprob: float, stop_reason: str | None) -> bool:
        """Receive the next token of a sample; return False if the client has disconnected."""
        with self._lock:
            self._begun.add(index)
            self._waiting.append(DrawnToken(index, token, logprob, stop_reason))
        self._notifier.notify_all()
        return not self._closed

    def notify(self, future: ServerFuture) -> None:
        """Wake the connection: its future is done."""
        self._notifier.notify_all()

    # On the loop of the connection

    async def events(
        self, state: State, future: ServerFuture
    ) -> AsyncGenerator[models.SampleStreamEvent | None]:
        """Yield the events of the stream until its last one, None as a sign of life. Closing it
        ends the work.
        """
        try:
            while True:
                await self._notifier.wait(
                    lambda: bool(self._waiting) or future.outcome is not None, KEEP_ALIVE_SECONDS
                )
                outcome, drawn = future.outcome, self._drain()
                if not drawn and outcome is None:
                    yield None
                for event in _merge(drawn):
                    yield event
                if outcome is not None:
                    for event in self._last_events(outcome):
                        yield event
                    return
        finally:
            self._close(state, future)

    def _close(self, state: State, future: ServerFuture) -> None:
        self._closed = True
        with state.lock():
            state.served.drop_sample(future)
        state.futures.resolve(future, _CANCELLED)
        state.futures.release(future.request_id)

    def _drain(self) -> list[DrawnToken]:
        with self._lock:
            drawn, self._waiting = self._waiting, []
        return drawn

    def _last_events(self, outcome: RequestOutcome) -> Iterable[models.SampleStreamEvent]:
        """Return the ends of samples without a token, and the end of the stream."""
        if isinstance(outcome, RequestFailure):
            return [
                models.SampleStreamEvent(
                    type="failed", error=outcome.error, category=outcome.category
                )
            ]
        assert isinstance(outcome, SampleResponse)
        empty = [
            models.SampleStreamEvent(type="tokens", index=index, stop_reason=sequence.stop_reason)
            for index, sequence in enumerate(outcome.sequences)
            if index not in self._begun
        ]
        return [*empty, models.SampleStreamEvent(type="done")]


def _merge(drawn: Iterable[DrawnToken]) -> list[models.SampleStreamEvent]:
    """Return one event for each sample, in the order of their first tokens."""
    by_index: dict[int, list[DrawnToken]] = {}
    for one in drawn:
        by_index.setdefault(one.index, []).append(one)
    return [
        models.SampleStreamEvent(
            type="tokens",
            index=index,
            tokens=[one.token for one in tokens],
            logprobs=[one.logprob for one in tokens],
            stop_reason=tokens[-1].stop_reason,
        )
        for index, tokens in by_index.items()
    ]


async def encode_events(
    source: AsyncGenerator[models.SampleStreamEvent | None],
) -> AsyncGenerator[bytes]:
    """Encode a stream as server-sent events. Closing it closes the source."""
    async with contextlib.aclosing(source) as events:
        async for event in events:
            yield KEEP_ALIVE if event is None else b"data: " + json.encode(event) + b"\n\n"
