"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import TopkLogprobs
from tinker.types.results import EMPTY_LOGPROB as MASK_LOGPROB, topk_to_lists

__all__ = ["MASK_LOGPROB", "TopkLogprobs", "topk_to_lists"]
