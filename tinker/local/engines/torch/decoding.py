"""One sequence in the making: its parameters, its noise, what it has drawn so far, and what ends it.

Each sequence draws from its own stream of noise, so that what else is in the batch decides no token (padding changes the
probabilities by rounding errors only).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines import Continuation, Int32, PlacedImage, SampleJob, noise_seed
from tinker.local.engines.torch.lora import LoraWeights

Decode = Callable[[Sequence[int]], str]
NOISE_BLOCK = 64
WIDEST_CHARACTER = 8  # tokens a stop string may begin before: a character split over tokens, a dropped leading space


class Stops:
    """What ends a sequence: the given texts, the given ids, or by default the model's own end-of-text ids."""

    def __init__(self, stop: Sequence[str] | Sequence[int] | None, end_of_text: frozenset[int], decode: Decode) -> None:
        self._texts = [piece for piece in stop or () if isinstance(piece, str)]
        self._ids = end_of_text if stop is None else frozenset(piece for piece in stop if isinstance(piece, int))
        self._reach = max((len(text.encode()) for text in self._texts), default=0) + WIDEST_CHARACTER
        self._decode = decode

    def is_reached(self, tokens: list[int]) -> bool:
        """Return whether the last of these tokens completes a stop."""
        if tokens[-1] in self._ids:
            return True
        return bool(self._texts) and self._in_text(self._decode(tokens[-self._reach :]))

    def _in_text(self, tail: str) -> bool:
        return any(text in tail for text in self._texts)


@attrs.define(eq=False)
class DecodingRun:
    """One sequence in the making. ``noise`` is drawn as it is used; ``error`` is why its job cannot go on."""

    job: SampleJob
    stops: Stops
    noise: Iterator[float]
    index: int = 0
    tokens: list[int] = attrs.field(factory=lambda: list[int]())
    logprobs: list[float] = attrs.field(factory=lambda: list[float]())
    topk_ids: list[NDArray[np.int32]] = attrs.field(factory=lambda: list[NDArray[np.int32]]())
    topk_logprobs: list[NDArray[np.float32]] = attrs.field(factory=lambda: list[NDArray[np.float32]]())
    stop_reason: str | None = None
    error: Exception | None = None

    @property
    def weights(self) -> LoraWeights | None:
        """Return what it is drawn with; None is the base model."""
        weights = self.job.weights
        assert weights is None or isinstance(weights, LoraWeights)
        return weights

    @property
    def images(self) -> Sequence[PlacedImage]:
        """Return the images of its prompt."""
        return self.job.images

    @property
    def is_over(self) -> bool:
        """Return whether it draws no further token."""
        return self.stop_reason is not None or self.error is not None

    @property
    def length(self) -> int:
        """Return how many tokens it has, the prompt's included."""
        return len(self.job.tokens) + len(self.tokens)

    def history(self) -> Int32:
        """Return the prompt and what was drawn."""
        return np.concatenate([self.job.tokens, np.array(self.tokens, np.int32)]) if self.tokens else self.job.tokens

    def end(self) -> None:
        """Draw nothing more."""
        self.stop_reason = self.stop_reason or "length"

    def accept(self, token: int, logprob: float) -> None:
        """Take the token that was drawn, and tell the listener of the job."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.stops.is_reached(self.tokens):
            self.stop_reason = "stop"
        elif len(self.tokens) >= self.job.max_tokens:
            self.stop_reason = "length"
        listener = self.job.listener
        if listener is not None and not listener.take(self.index, token, logprob, self.stop_reason):
            self.end()

    def add_likeliest(self, ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> None:
        """Take the likeliest tokens at the place of the next one."""
        self.topk_ids.append(ids.astype(np.int32))
        self.topk_logprobs.append(logprobs)

    def continuation(self) -> Continuation:
        shape = (len(self.topk_ids), self.job.topk_sample_logprobs)
        ids = np.array(self.topk_ids, np.int32).reshape(shape)
        return Continuation(
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            stop_reason=self.stop_reason or "length",
            topk=(ids, np.array(self.topk_logprobs, np.float32).reshape(shape)) if shape[1] else None,
        )


def start_runs(job: SampleJob, end_of_text: frozenset[int], decode: Decode) -> list[DecodingRun]:
    """Make a run for each sample. Noise comes from (seed, sample index); without a seed, the job gets a random one."""
    seed = noise_seed(job)
    stops = Stops(job.stop, end_of_text, decode)
    runs = [
        DecodingRun(job, stops, draw_noise(np.random.default_rng([seed, index])), index) for index in range(job.num_samples)
    ]
    if job.max_tokens == 0:
        for run in runs:
            run.end()
    return runs


def draw_noise(source: np.random.Generator) -> Iterator[float]:
    """Yield numbers between 0 and 1, some at a time, so that a job with a high limit holds no more than it uses."""
    while True:
        yield from source.random(NOISE_BLOCK).tolist()
