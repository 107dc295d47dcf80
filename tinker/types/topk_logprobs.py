"""A path that older code imports from."""

from __future__ import annotations

from tinker.types.results import EMPTY_LOGPROB, TopkLogprobs, TopkRow

MASK_LOGPROB = EMPTY_LOGPROB

__all__ = ["MASK_LOGPROB", "TopkLogprobs", "topk_to_lists"]


def topk_to_lists(topk: TopkLogprobs) -> list[TopkRow]:
    """Return what ``topk.tolist()`` does."""
    return topk.tolist()
