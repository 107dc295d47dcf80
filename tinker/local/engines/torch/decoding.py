"""The draw of the next token of several sequences, on the device of their logits.

The noise of each falls into the cumulated probabilities of the tokens that temperature, top_k and top_p leave, in the order of
their ids. Nothing sorts the vocabulary but where a tie or a flat distribution leaves no other way.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# (torch is typed in part only)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from tinker.local.engines.inputs import shape_logits
from tinker.local.engines.protocol import SampleJob
from tinker.local.engines.runs import LEAST_TOP_P, DecodingRun

Draw: TypeAlias = Callable[[torch.Tensor, Sequence[SampleJob], torch.Tensor], torch.Tensor]
NUCLEUS = 512  # tokens among which top_p is looked for first
SPARE = 128  # tokens looked at behind the top_k likeliest, so that those as likely as the last one are seen


def draw(logits: torch.Tensor, runs: Sequence[DecodingRun]) -> torch.Tensor:
    """Draw the next token of each row ``[rows]`` from logits ``[rows, vocabulary]``."""
    jobs, noise = [run.job for run in runs], _to_column([next(run.noise) for run in runs], logits.device)
    logits = _shape(logits, runs)
    kinds: dict[Draw, list[int]] = {}
    for row, job in enumerate(jobs):
        kinds.setdefault(_draw_of(job), []).append(row)
    if len(kinds) == 1:
        return next(iter(kinds))(logits, jobs, noise)
    tokens = torch.empty(len(runs), dtype=torch.long, device=logits.device)
    for one, rows in kinds.items():
        chosen = torch.tensor(rows, device=logits.device)
        tokens[chosen] = one(logits[chosen], [jobs[row] for row in rows], noise[chosen])
    return tokens


def _shape(logits: torch.Tensor, runs: Sequence[DecodingRun]) -> torch.Tensor:
    """Return the logits after the penalties and ``min_p`` of those rows that have some."""
    shaped = [row for row, run in enumerate(runs) if run.job.shapes_logits]
    if not shaped:
        return logits
    logits = logits.clone()
    for row in shaped:
        values = logits[row].cpu().numpy()
        shape_logits(runs[row].job, runs[row].tokens, values)
        logits[row] = torch.from_numpy(values)
    return logits


def _draw_of(job: SampleJob) -> Draw:
    if job.temperature == 0:
        return _take_likeliest
    return _draw_from_all if job.top_k < 1 and job.top_p >= 1 else _draw_from_some


def _take_likeliest(logits: torch.Tensor, jobs: Sequence[SampleJob], noise: torch.Tensor) -> torch.Tensor:
    return logits.argmax(dim=-1)


def _draw_from_all(logits: torch.Tensor, jobs: Sequence[SampleJob], noise: torch.Tensor) -> torch.Tensor:
    scaled = logits.double() / _to_column([job.temperature for job in jobs], logits.device)
    return _find_places(torch.softmax(scaled, dim=-1), noise)[:, 0]


def _draw_from_some(logits: torch.Tensor, jobs: Sequence[SampleJob], noise: torch.Tensor) -> torch.Tensor:
    ids, weights, is_sure = truncate(logits, jobs)
    tokens = ids.gather(1, _find_places(weights, noise))[:, 0]
    if not is_sure.all():
        rows = (~is_sure).nonzero()[:, 0]
        ids, weights, _ = truncate(logits[rows], [jobs[row] for row in rows.tolist()], logits.shape[1])
        tokens[rows] = ids.gather(1, _find_places(weights, noise[rows]))[:, 0]
    return tokens


def _find_places(weights: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Find where the noise ``[rows, 1]`` of each row falls among its weights, which need not sum to one."""
    cumulative = weights.cumsum(dim=-1)
    places = torch.searchsorted(cumulative, noise * cumulative[:, -1:], right=True)
    return places.clamp(max=weights.shape[1] - 1)


def truncate(
    logits: torch.Tensor, jobs: Sequence[SampleJob], width: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the weights of the tokens that top_k and then top_p keep: always the likeliest; ties go to the lower id.

    Returns:
        Ids ``[rows, width]`` in rising order, their weights, 0 for what is left out, and for each row whether ``width``
        tokens, by default as many as the parameters let expect, were enough to know.
    """
    vocabulary = logits.shape[1]
    width = min(vocabulary, width or max(job.top_k + SPARE if job.top_k >= 1 else NUCLEUS for job in jobs))
    values, ids = _sort_likeliest(logits, width)
    scaled = values.double() / _to_column([job.temperature for job in jobs], logits.device)
    weights = torch.exp(scaled - scaled[:, :1])
    top_k = _to_column([job.top_k if job.top_k >= 1 else math.inf for job in jobs], logits.device)
    top_p = _to_column([max(job.top_p, LEAST_TOP_P) if job.top_p < 1 else math.inf for job in jobs], logits.device)
    weights = torch.where(torch.arange(width, device=logits.device) < top_k, weights, 0.0)
    mass = _find_mass(logits, scaled, weights, top_k, jobs)
    kept = torch.where(weights.cumsum(dim=-1) - weights < top_p * mass, weights, 0.0)
    seen = values > values[:, -1:]  # of the last value there may be more behind the window
    reach = (weights * seen).sum(dim=-1, keepdim=True)
    is_sure = torch.where(top_k < math.inf, seen.sum(dim=-1, keepdim=True) >= top_k, reach >= top_p * mass)[:, 0]
    ids, order = ids.sort(dim=-1)
    return ids, kept.gather(1, order), is_sure | (width == vocabulary)


def _sort_likeliest(logits: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and ids of the ``width`` largest logits, the largest first; ties in the order of their ids."""
    if width == logits.shape[1]:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    values, ids = logits.topk(width, dim=-1)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _find_mass(
    logits: torch.Tensor, scaled: torch.Tensor, weights: torch.Tensor, top_k: torch.Tensor, jobs: Sequence[SampleJob]
) -> torch.Tensor:
    """Return the sum of the weights of all tokens that top_k keeps."""
    mass = weights.sum(dim=-1, keepdim=True)
    if all(job.top_k >= 1 for job in jobs):
        return mass
    whole = (logits.double() / _to_column([job.temperature for job in jobs], logits.device)).logsumexp(dim=-1, keepdim=True)
    return torch.where(top_k < math.inf, mass, torch.exp(whole - scaled[:, :1]))


def _to_column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device, dtype=torch.float64)[:, None]
