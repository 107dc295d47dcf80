"""Training in numpy: the adapters of a model that says how likely tokens are, and how that changes
with its factors.

A model computes a :class:`Pass`; everything else about a loss and an optimizer step is here.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.dimuon import orthogonal_direction
from tinker.local.engines.inputs import (
    WEIGHTS_DIVERGED,
    Cells,
    LossForm,
    add_sequence_ratios,
    check_data,
    check_step,
    explain_infinite_loss,
)
from tinker.local.engines.losses import LOSSES, LossMetrics
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    Float32,
    LocalEngine,
    LossResult,
    SampleJob,
    TrainingExample,
)
from tinker.local.engines.runs import FOREIGN_WEIGHTS

# The threads of numpy's matrix products: one, because those of OpenBLAS spin while they wait for
# one another.
#
# On a machine whose cores are busy, they take the cores from each other: the quickstart then takes
# five times as long with two.

# of the functions, and their endings: in wheels of numpy, and elsewhere
PREFIXES = {"scipy_openblas": "64_", "openblas": ""}


@contextmanager
def compute_in_one_thread() -> Generator[None]:
    """Compute matrix products in the thread that asks for them, inside the block; without OpenBLAS
    as the library likes.
    """
    get, put = _find_functions()
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@functools.cache
def _find_functions() -> tuple[Callable[[], int], Callable[[int], object]]:
    """Return what gets and sets the number of threads."""
    for file in Path(np.__file__).parents[1].glob("numpy.libs/*openblas*"):
        library = ctypes.CDLL(str(file))
        for prefix, ending in PREFIXES.items():
            names = [f"{prefix}_{verb}_num_threads{ending}" for verb in ("get", "set")]
            if all(hasattr(library, name) for name in names):
                return getattr(library, names[0]), getattr(library, names[1])
    return lambda: 1, lambda count: None


Reals: TypeAlias = NDArray[Any]  # float32 or float64, as the model has them
Tensors: TypeAlias = Mapping[str, Reals]


@attrs.frozen(eq=False)
class ArrayWeights:
    """The factors of an adapter. They never change: a step makes new ones, so that a snapshot is a
    reference.
    """

    spec: AdapterSpec
    tensors: Tensors


def find_weights(job: SampleJob) -> ArrayWeights | None:
    """Return the weights to sample from; None is the base model. Raises EngineError for those of
    another engine.
    """
    if job.weights is not None and not isinstance(job.weights, ArrayWeights):
        raise EngineError(FOREIGN_WEIGHTS)
    return job.weights


@attrs.define(eq=False)
class ArrayAdapter:
    """The state of one training run. ``gradient`` is None until one has been accumulated;
    ``moments`` are the optimizer's.
    """

    weights: ArrayWeights
    moments: Mapping[str, Tensors] = attrs.field(factory=lambda: dict[str, Tensors]())
    gradient: Tensors | None = None


class Pass(Protocol):
    """The log-probabilities of the targets of some data, one after the other, and the gradient of
    their weighted sum.
    """

    logprobs: Reals

    def differentiate(self, slopes: Reals) -> Tensors:
        """Compute the gradient of the sum of ``slopes`` times the log-probabilities, by each factor
        of the adapter.
        """
        ...


def step_adam(adapter: ArrayAdapter, gradient: Tensors, params: Adam) -> ArrayAdapter:
    """Return the adapter after a step of AdamW, as ``torch.optim`` computes it; the given one stays
    as it is.
    """
    zeros = zeros_like(adapter.weights.tensors)
    counts = adapter.moments.get("step", dict.fromkeys(zeros, np.zeros((), np.float32)))
    first, second = (adapter.moments.get(name, zeros) for name in ("exp_avg", "exp_avg_sq"))
    moments: dict[str, dict[str, Reals]] = {"step": {}, "exp_avg": {}, "exp_avg_sq": {}}
    after: dict[str, Reals] = {}
    for name, weight in adapter.weights.tensors.items():
        slope, count = gradient[name], float(counts[name]) + 1
        mean = params.beta1 * first[name] + (1 - params.beta1) * slope
        square = params.beta2 * second[name] + (1 - params.beta2) * slope**2
        scale = np.sqrt(square) / math.sqrt(1 - params.beta2**count) + params.eps
        step = np.divide(mean, scale, out=np.zeros_like(scale), where=scale > 0)
        rate = params.learning_rate / (1 - params.beta1**count)
        after[name] = weight * (1 - params.learning_rate * params.weight_decay) - rate * step
        moments["step"][name], moments["exp_avg"][name], moments["exp_avg_sq"][name] = (
            np.array(count, np.float32),
            mean,
            square,
        )
    return ArrayAdapter(attrs.evolve(adapter.weights, tensors=after), moments)


def step_dimuon(adapter: ArrayAdapter, gradient: Tensors, params: Dimuon) -> ArrayAdapter:
    """Return the adapter after a step; the given one stays as it is."""
    before = adapter.moments.get("momentum", zeros_like(gradient))
    momentum = {
        name: params.beta1 * before[name] + (1 - params.beta1) * part
        for name, part in gradient.items()
    }
    after = {
        name: weight - params.learning_rate * orthogonal_direction(momentum[name])
        for name, weight in adapter.weights.tensors.items()
    }
    return ArrayAdapter(attrs.evolve(adapter.weights, tensors=after), {"momentum": momentum})


class ArrayEngine(LocalEngine[ArrayAdapter]):
    """An engine that trains in numpy."""

    max_context_length: int
    _vocabulary: int

    def _run(
        self, weights: ArrayWeights, data: Sequence[Cells], targets: NDArray[np.int64]
    ) -> Pass:
        """Compute the log-probabilities of the targets of some data, which are
        tokens of the model.
        """
        raise NotImplementedError

    def _batches(self, lengths: Sequence[int]) -> Iterable[Sequence[int]]:
        """Yield the indices of the data that go through the model together."""
        raise NotImplementedError

    def snapshot(self, adapter_id: str) -> ArrayWeights:
        return self._adapter(adapter_id).weights

    @compute_in_one_thread()
    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is an error that says more
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
        metrics, gradient = LossMetrics(np, form, options), adapter.gradient
        outputs: dict[int, Float32] = {}
        for batch in self._batches([len(cells.tokens) for cells in checked]):
            cells = [checked[index] for index in batch]
            targets = np.concatenate([one.targets.reshape(-1) for one in cells])
            # the others have a weight of zero
            known = (targets >= 0) & (targets < self._vocabulary)
            done = self._run(adapter.weights, cells, np.where(known, targets, 0))
            slopes = find_slopes(loss_fn, form, metrics, dict(zip(batch, cells)), done.logprobs)
            if backward:
                gradient = _add(gradient, done.differentiate(slopes))
            outputs.update(
                zip(batch, split(np.where(known, done.logprobs, 0).astype(np.float32), cells))
            )
        if backward and gradient is not None:
            if not math.isfinite(find_norm(gradient)):
                raise EngineError(f"the gradient is not finite: {WEIGHTS_DIVERGED}")
            adapter.gradient = gradient
        return LossResult(
            outputs=[{"logprobs": outputs[index]} for index in range(len(data))],
            metrics=metrics.metrics(),
        )

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        adapter = self._adapter(adapter_id)
        check_step(params)
        gradient = adapter.gradient or zeros_like(adapter.weights.tensors)
        norm = find_norm(gradient)
        if 0 < params.grad_clip_norm < norm:
            gradient = {
                name: part * (params.grad_clip_norm / norm) for name, part in gradient.items()
            }
        if isinstance(params, Dimuon):
            self._adapters[adapter_id] = step_dimuon(adapter, gradient, params)
        else:
            self._adapters[adapter_id] = step_adam(adapter, gradient, params)
        return {"grad_norm:mean": norm}


def find_slopes(
    loss_fn: str, form: LossForm, metrics: LossMetrics, data: Mapping[int, Cells], logprobs: Reals
) -> Reals:
    """Compute the derivative of the loss by each log-probability, and count the terms.

    ``data`` are by their index in the call, which the EngineError names if a term is not finite.
    """
    cells = add_sequence_ratios(
        list(data.values()), form, list(split(logprobs, list(data.values())))
    )
    weights = _join([one.weights for one in cells], logprobs)
    counted = weights != 0
    inputs = {
        key: _join([one.inputs[key] for one in cells], logprobs)[counted] for key in cells[0].inputs
    }
    terms, slopes = LOSSES[loss_fn](np, logprobs[counted], inputs, metrics.options)
    terms = terms * weights[counted]
    if not np.isfinite(terms).all() or not np.isfinite(slopes).all():
        wrong = np.flatnonzero(counted)[np.argmin(np.isfinite(terms) & np.isfinite(slopes))]
        owners = np.repeat(list(data), [one.targets.size for one in cells])
        explanation = explain_infinite_loss(form, bool(np.isfinite(logprobs[counted]).all()))
        raise EngineError(f"data[{owners[wrong]}]: {explanation}")
    metrics.add(terms.astype(np.float64), logprobs[counted], weights[counted], inputs)
    found = np.zeros_like(logprobs)
    found[counted] = slopes * weights[counted]
    return found


def find_norm(tensors: Tensors) -> float:
    """Return the norm of all tensors together."""
    return math.sqrt(sum(float((part.astype(np.float64) ** 2).sum()) for part in tensors.values()))


def split(values: Reals, data: Sequence[Cells]) -> Iterator[Reals]:
    """Cut values of all cells into those of each datum, in the shape of its targets."""
    at = 0
    for cells in data:
        yield values[at : at + cells.targets.size].reshape(cells.shape)
        at += cells.targets.size


def _join(parts: Sequence[Float32], like: Reals) -> Reals:
    return np.concatenate([part.reshape(-1) for part in parts]).astype(like.dtype)


def _add(before: Tensors | None, gradient: Tensors) -> Tensors:
    return (
        gradient
        if before is None
        else {name: before[name] + part for name, part in gradient.items()}
    )


def zeros_like(tensors: Tensors) -> dict[str, Reals]:
    return {name: np.zeros_like(tensor) for name, tensor in tensors.items()}
