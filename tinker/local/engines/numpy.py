"""The engine that trains a Llama in numpy, without torch: the readable reference of what the server
computes.

``llama`` is the model with its backward pass, ``engine`` trains it, ``sampling`` draws from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines import PACKAGED_MODEL, arrays
from tinker.local.engines.adapters import (
    LoraFactors,
    LoraTarget,
    LoraTargets,
    Moments,
    PeftEngine,
    read_tensors,
    read_weights,
)
from tinker.local.engines.arrays import (
    ArrayAdapter,
    ArrayEngine,
    ArrayWeights,
    DecodingRun,
    Reals,
    Tensors,
    Work,
)
from tinker.local.engines.protocol import (
    AdapterSpec,
    Cells,
    Float32,
    SampleJob,
    SampleResult,
    check_job,
    find_weights,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def norm(x: Reals, weight: Reals, epsilon: float) -> Reals:
    """Divide each state by its root mean square, and multiply by the weight (RMSNorm)."""
    return x * _inverse_size(x, epsilon) * weight


def norm_slope(slope: Reals, x: Reals, weight: Reals, epsilon: float) -> Reals:
    size = _inverse_size(x, epsilon)
    unit, by_unit = x * size, slope * weight
    return cast("Reals", size * (by_unit - unit * (by_unit * unit).mean(axis=-1, keepdims=True)))


def _inverse_size(x: Reals, epsilon: float) -> Reals:
    square: Reals = (x * x).mean(axis=-1, keepdims=True) + np.float32(epsilon)
    return 1 / np.sqrt(square)


def rotate(x: Reals, cos: Reals, sin: Reals) -> Reals:
    """Turn each pair of numbers, one from each half of a head, by the angle of its position. The
    derivative turns back.
    """
    first, second = np.split(x, 2, axis=-1)
    turned: Reals = x * cos + np.concatenate([-second, first], axis=-1) * sin
    return turned


def attend(queries: Reals, keys: Reals, values: Reals, mask: Reals) -> tuple[Reals, Reals]:
    """Mix the values by how well their keys fit each query.

    Args:
        queries: ``[rows, columns, heads, head_width]``.
        keys: ``[rows, all columns, groups, head_width]``, as the values; each group serves as many
            heads.
        mask: ``[rows, columns, all columns]``, 0 where a query sees a key, else minus infinity.

    Returns:
        The mixture for each query, and the shares
        ``[rows, groups, heads of a group, columns, all columns]`` of the values.
    """
    scores = _by_group(queries, keys.shape[2]) @ _by_group(keys).swapaxes(-1, -2)
    scores *= np.float32(1 / math.sqrt(queries.shape[-1]))
    scores += mask[:, None, None]
    scores -= scores.max(axis=-1, keepdims=True)
    shares = np.exp(scores, out=scores)
    shares /= shares.sum(axis=-1, keepdims=True)
    return _by_column(shares @ _by_group(values)), shares


def attend_slopes(
    slope: Reals,
    queries: Reals,
    keys: Reals,
    values: Reals,
    shares: Reals,
) -> tuple[Reals, Reals, Reals]:
    """Return the slopes by queries, keys and values."""
    groups = keys.shape[2]
    slopes, scale = _by_group(slope, groups), np.float32(1 / math.sqrt(queries.shape[-1]))
    by_values = (shares.swapaxes(-1, -2) @ slopes).sum(axis=2, keepdims=True)
    by_scores = slopes @ _by_group(values).swapaxes(-1, -2)
    by_scores -= (by_scores * shares).sum(axis=-1, keepdims=True)
    by_scores *= shares
    by_scores *= scale
    by_queries = by_scores @ _by_group(keys)
    by_keys = (by_scores.swapaxes(-1, -2) @ _by_group(queries, groups)).sum(axis=2, keepdims=True)
    return _by_column(by_queries), _by_column(by_keys), _by_column(by_values)


def _by_group(x: Reals, groups: int = 0) -> Reals:
    """Return ``[rows, groups, heads of a group, columns, head_width]``; without ``groups`` one head
    in each.
    """
    rows, columns, heads, width = x.shape
    groups = groups or int(heads)
    return x.reshape(rows, columns, groups, heads // groups, width).transpose(0, 2, 3, 1, 4)


def _by_column(x: Reals) -> Reals:
    """Return ``[rows, columns, heads, head_width]``."""
    rows, groups, heads, columns, width = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(rows, columns, groups * heads, width)


def gate(opening: Reals, x: Reals) -> Reals:
    """Multiply by the SiLU of the opening: ``opening * sigmoid(opening) * x``."""
    return opening * _sigmoid(opening) * x


def gate_slopes(slope: Reals, opening: Reals, x: Reals) -> tuple[Reals, Reals]:
    """Return the slopes by the opening and by what goes through."""
    share = _sigmoid(opening)
    passed = opening * share
    return slope * x * (share + passed * (1 - share)), slope * passed


def _sigmoid(x: Reals) -> Reals:
    return 1 / (1 + np.exp(-x))


Int64 = NDArray[np.int64]
Matrices = Mapping[str, Reals]  # by the names of their modules
EMBEDDING, LAST_NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"
SPARE_COLUMNS = 16  # of a cache, when it becomes wider
#: What a configuration must say, or leave out, for this to be its model.
PLAIN: Mapping[str, Sequence[object]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
}


def pad(rows: Sequence[NDArray[np.integer[Any]]]) -> tuple[Int64, Int64]:
    """Return tokens ``[rows, columns]``, with zeros behind the shorter rows, and the position of
    each.
    """
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, tokens in enumerate(rows):
        padded[row, : len(tokens)] = tokens
    return padded, np.arange(padded.shape[1]) + np.zeros_like(padded)


@attrs.frozen(kw_only=True)
class LlamaShape:
    """The sizes of a model. Each of the ``groups`` of keys and values serves as many heads of
    queries.
    """

    vocabulary: int
    longest: int
    width: int
    inner: int
    layers: int
    heads: int
    groups: int
    head_width: int
    epsilon: float
    theta: float
    is_tied: bool

    @classmethod
    def read(cls, folder: Path) -> LlamaShape:
        """Read ``config.json``. Raises ValueError for another architecture."""
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
        odd = [
            f"{name} {config[name]!r}"
            for name, plain in PLAIN.items()
            if name in config and config[name] not in plain
        ]
        if odd or rope.get("rope_type", "default") != "default":
            reason = odd[0] if odd else f"rope_type {rope['rope_type']!r}"
            raise ValueError(
                f"the numpy engine takes plain Llama models, and {folder.name} has {reason}; use "
                "the torch engine"
            )
        return cls(
            vocabulary=config["vocab_size"],
            longest=config["max_position_embeddings"],
            width=config["hidden_size"],
            inner=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            groups=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_width=config.get("head_dim")
            or config["hidden_size"] // config["num_attention_heads"],
            epsilon=config["rms_norm_eps"],
            theta=rope["rope_theta"],
            is_tied=config.get("tie_word_embeddings", False),
        )

    def targets(self) -> list[LoraTarget]:
        """Return the matrices that an adapter can change, in the order of the model."""
        width, inner, query, key = (
            self.width,
            self.inner,
            self.heads * self.head_width,
            self.groups * self.head_width,
        )
        of_attention = {
            "q_proj": (width, query),
            "k_proj": (width, key),
            "v_proj": (width, key),
            "o_proj": (query, width),
        }
        of_mlp = {
            "gate_proj": (width, inner),
            "up_proj": (width, inner),
            "down_proj": (inner, width),
        }
        found: list[LoraTarget] = []
        for layer in range(self.layers):
            for part, kind, sizes in (("self_attn", "attn", of_attention), ("mlp", "mlp", of_mlp)):
                names = {
                    f"model.layers.{layer}.{part}.{leaf}": size for leaf, size in sizes.items()
                }
                found += [LoraTarget(name, name, kind, *size) for name, size in names.items()]
        return [*found, LoraTarget(HEAD, HEAD, "unembed", width, self.vocabulary)]


class Cache:
    """Keys and values of rows, ``[2, rows, columns, groups, head_width]`` of each layer; the first
    ``lengths`` are tokens.
    """

    def __init__(self, shape: LlamaShape, rows: int, columns: int) -> None:
        self.lengths: Int64 = np.zeros(rows, np.int64)
        size = (2, rows, columns, shape.groups, shape.head_width)
        self._held: list[Reals] = [np.zeros(size, np.float32) for _ in range(shape.layers)]

    def write(
        self, layer: int, positions: Int64, keys: Reals, values: Reals
    ) -> tuple[Reals, Reals]:
        """Put keys and values in their places, and return those of all columns up to the last one
        of these.
        """
        end, rows = int(positions.max()) + 1, np.arange(len(positions))[:, None]
        if end > self._held[layer].shape[2]:
            self._held[layer] = _widen(self._held[layer], end + SPARE_COLUMNS)
        held = self._held[layer]
        held[0, rows, positions], held[1, rows, positions] = keys, values
        return held[0, :, :end], held[1, :, :end]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; one may come more than once."""
        self.lengths = self.lengths[rows]
        for layer, held in enumerate(self._held):
            self._held[layer] = held[:, rows]

    def join(self, other: Cache) -> None:
        """Add the rows of another cache."""
        self.lengths = np.concatenate([self.lengths, other.lengths])
        for layer, pair in enumerate(zip(self._held, other._held)):
            columns = max(held.shape[2] for held in pair)
            self._held[layer] = np.concatenate([_widen(held, columns) for held in pair], axis=1)


def _widen(held: Reals, columns: int) -> Reals:
    return np.pad(held, [(0, 0), (0, 0), (0, columns - held.shape[2]), (0, 0), (0, 0)])


@attrs.frozen(eq=False)
class LayerTape:
    """What a layer has computed, in the order of the formulas above."""

    x: Reals
    normed: Reals
    queries: Reals
    keys: Reals
    values: Reals
    shares: Reals
    mixed: Reals
    middle: Reals
    normed_middle: Reals
    opening: Reals
    inner: Reals


class Gradient:
    """The gradient by the factors of an adapter, on the way back through a model with these
    ``matrices``.
    """

    def __init__(self, matrices: Matrices, weights: ArrayWeights) -> None:
        self._matrices, self._weights = matrices, weights
        self.by_factor: dict[str, Reals] = arrays.zeros_like(weights.tensors)

    def pass_back(self, name: str, x: Reals, slope: Reals) -> Reals:
        """Note the gradient by the factors of a matrix that has mapped ``x``, and return the slope
        by ``x``.
        """
        down, up = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
        if down in self._weights.tensors:
            a, b = self._weights.tensors[down], self._weights.tensors[up]
            scale = np.float32(self._weights.spec.scale)
            self.by_factor[down] = scale * ((slope @ b).T @ x)
            self.by_factor[up] = scale * (slope.T @ (x @ a.T))
        return slope @ self._matrices[name]


class Llama:
    """A frozen model: the ``matrices`` of its modules, and the weights of its norms."""

    def __init__(self, folder: Path) -> None:
        shape = LlamaShape.read(folder)
        self.shape: LlamaShape = shape
        stored = {
            name.removesuffix(".weight"): tensor
            for name, tensor in read_tensors(folder / "model.safetensors").items()
        }
        self.matrices: Matrices = {**stored, HEAD: stored[EMBEDDING]} if shape.is_tied else stored
        angles = np.outer(
            np.arange(shape.longest), shape.theta ** (-np.arange(0, 1, 2 / shape.head_width))
        )
        self._cos: Reals = np.cos(np.tile(angles, 2))[:, None].astype(np.float32)
        self._sin: Reals = np.sin(np.tile(angles, 2))[:, None].astype(np.float32)

    def adapt(self, weights: ArrayWeights) -> Matrices:
        """Return the matrices with the update of an adapter."""
        changed = dict(self.matrices)
        for down in (name for name in weights.tensors if ".lora_A." in name):
            a, b = weights.tensors[down], weights.tensors[down.replace(".lora_A.", ".lora_B.")]
            name = down.partition(".lora_")[0]
            changed[name] = self.matrices[name] + np.float32(weights.spec.scale) * (b @ a)
        return changed

    def run(
        self, matrices: Matrices, tokens: Int64, positions: Int64, cache: Cache | None = None
    ) -> tuple[Reals, list[LayerTape]]:
        """Compute the states behind the last layer of tokens ``[rows, columns]`` at their
        positions, behind those of a cache.

        Every token sees those at its own position and before it. Without a cache, the tapes of the
        layers are for the way back.
        """
        x: Reals = self.matrices[EMBEDDING][tokens].reshape(-1, self.shape.width)
        seen = np.arange(int(positions.max()) + 1) <= positions[:, :, None]
        mask, tapes = np.where(seen, np.float32(0), np.float32(-np.inf)), list[LayerTape]()
        for layer in range(self.shape.layers):
            x, tape = self._run_layer(layer, x, matrices, positions, mask, cache)
            if cache is None:
                tapes.append(tape)
        return x, tapes

    def find_logits(self, matrices: Matrices, x: Reals) -> Reals:
        """Compute the logits ``[cells, vocabulary]`` of states behind the last layer."""
        return self._norm(LAST_NORM, x) @ matrices[HEAD].T

    def _norm(self, name: str, x: Reals) -> Reals:
        return norm(x, self.matrices[name], self.shape.epsilon)

    def _run_layer(
        self,
        layer: int,
        x: Reals,
        matrices: Matrices,
        positions: Int64,
        mask: Reals,
        cache: Cache | None,
    ) -> tuple[Reals, LayerTape]:
        name, heads = f"model.layers.{layer}", (*positions.shape, -1, self.shape.head_width)
        normed = self._norm(f"{name}.input_layernorm", x)
        queries, keys, values = (
            (normed @ matrices[f"{name}.self_attn.{leaf}"].T).reshape(heads)
            for leaf in ("q_proj", "k_proj", "v_proj")
        )
        cos, sin = self._cos[positions], self._sin[positions]
        queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
        if cache is not None:
            keys, values = cache.write(layer, positions, keys, values)
        mixed, shares = attend(queries, keys, values, mask)
        mixed = mixed.reshape(len(x), -1)
        middle = x + mixed @ matrices[f"{name}.self_attn.o_proj"].T
        normed_middle = self._norm(f"{name}.post_attention_layernorm", middle)
        opening, inner = (
            normed_middle @ matrices[f"{name}.mlp.{leaf}"].T for leaf in ("gate_proj", "up_proj")
        )
        after = middle + gate(opening, inner) @ matrices[f"{name}.mlp.down_proj"].T
        return after, LayerTape(
            x, normed, queries, keys, values, shares, mixed, middle, normed_middle, opening, inner
        )

    # The way back

    def pass_back_logits(self, x: Reals, slope: Reals, gradient: Gradient) -> Reals:
        """Return the slope by states behind the last layer, given that by their logits."""
        return self._pass_norm(
            LAST_NORM, x, gradient.pass_back(HEAD, self._norm(LAST_NORM, x), slope)
        )

    def pass_back(
        self, tapes: Sequence[LayerTape], positions: Int64, slope: Reals, gradient: Gradient
    ) -> None:
        """Note the gradient of every layer, given the slope by the states behind the last one."""
        for layer in reversed(range(self.shape.layers)):
            slope = self._pass_layer(layer, tapes[layer], positions, slope, gradient)

    def _pass_norm(self, name: str, x: Reals, slope: Reals) -> Reals:
        return norm_slope(slope, x, self.matrices[name], self.shape.epsilon)

    def _pass_layer(
        self, layer: int, tape: LayerTape, positions: Int64, slope: Reals, gradient: Gradient
    ) -> Reals:
        """Go back through :meth:`_run_layer`."""
        name, back = f"model.layers.{layer}", gradient.pass_back
        by_gated = back(f"{name}.mlp.down_proj", gate(tape.opening, tape.inner), slope)
        by_opening, by_inner = gate_slopes(by_gated, tape.opening, tape.inner)
        by_normed = back(f"{name}.mlp.gate_proj", tape.normed_middle, by_opening)
        by_normed += back(f"{name}.mlp.up_proj", tape.normed_middle, by_inner)
        slope = slope + self._pass_norm(f"{name}.post_attention_layernorm", tape.middle, by_normed)

        by_mixed = back(f"{name}.self_attn.o_proj", tape.mixed, slope).reshape(tape.queries.shape)
        by_queries, by_keys, by_values = attend_slopes(
            by_mixed, tape.queries, tape.keys, tape.values, tape.shares
        )
        cos, sin = self._cos[positions], self._sin[positions]
        by_queries, by_keys = rotate(by_queries, cos, -sin), rotate(by_keys, cos, -sin)
        cells, by_normed = len(tape.x), np.zeros_like(tape.normed)
        for leaf, one in (("q_proj", by_queries), ("k_proj", by_keys), ("v_proj", by_values)):
            by_normed += back(f"{name}.self_attn.{leaf}", tape.normed, one.reshape(cells, -1))
        return slope + self._pass_norm(f"{name}.input_layernorm", tape.x, by_normed)


PROMPT_CELLS = 512  # tokens of prompts that go through the model together, padding included
Begin = tuple[Work, DecodingRun]  # a run that begins, and its job


class Rows:
    """Runs with one adapter, a row of the cache for each, which has all of their tokens but the
    last one.
    """

    def __init__(self, model: Llama, matrices: Matrices) -> None:
        self._model, self._matrices = model, matrices
        self._cache = Cache(model.shape, 0, 0)
        self.runs: list[DecodingRun] = []

    def advance(self) -> None:
        """Draw the next token of every run."""
        last = np.array([[run.tokens[-1]] for run in self.runs])
        states, _ = self._model.run(self._matrices, last, self._cache.lengths[:, None], self._cache)
        self._cache.lengths += 1
        logits = self._model.find_logits(self._matrices, states)
        for run, *found in zip(self.runs, logits, arrays.log_softmax(logits)):
            arrays.extend(run, *found)

    def begin(self, new: Sequence[Begin]) -> None:
        """Compute and score the prompts of new runs, each prompt once, and draw
        their first tokens.
        """
        works = list(dict.fromkeys(work for work, _ in new))
        lengths = np.array([len(work.job.tokens) for work in works])
        tokens, positions = pad([work.job.tokens for work in works])
        cache = Cache(self._model.shape, *tokens.shape)
        states, _ = self._model.run(self._matrices, tokens, positions, cache)
        states, cache.lengths = states.reshape(*tokens.shape, -1), lengths
        for work, length, mine in zip(works, lengths, states):
            if work.scores is None:
                work.scores = self._score(work.job, mine[: length - 1])
        logits = self._model.find_logits(self._matrices, states[np.arange(len(works)), lengths - 1])
        rows = [works.index(work) for work, run in new if not run.is_over]
        cache.select(rows)
        self._cache.join(cache)
        begun = [run for _, run in new if not run.is_over]
        self.runs += begun
        logprobs = arrays.log_softmax(logits)
        for run, row in zip(begun, rows):
            arrays.extend(run, logits[row], logprobs[row])

    def _score(self, job: SampleJob, states: Float32) -> SampleResult:
        """Score the tokens of a prompt but the first, given the states before them."""
        scorer = arrays.PromptScorer(job)
        table = arrays.log_softmax(self._model.find_logits(self._matrices, states))
        scorer.add(table[np.arange(len(table)), job.tokens[1:]], table if job.needs_table else None)
        return scorer.result()

    def drop_ended(self) -> None:
        """Drop the rows of runs that are over."""
        if any(run.is_over for run in self.runs):
            self._cache.select([row for row, run in enumerate(self.runs) if not run.is_over])
            self.runs = [run for run in self.runs if not run.is_over]


class NumpyBatch:
    """A SampleBatch of a numpy engine."""

    def __init__(
        self,
        model: Llama,
        adapt: Callable[[ArrayWeights | None], Matrices],
        start: Callable[[SampleJob], Work],
        limit: int,
    ) -> None:
        self._model, self._adapt, self._start, self._limit = model, adapt, start, limit
        self._works: dict[object, Work] = {}
        self._waiting: list[Begin] = []
        self._rows: dict[ArrayWeights | None, Rows] = {}

    @property
    def tokens(self) -> int:
        return sum(
            run.length for work in self._works.values() for run in work.runs if not run.is_over
        )

    def add(self, ticket: object, job: SampleJob) -> None:
        work = self._works[ticket] = self._start(job)
        self._waiting += [(work, run) for run in work.runs]

    def drop(self, ticket: object) -> None:
        if (work := self._works.pop(ticket, None)) is not None:
            work.scores = work.scores or SampleResult(sequences=[])
            for run in work.runs:
                run.end()

    @arrays.compute_in_one_thread()
    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is an error that says more
    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        for weights, rows in list(self._rows.items()):
            rows.drop_ended()
            if not rows.runs:
                del self._rows[weights]
            else:
                _guard(rows.runs, rows.advance)
        self._begin()
        ended = [
            (ticket, outcome)
            for ticket, work in self._works.items()
            if (outcome := work.outcome()) is not None
        ]
        for ticket, _ in ended:
            self.drop(ticket)
        return ended

    def _begin(self) -> None:
        """Compute the prompts of the runs for which there is room, of each adapter those of like
        length together.
        """
        by_weights: dict[ArrayWeights | None, list[Begin]] = {}
        for work, run in self._admit():
            by_weights.setdefault(find_weights(work.job, ArrayWeights), []).append((work, run))
        for weights, admitted in by_weights.items():
            for batch in arrays.split_batches(
                [len(work.job.tokens) for work, _ in admitted], PROMPT_CELLS
            ):
                new = [admitted[index] for index in batch]
                _guard([run for _, run in new], partial(self._begin_rows, weights, new))

    def _begin_rows(self, weights: ArrayWeights | None, new: Sequence[Begin]) -> None:
        if weights not in self._rows:
            self._rows[weights] = Rows(self._model, self._adapt(weights))
        self._rows[weights].begin(new)

    def _admit(self) -> list[Begin]:
        """Return the next runs, in the order of their arrival, as long as there is room; one at
        least where none runs.
        """
        held = sum(
            run.length for rows in self._rows.values() for run in rows.runs if not run.is_over
        )
        admitted: list[Begin] = []
        while self._waiting:
            work, run = self._waiting[0]
            if held and held + run.length > self._limit:
                break
            del self._waiting[0]
            if not run.is_over or (work.scores is None and run.index == 0):
                admitted.append((work, run))
                held += run.length
        return admitted


def _guard(runs: Sequence[DecodingRun], work: Callable[[], None]) -> None:
    """Do the work of some runs, whose error a failure is: the others go on."""
    try:
        work()
    except Exception as error:  # noqa: BLE001
        for run in runs:
            run.error = run.error or error


# tokens that go through the model together, padding included; more are no faster, and take more
# memory
PASS_CELLS = 256


class LlamaPass:
    """A pass forward through the model, with all that the pass back needs. Every position has one
    target or more.
    """

    def __init__(
        self,
        model: Llama,
        matrices: Matrices,
        weights: ArrayWeights,
        data: Sequence[Cells],
        targets: Int64,
    ) -> None:
        self._model, self._gradient, self._targets = model, Gradient(matrices, weights), targets
        tokens, self._positions = pad([cells.tokens for cells in data])
        states, self._tapes = model.run(matrices, tokens, self._positions)
        lengths = np.array([len(cells.tokens) for cells in data])
        self._real = np.flatnonzero(self._positions < lengths[:, None])  # cells that are no padding
        self._states = states[self._real]
        self._table = arrays.log_softmax(model.find_logits(matrices, self._states))
        columns = np.repeat([cells.targets.shape[1] for cells in data], lengths)
        self._places = np.repeat(np.arange(len(self._real)), columns)  # the position of each target
        self.logprobs: Reals = self._table[self._places, targets]

    def differentiate(self, slopes: Reals) -> Tensors:
        # The log-probability of a target grows with its own logit, and falls with every logit by
        # the token's probability.
        by_logits = np.exp(self._table) * -np.bincount(self._places, slopes, len(self._table))[
            :, None
        ].astype(np.float32)
        np.add.at(by_logits, (self._places, self._targets), slopes)
        by_states = np.zeros((self._positions.size, self._states.shape[1]), np.float32)
        by_states[self._real] = self._model.pass_back_logits(
            self._states, by_logits, self._gradient
        )
        self._model.pass_back(self._tapes, self._positions, by_states, self._gradient)
        return self._gradient.by_factor


class NumpyEngine(PeftEngine[ArrayAdapter], ArrayEngine):
    """Trains and samples LoRA adapters over the Llama in a directory, or the packaged
    ``tinker/babble``, on the CPU.
    """

    def __init__(self, model: str | Path = PACKAGED_MODEL) -> None:
        super().__init__(model)
        self._folder = folder = Path(self.tokenizer_id)
        self._model = Llama(folder)
        self.max_context_length: int = self._model.shape.longest
        self._vocabulary = self._model.shape.vocabulary
        self._targets = LoraTargets(self._model.shape.targets())
        self._matrices: WeakKeyDictionary[ArrayWeights, Matrices] = WeakKeyDictionary()
        self._end_of_text = _read_end_of_text(folder)

    def _assemble(self, spec: AdapterSpec, factors: LoraFactors, moments: Moments) -> ArrayAdapter:
        return ArrayAdapter(ArrayWeights(spec, factors), moments)

    def _take_apart(self, adapter: ArrayAdapter) -> tuple[AdapterSpec, LoraFactors, Moments]:
        return adapter.weights.spec, adapter.weights.tensors, adapter.moments

    def load_snapshot(self, directory: Path) -> ArrayWeights:
        return ArrayWeights(*read_weights(directory, self._targets, self.base_model))

    # Training

    def _batches(self, lengths: Sequence[int]) -> Iterable[Sequence[int]]:
        return arrays.split_batches(lengths, PASS_CELLS)

    def _run(self, weights: ArrayWeights, data: Sequence[Cells], targets: Int64) -> LlamaPass:
        return LlamaPass(self._model, self.adapt(weights), weights, data, targets)

    def adapt(self, weights: ArrayWeights | None) -> Matrices:
        """Return the model's matrices with an adapter's update, made once for each state of its
        weights.
        """
        if weights is None:
            return self._model.matrices
        if weights not in self._matrices:
            self._matrices[weights] = self._model.adapt(weights)
        return self._matrices[weights]

    # Sampling

    def open_batch(self, limit: int) -> NumpyBatch:
        """Make an empty batch of samples that together hold about ``limit`` tokens."""
        return NumpyBatch(self._model, self.adapt, self._start, limit)

    def _start(self, job: SampleJob) -> Work:
        check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
        find_weights(job, ArrayWeights)
        return arrays.start_work(job, self._end_of_text, self._decode)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer  # needed where a stop is a text

        return Tokenizer.from_file(str(self._folder / "tokenizer.json"))

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)


def _read_end_of_text(folder: Path) -> frozenset[int]:
    """Return the tokens that end a text, which a configuration has as a number, a list or not at
    all.
    """
    files = [folder / name for name in ("config.json", "generation_config.json")]
    found = [json.loads(file.read_bytes()).get("eos_token_id") for file in files if file.is_file()]
    return frozenset(
        int(token) for tokens in found for token in np.ravel([] if tokens is None else tokens)
    )


__all__ = ["NumpyEngine"]
