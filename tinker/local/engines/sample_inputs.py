"""The limits of a sample job, checked before an engine begins, and the seed of its noise."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator

from tinker.local.engines.loss_inputs import check_tokens
from tinker.local.engines.protocol import EngineError, SampleJob

MAX_ALTERNATIVES = 2**22  # of one prompt: 32 MB of ids and log-probabilities


def noise_seed(job: SampleJob) -> int:
    """Return the seed of a job as 64 bits; a random one where the job has none."""
    return secrets.randbits(64) if job.seed is None else job.seed & (2**64 - 1)


def check_job(job: SampleJob, *, vocabulary: int, longest: int) -> None:
    """Raise EngineError naming the first parameter that an engine with this vocabulary and context cannot serve."""
    if not len(job.tokens):
        raise EngineError("the prompt is empty; it must have at least one token")
    check_tokens("the prompt", job.tokens, vocabulary)
    _check_length(len(job.tokens), job.max_tokens, longest)
    for fault in _find_faults(job, vocabulary):
        raise EngineError(fault)
    check_prompt_options(job, vocabulary)


def _check_length(prompt: int, max_tokens: int, longest: int) -> None:
    """Raise EngineError, which says what would fit, when prompt and sample are longer than the context."""
    room = longest - prompt
    tokens = "1 token" if prompt == 1 else f"{prompt} tokens"
    if room < 0 or (room == 0 and max_tokens > 0):
        excess = "exceeds" if room < 0 else "fills"
        raise EngineError(f"the prompt has {tokens}, which {excess} the context length of {longest}; shorten the prompt")
    if max_tokens > room:
        total = f"max_tokens is {max_tokens}, which with a prompt of {tokens} exceeds the context length of {longest}"
        raise EngineError(f"{total}; use max_tokens of at most {room}")


def check_prompt_options(job: SampleJob, vocabulary: int) -> None:
    """Raise EngineError when tokens to score, or the number of alternatives to draw, do not fit the prompt."""
    if not 0 <= job.prompt_alternatives * len(job.tokens) <= MAX_ALTERNATIVES:
        limit = MAX_ALTERNATIVES // len(job.tokens)
        raise EngineError(f"prompt_alt_tokens_k is {job.prompt_alternatives}; it must be 0 to {limit} for this prompt")
    if job.prompt_targets is not None:
        check_tokens("target_prompt_logprobs", job.prompt_targets.tokens, vocabulary)


def _find_faults(job: SampleJob, vocabulary: int) -> Iterator[str]:
    if job.num_samples < 1:
        yield f"num_samples is {job.num_samples}; it must be at least 1"
    if job.max_tokens < 0:
        yield f"max_tokens is {job.max_tokens}; it must be at least 0"
    if not 0 <= job.temperature < math.inf:
        yield f"temperature is {job.temperature}; it must be 0 (greedy) or more"
    if job.top_k < -1:
        yield f"top_k is {job.top_k}; it must be -1 (all tokens) or at least 1"
    if not 0 <= job.top_p <= 1:
        yield f"top_p is {job.top_p}; it must be from 0 to 1"
    for name, k in (("topk_prompt", job.topk_prompt_logprobs), ("topk_sample", job.topk_sample_logprobs)):
        if not 0 <= k <= vocabulary:
            yield f"{name}_logprobs is {k}; it must be 0 to {vocabulary}"
    stops = list(job.stop or ())
    if "" in stops:
        yield "an empty stop string would end every sequence at once"
    if len({isinstance(stop, str) for stop in stops}) > 1:
        yield "stop must contain strings only or token ids only"
