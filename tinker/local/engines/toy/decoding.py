"""The distribution that the toy draws from, and its stops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinker.local.engines.protocol import Float32, Int32, SampleJob
from tinker.local.engines.toy.bigram import END_OF_TEXT
from tinker.local.engines.toy.losses import Float64


def has_stopped(tokens: list[int], stop: Sequence[str] | Sequence[int] | None) -> bool:
    """Return whether the last token completed a stop: an id, or a text among the bytes generated."""
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
