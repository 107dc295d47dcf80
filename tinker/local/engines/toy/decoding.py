"""What the toy draws from and where it stops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tinker.local.engines import Float32, Int32, SampleJob
from tinker.local.engines.toy.bigram import END_OF_TEXT
from tinker.local.engines.toy.losses import Float64


def has_stopped(tokens: list[int], stop: Sequence[str] | Sequence[int] | None) -> bool:
    """Whether the last token completed a stop: an id, or a text among the bytes generated."""
    if stop is None:
        return tokens[-1] == END_OF_TEXT
    return any(_ends_with(tokens, piece) for piece in stop)


def _ends_with(tokens: list[int], piece: str | int) -> bool:
    if isinstance(piece, int):
        return tokens[-1] == piece
    wanted = list(piece.encode())
    return tokens[-len(wanted) :] == wanted


def cumulative_distribution(row: Float32, job: SampleJob) -> tuple[Float64, Int32]:
    """Return the likeliest token alone at temperature 0; else the cumulated rest after top_k and then top_p."""
    if job.temperature == 0:
        return np.ones(1), np.array([row.argmax()], np.int32)
    ids = np.arange(len(row), dtype=np.int32)
    if job.top_k >= 1 or job.top_p < 1:
        ids = np.argsort(-row, kind="stable").astype(np.int32)[: job.top_k if job.top_k >= 1 else None]
    scores = row[ids].astype(np.float64)
    cumulative = np.exp((scores - scores.max()) / job.temperature).cumsum()
    if job.top_p < 1:
        kept = int(cumulative.searchsorted(job.top_p * float(cumulative[-1]))) + 1
        cumulative, ids = cumulative[:kept], ids[:kept]
    return cumulative, ids


def find_faults(job: SampleJob, vocabulary: int) -> Iterator[str]:
    if job.num_samples < 1:
        yield f"num_samples is {job.num_samples}; at least 1 is needed"
    if job.max_tokens < 0:
        yield f"max_tokens is {job.max_tokens}; it cannot be negative"
    if not 0 <= job.temperature < math.inf:
        yield f"temperature is {job.temperature}; 0 (greedy) or more is needed"
    if job.top_k < -1:
        yield f"top_k is {job.top_k}; -1 (all tokens) or at least 1 is needed"
    if not 0 < job.top_p <= 1:
        yield f"top_p is {job.top_p}; more than 0 and at most 1 is needed"
    for name, k in (("topk_prompt", job.topk_prompt_logprobs), ("topk_sample", job.topk_sample_logprobs)):
        if not 0 <= k <= vocabulary:
            yield f"{name}_logprobs is {k}; 0 to {vocabulary} is possible"
    stops = list(job.stop or ())
    if "" in stops:
        yield "an empty stop string would end every sequence at once"
    if len({isinstance(stop, str) for stop in stops}) > 1:
        yield "stop must hold strings only or token ids only"
