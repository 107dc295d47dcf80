"""The toy engine, with the methods that the server calls.

For tests and for machines without torch. The next token depends on the last one only. A token id is written as two
digits of base 256, and the model is two softmaxes of at most 256 cells, one for each digit; so a vocabulary of tens of
thousands costs kilobytes, and every distribution is exact and sums to one. Ids below 256 are bytes, 256 ends a text.
The untrained model babbles English letters. Runs in the server's one worker thread.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.inputs import (
    NO_OPTIMIZER,
    Cells,
    add_sequence_ratios,
    check_data,
    check_job,
    check_step,
    explain_infinite_loss,
    noise_seed,
    shape_logits,
)
from tinker.local.engines.losses import LOSSES, LossMetrics
from tinker.local.engines.opening import PACKAGED_FOLDER, TOY_MODEL
from tinker.local.engines.protocol import (
    FILE_FORMAT,
    Adam,
    AdapterSpec,
    Continuation,
    Dimuon,
    EngineError,
    ExpectedLoss,
    Float32,
    Int32,
    LocalEngine,
    LossResult,
    PromptTargets,
    SampleJob,
    SampleResult,
    TrainingExample,
    check_format,
)
from tinker.local.engines.toy.model import (
    ADAPTER_FILE,
    BASE,
    OPTIMIZER_FILE,
    Bigram,
    Float64,
    Tensors,
    TokenPairs,
    ToyAdapter,
    check_archive,
    cumulative_distribution,
    has_stopped,
    moment_names,
    read_arrays,
    step_adam,
    step_dimuon,
    write_arrays,
    zeros_like,
)
from tinker.types.results import EMPTY_LOGPROB

Scalar = TypeVar("Scalar", bound=np.generic)
MAX_RANK = 1024
CACHED_CELLS = 2**23  # probabilities kept for each set of weights: 32 MB, and three times that of cumulative ones
DistributionKey: TypeAlias = tuple[int, float, int, float]


@attrs.frozen(eq=False)
class ToyWeights:
    """LoRA matrices that no longer change, and the distributions computed from them so far."""

    spec: AdapterSpec
    tensors: Tensors
    rows: dict[int, Float32] = attrs.field(factory=lambda: dict[int, Float32]())
    cumulative: dict[DistributionKey, tuple[Float64, Int32]] = attrs.field(
        factory=lambda: dict[DistributionKey, tuple[Float64, Int32]]()
    )


class ToyEngine(LocalEngine[ToyAdapter]):
    """Trains and samples a two-softmax bigram model of ``vocabulary`` token ids."""

    def __init__(self, *, vocabulary: int = 32_768, max_context_length: int = 32_768, base_model: str = TOY_MODEL) -> None:
        if not 2 <= vocabulary <= BASE * BASE:
            raise ValueError(f"vocabulary must be 2 to {BASE * BASE}, got {vocabulary}")
        super().__init__()
        self.base_model: str = base_model
        self.tokenizer_id: str = str(PACKAGED_FOLDER)  # of bytes: token ids below 256 are bytes
        self.max_context_length: int = max_context_length
        self.image_reader: None = None
        self.adapter_files: frozenset[str] = frozenset({ADAPTER_FILE})
        self._vocabulary = vocabulary
        self._net = Bigram(vocabulary)
        self._base = ToyWeights(AdapterSpec(rank=1), self._net.fresh(1, 0))

    # Adapters

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        if not 1 <= spec.rank <= MAX_RANK:
            raise EngineError(f"rank is {spec.rank}; it must be 1 to {MAX_RANK}")
        if spec.target_modules is not None:
            raise EngineError("target_modules: the toy model has no modules to choose from")
        seed = secrets.randbits(31) if spec.seed is None else spec.seed
        self._adapters[adapter_id] = ToyAdapter.create(attrs.evolve(spec, seed=seed), self._net.fresh(spec.rank, seed))

    def snapshot(self, adapter_id: str) -> ToyWeights:
        adapter = self._adapter(adapter_id)
        return ToyWeights(adapter.spec, {name: tensor.copy() for name, tensor in adapter.tensors.items()})

    def load_snapshot(self, directory: Path) -> ToyWeights:
        return ToyWeights(*self._read_adapter(directory))

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write the adapter. Gradients that no optimizer step has applied yet are not saved."""
        adapter = self._adapter(adapter_id)
        about = json.dumps({"format": FILE_FORMAT, "vocabulary": self._vocabulary, "spec": attrs.asdict(adapter.spec)})
        write_arrays(directory / ADAPTER_FILE, {"about": np.array(about), **adapter.tensors})
        if optimizer:
            moments = {f"first.{name}": value for name, value in adapter.first.items()}
            moments |= {f"second.{name}": value for name, value in adapter.second.items()}
            write_arrays(directory / OPTIMIZER_FILE, {"steps": np.array(adapter.steps), **moments})

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        adapter = ToyAdapter.create(*self._read_adapter(directory))
        if optimizer and not (directory / OPTIMIZER_FILE).exists():
            raise EngineError(NO_OPTIMIZER)
        if optimizer:
            state = read_arrays(directory / OPTIMIZER_FILE, {"steps", *moment_names(adapter.tensors)})
            adapter.steps = int(state["steps"])
            adapter.first = {name: state[f"first.{name}"] for name in adapter.tensors}
            adapter.second = {name: state[f"second.{name}"] for name in adapter.tensors}
        self._adapters[adapter_id] = adapter
        return adapter.spec

    def import_adapter(self, source: Path, spec: AdapterSpec, directory: Path) -> None:
        """Check the file, which describes its adapter itself, and copy it."""
        check_archive(source / ADAPTER_FILE)
        found, tensors = self._read_adapter(source)
        wanted = {name: tensor.shape for name, tensor in self._net.fresh(spec.rank, 0).items()}
        if found.rank != spec.rank or {name: tensor.shape for name, tensor in tensors.items()} != wanted:
            raise EngineError(f"{ADAPTER_FILE} contains an adapter of another shape than one of rank {spec.rank}")
        if not all(tensor.dtype.kind == "f" and np.isfinite(tensor).all() for tensor in tensors.values()):
            raise EngineError(f"{ADAPTER_FILE} must contain only finite numbers")
        shutil.copyfile(source / ADAPTER_FILE, directory / ADAPTER_FILE)

    def _read_adapter(self, directory: Path) -> tuple[AdapterSpec, Tensors]:
        found = read_arrays(directory / ADAPTER_FILE, {"about", *self._base.tensors})
        try:
            about = json.loads(str(found.pop("about")))
            check_format(ADAPTER_FILE, int(about.get("format", FILE_FORMAT)))
            vocabulary, spec = about["vocabulary"], AdapterSpec(**about["spec"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(f"{ADAPTER_FILE} does not say what it contains: it is damaged") from error
        if vocabulary != self._vocabulary:
            raise EngineError(f"the checkpoint has {vocabulary} token ids, this model {self._vocabulary}")
        return spec, found

    # Training

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[TrainingExample],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> LossResult:
        adapter = self._adapter(adapter_id)
        limits = {"vocabulary": self._vocabulary, "longest": self.max_context_length}
        form, options, checked = check_data(data, loss_fn, config, **limits)
        if not checked:
            return LossResult(outputs=[], metrics=LossMetrics(np, form, options).metrics())
        pairs = TokenPairs.collect(checked, self._vocabulary)
        logprobs = self._net.logprobs(adapter.tensors, adapter.spec.scale, pairs.last, pairs.following)[pairs.places]
        checked = add_sequence_ratios(checked, form, list(_split(logprobs, checked)))
        weights = np.concatenate([cells.weights.reshape(-1) for cells in checked]).astype(np.float64)
        counted = weights != 0
        inputs = {key: _concatenate(checked, key)[counted] for key in checked[0].inputs}
        terms, slopes = LOSSES[loss_fn](np, logprobs[counted], inputs, options)
        weighted = terms * weights[counted]
        if not np.isfinite(weighted).all() or not np.isfinite(slopes).all():
            raise EngineError(explain_infinite_loss(form, bool(np.isfinite(logprobs[counted]).all())))
        if backward:
            slope = np.zeros(len(logprobs))
            slope[counted] = slopes * weights[counted]
            coefficients = cast("Float64", np.bincount(pairs.places, slope, len(pairs.last)))
            gradient = self._net.gradient(adapter.tensors, adapter.spec.scale, pairs.last, pairs.following, coefficients)
            adapter.gradient = _add(adapter.gradient, gradient)
        reported = np.where(pairs.known, logprobs, 0.0).astype(np.float32)
        metrics = LossMetrics(np, form, options)
        metrics.add(weighted, logprobs[counted], weights[counted], inputs)
        return LossResult(outputs=[{"logprobs": part} for part in _split(reported, checked)], metrics=metrics.metrics())

    def expect_losses(self, calls: Sequence[ExpectedLoss]) -> None:
        """Do nothing."""

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        adapter = self._adapter(adapter_id)
        check_step(params)
        gradient = adapter.gradient or zeros_like(adapter.tensors)
        norm = math.sqrt(sum(float((part**2).sum()) for part in gradient.values()))
        clip = params.grad_clip_norm / norm if 0 < params.grad_clip_norm < norm else 1.0
        clipped = {name: part * clip for name, part in gradient.items()}
        if isinstance(params, Dimuon):
            self._adapters[adapter_id] = step_dimuon(adapter, clipped, params)
        else:
            self._adapters[adapter_id] = step_adam(adapter, clipped, params)
        return {"grad_norm:mean": norm}

    # Sampling

    def open_batch(self, limit: int) -> ToyBatch:
        """Make an empty batch, which runs one job at each step."""
        return ToyBatch(self)

    def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
        """Sample every job to its end. Raises EngineError naming the job's fault."""
        for job in jobs:
            check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
        return [self._sample(job, self._weights(job)) for job in jobs]

    def _weights(self, job: SampleJob) -> ToyWeights:
        if job.weights is None:
            return self._base
        if not isinstance(job.weights, ToyWeights):
            raise EngineError("the weights to sample from do not come from this engine")
        return job.weights

    def _sample(self, job: SampleJob, weights: ToyWeights) -> SampleResult:
        seed = noise_seed(job)
        sequences = [self._continue(job, weights, seed, index) for index in range(job.num_samples)]
        topk = self._topk(weights, job.tokens, job.topk_prompt_logprobs, prompt=True)
        return SampleResult(
            sequences=sequences,
            prompt_logprobs=self._prompt_logprobs(weights, job.tokens) if job.prompt_logprobs else None,
            topk_prompt=topk,
            target_logprobs=self._target_logprobs(weights, job.tokens, job.prompt_targets),
            alternatives=self._alternatives(weights, job, seed),
        )

    def _continue(self, job: SampleJob, weights: ToyWeights, seed: int, number: int) -> Continuation:
        noise: list[float] = np.random.default_rng([seed, number]).random(job.max_tokens).tolist()
        last, tokens, logprobs, reason = int(job.tokens[-1]), list[int](), list[float](), "length"
        while len(tokens) < job.max_tokens:
            cumulative, ids = self._cumulative(weights, last, job, tokens)
            index = int(np.searchsorted(cumulative, noise[len(tokens)] * float(cumulative[-1]), side="right"))
            following = int(ids[min(index, len(ids) - 1)])
            tokens.append(following)
            logprobs.append(float(self._row(weights, last)[following]))
            last = following
            ended = has_stopped(tokens, job)
            reason = "stop" if ended else "length"
            is_last = ended or len(tokens) == job.max_tokens
            if job.listener is not None and not job.listener.take(number, following, logprobs[-1], reason if is_last else None):
                break
            if ended:
                break
        history = np.array([job.tokens[-1], *tokens], np.int32)
        return Continuation(
            tokens=history[1:],
            logprobs=np.array(logprobs, np.float32),
            stop_reason=reason,
            topk=self._topk(weights, history, job.topk_sample_logprobs, prompt=False),
        )

    def _prompt_logprobs(self, weights: ToyWeights, tokens: Int32) -> Float32:
        own = self._net.logprobs(weights.tensors, weights.spec.scale, tokens[:-1].astype(np.int64), tokens[1:].astype(np.int64))
        return np.concatenate([[np.nan], own]).astype(np.float32)

    def _target_logprobs(self, weights: ToyWeights, tokens: Int32, targets: PromptTargets | None) -> Float32 | None:
        if targets is None:
            return None
        last = tokens[targets.positions - 1].astype(np.int64)
        return self._net.logprobs(weights.tensors, weights.spec.scale, last, targets.tokens).astype(np.float32)

    def _alternatives(self, weights: ToyWeights, job: SampleJob, seed: int) -> tuple[Int32, Float32] | None:
        if not job.prompt_alternatives:
            return None
        whole = SampleJob(tokens=job.tokens, weights=None, max_tokens=0, temperature=job.temperature)
        noise = np.random.default_rng([seed, 0, 1]).random((len(job.tokens) - 1, job.prompt_alternatives))
        ids, logprobs = np.empty(noise.shape, np.int32), np.empty(noise.shape, np.float32)
        for row, last in enumerate(job.tokens[:-1].tolist()):
            cumulative, tokens = self._cumulative(weights, last, whole, ())
            places = cast("NDArray[np.intp]", np.searchsorted(cumulative, noise[row] * cumulative[-1], side="right"))
            ids[row] = tokens[places.clip(max=len(tokens) - 1)]
            logprobs[row] = self._row(weights, last)[ids[row]]
        return ids, logprobs

    def _topk(self, weights: ToyWeights, history: Int32, k: int, *, prompt: bool) -> tuple[Int32, Float32] | None:
        """Return the k likeliest tokens at each position but the first; the first of a prompt is an empty row."""
        if not k:
            return None
        rows = [self._row(weights, int(last)) for last in history[:-1]]
        ids = [np.argsort(-row, kind="stable")[:k] for row in rows]
        values = [row[chosen] for row, chosen in zip(rows, ids)]
        if prompt:
            ids, values = [np.zeros(k, np.int64), *ids], [np.full(k, EMPTY_LOGPROB, np.float32), *values]
        return np.array(ids, np.int32).reshape(-1, k), np.array(values, np.float32).reshape(-1, k)

    def _row(self, weights: ToyWeights, last: int) -> Float32:
        """Compute the log-probability of every token after ``last``, alone, so that no batch decides its rounding."""
        row = weights.rows.get(last)
        if row is None:
            if len(weights.rows) * self._vocabulary >= CACHED_CELLS:
                weights.rows.clear()
            row = weights.rows[last] = self._net.row(weights.tensors, weights.spec.scale, last)
        return row

    def _cumulative(self, weights: ToyWeights, last: int, job: SampleJob, drawn: Sequence[int]) -> tuple[Float64, Int32]:
        """Return the cumulative distribution to draw from after ``last``, and the token of each of its steps."""
        if job.shapes_logits:
            row = self._row(weights, last).copy()
            shape_logits(job, drawn, row)
            return cumulative_distribution(row, job)
        key = (last, job.temperature, job.top_k, job.top_p)
        found = weights.cumulative.get(key)
        if found is None:
            if len(weights.cumulative) * self._vocabulary >= CACHED_CELLS:
                weights.cumulative.clear()
            found = weights.cumulative[key] = cumulative_distribution(self._row(weights, last), job)
        return found


class ToyBatch:
    """A SampleBatch of a toy engine: each step runs one job to its end, in the order of arrival."""

    def __init__(self, engine: ToyEngine) -> None:
        self._engine = engine
        self._jobs: dict[object, SampleJob] = {}

    @property
    def tokens(self) -> int:
        return sum(job.num_samples * (len(job.tokens) + job.max_tokens) for job in self._jobs.values())

    def add(self, ticket: object, job: SampleJob) -> None:
        self._jobs[ticket] = job

    def drop(self, ticket: object) -> None:
        self._jobs.pop(ticket, None)

    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        ticket = next(iter(self._jobs))
        try:
            return [(ticket, self._engine.sample([self._jobs.pop(ticket)])[0])]
        except Exception as error:  # noqa: BLE001 - the error of one job must not touch the others
            return [(ticket, error)]


def _add(before: Tensors | None, gradient: Tensors) -> Tensors:
    return gradient if before is None else {name: before[name] + part for name, part in gradient.items()}


def _concatenate(checked: Sequence[Cells], key: str) -> Float64:
    return np.concatenate([cells.inputs[key].reshape(-1) for cells in checked]).astype(np.float64)


def _split(values: NDArray[Scalar], checked: Sequence[Cells]) -> Iterator[NDArray[Scalar]]:
    at = 0
    for cells in checked:
        yield values[at : at + cells.targets.size].reshape(cells.shape)
        at += cells.targets.size
