"""Sampling from a model with a key-value cache: many sequences at once, each with its own parameters, noise and stops.

Knows nothing of adapters: the caller has put the right weights on. Each sequence draws from its own stream of noise, so
that what else is in the batch decides no token (padding changes the probabilities by rounding errors only).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch is typed in part only)

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from tinker.local.engines import Continuation, EngineError, SampleJob, noise_seed

Decode = Callable[[Sequence[int]], str]
WIDEST_CHARACTER = 8  # tokens a stop string may begin before: a character split over tokens, a dropped leading space


class Stops:
    """What ends a sequence: the given texts, the given ids, or by default the model's own end-of-text ids."""

    def __init__(self, stop: Sequence[str] | Sequence[int] | None, end_of_text: frozenset[int], decode: Decode) -> None:
        self._texts = [piece for piece in stop or () if isinstance(piece, str)]
        self._ids = end_of_text if stop is None else frozenset(piece for piece in stop if isinstance(piece, int))
        self._reach = max((len(text.encode()) for text in self._texts), default=0) + WIDEST_CHARACTER
        self._decode = decode

    def is_reached(self, tokens: list[int]) -> bool:
        """Whether the last of these tokens completes a stop."""
        if tokens[-1] in self._ids:
            return True
        return bool(self._texts) and self._in_text(self._decode(tokens[-self._reach :]))

    def _in_text(self, tail: str) -> bool:
        return any(text in tail for text in self._texts)


@attrs.define(eq=False)
class DecodingRun:
    """One sequence in the making."""

    job: SampleJob
    stops: Stops
    noise: NDArray[np.float64]
    index: int = 0
    tokens: list[int] = attrs.Factory(list)
    logprobs: list[float] = attrs.Factory(list)
    topk_ids: list[NDArray[np.int32]] = attrs.Factory(list)
    topk_logprobs: list[NDArray[np.float32]] = attrs.Factory(list)
    stop_reason: str | None = None

    def accept(self, token: int, logprob: float) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.stops.is_reached(self.tokens):
            self.stop_reason = "stop"
        elif len(self.tokens) >= self.job.max_tokens:
            self.stop_reason = "length"
        listener = self.job.listener
        if listener is not None and not listener.take(self.index, token, logprob, self.stop_reason):
            self.stop_reason = self.stop_reason or "length"

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
    return [
        DecodingRun(job, stops, np.random.default_rng([seed, index]).random(job.max_tokens), index)
        for index in range(job.num_samples)
    ]


@torch.no_grad()
def generate(model: Any, runs: Sequence[DecodingRun], pad: int) -> None:
    """Complete all runs in one batch. Prompts are computed once per job; rows that have ended are dropped in bulk."""
    active = [run for run in runs if run.job.max_tokens > 0]
    if not active:
        return
    logits, cache, mask = _prefill(model, active, pad)
    positions = mask.sum(dim=1, keepdim=True)
    while True:
        tokens = _extend(active, logits)
        alive = [row for row, run in enumerate(active) if run.stop_reason is None]
        if not alive:
            return
        if 2 * len(alive) <= len(active):
            rows = torch.tensor(alive, device=mask.device)
            cache.batch_select_indices(rows)
            active, tokens, mask, positions = [active[row] for row in alive], tokens[rows], mask[rows], positions[rows]
        mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=1)
        inputs = {"input_ids": tokens[:, None], "attention_mask": mask, "position_ids": positions}
        step = model(**inputs, past_key_values=cache, use_cache=True)
        logits, cache, positions = step.logits[:, -1], step.past_key_values, positions + 1


def _prefill(model: Any, runs: Sequence[DecodingRun], pad: int) -> tuple[torch.Tensor, Any, torch.Tensor]:
    """Compute the logits after each prompt, the cache and the attention mask. Prompts are padded on the left."""
    jobs = list({id(run.job): run.job for run in runs}.values())
    width = max(len(job.tokens) for job in jobs)
    tokens = torch.full((len(jobs), width), pad, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, job in enumerate(jobs):
        tokens[row, width - len(job.tokens) :] = torch.from_numpy(job.tokens.astype(np.int64))
        mask[row, width - len(job.tokens) :] = 1
    tokens, mask = tokens.to(model.device), mask.to(model.device)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    out = model(**inputs, use_cache=True, **_last_logits_only(model))
    places = {id(job): row for row, job in enumerate(jobs)}
    rows = torch.tensor([places[id(run.job)] for run in runs], device=model.device)
    out.past_key_values.batch_select_indices(rows)
    return out.logits[rows, -1], out.past_key_values, mask[rows]


def _last_logits_only(model: Any) -> dict[str, int]:
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def _extend(runs: Sequence[DecodingRun], logits: torch.Tensor) -> torch.Tensor:
    """Draw one token per row and give it to the run, unless that has ended.

    The logprobs are the model's own, at temperature 1 and over the whole vocabulary, whatever the run's parameters.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    tokens = draw(logprobs, runs)
    drawn = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    if not all(map(math.isfinite, drawn)):
        raise EngineError("the model's probabilities are not finite: training has diverged; use a lower learning rate")
    for row, (run, token) in enumerate(zip(runs, tokens.tolist())):
        if run.stop_reason is None:
            if run.job.topk_sample_logprobs:
                values, ids = logprobs[row].topk(run.job.topk_sample_logprobs)
                run.topk_ids.append(ids.cpu().numpy().astype(np.int32))
                run.topk_logprobs.append(values.cpu().numpy())
            run.accept(token, drawn[row])
    return tokens


def _to_column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device, dtype=torch.float64)[:, None]


def draw(logprobs: torch.Tensor, runs: Sequence[DecodingRun]) -> torch.Tensor:
    """Draw the next token of each row: the likeliest at temperature 0, else where the noise falls in the distribution."""
    greedy = logprobs.argmax(dim=-1)
    if all(run.job.temperature == 0 for run in runs):
        return greedy
    temperatures = _to_column([run.job.temperature for run in runs], logprobs.device)
    noise = _to_column([run.noise[len(run.tokens)] if run.stop_reason is None else 0.0 for run in runs], logprobs.device)
    scaled = logprobs.double() / torch.where(temperatures == 0, 1.0, temperatures)
    probabilities = truncate(torch.softmax(scaled, dim=-1), runs)
    cumulative = probabilities.cumsum(dim=-1)
    drawn = torch.searchsorted(cumulative, noise * cumulative[:, -1:], right=True)[:, 0].clamp(max=logprobs.shape[1] - 1)
    return torch.where(temperatures[:, 0] == 0, greedy, drawn)


def truncate(probabilities: torch.Tensor, runs: Sequence[DecodingRun]) -> torch.Tensor:
    """Zero what top_k and then top_p leave out; the likeliest token always stays, ties go to the lower id."""
    if all(run.job.top_k < 1 and run.job.top_p >= 1 for run in runs):
        return probabilities
    values, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(values.shape[1], device=values.device)
    top_k = _to_column([run.job.top_k if run.job.top_k >= 1 else math.inf for run in runs], values.device)
    top_p = _to_column([run.job.top_p if run.job.top_p < 1 else math.inf for run in runs], values.device)
    values = torch.where(ranks < top_k, values, 0.0)
    before = values.cumsum(dim=-1) - values
    values = torch.where(before < top_p * values.sum(dim=-1, keepdim=True), values, 0.0)
    return torch.zeros_like(probabilities).scatter(1, order, values)
