"""Scores of a job's prompt, from the table of all log-probabilities."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import attrs
import numpy as np
import torch

from tinker.local.engines import Continuation, Float32, Int32, PromptTargets, SampleJob, SampleResult, noise_seed
from tinker.types.results import EMPTY_LOGPROB

MAX_LOGITS = 2**27  # cells of one micro-batch: half a gigabyte in float32, whatever the vocabulary


@attrs.frozen(kw_only=True, eq=False)
class PromptScores:
    """What a job wants to know about its prompt; the fields of the same names in a result."""

    prompt_logprobs: Float32 | None = None
    topk_prompt: tuple[Int32, Float32] | None = None
    target_logprobs: Float32 | None = None
    alternatives: tuple[Int32, Float32] | None = None

    @classmethod
    def compute(cls, job: SampleJob, table: torch.Tensor) -> PromptScores:
        """Read the scores from ``table``, the log-probabilities of every token at every position but the first."""
        return cls(
            prompt_logprobs=_own_logprobs(job, table) if job.prompt_logprobs else None,
            topk_prompt=_topk_rows(table, job.topk_prompt_logprobs) if job.topk_prompt_logprobs else None,
            target_logprobs=None if job.prompt_targets is None else _target_logprobs(job.prompt_targets, table),
            alternatives=_alternatives(job, table) if job.prompt_alternatives else None,
        )

    def result(self, sequences: list[Continuation]) -> SampleResult:
        """Return the result of the job, with what it sampled."""
        return SampleResult(sequences=sequences, **attrs.asdict(self, recurse=False))


def needs_prompt_scores(job: SampleJob) -> bool:
    options = job.prompt_logprobs, job.topk_prompt_logprobs, job.prompt_alternatives, job.prompt_targets is not None
    return any(options)


def _own_logprobs(job: SampleJob, table: torch.Tensor) -> Float32:
    own = table.gather(1, torch.from_numpy(job.tokens[1:].astype(np.int64))[:, None])[:, 0].numpy()
    return np.concatenate([[np.nan], own]).astype(np.float32)


def _target_logprobs(targets: PromptTargets, table: torch.Tensor) -> Float32:
    found: Float32 = table[torch.from_numpy(targets.positions - 1), torch.from_numpy(targets.tokens)].numpy()
    return found


def _alternatives(job: SampleJob, table: torch.Tensor) -> tuple[Int32, Float32]:
    """Draw from a separate stream of noise. Some rows at a time: a cumulated row is twice as large as the table's."""
    seed = noise_seed(job)
    noise = torch.from_numpy(np.random.default_rng([seed, 0, 1]).random((len(table), job.prompt_alternatives)))
    ids = torch.empty(noise.shape, dtype=torch.long)
    rows = max(1, MAX_LOGITS // 16 // table.shape[1])
    for start in range(0, len(table), rows):
        block = slice(start, start + rows)
        if job.temperature == 0:
            ids[block] = table[block].argmax(dim=-1, keepdim=True)
        else:
            cumulative = torch.softmax(table[block].double() / job.temperature, dim=-1).cumsum(dim=-1)
            places = torch.searchsorted(cumulative, noise[block] * cumulative[:, -1:], right=True)
            ids[block] = places.clamp(max=table.shape[1] - 1)
    return ids.numpy().astype(np.int32), table.gather(1, ids).numpy()


def _topk_rows(table: torch.Tensor, k: int) -> tuple[Int32, Float32]:
    values, ids = table.topk(k, dim=-1)
    return (
        np.concatenate([np.zeros((1, k)), ids.numpy()]).astype(np.int32),
        np.concatenate([np.full((1, k), EMPTY_LOGPROB), values.numpy()]).astype(np.float32),
    )
