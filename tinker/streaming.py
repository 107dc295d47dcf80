"""SampleStream: samples whose tokens arrive while they are generated, for `for` and `async for`."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

from tinker_wire import models

from tinker._futures import TokenQueue
from tinker._loop import loop_thread
from tinker.futures import APIFuture, on_done
from tinker.types.results import SampleStreamChunk

__all__ = ["SampleStream", "TokenDecoder"]

_UNFINISHED = "\ufffd"  # what decoders write for a character whose last bytes are missing


class TokenDecoder(Protocol):
    """Decodes tokens to text, like the tokenizers of transformers."""

    def decode(self, token_ids: Any, /) -> Any:
        """Return the text of a list of token ids."""
        ...


class SampleStream(Iterator[SampleStreamChunk], AsyncIterator[SampleStreamChunk]):
    """Iterator over the chunks of one or more samples, in the order of their arrival.

    Created by ``SamplingClient.sample_stream``, and started at once. Use it with ``for`` or
    ``async for``, from one thread or task at a time. Leaving the loop early does not stop the
    server: close the stream, or use a ``with`` block. A stream is also closed when it is
    garbage-collected.

    A failure before the first token raises the same errors as ``sample``. A later failure raises
    SampleStreamError, which contains the number of received tokens.

    >>> import tinker
    >>> sampler = tinker.ServiceClient(base_url="local://toy").create_sampling_client(
    ...     base_model="tinker/toy"
    ... )
    >>> prompt = tinker.ModelInput.from_ints([72, 105])
    >>> with sampler.sample_stream(
    ...     prompt, 1, tinker.SamplingParams(max_tokens=5, stop=[])
    ... ) as stream:
    ...     sum(len(chunk.tokens) for chunk in stream)
    5
    """

    def __init__(
        self, future: APIFuture[None], queue: TokenQueue, tokenizer: TokenDecoder | None
    ) -> None:
        self._future, self._queue, self._tokenizer = future, queue, tokenizer
        self._texts: dict[int, _Text] = {}
        close = self._close = weakref.finalize(self, future.cancel)
        close.atexit = False
        # it would hold an error, whose traceback holds this stream
        on_done(future, lambda _: close.detach())

    def __repr__(self) -> str:
        state = "ended" if self._future.done() else "under way"
        return f"<SampleStream {state}, {self._queue.received_tokens} tokens>"

    @property
    def received_tokens(self) -> int:
        """Return the number of tokens received so far, including those not read yet."""
        return self._queue.received_tokens

    def close(self) -> None:
        """End the stream and stop the server's work. You can still read the chunks that have
        arrived.
        """
        self._close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SampleStreamChunk:
        if not self._future.done() and loop_thread().is_current():
            raise RuntimeError(
                "sample_stream: blocking here would stop all I/O; use `async for` instead"
            )
        event = self._queue.events.take()
        if event is None:
            self._raise_failure()
            raise StopIteration
        return self._to_chunk(event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SampleStreamChunk:
        event = await self._queue.events.take_async()
        if event is None:
            self._raise_failure()
            raise StopAsyncIteration
        return self._to_chunk(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _raise_failure(self) -> None:
        if not self._future.cancelled():
            self._future.result(0)

    def _to_chunk(self, event: models.SampleStreamEvent) -> SampleStreamChunk:
        return SampleStreamChunk(
            index=event.index,
            tokens=event.tokens,
            logprobs=event.logprobs if len(event.logprobs) == len(event.tokens) else None,
            text=None if self._tokenizer is None else self._complete_text(self._tokenizer, event),
            stop_reason=event.stop_reason,
        )

    def _complete_text(self, tokenizer: TokenDecoder, event: models.SampleStreamEvent) -> str:
        text = self._texts.setdefault(event.index, _Text(tokenizer))
        return text.add(event.tokens, is_last=event.stop_reason is not None)


class _Text:
    """The text of one sample so far. Tokens are decoded with those of the previous chunk, on which
    their text may depend.
    """

    def __init__(self, tokenizer: TokenDecoder) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def add(self, tokens: list[int], *, is_last: bool) -> str:
        """Return the text that these tokens complete."""
        self._pending += tokens
        before = self._decode(self._context)
        text = self._decode(self._context + self._pending)[len(before) :]
        if text.endswith(_UNFINISHED) and not is_last:
            return ""
        self._context, self._pending = self._pending or self._context, []
        return text

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens)) if tokens else ""
