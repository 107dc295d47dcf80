"""The engine without torch: a bigram model in numpy with LoRA matrices, exact gradients and real sampling.

For tests and for machines without torch. The next token depends on the last one only. A token id is written as two
digits of base 256, and the model is two softmaxes of at most 256 cells, one for each digit; so a vocabulary of tens of
thousands costs kilobytes, and every distribution is exact and sums to one. Ids below 256 are bytes, 256 ends a text.
The untrained model babbles English letters. Runs in the server's one worker thread.
"""

from __future__ import annotations

import json
import math
import secrets
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines import dimuon
from tinker.local.engines.examples import FORMS, Cells, check_datum, check_prompt_wishes, check_step, check_tokens, loss_options
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    Example,
    Float32,
    Int32,
    LossResult,
    PromptTargets,
    Sampled,
    SampleJob,
    SampleResult,
)
from tinker.local.engines.toy_losses import TERMS, Float64, metrics

TOY_MODEL = "tinker/toy"
END_OF_TEXT = 256
BASE = 256
WIDTH = 64  # of the hidden state; 256 bytes are told apart well enough in 64 dimensions
ALPHA = 32.0  # of LoRA: the update is ALPHA / rank times A B
BLOCK = 8192  # rows of one matrix product; bounds memory to some ten megabytes
MAX_RANK = 1024
CACHED_CELLS = 2**23  # probabilities kept for each set of weights: 32 MB
EMPTY_CELL = -99999.0  # the wire's logprob for "nothing here"
LETTERS = " etaoinshrdlucmfwypvbgk,.\nTAISjxqz"  # by falling frequency
ADAPTER_FILE, OPTIMIZER_FILE = "toy_adapter.npz", "toy_optimizer.npz"

Tensors: TypeAlias = dict[str, Float64]
Key: TypeAlias = tuple[int, float, int, float]


@attrs.frozen(eq=False)
class ToyWeights:
    """LoRA matrices that no longer change, and the distributions computed from them so far."""

    spec: AdapterSpec
    tensors: Tensors
    rows: dict[int, Float32] = attrs.field(factory=lambda: dict[int, Float32]())
    heights: dict[Key, tuple[Float64, Int32]] = attrs.field(factory=lambda: dict[Key, tuple[Float64, Int32]]())


@attrs.define(eq=False)
class Adapter:
    """What one training run owns. ``gradient`` is None until something has accumulated."""

    spec: AdapterSpec
    tensors: Tensors
    first: Tensors
    second: Tensors
    steps: int = 0
    gradient: Tensors | None = None

    @classmethod
    def of(cls, spec: AdapterSpec, tensors: Tensors) -> Adapter:
        return cls(spec, tensors, _zeros(tensors), _zeros(tensors))


class ToyEngine:
    """Trains and samples a two-softmax bigram model of ``vocabulary`` token ids."""

    def __init__(self, *, vocabulary: int = 32_768, max_context_length: int = 32_768, base_model: str = TOY_MODEL) -> None:
        if not 2 <= vocabulary <= BASE * BASE:
            raise ValueError(f"vocabulary must be 2 to {BASE * BASE}, got {vocabulary}")
        self._vocabulary, self._longest, self._name = vocabulary, max_context_length, base_model
        self._net = Bigram(vocabulary)
        self._adapters: dict[str, Adapter] = {}
        self._base = ToyWeights(AdapterSpec(rank=1), self._net.fresh(1, 0))

    @property
    def base_model(self) -> str:
        return self._name

    @property
    def aliases(self) -> frozenset[str]:
        return frozenset()

    @property
    def tokenizer_id(self) -> str:
        """The byte-level tokenizer that comes with the package: token ids below 256 are bytes."""
        return str(Path(__file__).resolve().parent.parent / "base_model")

    @property
    def max_context_length(self) -> int:
        return self._longest

    @property
    def losses(self) -> frozenset[str]:
        return frozenset(TERMS)

    # Adapters

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        if not 1 <= spec.rank <= MAX_RANK:
            raise EngineError(f"rank is {spec.rank}; 1 to {MAX_RANK} is possible")
        seed = secrets.randbits(31) if spec.seed is None else spec.seed
        self._adapters[adapter_id] = Adapter.of(attrs.evolve(spec, seed=seed), self._net.fresh(spec.rank, seed))

    def drop_adapter(self, adapter_id: str) -> None:
        self._adapters.pop(adapter_id, None)

    def snapshot(self, adapter_id: str) -> ToyWeights:
        adapter = self._adapter(adapter_id)
        return ToyWeights(adapter.spec, {name: tensor.copy() for name, tensor in adapter.tensors.items()})

    def load_snapshot(self, directory: Path) -> ToyWeights:
        return ToyWeights(*self._read_adapter(directory))

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Gradients that no optimizer step has applied yet are not saved."""
        adapter = self._adapter(adapter_id)
        about = json.dumps({"vocabulary": self._vocabulary, "spec": attrs.asdict(adapter.spec)})
        _write(directory / ADAPTER_FILE, {"about": np.array(about), **adapter.tensors})
        if optimizer:
            moments = {f"first.{name}": value for name, value in adapter.first.items()}
            moments |= {f"second.{name}": value for name, value in adapter.second.items()}
            _write(directory / OPTIMIZER_FILE, {"steps": np.array(adapter.steps), **moments})

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        adapter = Adapter.of(*self._read_adapter(directory))
        if optimizer:
            state = _read(directory / OPTIMIZER_FILE, {"steps", *_moment_names(adapter.tensors)})
            adapter.steps = int(state["steps"])
            adapter.first = {name: state[f"first.{name}"] for name in adapter.tensors}
            adapter.second = {name: state[f"second.{name}"] for name in adapter.tensors}
        self._adapters[adapter_id] = adapter
        return adapter.spec

    def _read_adapter(self, directory: Path) -> tuple[AdapterSpec, Tensors]:
        found = _read(directory / ADAPTER_FILE, {"about", *self._base.tensors})
        about = json.loads(str(found.pop("about")))
        if about["vocabulary"] != self._vocabulary:
            raise EngineError(f"the checkpoint has {about['vocabulary']} token ids, this model {self._vocabulary}")
        return AdapterSpec(**about["spec"]), found

    def _adapter(self, adapter_id: str) -> Adapter:
        if adapter_id not in self._adapters:
            raise EngineError(f"no adapter {adapter_id!r} on this server")
        return self._adapters[adapter_id]

    # Training

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[Example],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> LossResult:
        adapter = self._adapter(adapter_id)
        form, options = loss_options(loss_fn, config)
        limits = {"vocabulary": self._vocabulary, "longest": self._longest}
        checked = [check_datum(index, example, loss_fn, form, **limits) for index, example in enumerate(data)]
        if not checked:
            return LossResult(outputs=[], metrics={"loss:sum": 0.0, "tokens:sum": 0.0})
        pairs = Pairs.of(checked, self._vocabulary)
        logprobs = self._net.logprobs(adapter.tensors, pairs.last, pairs.following)[pairs.places]
        weights = np.concatenate([cells.weights.reshape(-1) for cells in checked]).astype(np.float64)
        counted = weights != 0
        inputs = {key: _joined(checked, key)[counted] for key in checked[0].inputs}
        terms, slopes = TERMS[loss_fn](logprobs[counted], inputs, options)
        weighted = terms * weights[counted]
        if not np.isfinite(weighted).all() or not np.isfinite(slopes).all():
            raise EngineError("the loss is not finite; check logprobs, advantages and weights")
        if backward:
            slope = np.zeros(len(logprobs))
            slope[counted] = slopes * weights[counted]
            coefficients = cast("Float64", np.bincount(pairs.places, slope, len(pairs.last)))
            gradient = self._net.gradient(adapter.tensors, pairs.last, pairs.following, coefficients)
            adapter.gradient = _sum(adapter.gradient, gradient)
        reported = np.where(pairs.known, logprobs, 0.0).astype(np.float32)
        outputs = [{"logprobs": part} for part in _split(reported, checked)]
        return LossResult(outputs=outputs, metrics=metrics(weighted, logprobs[counted], inputs, form, options))

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        adapter = self._adapter(adapter_id)
        check_step(params)
        gradient = adapter.gradient or _zeros(adapter.tensors)
        norm = math.sqrt(sum(float((part**2).sum()) for part in gradient.values()))
        clip = params.grad_clip_norm / norm if 0 < params.grad_clip_norm < norm else 1.0
        clipped = {name: part * clip for name, part in gradient.items()}
        if isinstance(params, Dimuon):
            _dimuon_step(adapter, clipped, params)
        else:
            _adam_step(adapter, clipped, params)
        adapter.gradient = None
        return {"grad_norm:mean": norm}

    # Sampling

    def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
        for job in jobs:
            self._check_job(job)
        return [self._sample(job, self._weights(job)) for job in jobs]

    def _weights(self, job: SampleJob) -> ToyWeights:
        if job.weights is None:
            return self._base
        if not isinstance(job.weights, ToyWeights):
            raise EngineError("the weights to sample from do not come from this engine")
        return job.weights

    def _sample(self, job: SampleJob, weights: ToyWeights) -> SampleResult:
        seed = secrets.randbits(64) if job.seed is None else job.seed & (2**64 - 1)
        sequences = [self._continue(job, weights, np.random.default_rng([seed, index])) for index in range(job.num_samples)]
        topk = self._topk(weights, job.tokens, job.topk_prompt_logprobs, prompt=True)
        return SampleResult(
            sequences=sequences,
            prompt_logprobs=self._prompt_logprobs(weights, job.tokens) if job.prompt_logprobs else None,
            topk_prompt=topk,
            target_logprobs=self._target_logprobs(weights, job.tokens, job.prompt_targets),
            alternatives=self._alternatives(weights, job, seed),
        )

    def _continue(self, job: SampleJob, weights: ToyWeights, rng: np.random.Generator) -> Sampled:
        noise: list[float] = rng.random(job.max_tokens).tolist()
        last, tokens, logprobs, reason = int(job.tokens[-1]), list[int](), list[float](), "length"
        while len(tokens) < job.max_tokens:
            heights, ids = self._heights(weights, last, job)
            place = int(np.searchsorted(heights, noise[len(tokens)] * float(heights[-1]), side="right"))
            following = int(ids[min(place, len(ids) - 1)])
            tokens.append(following)
            logprobs.append(float(self._row(weights, last)[following]))
            last = following
            if _stopped(tokens, job.stop):
                reason = "stop"
                break
        history = np.array([job.tokens[-1], *tokens], np.int32)
        return Sampled(
            tokens=history[1:],
            logprobs=np.array(logprobs, np.float32),
            stop_reason=reason,
            topk=self._topk(weights, history, job.topk_sample_logprobs, prompt=False),
        )

    def _prompt_logprobs(self, weights: ToyWeights, tokens: Int32) -> Float32:
        own = self._net.logprobs(weights.tensors, tokens[:-1].astype(np.int64), tokens[1:].astype(np.int64))
        return np.concatenate([[np.nan], own]).astype(np.float32)

    def _target_logprobs(self, weights: ToyWeights, tokens: Int32, targets: PromptTargets | None) -> Float32 | None:
        if targets is None:
            return None
        last = tokens[targets.positions - 1].astype(np.int64)
        return self._net.logprobs(weights.tensors, last, targets.tokens).astype(np.float32)

    def _alternatives(self, weights: ToyWeights, job: SampleJob, seed: int) -> tuple[Int32, Float32] | None:
        if not job.prompt_alternatives:
            return None
        whole = attrs.evolve(job, top_k=-1, top_p=1.0)
        noise = np.random.default_rng([seed, 0, 1]).random((len(job.tokens) - 1, job.prompt_alternatives))
        ids, logprobs = np.empty(noise.shape, np.int32), np.empty(noise.shape, np.float32)
        for row, last in enumerate(job.tokens[:-1].tolist()):
            heights, tokens = self._heights(weights, last, whole)
            places = cast("NDArray[np.intp]", np.searchsorted(heights, noise[row] * heights[-1], side="right"))
            ids[row] = tokens[places.clip(max=len(tokens) - 1)]
            logprobs[row] = self._row(weights, last)[ids[row]]
        return ids, logprobs

    def _topk(self, weights: ToyWeights, history: Int32, k: int, *, prompt: bool) -> tuple[Int32, Float32] | None:
        """The k likeliest tokens at each position but the first; of a prompt that one is an empty row."""
        if not k:
            return None
        rows = [self._row(weights, int(last)) for last in history[:-1]]
        ids = [np.argsort(-row, kind="stable")[:k] for row in rows]
        values = [row[chosen] for row, chosen in zip(rows, ids)]
        if prompt:
            ids, values = [np.zeros(k, np.int64), *ids], [np.full(k, EMPTY_CELL, np.float32), *values]
        return np.array(ids, np.int32).reshape(-1, k), np.array(values, np.float32).reshape(-1, k)

    def _row(self, weights: ToyWeights, last: int) -> Float32:
        """Log-probability of every token after ``last``. Computed alone, so that no batch decides its rounding."""
        row = weights.rows.get(last)
        if row is None:
            if len(weights.rows) * self._vocabulary >= CACHED_CELLS:
                weights.rows.clear()
            row = weights.rows[last] = self._net.row(weights.tensors, last)
        return row

    def _heights(self, weights: ToyWeights, last: int, job: SampleJob) -> tuple[Float64, Int32]:
        """The cumulative distribution to draw from after ``last``, and the token of each of its steps."""
        key = (last, job.temperature, job.top_k, job.top_p)
        found = weights.heights.get(key)
        if found is None:
            if len(weights.heights) * self._vocabulary >= CACHED_CELLS:
                weights.heights.clear()
            found = weights.heights[key] = _drawing(self._row(weights, last), job)
        return found

    def _check_job(self, job: SampleJob) -> None:
        if not len(job.tokens):
            raise EngineError("the prompt is empty; at least one token is needed")
        check_tokens("the prompt", job.tokens, self._vocabulary)
        if len(job.tokens) + job.max_tokens > self._longest:
            total = f"{len(job.tokens)} prompt tokens + max_tokens {job.max_tokens}"
            raise EngineError(f"{total} exceed the context length of {self._longest}")
        for fault in _faults(job, self._vocabulary):
            raise EngineError(fault)
        check_prompt_wishes(job, self._vocabulary)


class Bigram:
    """The frozen model: features of a token, and the two softmaxes over the digits of the next one."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._highs = -(-vocabulary // BASE)
        rng = np.random.default_rng(20)
        self._of_high = rng.standard_normal((self._highs, WIDTH))
        self._of_low = rng.standard_normal((BASE, WIDTH))
        self._high = rng.standard_normal((WIDTH, self._highs)) * 0.02
        self._low = rng.standard_normal((WIDTH, BASE)) * 0.1
        self._high_bias = np.full(self._highs, -20.0)
        self._high_bias[:2] = [0.0, -4.0][: self._highs]
        self._low_bias = np.zeros((self._highs, BASE))
        self._low_bias[0] = -12.0
        self._low_bias[0, list(LETTERS.encode())] = -0.12 * np.arange(len(LETTERS))
        self._low_bias[1:2, 1:] = -12.0
        self._low_bias.reshape(-1)[vocabulary:] = -np.inf

    def fresh(self, rank: int, seed: int) -> Tensors:
        """LoRA matrices that change nothing yet."""
        rng = np.random.default_rng(abs(seed))
        return {
            "high.a": rng.standard_normal((WIDTH, rank)),
            "high.b": np.zeros((rank, self._highs)),
            "low.a": rng.standard_normal((WIDTH, rank)),
            "low.b": np.zeros((rank, BASE)),
        }

    def logprobs(self, tensors: Tensors, last: NDArray[np.int64], following: NDArray[np.int64]) -> Float64:
        """Log-probability of ``following[i]`` after ``last[i]``."""
        high, low = self._matrices(tensors)
        out = np.empty(len(last))
        for part in _blocks(len(last)):
            digits, rest = np.divmod(following[part], BASE)
            state = self._state(last[part])
            rows = np.arange(len(digits))
            out[part] = _log_softmax(state @ high + self._high_bias)[rows, digits]
            out[part] += _log_softmax(self._low_logits(state, digits, low))[rows, rest]
        return out

    def gradient(self, tensors: Tensors, last: NDArray[np.int64], following: NDArray[np.int64], slopes: Float64) -> Tensors:
        """The gradient of the sum of ``slopes[i]`` times the log-probability of ``following[i]`` after ``last[i]``."""
        high, low = self._matrices(tensors)
        high_slope, low_slope = np.zeros_like(high), np.zeros_like(low)
        for part in _blocks(len(last)):
            digits, rest = np.divmod(following[part], BASE)
            state = self._state(last[part])
            high_slope += state.T @ _logit_slopes(state @ high + self._high_bias, digits, slopes[part])
            lifted = state + self._of_high[digits]
            low_slope += lifted.T @ _logit_slopes(self._low_logits(state, digits, low), rest, slopes[part])
        return {**_lora_slopes(tensors, "high", high_slope), **_lora_slopes(tensors, "low", low_slope)}

    def row(self, tensors: Tensors, last: int) -> Float32:
        """Log-probability of every token after ``last``."""
        high, low = self._matrices(tensors)
        state = self._state(np.array([last]))
        digits = _log_softmax(state @ high + self._high_bias)[0]
        rest = _log_softmax(self._low_logits(state, np.arange(self._highs), low))
        cells: Float64 = (digits[:, None] + rest).reshape(-1)[: self._vocabulary]
        return cells.astype(np.float32)

    def _state(self, tokens: NDArray[np.int64]) -> Float64:
        digits, rest = np.divmod(tokens, BASE)
        return np.where(digits[:, None] > 0, self._of_high[digits], 0.0) + self._of_low[rest]

    def _low_logits(self, state: Float64, digits: NDArray[np.int64], low: Float64) -> Float64:
        return (state + self._of_high[digits]) @ low + self._low_bias[digits]

    def _matrices(self, tensors: Tensors) -> tuple[Float64, Float64]:
        return self._high + _update(tensors, "high"), self._low + _update(tensors, "low")


@attrs.frozen(eq=False)
class Pairs:
    """The distinct (last token, next token) pairs of a call, and for each cell the place of its pair among them."""

    last: NDArray[np.int64]
    following: NDArray[np.int64]
    places: NDArray[np.int64]
    known: NDArray[np.bool_]

    @classmethod
    def of(cls, checked: Sequence[Cells], vocabulary: int) -> Pairs:
        """Targets out of range (their weight is zero) count as token 0 and are not ``known``."""
        last = np.concatenate([np.repeat(cells.tokens, cells.targets.shape[1]) for cells in checked])
        targets = np.concatenate([cells.targets.reshape(-1) for cells in checked])
        known = (targets >= 0) & (targets < vocabulary)
        codes = last * BASE * BASE + np.where(known, targets, 0)
        distinct, places = np.unique(codes, return_inverse=True)
        first, second = np.divmod(distinct, BASE * BASE)
        return cls(first, second, places.reshape(-1), known)


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, count, BLOCK))


def _log_softmax(logits: Float64) -> Float64:
    shifted: Float64 = logits - logits.max(axis=1, keepdims=True)
    return shifted - cast("Float64", np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _logit_slopes(logits: Float64, chosen: NDArray[np.int64], slopes: Float64) -> Float64:
    out = -np.exp(_log_softmax(logits)) * slopes[:, None]
    out[np.arange(len(chosen)), chosen] += slopes
    return out


def _update(tensors: Tensors, name: str) -> Float64:
    down, up = tensors[f"{name}.a"], tensors[f"{name}.b"]
    return np.multiply(down @ up, ALPHA / len(up))


def _lora_slopes(tensors: Tensors, name: str, slope: Float64) -> Tensors:
    down, up = tensors[f"{name}.a"], tensors[f"{name}.b"]
    scale = ALPHA / len(up)
    return {f"{name}.a": scale * slope @ up.T, f"{name}.b": scale * down.T @ slope}


def _zeros(tensors: Tensors) -> Tensors:
    return {name: np.zeros_like(tensor) for name, tensor in tensors.items()}


def _sum(before: Tensors | None, gradient: Tensors) -> Tensors:
    return gradient if before is None else {name: before[name] + part for name, part in gradient.items()}


def _joined(checked: Sequence[Cells], key: str) -> Float64:
    return np.concatenate([cells.inputs[key].reshape(-1) for cells in checked]).astype(np.float64)


def _split(values: Float32, checked: Sequence[Cells]) -> Iterator[Float32]:
    at = 0
    for cells in checked:
        yield values[at : at + cells.targets.size].reshape(cells.shape)
        at += cells.targets.size


def _adam_step(adapter: Adapter, gradient: Tensors, params: Adam) -> None:
    adapter.steps += 1
    for name, tensor in adapter.tensors.items():
        part = gradient[name]
        first = adapter.first[name] = params.beta1 * adapter.first[name] + (1 - params.beta1) * part
        second = adapter.second[name] = params.beta2 * adapter.second[name] + (1 - params.beta2) * part**2
        rate = params.learning_rate / (1 - params.beta1**adapter.steps)
        scale = np.sqrt(second / (1 - params.beta2**adapter.steps)) + params.eps
        step = np.divide(first, scale, out=np.zeros_like(first), where=scale > 0)
        adapter.tensors[name] = tensor * (1 - params.learning_rate * params.weight_decay) - rate * step


def _dimuon_step(adapter: Adapter, gradient: Tensors, params: Dimuon) -> None:
    adapter.steps += 1
    for name, tensor in adapter.tensors.items():
        momentum = adapter.first[name] = params.beta1 * adapter.first[name] + (1 - params.beta1) * gradient[name]
        adapter.tensors[name] = tensor - params.learning_rate * dimuon.direction(momentum)


def _moment_names(tensors: Tensors) -> set[str]:
    return {f"{moment}.{name}" for moment in ("first", "second") for name in tensors}


def _write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    np.savez(path, allow_pickle=False, **dict(arrays))


def _read(path: Path, names: set[str]) -> dict[str, NDArray[np.float64]]:
    """The arrays of a file, nothing in it executed. EngineError when it is missing, damaged or another kind of file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise EngineError(f"the checkpoint was not written by this engine: {path.name}: {error}") from error


def _stopped(tokens: list[int], stop: Sequence[str] | Sequence[int] | None) -> bool:
    """Whether the last token completed a stop: an id, or a text among the bytes generated."""
    if stop is None:
        return tokens[-1] == END_OF_TEXT
    return any(_ends(tokens, piece) for piece in stop)


def _ends(tokens: list[int], piece: str | int) -> bool:
    if isinstance(piece, int):
        return tokens[-1] == piece
    wanted = list(piece.encode())
    return tokens[-len(wanted) :] == wanted


def _drawing(row: Float32, job: SampleJob) -> tuple[Float64, Int32]:
    """The likeliest token alone at temperature 0; else what top_k and then top_p leave, cumulated."""
    if job.temperature == 0:
        return np.ones(1), np.array([row.argmax()], np.int32)
    ids = np.arange(len(row), dtype=np.int32)
    if job.top_k >= 1 or job.top_p < 1:
        ids = np.argsort(-row, kind="stable").astype(np.int32)[: job.top_k if job.top_k >= 1 else None]
    scores = row[ids].astype(np.float64)
    heights = np.exp((scores - scores.max()) / job.temperature).cumsum()
    if job.top_p < 1:
        kept = int(heights.searchsorted(job.top_p * float(heights[-1]))) + 1
        heights, ids = heights[:kept], ids[:kept]
    return heights, ids


def _faults(job: SampleJob, vocabulary: int) -> Iterator[str]:
    if job.num_samples < 1:
        yield f"num_samples is {job.num_samples}; at least 1 is needed"
    if job.max_tokens < 0:
        yield f"max_tokens is {job.max_tokens}; it cannot be negative"
    if not 0 <= job.temperature < math.inf:
        yield f"temperature is {job.temperature}; 0 (greedy) or more is needed"
    if job.top_k < -1:
        yield f"top_k is {job.top_k}; -1 (all tokens) or at least 1 is needed"
    if not 0 < job.top_p <= 1:
        yield f"top_p is {job.top_p}; more than 0 and at most 1 is needed"
    for name, k in (("topk_prompt", job.topk_prompt_logprobs), ("topk_sample", job.topk_sample_logprobs)):
        if not 0 <= k <= vocabulary:
            yield f"{name}_logprobs is {k}; 0 to {vocabulary} is possible"
    stops = list(job.stop or ())
    if "" in stops:
        yield "an empty stop string would end every sequence at once"
    if len({isinstance(stop, str) for stop in stops}) > 1:
        yield "stop must hold strings only or token ids only"


assert TERMS.keys() == FORMS.keys()
