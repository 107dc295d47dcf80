"""Scores of a job's prompt, from the log-probabilities of all tokens, which are there for some positions at a time."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from tinker.local.engines import Continuation, Float32, Int32, PromptTargets, SampleJob, SampleResult, noise_seed
from tinker.types.results import EMPTY_LOGPROB

CUMULATED_CELLS = 2**23  # of alternatives that are drawn at once


@attrs.frozen(kw_only=True, eq=False)
class PromptScores:
    """What a job wants to know about its prompt; the fields of the same names in a result."""

    prompt_logprobs: Float32 | None = None
    topk_prompt: tuple[Int32, Float32] | None = None
    target_logprobs: Float32 | None = None
    alternatives: tuple[Int32, Float32] | None = None

    def result(self, sequences: list[Continuation]) -> SampleResult:
        """Return the result of the job, with what it sampled."""
        return SampleResult(sequences=sequences, **attrs.asdict(self, recurse=False))


class PromptScorer:
    """Reads the scores of one job from the logits after every token of its prompt but the last, as they come."""

    def __init__(self, job: SampleJob) -> None:
        self._job, self._seen = job, 0
        self._own: list[Float32] = [np.full(1, np.nan, np.float32)]
        self._likeliest = [_empty_row(job.topk_prompt_logprobs)]
        self._drawn = [(np.zeros((0, job.prompt_alternatives), np.int32), np.zeros((0, job.prompt_alternatives), np.float32))]
        count = 0 if job.prompt_targets is None else len(job.prompt_targets.tokens)
        self._chosen = np.zeros(count, np.float32)
        seed = [noise_seed(job), 0, 1]  # a stream of noise of its own
        self._noise = np.random.default_rng(seed).random((len(job.tokens) - 1, job.prompt_alternatives))

    def add(self, logits: torch.Tensor) -> None:
        """Take the logits ``[tokens, vocabulary]`` after the next tokens; what comes after the last one counts for nothing."""
        start, job = self._seen, self._job
        logits = logits[: len(job.tokens) - 1 - start]
        self._seen += len(logits)
        if not len(logits):
            return
        if job.prompt_logprobs:
            self._own.append(_own_logprobs(job.tokens[start + 1 : self._seen + 1], logits))
        if not _needs_table(job):
            return
        table = torch.log_softmax(logits.float(), dim=-1).cpu()
        if job.topk_prompt_logprobs:
            values, ids = table.topk(job.topk_prompt_logprobs, dim=-1)
            self._likeliest.append((ids.numpy().astype(np.int32), values.numpy()))
        if job.prompt_alternatives:
            self._drawn.append(_draw_alternatives(job.temperature, table, torch.from_numpy(self._noise[start : self._seen])))
        if job.prompt_targets is not None:
            self._score_targets(job.prompt_targets, table, start)

    def _score_targets(self, targets: PromptTargets, table: torch.Tensor, start: int) -> None:
        rows = targets.positions - 1 - start
        here = (rows >= 0) & (rows < len(table))
        self._chosen[here] = table[torch.from_numpy(rows[here]), torch.from_numpy(targets.tokens[here])].numpy()

    def scores(self) -> PromptScores:
        """Return what was asked for."""
        job = self._job
        return PromptScores(
            prompt_logprobs=np.concatenate(self._own) if job.prompt_logprobs else None,
            topk_prompt=_join(self._likeliest) if job.topk_prompt_logprobs else None,
            target_logprobs=None if job.prompt_targets is None else self._chosen,
            alternatives=_join(self._drawn) if job.prompt_alternatives else None,
        )


def needs_prompt_scores(job: SampleJob) -> bool:
    return job.prompt_logprobs or _needs_table(job)


def _needs_table(job: SampleJob) -> bool:
    return any((job.topk_prompt_logprobs, job.prompt_alternatives, job.prompt_targets is not None))


def _own_logprobs(tokens: Int32, logits: torch.Tensor) -> Float32:
    ids = torch.from_numpy(tokens.astype(np.int64)).to(logits.device)
    own = logits.gather(1, ids[:, None])[:, 0].float() - logits.float().logsumexp(dim=-1)
    found: Float32 = own.cpu().numpy().astype(np.float32)
    return found


def _draw_alternatives(temperature: float, table: torch.Tensor, noise: torch.Tensor) -> tuple[Int32, Float32]:
    """Draw some rows at a time: a cumulated row is twice as large as the table's."""
    ids = torch.empty(noise.shape, dtype=torch.long)
    rows = max(1, CUMULATED_CELLS // table.shape[1])
    for start in range(0, len(table), rows):
        block = slice(start, start + rows)
        if temperature == 0:
            ids[block] = table[block].argmax(dim=-1, keepdim=True)
        else:
            cumulative = torch.softmax(table[block].double() / temperature, dim=-1).cumsum(dim=-1)
            places = torch.searchsorted(cumulative, noise[block] * cumulative[:, -1:], right=True)
            ids[block] = places.clamp(max=table.shape[1] - 1)
    return ids.numpy().astype(np.int32), table.gather(1, ids).numpy()


def _empty_row(k: int) -> tuple[Int32, Float32]:
    return np.zeros((1, k), np.int32), np.full((1, k), EMPTY_LOGPROB, np.float32)


def _join(parts: Sequence[tuple[Int32, Float32]]) -> tuple[Int32, Float32]:
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([values for _, values in parts])
