"""Rows that draw their tokens together, with one key-value cache; rows join and leave between two
tokens.

Rows of like length go through the model together, so that little of the work is padding. In the
cache of transformers they end at the same column: shorter ones are padded on the left, and an
attention mask says where. Layers of linear attention and of convolutions hold one state for each
row instead of columns.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (torch and transformers are typed in part only)
# (torch is typed in part only)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from tinker.local.engines.inputs import shape_logits
from tinker.local.engines.protocol import SampleJob
from tinker.local.engines.runs import LEAST_TOP_P, DecodingRun
from tinker.local.engines.torch.images import count_shift
from tinker.local.engines.torch.lora import LoraWeights
from tinker.local.engines.torch.mixture import Mixture

# The draw of the next token of several sequences, on the device of their logits.
#
# The noise of each falls into the cumulated probabilities of the tokens that temperature, top_k and
# top_p leave, in the order of their ids. Nothing sorts the vocabulary but where a tie or a flat
# distribution leaves no other way.

Draw: TypeAlias = Callable[[torch.Tensor, Sequence[SampleJob], torch.Tensor], torch.Tensor]
NUCLEUS = 512  # tokens among which top_p is looked for first
# tokens looked at behind the top_k likeliest, so that those as likely as the last one are seen
SPARE = 128


def draw(logits: torch.Tensor, runs: Sequence[DecodingRun]) -> torch.Tensor:
    """Draw the next token of each row ``[rows]`` from logits ``[rows, vocabulary]``."""
    jobs, noise = (
        [run.job for run in runs],
        _to_column([next(run.noise) for run in runs], logits.device),
    )
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


def _take_likeliest(
    logits: torch.Tensor, jobs: Sequence[SampleJob], noise: torch.Tensor
) -> torch.Tensor:
    return logits.argmax(dim=-1)


def _draw_from_all(
    logits: torch.Tensor, jobs: Sequence[SampleJob], noise: torch.Tensor
) -> torch.Tensor:
    scaled = logits.double() / _to_column([job.temperature for job in jobs], logits.device)
    return _find_places(torch.softmax(scaled, dim=-1), noise)[:, 0]


def _draw_from_some(
    logits: torch.Tensor, jobs: Sequence[SampleJob], noise: torch.Tensor
) -> torch.Tensor:
    ids, weights, is_sure = truncate(logits, jobs)
    tokens = ids.gather(1, _find_places(weights, noise))[:, 0]
    if not is_sure.all():
        rows = (~is_sure).nonzero()[:, 0]
        ids, weights, _ = truncate(
            logits[rows], [jobs[row] for row in rows.tolist()], logits.shape[1]
        )
        tokens[rows] = ids.gather(1, _find_places(weights, noise[rows]))[:, 0]
    return tokens


def _find_places(weights: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Find where the noise ``[rows, 1]`` of each row falls among its weights, which need not sum to
    one.
    """
    cumulative = weights.cumsum(dim=-1)
    places = torch.searchsorted(cumulative, noise * cumulative[:, -1:], right=True)
    return places.clamp(max=weights.shape[1] - 1)


def truncate(
    logits: torch.Tensor, jobs: Sequence[SampleJob], width: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the weights of the tokens that top_k and then top_p keep: always the likeliest; ties
    go to the lower id.

    Returns:
        Ids ``[rows, width]`` in rising order, their weights, 0 for what is left out, and for each
        row whether ``width`` tokens, by default as many as the parameters let expect, were enough
        to know.
    """
    vocabulary = logits.shape[1]
    width = min(
        vocabulary, width or max(job.top_k + SPARE if job.top_k >= 1 else NUCLEUS for job in jobs)
    )
    values, ids = _sort_likeliest(logits, width)
    scaled = values.double() / _to_column([job.temperature for job in jobs], logits.device)
    weights = torch.exp(scaled - scaled[:, :1])
    top_k = _to_column([job.top_k if job.top_k >= 1 else math.inf for job in jobs], logits.device)
    top_p = _to_column(
        [max(job.top_p, LEAST_TOP_P) if job.top_p < 1 else math.inf for job in jobs], logits.device
    )
    weights = torch.where(torch.arange(width, device=logits.device) < top_k, weights, 0.0)
    mass = _find_mass(logits, scaled, weights, top_k, jobs)
    kept = torch.where(weights.cumsum(dim=-1) - weights < top_p * mass, weights, 0.0)
    seen = values > values[:, -1:]  # of the last value there may be more behind the window
    reach = (weights * seen).sum(dim=-1, keepdim=True)
    is_sure = torch.where(
        top_k < math.inf, seen.sum(dim=-1, keepdim=True) >= top_k, reach >= top_p * mass
    )[:, 0]
    ids, order = ids.sort(dim=-1)
    return ids, kept.gather(1, order), is_sure | (width == vocabulary)


def _sort_likeliest(logits: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and ids of the ``width`` largest logits, the largest first; ties in the order
    of their ids.
    """
    if width == logits.shape[1]:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    values, ids = logits.topk(width, dim=-1)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _find_mass(
    logits: torch.Tensor,
    scaled: torch.Tensor,
    weights: torch.Tensor,
    top_k: torch.Tensor,
    jobs: Sequence[SampleJob],
) -> torch.Tensor:
    """Return the sum of the weights of all tokens that top_k keeps."""
    mass = weights.sum(dim=-1, keepdim=True)
    if all(job.top_k >= 1 for job in jobs):
        return mass
    whole = (
        logits.double() / _to_column([job.temperature for job in jobs], logits.device)
    ).logsumexp(dim=-1, keepdim=True)
    return torch.where(top_k < math.inf, mass, torch.exp(whole - scaled[:, :1]))


def _to_column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device, dtype=torch.float64)[:, None]


# keys and values of each layer, ``[heads, tokens, size]``
LayerColumns: TypeAlias = Sequence[tuple[torch.Tensor, ...]]
_STATES = {"conv_states": "update_conv_state", "recurrent_states": "update_recurrent_state"}
# of layers whose rows can be chosen and joined here, by name: older versions of transformers lack
# some
KINDS = frozenset(
    {
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "LinearAttentionLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
        "DummyLayer",
    }
)


@attrs.define(eq=False)
class RowStates:
    """What a cache holds of some tokens of a row: ``columns`` of the layers that have one for each
    token, none of others.

    ``end`` is what the others hold after the last of the tokens: a window of columns, or states.
    None where it was not kept.
    """

    columns: LayerColumns = ()
    end: Sequence[torch.Tensor | None] | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        pairs = [*self.columns, self.end or ()]
        return sum(tensor.nbytes for pair in pairs for tensor in pair if tensor is not None)

    def cut(self, start: int, end: int | None = None) -> RowStates:
        """Copy some of the tokens; without ``end`` all to the last one."""
        columns = [tuple(tensor[:, start:end].clone() for tensor in pair) for pair in self.columns]
        return RowStates(columns, self.end if end is None else None)


def join_states(parts: Sequence[RowStates]) -> RowStates:
    """Put tokens that follow on one another together."""
    layers = zip(*(part.columns for part in parts), strict=True)
    return RowStates(
        [
            tuple(torch.cat(pieces, dim=1) for pieces in zip(*layer, strict=True))
            for layer in layers
        ],
        parts[-1].end,
    )


def has_known_rows(cache: Any) -> bool:
    """Return whether rows of a cache that a model has made can be chosen and joined here."""
    return type(cache) is DynamicCache and all(
        type(layer).__name__ in KINDS for layer in cache.layers
    )


def has_columns(cache: Any) -> bool:
    """Return whether every layer holds one column for each token, so that columns can be cut off
    and kept.
    """
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def has_states(cache: Any) -> bool:
    """Return whether some layer is no attention over columns."""
    return any(_states(layer) for layer in cache.layers)


def select_rows(cache: Any, rows: torch.Tensor) -> None:
    """Keep these rows, in this order; one may come more than once."""
    for layer in cache.layers:
        _change(layer, lambda tensor: tensor.index_select(0, rows))


def join_rows(cache: Any, more: Any) -> None:
    """Add the rows of another cache of the same model behind those of this one."""
    for layer, other in zip(cache.layers, more.layers, strict=True):
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = max(layer.cumulative_length, other.cumulative_length)
        for name in ("keys", "values"):
            first, second = getattr(layer, name, None), getattr(other, name, None)
            if first is not None and second is not None:
                setattr(layer, name, stack_rows([first, second]))
        for states, others in zip(_states(layer), _states(other), strict=True):
            for index, state in states.items():
                more_state = others[index]
                states[index] = (
                    None if state is None or more_state is None else torch.cat([state, more_state])
                )


def drop_columns(cache: Any, count: int) -> None:
    """Cut off the first columns. Only where every layer has columns."""
    for layer in cache.layers:
        layer.keys, layer.values = (
            layer.keys[:, :, count:].contiguous(),
            layer.values[:, :, count:].contiguous(),
        )


def stack_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Put rows ``[rows, heads, columns, size]`` below one another, in one copy, with zeros before
    the shorter ones.
    """
    _, heads, _, size = parts[0].shape
    width = max(part.shape[2] for part in parts)
    stacked, first = parts[0].new_empty(sum(len(part) for part in parts), heads, width, size), 0
    for part in parts:
        rows, missing = stacked[first : first + len(part)], width - part.shape[2]
        rows[:, :, :missing], rows[:, :, missing:] = 0, part
        first += len(part)
    return stacked


def read_row(cache: Any, row: int, columns: torch.Tensor, count: int) -> RowStates:
    """Copy these columns of a row, and what it holds at its end, which is behind
    ``count`` tokens.
    """
    found: list[tuple[torch.Tensor, ...]] = []
    end: list[torch.Tensor | None] = []
    for layer in cache.layers:
        pair: list[torch.Tensor] = [layer.keys[row], layer.values[row]] if _has_keys(layer) else []
        found.append(tuple(tensor[:, columns] for tensor in pair) if _is_columnar(layer) else ())
        end += [] if _is_columnar(layer) else [tensor[:, -count:].clone() for tensor in pair]
        end += [
            None if state is None else state[row].clone()
            for states in _states(layer)
            for state in states.values()
        ]
    return RowStates(found, end)


def make_cache(config: Any, rows: Sequence[RowStates], length: int) -> Any:
    """Make a cache of these rows, padded on the left to ``length`` columns."""
    cache = DynamicCache(config=config)
    ends = [iter(row.end or ()) for row in rows]
    for index, layer in enumerate(cache.layers):
        if _has_keys(layer):
            pairs: list[Any] = [
                row.columns[index] or (next(end), next(end))
                for row, end in zip(rows, ends, strict=True)
            ]
            keys, values = (stack_rows([pair[part][None] for pair in pairs]) for part in (0, 1))
            cache.update(keys, values, index)
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = length
        for name, update in _STATES.items():
            for number in getattr(layer, name, {}):
                states = [state for end in ends if (state := next(end)) is not None]
                if states:
                    getattr(layer, update)(torch.stack(states), state_idx=number)
    return cache


def _has_keys(layer: Any) -> bool:
    return isinstance(layer, DynamicLayer)


def _is_columnar(layer: Any) -> bool:
    return _has_keys(layer) and not isinstance(layer, DynamicSlidingWindowLayer)


def _states(layer: Any) -> list[dict[int, torch.Tensor | None]]:
    return [getattr(layer, name) for name in _STATES if hasattr(layer, name)]


def _change(layer: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for name in ("keys", "values"):
        tensor = getattr(layer, name, None)
        if tensor is not None and tensor.numel():
            setattr(layer, name, change(tensor))
    for states in _states(layer):
        for index, state in states.items():
            states[index] = None if state is None else change(state)


def read_weights(run: DecodingRun) -> LoraWeights | None:
    """Return the adapter that a run is sampled with; None is the base model."""
    weights = run.job.weights
    assert weights is None or isinstance(weights, LoraWeights)
    return weights


@attrs.define(eq=False)
class RowGroup:
    """The cache of some runs, a row for each. ``mask`` ``[rows, columns]`` says which columns are
    tokens, not padding.

    ``tokens`` are those that each row has drawn last, which the cache does not hold yet.
    """

    runs: list[DecodingRun]
    cache: Any
    mask: torch.Tensor
    tokens: torch.Tensor
    _mixture: Mixture | None = None

    @property
    def weights(self) -> list[LoraWeights | None]:
        """Return the weights of each row."""
        return [read_weights(run) for run in self.runs]

    @property
    def mixture(self) -> Mixture:
        """Return the weights of all rows, put together once for as long as the rows stay."""
        if self._mixture is None:
            self._mixture = Mixture.make(self.weights)
        return self._mixture

    @property
    def padded(self) -> int:
        """Cells of the cache, padding included."""
        return self.mask.numel()

    def inputs(self) -> dict[str, Any]:
        """Return the arguments of the next pass, and extend the mask by its tokens."""
        positions = self.mask.sum(dim=1, keepdim=True)
        if any(run.images for run in self.runs):
            positions = positions + positions.new_tensor(
                [[count_shift(run.images)] for run in self.runs]
            )
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.runs), 1)], dim=1)
        return {
            "input_ids": self.tokens[:, None],
            "attention_mask": self.mask,
            "position_ids": positions,
            "use_cache": True,
        }

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        if len(rows) == len(self.runs):
            return
        self.runs = [self.runs[row] for row in rows]
        self._mixture = None
        if rows:
            chosen = torch.tensor(rows, device=self.mask.device)
            select_rows(self.cache, chosen)
            self.mask, self.tokens = self.mask[chosen], self.tokens[chosen]
            self._trim()

    def _trim(self) -> None:
        """Cut off the columns in front that are padding in every row."""
        count = int(self.mask.any(dim=0).nonzero()[0, 0])
        if count and has_columns(self.cache):
            drop_columns(self.cache, count)
            self.mask = self.mask[:, count:]

    def join(self, other: RowGroup) -> None:
        """Take the rows of another group."""
        width = max(self.mask.shape[1], other.mask.shape[1])
        join_rows(self.cache, other.cache)
        masks = [
            torch.nn.functional.pad(mask, (width - mask.shape[1], 0))
            for mask in (self.mask, other.mask)
        ]
        self.mask, self.tokens = torch.cat(masks), torch.cat([self.tokens, other.tokens])
        self.runs = [*self.runs, *other.runs]
        self._mixture = None

    def read(self, row: int, start: int, end: int) -> RowStates:
        """Copy what the cache holds of the tokens of a row from one position to another, which is
        its last one.
        """
        return read_row(self.cache, row, self.mask[row].nonzero()[start:end, 0], end)


def extend(runs: Sequence[DecodingRun], logits: torch.Tensor) -> torch.Tensor:
    """Draw one token per row and append it to each run that is not over; a non-finite probability
    is the run's error.

    The logprobs are the model's own, at temperature 1 and over the whole vocabulary, whatever the
    run's parameters.
    """
    logits = logits.float()
    tokens = draw(logits, runs)
    norms = logits.logsumexp(dim=-1)
    drawn = (logits.gather(1, tokens[:, None])[:, 0] - norms).tolist()
    for row, (run, token) in enumerate(zip(runs, tokens.tolist(), strict=True)):
        if not run.is_over:
            if run.job.topk_sample_logprobs:
                values, ids = logits[row].topk(run.job.topk_sample_logprobs)
                run.add_likeliest(ids.cpu().numpy(), (values - norms[row]).cpu().numpy())
            run.take(token, drawn[row])
    return tokens
