"""A sample job as a request of ``POST /inference/v1/generate``, and what vLLM answers as the job's result. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from tinker.local.engines.inputs import noise_seed
from tinker.local.engines.protocol import Continuation, Float32, Int32, SampleJob, SampleResult
from tinker.types.results import EMPTY_LOGPROB, EMPTY_TOKEN_ID

VLLMParams: TypeAlias = dict[str, Any]
MAX_SEED = 2**62  # vLLM adds the number of the sample to it, so neighboring seeds must not be neighbors there
LEAST_TOP_P = 1e-9  # takes the likeliest token alone; vLLM refuses 0


class LikelyToken(msgspec.Struct):
    """A token and its log-probability."""

    token_id: int
    logprob: float


EMPTY_CELL = LikelyToken(EMPTY_TOKEN_ID, EMPTY_LOGPROB)


class VLLMToken(LikelyToken):
    """A drawn token, with the likeliest ones at its place."""

    top_logprobs: list[LikelyToken] = []


class VLLMTokens(msgspec.Struct):
    """Drawn tokens, in their order."""

    content: list[VLLMToken] | None = None


class VLLMChoice(msgspec.Struct):
    """One of the samples of a request: all of it, or of a stream the next part."""

    index: int = 0
    logprobs: VLLMTokens | None = None
    finish_reason: str | None = None

    @property
    def drawn(self) -> list[VLLMToken]:
        """Return its tokens; appending to them adds to the choice."""
        return [] if self.logprobs is None or self.logprobs.content is None else self.logprobs.content


class VLLMAnswer(msgspec.Struct):
    """What vLLM answers to a request, or an event of its stream; ``error`` is that of a stream that has failed."""

    choices: list[VLLMChoice] = []
    error: dict[str, Any] | None = None


def write_params(job: SampleJob, first: int = 0) -> VLLMParams:
    """Return the parameters of a job that draws tokens after a text, its samples counted from ``first`` on.

    vLLM refuses values that it does not take.

    Scores of prompts are not asked for. vLLM 0.32 takes the rows of the prompt for those of samples where an adapter changes
    the output layer: it ends on a CPU, and cannot be right elsewhere.
    """
    texts = [stop for stop in job.stop or () if isinstance(stop, str)]
    params: VLLMParams = {
        "n": job.num_samples,
        "max_tokens": job.max_tokens,
        "min_tokens": job.min_tokens,
        "temperature": job.temperature,
        "top_k": job.top_k,
        "top_p": max(job.top_p, LEAST_TOP_P),
        "min_p": job.min_p,
        "presence_penalty": job.presence_penalty,
        "frequency_penalty": job.frequency_penalty,
        "repetition_penalty": job.repetition_penalty,
        "seed": int(np.random.default_rng(noise_seed(job)).integers(MAX_SEED)) + first,
        # Of the k likeliest tokens vLLM leaves out the last where the drawn one is not among them.
        "logprobs": job.topk_sample_logprobs and job.topk_sample_logprobs + 1,
        "ignore_eos": job.stop is not None,
        "stop": texts,
        "stop_token_ids": [stop for stop in job.stop or () if not isinstance(stop, str)],
        "detokenize": bool(texts),
        "skip_special_tokens": False,
    }
    if job.json_schema is not None:
        params["structured_outputs"] = {"json": job.json_schema}
    return params


def read_result(job: SampleJob, choices: Sequence[VLLMChoice]) -> SampleResult:
    """Return the result of a job from its samples, which a stream has delivered in parts."""
    return SampleResult(sequences=[_read_sequence(job, choice) for choice in choices])


def _read_sequence(job: SampleJob, choice: VLLMChoice) -> Continuation:
    return Continuation(
        tokens=np.array([one.token_id for one in choice.drawn], np.int32),
        logprobs=np.array([one.logprob for one in choice.drawn], np.float32),
        stop_reason=choice.finish_reason or "length",
        topk=_read_topk(job.topk_sample_logprobs, [one.top_logprobs for one in choice.drawn]),
    )


def _read_topk(k: int, rows: Sequence[Sequence[LikelyToken]]) -> tuple[Int32, Float32] | None:
    """Return the ids and log-probabilities of the k likeliest tokens of each row, with empty cells where there are fewer."""
    if not k:
        return None
    ordered = [sorted(row, key=lambda one: -one.logprob)[:k] for row in rows]
    cells = [row + [EMPTY_CELL] * (k - len(row)) for row in ordered]
    ids = np.array([[one.token_id for one in row] for row in cells], np.int32)
    logprobs = np.array([[one.logprob for one in row] for row in cells], np.float32)
    return ids.reshape(-1, k), logprobs.reshape(-1, k)
