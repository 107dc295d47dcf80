"""A sample job as a request of ``POST /inference/v1/generate``, and what vLLM answers as the job's result. No I/O."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.inputs import noise_seed
from tinker.local.engines.protocol import Continuation, EngineError, Float32, Int32, PromptTargets, SampleJob, SampleResult
from tinker.types.results import EMPTY_LOGPROB

SamplingParams: TypeAlias = dict[str, Any]
NO_TOKEN = -1  # pads a row of tokens to score
MAX_SEED = 2**62  # vLLM adds the number of the sample to it, so neighboring seeds must not be neighbors there
LEAST_TOP_P = 1e-9  # takes the likeliest token alone; vLLM refuses 0
EMPTY_CELL = 0, EMPTY_LOGPROB


class LikelyToken(msgspec.Struct):
    """A token and its log-probability."""

    token_id: int
    logprob: float


class DrawnToken(LikelyToken):
    """A drawn token, with the likeliest ones at its place."""

    top_logprobs: list[LikelyToken] = []


class DrawnTokens(msgspec.Struct):
    """Drawn tokens, in their order."""

    content: list[DrawnToken] | None = None


class Choice(msgspec.Struct):
    """One of the samples of a request: all of it, or of a stream the next part."""

    index: int = 0
    logprobs: DrawnTokens | None = None
    finish_reason: str | None = None

    @property
    def drawn(self) -> list[DrawnToken]:
        """Return its tokens; appending to them adds to the choice."""
        return [] if self.logprobs is None or self.logprobs.content is None else self.logprobs.content


class ScoredToken(msgspec.Struct):
    """The log-probability of a token of the prompt, or of another token at its place."""

    logprob: float


class Answer(msgspec.Struct):
    """What vLLM answers to a request, or an event of its stream; ``error`` is that of a stream that has failed."""

    choices: list[Choice] = []
    prompt_logprobs: list[dict[int, ScoredToken] | None] | None = None
    prompt_token_id_logprobs: str | None = None
    error: dict[str, Any] | None = None


def write_params(job: SampleJob) -> SamplingParams:
    """Return the parameters of a job. Raises EngineError for what vLLM does not do; it refuses other values itself."""
    if job.prompt_alternatives:
        raise EngineError("prompt_alt_tokens_k is not available here: vLLM draws no tokens at the places of the prompt")
    texts = [stop for stop in job.stop or () if isinstance(stop, str)]
    params: SamplingParams = {
        "n": job.num_samples if job.max_tokens else 1,
        "max_tokens": job.max_tokens or 1,
        "temperature": job.temperature,
        "top_k": job.top_k,
        "top_p": max(job.top_p, LEAST_TOP_P),
        "seed": int(np.random.default_rng(noise_seed(job)).integers(MAX_SEED)),
        # Of the k likeliest tokens vLLM leaves out the last where the drawn one is not among them.
        "logprobs": job.topk_sample_logprobs and job.topk_sample_logprobs + 1,
        "ignore_eos": job.stop is not None,
        "stop": texts,
        "stop_token_ids": [stop for stop in job.stop or () if not isinstance(stop, str)],
        "detokenize": bool(texts),
        "skip_special_tokens": False,
    }
    if job.prompt_logprobs or job.topk_prompt_logprobs:
        params["prompt_logprobs"] = job.topk_prompt_logprobs
    if job.prompt_targets is not None:
        grid = _TargetGrid.make(job.prompt_targets)
        params["prompt_logprob_token_ids"] = grid.fill(job.prompt_targets.tokens).tolist()
        params["prompt_logprob_start"] = grid.start
    return params


@attrs.frozen(eq=False)
class _TargetGrid:
    """The places of tokens to score in the rows that vLLM takes: one for each position from the first to the last."""

    start: int
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    @classmethod
    def make(cls, targets: PromptTargets) -> _TargetGrid:
        order = np.argsort(targets.positions, kind="stable")
        ordered = targets.positions[order]
        columns = np.empty(len(order), np.int64)
        columns[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        start = int(ordered[0]) - 1
        return cls(start, targets.positions - 1 - start, columns)

    def fill(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens as rows of one length."""
        grid = np.full((int(self.rows.max()) + 1, int(self.columns.max()) + 1), NO_TOKEN, np.int64)
        grid[self.rows, self.columns] = tokens
        return grid


def read_result(job: SampleJob, answer: Answer, choices: Sequence[Choice]) -> SampleResult:
    """Return the result of a job; ``choices`` are its samples, which a stream has delivered in parts."""
    return SampleResult(
        sequences=[_read_sequence(job, choice) for choice in choices] if job.max_tokens else _make_empty(job),
        prompt_logprobs=_read_prompt(job, answer) if job.prompt_logprobs else None,
        topk_prompt=_read_prompt_topk(job.topk_prompt_logprobs, answer),
        target_logprobs=_read_targets(job.prompt_targets, answer),
    )


def _make_empty(job: SampleJob) -> list[Continuation]:
    nothing = Continuation(
        tokens=np.empty(0, np.int32),
        logprobs=np.empty(0, np.float32),
        stop_reason="length",
        topk=_read_topk(job.topk_sample_logprobs, []),
    )
    return [nothing] * job.num_samples


def _read_sequence(job: SampleJob, choice: Choice) -> Continuation:
    return Continuation(
        tokens=np.array([one.token_id for one in choice.drawn], np.int32),
        logprobs=np.array([one.logprob for one in choice.drawn], np.float32),
        stop_reason=choice.finish_reason or "length",
        topk=_read_topk(job.topk_sample_logprobs, [one.top_logprobs for one in choice.drawn]),
    )


def _read_topk(k: int, rows: Sequence[Sequence[LikelyToken]]) -> tuple[Int32, Float32] | None:
    return _make_table(k, [[(one.token_id, one.logprob) for one in row] for row in rows]) if k else None


def _read_prompt_topk(k: int, answer: Answer) -> tuple[Int32, Float32] | None:
    if not k:
        return None
    cells = [[(token, one.logprob) for token, one in (row or {}).items()] for row in answer.prompt_logprobs or ()]
    return _make_table(k, cells)


def _make_table(k: int, rows: Sequence[Sequence[tuple[int, float]]]) -> tuple[Int32, Float32]:
    """Return the ids and log-probabilities of the k likeliest tokens of each row, with empty cells where there are fewer."""
    ordered = [sorted(row, key=lambda cell: -cell[1])[:k] for row in rows]
    cells = [row + [EMPTY_CELL] * (k - len(row)) for row in ordered]
    ids = np.array([[token for token, _ in row] for row in cells], np.int32)
    logprobs = np.array([[logprob for _, logprob in row] for row in cells], np.float32)
    return ids.reshape(-1, k), logprobs.reshape(-1, k)


def _read_prompt(job: SampleJob, answer: Answer) -> Float32:
    rows = answer.prompt_logprobs or []
    tokens = job.tokens.tolist()
    return np.array([row[token].logprob if row else np.nan for token, row in zip(tokens, rows, strict=True)], np.float32)


def _read_targets(targets: PromptTargets | None, answer: Answer) -> Float32 | None:
    if targets is None or answer.prompt_token_id_logprobs is None:
        return None
    scores: Float32 = np.load(io.BytesIO(base64.b64decode(answer.prompt_token_id_logprobs)), allow_pickle=False)
    grid = _TargetGrid.make(targets)
    return scores[grid.rows, grid.columns].astype(np.float32)
