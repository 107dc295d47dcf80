"""The samples in progress of one engine: prompts that wait, and rows that draw together."""

from __future__ import annotations

import copy
import itertools
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
import numpy as np
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from tinker.local.engines.arrays import (
    LEAST_TOP_P,
    DecodingRun,
    PromptScorer,
    Work,
    is_alike,
    split_batches,
    split_where,
)
from tinker.local.engines.protocol import (
    Int32,
    PlacedImage,
    SampleJob,
    SampleResult,
    find_weights,
    shape_logits,
)
from tinker.local.engines.torch import images
from tinker.local.engines.torch.images import ImageRow, ImageStates, TokenNames
from tinker.local.engines.torch.lora import LoraWeights, Mixer, Mixture, RowsApart, can_mix
from tinker.local.engines.torch.passes import WHOLE_LOGITS, SplitModel, chunk_cells, split_positions

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (torch and transformers are typed in part only)
# (torch is typed in part only)


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
    jobs = [run.job for run in runs]
    noise = _to_column([next(run.noise) for run in runs], logits.device)
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
        for name in ("keys", "values"):
            tensor = getattr(layer, name, None)
            if tensor is not None and tensor.numel():
                setattr(layer, name, tensor.index_select(0, rows))
        for states in _states(layer):
            for index, state in states.items():
                states[index] = None if state is None else state.index_select(0, rows)


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
        return [find_weights(run.job, LoraWeights) for run in self.runs]

    @property
    def mixture(self) -> Mixture:
        """Return the weights of all rows, put together once for as long as the rows stay."""
        if self._mixture is None:
            self._mixture = Mixture.make(self.weights)
        return self._mixture

    def inputs(self) -> dict[str, Any]:
        """Return the arguments of the next pass, and extend the mask by its tokens."""
        positions = self.mask.sum(dim=1, keepdim=True)
        if any(run.job.images for run in self.runs):
            shifts = [[images.count_shift(run.job.images)] for run in self.runs]
            positions = positions + positions.new_tensor(shifts)
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
            for layer in self.cache.layers:
                layer.keys = layer.keys[:, :, count:].contiguous()
                layer.values = layer.values[:, :, count:].contiguous()
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


# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (torch and transformers are typed in part only)
# (torch is typed in part only)


# A prefix cache: keys and values of earlier sequences, so that the next turn of a conversation
# continues from the last.
#
# A tree for each set of weights: a node holds some tokens with their keys and values, its children
# continue in different ways. What was used the longest ago goes first, from the ends of the tree; a
# tree goes with its weights.
#
# A sequence that begins like a cached one can continue from any of its tokens where every layer
# holds keys and values of each token. Sliding windows, linear attention and the like are kept as
# they were behind the last token of a node, and only from there can a sequence continue: such
# models are asked for a ``whole`` beginning.

SHORTEST = 32  # tokens; a shorter beginning is computed again as fast as it is found
MAX_NBYTES = 1 << 28
ReadCache = Callable[[int, int], RowStates]  # the states of the tokens from one position to another


@attrs.define(eq=False)
class PrefixNode:
    """Tokens that follow on those of the parent, by their names. ``used`` counts up with every use
    of the whole cache.
    """

    tokens: TokenNames
    states: RowStates
    parent: PrefixNode | None = None
    used: int = 0
    children: dict[int, PrefixNode] = attrs.field(factory=lambda: dict[int, PrefixNode]())

    def add(self, tokens: TokenNames, states: RowStates) -> PrefixNode:
        """Make a child, which continues with these tokens."""
        child = self.children[int(tokens[0])] = PrefixNode(tokens, states, self)
        return child

    def split(self, at: int) -> PrefixNode:
        """Make two of this node, which keeps the first ``at`` tokens. Returns the one with the
        rest.
        """
        children, self.children = self.children, {}
        rest = self.add(self.tokens[at:], self.states.cut(at))
        rest.used, rest.children = self.used, children
        for child in children.values():
            child.parent = rest
        self.tokens, self.states = self.tokens[:at], self.states.cut(0, at)
        return rest


class PrefixTree:
    """The prefixes of one set of weights, and the bytes that they hold.

    ``nodes`` are in the order of their last use. A use of a node uses its parents after it, so the
    first one has no children.
    """

    def __init__(self) -> None:
        self.root: PrefixNode = PrefixNode(np.empty(0, np.int32), RowStates())
        self.nodes: OrderedDict[PrefixNode, None] = OrderedDict()
        self.nbytes: int = 0

    def walk(self, tokens: TokenNames) -> tuple[list[tuple[PrefixNode, int]], int]:
        """Follow the tokens: the nodes with how many tokens of each fit, and how many that is in
        all.
        """
        path, length, node = list[tuple[PrefixNode, int]](), 0, self.root
        while (
            length < len(tokens) and (child := node.children.get(int(tokens[length]))) is not None
        ):
            common = _count_common(child.tokens, tokens[length:])
            path.append((child, common))
            length += common
            if common < len(child.tokens):
                break
            node = child
        return path, length

    def use(self, node: PrefixNode, now: int) -> None:
        """Mark a node and its ancestors as used."""
        while node.parent is not None:
            node.used = now
            self.nodes[node] = None
            self.nodes.move_to_end(node)
            node = node.parent

    def add(self, parent: PrefixNode, at: int, tokens: TokenNames, states: RowStates) -> PrefixNode:
        """Add tokens behind the first ``at`` tokens of a node; without any, only what layers hold
        there.
        """
        if at < len(parent.tokens):
            self.nodes[parent.split(at)] = None
        self.nbytes += states.nbytes
        if len(tokens):
            return parent.add(tokens, states)
        parent.states.end = states.end
        return parent

    def drop_oldest(self) -> None:
        """Forget the node that was used the longest ago."""
        node, _ = self.nodes.popitem(last=False)
        assert node.parent is not None
        del node.parent.children[int(node.tokens[0])]
        self.nbytes -= node.states.nbytes


def _count_common(first: TokenNames, second: TokenNames) -> int:
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def _is_end(node: PrefixNode, count: int) -> bool:
    """Return whether what layers hold behind the first ``count`` tokens of a node is there as a
    whole.
    """
    return count == len(node.tokens) and node.states.end is not None


class Prefixes:
    """Beginnings of sequences by their weights, up to ``limit`` bytes."""

    def __init__(self, limit: int = MAX_NBYTES) -> None:
        self._limit = limit
        self._base = PrefixTree()
        self._trees: weakref.WeakKeyDictionary[LoraWeights, PrefixTree] = (
            weakref.WeakKeyDictionary()
        )
        self._clock = itertools.count(1)

    @property
    def nbytes(self) -> int:
        """Return the bytes held now."""
        return sum(tree.nbytes for tree in (self._base, *self._trees.values()))

    def find(
        self, weights: LoraWeights | None, tokens: TokenNames, *, whole: bool = False
    ) -> tuple[int, RowStates]:
        """Find the longest cached prefix. Returns its length (0 if it is too short to help), and
        its states.
        """
        path, length = self._walk(self._tree(weights), tokens)
        while whole and path and not _is_end(*path[-1]):
            length -= path.pop()[1]
        if length < SHORTEST:
            return 0, RowStates()
        parts = [
            node.states.cut(0, count) if count < len(node.tokens) else node.states
            for node, count in path
        ]
        columns = [
            tuple(torch.cat(pieces, dim=1) for pieces in zip(*layer, strict=True))
            for layer in zip(*(part.columns for part in parts), strict=True)
        ]
        return length, RowStates(columns, parts[-1].end)

    def add(
        self,
        weights: LoraWeights | None,
        tokens: TokenNames,
        read: ReadCache,
        *,
        whole: bool = False,
    ) -> None:
        """Add a sequence; only the part that is not cached is read. Beyond the limit, leaves go."""
        if len(tokens) < SHORTEST:
            return
        tree = self._tree(weights)
        path, length = self._walk(tree, tokens)
        parent, at = path[-1] if path else (tree.root, 0)
        if length < len(tokens) or (whole and not _is_end(parent, at)):
            tree.use(
                tree.add(parent, at, tokens[length:], read(length, len(tokens))), next(self._clock)
            )
        while self.nbytes > self._limit:
            trees = [tree for tree in (self._base, *self._trees.values()) if tree.nodes]
            min(trees, key=lambda tree: next(iter(tree.nodes)).used).drop_oldest()

    def _tree(self, weights: LoraWeights | None) -> PrefixTree:
        return self._base if weights is None else self._trees.setdefault(weights, PrefixTree())

    def _walk(
        self, tree: PrefixTree, tokens: TokenNames
    ) -> tuple[list[tuple[PrefixNode, int]], int]:
        """Follow the tokens in a tree, and mark the nodes found as used."""
        path, length = tree.walk(tokens)
        if path:
            tree.use(path[-1][0], next(self._clock))
        return path, length


# Prefill: prompts are deduplicated, continued from cached prefixes, and scored.


def add_logits(scorer: PromptScorer, logits: torch.Tensor) -> None:
    """Add the logits ``[tokens, vocabulary]`` after the next tokens; those after the last token are
    ignored.
    """
    following = torch.from_numpy(scorer.following.astype(np.int64)).to(logits.device)[: len(logits)]
    logits = logits[: len(following)].float()
    own = logits.gather(1, following[:, None])[:, 0] - logits.logsumexp(dim=-1)
    table = torch.log_softmax(logits, dim=-1).cpu().numpy() if scorer.job.needs_table else None
    scorer.add(own.cpu().numpy(), table)


@attrs.define(eq=False)
class PendingPrompt:
    """A prompt to compute once for all ``runs``; the first ``known`` tokens have the cached
    ``states``.

    ``is_scored``: some job wants to know about every token of it.
    """

    weights: LoraWeights | None
    tokens: Int32
    images: Sequence[PlacedImage] = ()
    is_scored: bool = False
    runs: list[DecodingRun] = attrs.Factory(list)
    known: int = 0
    states: RowStates = attrs.Factory(RowStates)

    @property
    def names(self) -> TokenNames:
        """Return token names that identify it and each of its prefixes."""
        return images.name_tokens(self.tokens, self.images)

    @property
    def fresh(self) -> Int32:
        """Return the tokens that are still to be computed."""
        return self.tokens[self.known :]


def collect_prompts(
    runs: Iterable[DecodingRun], is_scored: Callable[[DecodingRun], bool]
) -> list[PendingPrompt]:
    """Group runs with the same prompt and weights."""
    prompts: dict[tuple[int, bytes], PendingPrompt] = {}
    for run in runs:
        weights = find_weights(run.job, LoraWeights)
        new = PendingPrompt(weights, run.history(), run.job.images)
        prompt = prompts.setdefault((id(run.job.weights), new.names.tobytes()), new)
        prompt.runs.append(run)
        prompt.is_scored |= is_scored(run)
    return list(prompts.values())


def split_prompts(
    prompts: Sequence[PendingPrompt], cells: int, evenness: tuple[bool, bool], is_apart: bool
) -> Iterator[list[PendingPrompt]]:
    """Yield batches of prompts of like length, the shortest first.

    ``evenness``: whether there is no padding at all, first in whole prompts and then behind cached
    beginnings. ``is_apart``: one adapter in each batch.
    """
    for known, is_even in zip((False, True), evenness, strict=True):
        chosen = [prompt for prompt in prompts if bool(prompt.known) is known]
        for batch in split_batches([len(prompt.fresh) for prompt in chosen], cells):
            alike = [chosen[index] for index in batch]

            def fits(
                rows: list[int], alike: list[PendingPrompt] = alike, is_even: bool = is_even
            ) -> bool:
                before, last = (alike[row] for row in rows[-2:])
                if is_even and len(before.fresh) != len(last.fresh):
                    return False
                return before.weights is last.weights or (
                    not is_apart and can_mix([alike[row].weights for row in rows])
                )

            order = sorted(
                range(len(alike)), key=lambda row: (id(alike[row].weights) if is_apart else 0, row)
            )
            yield from ([alike[row] for row in rows] for rows in split_where(order, fits))


class Prefill:
    """Prompts on their way into a cache, all with the same weights in their rows, padded on the
    left.

    ``width`` columns go through the model in one pass; None means all. The last column goes apart
    where the states before it are to be kept (``keeps_states``).
    """

    def __init__(
        self,
        prompts: Sequence[PendingPrompt],
        config: Any,
        device: torch.device,
        width: int | None,
        keeps_states: bool = False,
    ) -> None:
        self.prompts: list[PendingPrompt] = list(prompts)
        count, before = (
            max(lengths)
            for lengths in zip(*((len(one.fresh), one.known) for one in prompts), strict=True)
        )
        tokens = torch.zeros((len(prompts), count), dtype=torch.long)
        mask = torch.zeros((len(prompts), before + count), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            fresh = prompt.fresh
            tokens[row, count - len(fresh) :] = torch.from_numpy(fresh.astype(np.int64))
            mask[row, before - prompt.known : before] = 1
            mask[row, before + count - len(fresh) :] = 1
        self._tokens = tokens.to(device)
        self.mask: torch.Tensor = mask.to(device)
        self._rows = [ImageRow(one.images, count - len(one.fresh) - one.known) for one in prompts]
        self._positions = self._find_positions()[..., before:]
        self._before, self._at, self._width = before, 0, width or count
        self._keeps_states = keeps_states
        self.cache: Any = (
            make_cache(config, [prompt.states for prompt in prompts], before) if before else None
        )
        self.logits: torch.Tensor | None = None

    @property
    def runs(self) -> list[DecodingRun]:
        """Return the runs that begin with these prompts."""
        return [run for prompt in self.prompts for run in prompt.runs]

    @property
    def is_done(self) -> bool:
        """Return whether the last column was computed; ``logits`` are those after it then."""
        return self._at == self._tokens.shape[1]

    @property
    def is_at_last(self) -> bool:
        """Return whether the cache has all columns but the last, which goes apart."""
        return self._keeps_states and self._at == self._tokens.shape[1] - 1 > 0

    def _find_positions(self) -> torch.Tensor:
        """Return the position of each column of each row, ``[3, rows, columns]`` where images have
        some of their own.
        """
        plain = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        if images.are_in_line(placed for prompt in self.prompts for placed in prompt.images):
            return plain
        found = plain.cpu().repeat(3, 1, 1)
        for row, prompt in enumerate(self.prompts):
            places = self.mask[row].nonzero()[:, 0].cpu()
            found[:, row, places] = torch.from_numpy(
                images.find_positions(prompt.images, len(prompt.tokens))
            )
        return found.to(plain.device)

    def advance(self, split: SplitModel) -> tuple[torch.Tensor, list[int]]:
        """Compute the next columns. The weights are on already.

        Returns:
            The states ``[rows, columns, size]``, and how many of the columns, the last ones, are
            tokens of each row.
        """
        last = self._tokens.shape[1] - (
            self._keeps_states and not self.is_at_last and self._tokens.shape[1] > 1
        )
        start, end = self._at, min(self._at + self._width, last)
        columns = slice(start, end)
        mask = self.mask[:, : self._before + end]
        done = split.run(
            ImageStates.collect(self._rows, columns, mask.device),
            input_ids=self._tokens[:, columns],
            attention_mask=mask,
            position_ids=self._positions[..., columns],
            cache=self.cache,
            use_cache=end < self._tokens.shape[1] or not all(run.is_over for run in self.runs),
        )
        self.cache, self.logits, self._at = done.cache, done.logits, end
        return done.states, mask[:, self._before + start :].sum(dim=1).tolist()


MAX_PREFILL_TOKENS = 2**13  # of the prompts that are computed together
PIECE_TOKENS = 2**11  # of one pass; samples that run, and training, wait for it
PATIENCE = 3  # steps that prompts wait for others, while rows draw and prompts come with every step
# of the cache, which are read in the time that a layer takes for one row: it starts its operations
LAYER_NUMBERS = 1 << 20
# tokens that each row can draw after another one was let in, before there may be too many
SLACK = 64


@attrs.define(eq=False)
class Parts:
    """The parts of an engine that samples share: the model, the adapters of each row, and the
    prefix cache.

    ``keeps_prefixes``: the model can continue from states that were kept. ``has_rows``: the model's
    cache can hold several rows that come and go; else each row has a cache of its own. ``is_apart``
    becomes true when the model turns out not to compute rows of several adapters in one pass.
    """

    model: Any
    split: SplitModel
    mixer: Mixer
    prefixes: Prefixes
    start: Callable[[SampleJob], Work]
    has_rows: bool = True
    keeps_prefixes: bool = True
    is_apart: bool = False

    @property
    def config(self) -> Any:
        """Return the settings of the text model."""
        return self.model.config.get_text_config(decoder=True)


class TorchBatch:
    """A SampleBatch of a torch engine."""

    def __init__(self, parts: Parts, cache: Any, limit: int) -> None:
        self._parts, self._limit = parts, limit
        self._is_whole, self._keeps = not has_columns(cache), parts.keeps_prefixes
        self._evenness = has_states(cache), self._is_whole
        self._works: dict[object, Work] = {}
        self._owners: dict[DecodingRun, Work] = {}
        self._pending: list[DecodingRun] = []
        self._prompts: list[list[PendingPrompt]] = []
        self._prefill: Prefill | None = None
        self._scorers: dict[DecodingRun, PromptScorer] = {}
        self._groups: list[RowGroup] = []
        self._patience = 0  # steps that prompts may still wait

    @property
    def tokens(self) -> int:
        return sum(run.length for run in self._owners if not run.is_over)

    def add(self, ticket: object, job: SampleJob) -> None:
        work = self._works[ticket] = self._parts.start(job)
        self._owners.update(dict.fromkeys(work.runs, work))
        self._pending += work.runs

    def drop(self, ticket: object) -> None:
        self._forget(ticket)
        self._regroup()

    def _forget(self, ticket: object) -> None:
        work = self._works.pop(ticket, None)
        for run in [] if work is None else work.runs:
            run.end()
            self._owners.pop(run, None)

    @torch.no_grad()
    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        batch = self._next_prefill()
        for group in list(self._groups):
            self._guard(group.runs, partial(self._advance, group))
        if batch is not None:
            self._guard(batch.runs, partial(self._begin, batch))
        ended = self._collect()
        self._regroup()
        self._pause()
        return ended

    def _guard(self, runs: Sequence[DecodingRun], work: Callable[[], None]) -> None:
        """Run ``work``; a failure fails only these runs."""
        try:
            work()
        except RowsApart:
            self._parts.is_apart = True
            self._put_back(list(runs))
        except Exception as error:  # noqa: BLE001 - whatever torch raises, the other groups go on
            for run in runs:
                run.error = run.error or error

    def _put_back(self, runs: Sequence[DecodingRun]) -> None:
        """Requeue rows first, to continue where they are; their cache entries are
        computed again.
        """
        chosen = set(runs)
        for group in self._groups:
            group.keep([row for row, run in enumerate(group.runs) if run not in chosen])
        self._groups = [group for group in self._groups if group.runs]
        self._pending[:0] = [run for run in runs if run in self._owners]

    # Prompts

    def _is_unscored(self, run: DecodingRun) -> bool:
        work = self._owners.get(run)
        return work is not None and work.scores is None and run.index == 0

    def _next_prompts(self) -> list[PendingPrompt]:
        if not self._prompts and self._is_time():
            prompts = collect_prompts(self._admit(), self._is_unscored)
            scored = [prompt for prompt in prompts if prompt.is_scored]
            others = [one for one in prompts if not one.is_scored and not self._enters(one)]
            self._regroup()
            # scored ones have logits of all tokens
            score_cells = min(
                MAX_PREFILL_TOKENS, WHOLE_LOGITS // int(self._parts.config.vocab_size)
            )
            for chosen, cells in ((others, MAX_PREFILL_TOKENS), (scored, score_cells)):
                together = cells if self._parts.has_rows else 0
                self._prompts += split_prompts(
                    chosen, together, self._evenness, self._parts.is_apart
                )
        return (
            [prompt for prompt in self._prompts.pop(0) if self._is_wanted(prompt)]
            if self._prompts
            else []
        )

    def _is_time(self) -> bool:
        """Return whether prompts that wait are computed now."""
        is_waiting = bool(self._pending and self._patience and self._groups)
        self._patience = self._patience - 1 if is_waiting else PATIENCE * bool(self._pending)
        return bool(self._pending) and not is_waiting

    def _next_prefill(self) -> Prefill | None:
        """Return the prefill in progress, or start the next one."""
        if self._prefill is not None and not any(map(self._is_wanted, self._prefill.prompts)):
            self._prefill = None
        if self._prefill is None and (batch := self._next_prompts()):
            width = max(1, PIECE_TOKENS // len(batch)) if self._keeps else None
            keeps_states = self._keeps and self._is_whole and any(map(self._is_kept, batch))
            self._prefill = Prefill(
                batch, self._parts.config, self._parts.model.device, width, keeps_states
            )
            self._scorers = {
                run: PromptScorer(run.job) for run in self._prefill.runs if self._is_unscored(run)
            }
        return self._prefill

    def _is_wanted(self, prompt: PendingPrompt) -> bool:
        return any(not run.is_over or self._is_unscored(run) for run in prompt.runs)

    def _is_kept(self, prompt: PendingPrompt) -> bool:
        return len(prompt.tokens) > SHORTEST and any(not run.is_over for run in prompt.runs)

    def _admit(self) -> list[DecodingRun]:
        """Return the runs for which there is room, in the order of arrival; one at least when
        nothing runs.
        """
        rows = [run for group in self._groups for run in group.runs]
        room = self._limit - sum(run.length + SLACK for run in rows)
        admitted: list[DecodingRun] = []
        waiting = [run for run in self._pending if not run.is_over or self._is_unscored(run)]
        for run in waiting:
            room -= run.length + SLACK
            if room < 0 and (rows or admitted):
                break
            admitted.append(run)
        self._pending = waiting[len(admitted) :]
        return admitted

    def _enters(self, prompt: PendingPrompt) -> bool:
        """Find the cached prefix of a prompt; begin it as rows if but its last token is missing."""
        if self._keeps:
            prompt.known, prompt.states = self._parts.prefixes.find(
                prompt.weights, prompt.names[:-1], whole=self._is_whole
            )
        if not prompt.known or len(prompt.fresh) > 1 or prompt.images:
            return False
        self._guard(prompt.runs, partial(self._enter, prompt))
        return True

    def _enter(self, prompt: PendingPrompt) -> None:
        mask = torch.ones(
            (len(prompt.runs), prompt.known), dtype=torch.long, device=self._parts.model.device
        )
        cache = make_cache(self._parts.config, [prompt.states], prompt.known)
        select_rows(cache, mask.new_zeros(len(mask)))
        self._groups.append(
            RowGroup(prompt.runs, cache, mask, mask.new_full((len(mask),), int(prompt.tokens[-1])))
        )

    def _begin(self, batch: Prefill) -> None:
        """Compute and score the next piece of prompts; after the last piece their runs start."""
        self._prefill = None  # unless all goes well
        with self._parts.mixer.activate(Mixture.make([prompt.weights for prompt in batch.prompts])):
            self._score(batch, *batch.advance(self._parts.split))
        if batch.is_at_last:
            self._remember_all(batch, 1)
            self._begin(batch)
            return
        if not batch.is_done:
            self._prefill = batch
            return
        for run, scorer in self._scorers.items():
            if run in self._owners:
                self._owners[run].scores = scorer.result()
        runs = [run for run in batch.runs if not run.is_over]
        if runs:
            self._groups += self._start_groups(batch, runs)

    def _score(self, batch: Prefill, states: torch.Tensor, real: list[int]) -> None:
        """Pass the logits of a piece to the scorers, some columns at a time."""
        count, vocabulary = states.shape[1], int(self._parts.config.vocab_size)
        cells = chunk_cells(states.device)
        scorers = [
            [self._scorers[run] for run in prompt.runs if run in self._scorers]
            for prompt in batch.prompts
        ]
        for part in split_positions(count, len(scorers), vocabulary, cells) if any(scorers) else ():
            logits = self._parts.split.logits(states[:, part])
            for row, mine in enumerate(scorers):
                first = max(0, count - real[row] - part.start)  # padding comes before it
                for scorer in mine:
                    add_logits(scorer, logits[row, first:])

    def _start_groups(self, batch: Prefill, runs: list[DecodingRun]) -> list[RowGroup]:
        """Draw the first token of each run; return their rows, in one group where a cache can hold
        them all.
        """
        assert batch.logits is not None
        rows = [row for row, one in enumerate(batch.prompts) for run in one.runs if not run.is_over]
        if self._keeps and not self._is_whole:
            self._remember_all(batch)
        chosen = torch.tensor(rows, device=batch.mask.device)
        tokens = extend(runs, batch.logits[chosen])
        if not self._parts.has_rows:
            firsts = zip(runs, torch.split(tokens, 1), strict=True)
            return [
                RowGroup([run], copy.deepcopy(batch.cache), batch.mask, first)
                for run, first in firsts
            ]
        if rows != list(range(len(batch.prompts))):
            select_rows(batch.cache, chosen)
        return [RowGroup(runs, batch.cache, batch.mask[chosen], tokens)]

    def _remember_all(self, batch: Prefill, but: int = 0) -> None:
        """Add prompts to the prefix cache, without their last tokens where those
        were not computed.
        """
        mask = batch.mask[:, : batch.mask.shape[1] - but]
        group = RowGroup(
            [prompt.runs[0] for prompt in batch.prompts], batch.cache, mask, mask[:, -1]
        )
        for row, prompt in enumerate(batch.prompts):
            self._remember(group, row, prompt.weights, prompt.names[: len(prompt.tokens) - but])

    def _remember(
        self, group: RowGroup, row: int, weights: LoraWeights | None, names: TokenNames
    ) -> None:
        self._parts.prefixes.add(weights, names, partial(group.read, row), whole=self._is_whole)

    # Rows

    def _advance(self, group: RowGroup) -> None:
        """Draw the next token of each row of a group; sequences that end are added to the prefix
        cache.
        """
        with self._parts.mixer.activate(group.mixture):
            group.tokens = extend(
                group.runs, self._parts.split.advance(group.cache, **group.inputs())
            )
        if self._keeps:
            for row, run in enumerate(group.runs):
                if run.is_over and run.error is None and run in self._owners:
                    self._remember(
                        group,
                        row,
                        find_weights(run.job, LoraWeights),
                        images.name_tokens(run.history()[:-1], run.job.images),
                    )

    def _regroup(self) -> None:
        """Drop finished rows, and merge groups of similar lengths."""
        groups, self._groups = self._groups, []
        for group in groups:
            group.keep([row for row, run in enumerate(group.runs) if not run.is_over])
            if group.runs and not any(self._join(other, group) for other in self._groups):
                self._groups.append(group)

    def _join(self, group: RowGroup, other: RowGroup) -> bool:
        """Merge a group into another one of similar lengths; return whether it was merged."""
        weights = [*group.weights, *other.weights]
        is_one = len({id(one) for one in weights}) == 1
        is_fit = self._parts.has_rows and (is_one if self._parts.is_apart else can_mix(weights))
        if not is_fit or not is_alike(
            [run.length for run in (*group.runs, *other.runs)], self._free_padding(group)
        ):
            return False
        group.join(other)
        return True

    def _free_padding(self, group: RowGroup) -> int:
        """Return how many cache columns are read in the time that one more pass takes for weights
        and its start.
        """
        layers = [
            layer.keys for layer in group.cache.layers if getattr(layer, "keys", None) is not None
        ]
        numbers = [2 * keys.shape[1] * keys.shape[3] for keys in layers]
        return int(
            (self._parts.model.num_parameters() + LAYER_NUMBERS * len(numbers))
            // max(1, sum(numbers))
        )

    def _pause(self) -> None:
        """Requeue the newest job while the rows hold too many tokens; it continues when there is
        room.
        """
        rows = {run: None for group in self._groups for run in group.runs}
        held = sum(run.length for run in rows)
        for work in reversed(self._works.values()):
            mine = [run for run in work.runs if run in rows]
            if held <= self._limit or len(mine) == len(rows):
                return
            held -= sum(run.length for run in mine)
            for run in mine:
                del rows[run]
            self._put_back(mine)

    def _collect(self) -> list[tuple[object, SampleResult | Exception]]:
        ended = [
            (ticket, outcome)
            for ticket, work in self._works.items()
            if (outcome := work.outcome()) is not None
        ]
        for ticket, _ in ended:
            self._forget(ticket)
        return ended
