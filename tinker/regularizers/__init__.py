"""Add weighted terms to a loss: penalties on the log-probabilities, a distance from a reference, or
functions of your own.

    from tinker.regularizers import KL, Regularizer, regularized

    terms = [Regularizer(KL("ref_logprobs"), weight=0.1)]
    loss = regularized("importance_sampling", terms)
    output = training.forward_backward_custom(data, loss).result()
    output.metrics["reg/kl/value"]

Each term sees all datums of the step. A term is called as a custom loss is,
``term(data, logprobs) -> (value, metrics)`` with torch tensors, so it can be used in a loss of your
own as well; the terms of this module need torch, those made by ``tinker.with_gradients`` do not.

A datum whose ``target_tokens`` have the shape ``[N]`` has one log-probability for each token. With
the shape ``[N, K]``, each row of its log-probabilities is a distribution over K candidates, or the
part of one that was asked for.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker._basics.checks import check_count, check_field, check_number
from tinker._basics.events import LossTerm
from tinker._training.losses import (
    Evaluate,
    Evaluated,
    Logprobs,
    check_evaluation,
    describe_value,
    evaluator,
    is_tuple,
    make_leaves,
    read_gradients,
    read_metrics,
    read_number,
    report,
    require_torch,
)
from tinker._validate import LOSS_INPUTS
from tinker.custom_loss import CustomLossFn, Gradients, LossHandle, LossWithGradients, Tensor
from tinker.errors import LossTermError
from tinker.regularizers._terms import (
    JS,
    KL,
    L1,
    L2,
    Consistency,
    ElasticNet,
    Entropy,
    GradientPenalty,
    LossInput,
    Orthogonality,
    Reduction,
    Reference,
    Target,
    check_input,
)
from tinker.types.model_input import Datum
from tinker.types.tensor_data import is_torch
from tinker_records import suggest

if TYPE_CHECKING:
    import torch

Doubles: TypeAlias = NDArray[np.float64]
LossInputs: TypeAlias = Mapping[str, Doubles]
Options: TypeAlias = Mapping[str, float]
Formula: TypeAlias = Callable[[Doubles, LossInputs, Options], tuple[Doubles, Doubles]]
"""From the log-probabilities: the loss of each token, and its derivative."""

_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_OPTIONS: Mapping[str, Options] = {"ppo": _CLIP, "cispo": _CLIP, "dro": {"beta": 0.05}}
_MASKS = frozenset({"weights", "mask"})


def _ratio(logprobs: Doubles, inputs: LossInputs) -> Doubles:
    with np.errstate(over="ignore"):
        return np.exp(logprobs - inputs["logprobs"])


def _clip(ratios: Doubles, options: Options) -> Doubles:
    return np.clip(ratios, options["clip_low_threshold"], options["clip_high_threshold"])


def _cross_entropy(
    logprobs: Doubles, inputs: LossInputs, options: Options
) -> tuple[Doubles, Doubles]:
    return -logprobs, np.full_like(logprobs, -1.0)


def _importance_sampling(
    logprobs: Doubles, inputs: LossInputs, options: Options
) -> tuple[Doubles, Doubles]:
    loss = -_ratio(logprobs, inputs) * inputs["advantages"]
    return loss, loss


def _ppo(logprobs: Doubles, inputs: LossInputs, options: Options) -> tuple[Doubles, Doubles]:
    ratios, advantages = _ratio(logprobs, inputs), inputs["advantages"]
    free, held = ratios * advantages, _clip(ratios, options) * advantages
    return -np.minimum(free, held), np.where(free <= held, -free, 0.0)


def _cispo(logprobs: Doubles, inputs: LossInputs, options: Options) -> tuple[Doubles, Doubles]:
    slope = -_clip(_ratio(logprobs, inputs), options) * inputs["advantages"]
    return slope * logprobs, slope


def _dro(logprobs: Doubles, inputs: LossInputs, options: Options) -> tuple[Doubles, Doubles]:
    drift, advantages = logprobs - inputs["logprobs"], inputs["advantages"]
    return options["beta"] / 2 * drift**2 - logprobs * advantages, options[
        "beta"
    ] * drift - advantages


FORMULAS: Mapping[str, Formula] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
}


@attrs.frozen
class NamedLoss:
    """One of these losses with its options: a sum over the tokens of all datums, each times its
    weight.
    """

    name: str
    options: Options

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for a datum that lacks an input, or has one that the formula does not
        have.
        """
        required, known = LOSS_INPUTS[self.name]
        for index, datum in enumerate(data):
            given = datum.loss_fn_inputs.keys()
            if unsupported := sorted((known - required - _MASKS) & given):
                raise ValueError(
                    f"data[{index}].loss_fn_inputs has {unsupported[0]!r}, "
                    f"which {self.name} does not take"
                )
            for name in sorted(required | (known & _MASKS & given)):
                check_input(index, datum, name)

    def evaluate(self, data: list[Datum], logprobs: Logprobs) -> tuple[float, Gradients]:
        """Return the loss and its gradient."""
        total, gradients = 0.0, list[Doubles]()
        for datum, part in zip(data, logprobs, strict=True):
            weights = self._weights(datum, part.shape)
            counted = weights != 0  # whatever else stands in the other tokens has no effect
            inputs = {
                name: self._read(datum, name)[counted]
                for name in LOSS_INPUTS[self.name][0] - {"target_tokens"}
            }
            losses, slopes = FORMULAS[self.name](
                part[counted].astype(np.float64), inputs, self.options
            )
            total += float((weights[counted] * losses).sum())
            gradient = np.zeros(part.shape)
            gradient[counted] = weights[counted] * slopes
            gradients.append(gradient)
        return total, gradients

    def _weights(self, datum: Datum, shape: tuple[int, ...]) -> Doubles:
        weights = np.ones(shape)
        for name in sorted(LOSS_INPUTS[self.name][1] & _MASKS & datum.loss_fn_inputs.keys()):
            weights = weights * self._read(datum, name)
        return weights

    def _read(self, datum: Datum, name: str) -> Doubles:
        return datum.loss_fn_inputs[name].to_numpy().astype(np.float64)


def make_named_loss(name: str, config: Mapping[str, float] | None) -> LossWithGradients:
    """Return the loss of that name. ValueError for an unknown name, option or value."""
    if name not in FORMULAS:
        raise ValueError(
            f"base must be a loss function or one of {', '.join(FORMULAS)}; got {name!r}"
        )
    options = dict(_OPTIONS.get(name, {}))
    for key, value in (config or {}).items():
        if key not in options:
            raise ValueError(
                f"unknown loss_fn_config key {key!r}; {suggest(f'{name} takes', key, options)}"
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))  # pyright: ignore[reportUnnecessaryIsInstance]
            or not math.isfinite(value)
        ):
            raise ValueError(f"loss_fn_config[{key!r}] must be a finite number, got {value!r}")
        options[key] = float(value)
    if (
        options.keys() == _CLIP.keys()
        and options["clip_low_threshold"] > options["clip_high_threshold"]
    ):
        raise ValueError("loss_fn_config: clip_low_threshold is above clip_high_threshold")
    loss = NamedLoss(name, options)
    return LossWithGradients(loss.evaluate, loss.check)


_TOTAL = "reg/total"


@attrs.frozen(kw_only=True)
class TermBreakdown:
    """What one step reported for one term.

    Attributes:
        value: The value without the weight.
        weight: The weight.
        contribution: The weight times the value.
        grad_norm: The L2 norm of the gradient of the value by the log-probabilities; None when it
            was not tracked, or the term does not depend on them.
        grad_norm_weighted: That times the weight.
        metrics: The metrics of the term itself.
    """

    value: float
    weight: float
    contribution: float
    grad_norm: float | None = None
    grad_norm_weighted: float | None = None
    metrics: Mapping[str, float] = attrs.field(factory=lambda: dict[str, float]())


@attrs.frozen(kw_only=True)
class LossBreakdown:
    """What one step reported for a loss made by :func:`regularized`.

    Attributes:
        total: The loss with all terms.
        base: The loss without them.
        added: What the terms add, each with its weight.
        terms: The terms by name, in their order.
        base_grad_norm: The L2 norm of the gradient of the base by the log-probabilities; None when
            it was not tracked.
        total_grad_norm: That of the whole.
    """

    total: float
    base: float
    added: float
    terms: Mapping[str, TermBreakdown]
    base_grad_norm: float | None = None
    total_grad_norm: float | None = None

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float]) -> LossBreakdown:
        """Sort the metrics of a step.

        Args:
            metrics: The metrics of a ``ForwardBackwardOutput``.

        Returns:
            The same numbers by term.

        Raises:
            ValueError: They are not those of a loss made by :func:`regularized`.
        """
        if _TOTAL not in metrics or "base/loss" not in metrics:
            raise ValueError("these are not the metrics of a loss made by regularized()")
        found: dict[str, dict[str, float]] = {}
        for key, value in metrics.items():
            if key.startswith("reg/") and key != _TOTAL:
                _, name, metric = key.split("/", 2)
                found.setdefault(name, {})[metric] = value
        return cls(
            total=metrics["base/loss"] + metrics[_TOTAL],
            base=metrics["base/loss"],
            added=metrics[_TOTAL],
            terms={name: _read_term(fields) for name, fields in found.items()},
            base_grad_norm=metrics.get("base/grad_norm"),
            total_grad_norm=metrics.get("total_grad_norm"),
        )


def _read_term(fields: Mapping[str, float]) -> TermBreakdown:
    ours = {field.name for field in attrs.fields(TermBreakdown)} - {"metrics"}
    known = {name: value for name, value in fields.items() if name in ours}
    return TermBreakdown(
        **known, metrics={name: value for name, value in fields.items() if name not in ours}
    )


WeightSchedule: TypeAlias = Callable[[int], float]
"""From the step of the loss, 0 at first, to the weight of a term."""


def check_weight(what: str, value: object) -> float:
    """Return a weight as a number; TypeError or ValueError unless it is finite and not negative."""
    if isinstance(value, bool) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{what} must be a number, got {value!r}")
    found = float(value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportUnknownArgumentType]
    if not math.isfinite(found) or found < 0:
        raise ValueError(f"{what} must be finite and not negative, got {value!r}")
    return found


_WEIGHT, _STEPS = check_field(check_weight), check_field(check_count)


@attrs.frozen
class ConstantWeight:
    """Constant weight; the same as passing the number.

    Attributes:
        weight: The weight, 0 or more.
    """

    weight: float = attrs.field(validator=_WEIGHT)

    def __call__(self, step: int) -> float:
        """Return the weight."""
        return self.weight


@attrs.frozen
class LinearWeight:
    """Weight that moves linearly from one value to another, and stays there.

    Attributes:
        start: The weight at step 0.
        end: The weight from step ``steps`` on.
        steps: The number of steps from one to the other, 1 or more.

    >>> [LinearWeight(1.0, 0.0, steps=4)(step) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """

    start: float = attrs.field(validator=_WEIGHT)
    end: float = attrs.field(validator=_WEIGHT)
    steps: int = attrs.field(validator=_STEPS)

    def __call__(self, step: int) -> float:
        """Return the weight at a step."""
        share = min(step / self.steps, 1.0)
        return self.start * (1.0 - share) + self.end * share


@attrs.frozen
class WarmUpWeight:
    """Weight that rises linearly from 0, and stays there.

    Attributes:
        weight: The weight from step ``steps`` on.
        steps: The number of steps until then, 1 or more.

    >>> [WarmUpWeight(0.5, steps=10)(step) for step in (0, 5, 10, 11)]
    [0.0, 0.25, 0.5, 0.5]
    """

    weight: float = attrs.field(validator=_WEIGHT)
    steps: int = attrs.field(validator=_STEPS)

    def __call__(self, step: int) -> float:
        """Return the weight at a step."""
        return self.weight * min(step / self.steps, 1.0)


@attrs.frozen
class DecayWeight:
    """Weight that is halved repeatedly, down to a floor.

    Attributes:
        weight: The weight at step 0.
        half_life_steps: The number of steps in which what is above the floor halves, 1 or more.
        floor: The weight that is approached.

    >>> [DecayWeight(1.0, half_life_steps=10)(step) for step in (0, 10, 20)]
    [1.0, 0.5, 0.25]
    """

    weight: float = attrs.field(validator=_WEIGHT)
    half_life_steps: int = attrs.field(validator=_STEPS)
    floor: float = attrs.field(default=0.0, validator=_WEIGHT)

    def __call__(self, step: int) -> float:
        """Return the weight at a step."""
        return self.floor + (self.weight - self.floor) * math.pow(0.5, step / self.half_life_steps)


# pyright: reportUnknownMemberType=false
# (torch is typed in part only)


AsyncTermFn: TypeAlias = Callable[
    [list[Datum], list[Tensor]], Awaitable[tuple[Tensor, dict[str, float]]]
]
"""A coroutine function that returns a loss and its metrics."""
TermFn: TypeAlias = CustomLossFn | LossWithGradients | AsyncTermFn
"""A custom loss, in torch or by ``with_gradients``, or a coroutine function in torch."""

TermMode: TypeAlias = Literal["inline", "thread", "async"]
"""Where a term is computed: on the thread of the loss, on a thread of its own, or
as a coroutine.
"""
MODES = ("inline", "thread", "async")
RESERVED_METRICS = frozenset({"value", "weight", "contribution", "grad_norm", "grad_norm_weighted"})


@attrs.frozen(init=False)
class Regularizer:
    """One weighted term of a loss made by :func:`regularized`.

    Attributes:
        fn: The function of the term: one of this module's, or your own custom loss, in torch or by
            ``tinker.with_gradients``. ``check(data)``, if it has such a method, is called before
            anything is sent and may raise.
        weight: The factor of its value: a number of 0 or more, or a function of the step, such as
            :class:`WarmUpWeight`.
        name: The name in metrics and errors, without ``/``; by default that of the function: ``kl``
            for ``KL``.
        mode: How the function runs: ``inline``, on the thread of the loss, in the order of the
            terms; ``thread``, on its own thread, in parallel to the others; ``async`` runs a
            coroutine function in its own event loop.

    >>> Regularizer(lambda data, logprobs: (logprobs[0].sum(), {}), 0.1, "sum").name
    'sum'
    """

    fn: TermFn
    weight: float | WeightSchedule
    name: str
    mode: TermMode

    def __init__(
        self,
        fn: TermFn,
        weight: float | WeightSchedule = 1.0,
        name: str | None = None,
        mode: TermMode = "inline",
    ) -> None:
        _check_function(fn, mode)
        if not callable(weight):
            check_weight("weight", weight)
        self.__attrs_init__(fn, weight, _check_name(_name_of(fn) if name is None else name), mode)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]

    def weight_at(self, step: int) -> float:
        """Return the weight at a step.

        Args:
            step: The step of the loss, from 0.

        Returns:
            The weight, finite and not negative.

        Raises:
            TypeError: The schedule returned no number.
            ValueError: The schedule returned a number that is negative or not finite.
        """
        return check_weight("weight", self.weight(step) if callable(self.weight) else self.weight)


def _check_function(fn: object, mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
    function = fn.fn if isinstance(fn, LossWithGradients) else fn
    if isinstance(fn, (LossHandle, type)) or not callable(function):
        raise TypeError(
            "fn must be a function (data, logprobs), or one wrapped "
            f"by tinker.with_gradients; got {fn!r}"
        )
    if mode != "async" and inspect.iscoroutinefunction(function):
        raise ValueError("fn is a coroutine function; give it mode='async'")


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {name!r}")
    if not name or "/" in name or name.startswith("<"):
        raise ValueError(f"a term needs a name, without '/', for its metrics; got {name!r}")
    return name


def _name_of(fn: TermFn) -> str:
    function = fn.fn if isinstance(fn, LossWithGradients) else fn
    name = getattr(function, "__name__", None)
    return (
        name
        if isinstance(name, str)
        else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(function).__name__).lower()
    )


# ----------------------------------------------------------------------------------------- one step


@attrs.frozen
class TermResult:
    """What the function of a term gave, and how long it took; ``depends`` says whether on the
    log-probabilities.
    """

    value: float
    gradients: Logprobs
    metrics: dict[str, float]
    depends: bool
    seconds: float

    @property
    def grad_norm(self) -> float:
        """Return the L2 norm of the gradient over all log-probabilities."""
        return norm_of(self.gradients)


def norm_of(gradients: Logprobs) -> float:
    """Return the L2 norm of all arrays together."""
    return float(np.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in gradients)))


def compute_term(
    term: Regularizer, data: list[Datum], logprobs: Logprobs, timeout_seconds: float
) -> TermResult:
    """Call the function of a term with log-probabilities of its own. LossTermError, which names the
    term, for any failure.
    """
    started = time.monotonic()
    own = [part.copy() for part in logprobs]
    try:
        evaluated, depends = _evaluate(term, data, own, timeout_seconds)
        if not np.isfinite(evaluated.loss):
            raise ValueError(f"its value is {evaluated.loss}")
        if taken := sorted(RESERVED_METRICS & evaluated.metrics.keys()):
            raise ValueError(f"its metric {taken[0]!r} has the name of one that every term has")
    except BaseException as error:
        raise fail_term(term, error) from error
    seconds = time.monotonic() - started
    return TermResult(
        evaluated.loss, evaluated.gradients, dict(evaluated.metrics), depends, seconds
    )


def fail_term(term: Regularizer, error: BaseException) -> LossTermError:
    """Return the error that names the term, and is raised from the term's own."""
    said = str(error) or "without a word"
    return LossTermError(
        f"the regularizer {term.name!r} failed: {type(error).__name__}: {said}", term.name
    )


def _evaluate(
    term: Regularizer, data: list[Datum], logprobs: Logprobs, timeout_seconds: float
) -> tuple[Evaluated, bool]:
    if isinstance(term.fn, LossWithGradients):
        return read_gradients(
            _call(term, term.fn.fn, data, logprobs, timeout_seconds), logprobs
        ), True
    import torch

    leaves = make_leaves(logprobs)
    with torch.enable_grad():
        return _differentiate(_call(term, term.fn, data, leaves, timeout_seconds), leaves, logprobs)


def _call(
    term: Regularizer,
    function: Callable[..., Any],
    data: list[Datum],
    logprobs: Any,
    timeout_seconds: float,
) -> object:
    if term.mode != "async":
        return function(data, logprobs)
    return asyncio.run(_await_in_time(function(data, logprobs), timeout_seconds))


async def _await_in_time(awaitable: object, timeout_seconds: float) -> object:
    if not inspect.isawaitable(awaitable):
        raise TypeError("mode='async' needs a coroutine function")
    try:
        return await asyncio.wait_for(awaitable, timeout_seconds)
    except TimeoutError as error:
        raise error if str(error) else timeout_error(timeout_seconds) from None


def timeout_error(timeout_seconds: float) -> TimeoutError:
    """Return the error of a term that took too long."""
    return TimeoutError(f"no result within {timeout_seconds:g} s")


def _differentiate(
    returned: object, leaves: list[Tensor], logprobs: Logprobs
) -> tuple[Evaluated, bool]:
    """Read what a function in torch returned, and whether it depends on the log-probabilities; not
    all datums need matter.
    """
    import torch

    if not is_tuple(returned, 2):
        raise ValueError("it must return (value, metrics)")
    value, metrics = returned[0], read_metrics(returned[1])
    if not is_torch(value) or value.numel() != 1:
        if isinstance(value, (int, float)):
            return Evaluated(
                float(value), [np.zeros_like(part) for part in logprobs], metrics
            ), False
        raise ValueError(
            f"it must return its value as a tensor with one value, got {describe_value(value)}"
        )
    found: list[torch.Tensor | None] = [None] * len(leaves)
    if value.requires_grad:
        found = list(torch.autograd.grad(value.sum(), leaves, allow_unused=True))
    gradients = [
        np.zeros_like(part) if one is None else one.detach().numpy()
        for one, part in zip(found, logprobs, strict=True)
    ]
    depends = any(one is not None for one in found)
    return check_evaluation(
        Evaluated(read_number("its value", value), gradients, metrics), logprobs
    ), depends


def start_term(
    term: Regularizer, data: list[Datum], logprobs: Logprobs, timeout_seconds: float
) -> Future[TermResult]:
    """Compute a term: inline at once, others on a thread of their own, which does not keep the
    interpreter from ending.
    """
    future: Future[TermResult] = Future()

    def settle() -> None:
        try:
            future.set_result(compute_term(term, data, logprobs, timeout_seconds))
        except BaseException as error:  # noqa: BLE001  (whoever waits gets it)
            future.set_exception(error)

    if term.mode == "inline":
        settle()
    else:
        threading.Thread(target=settle, name=f"tinker-term-{term.name}", daemon=True).start()
    return future


logger: logging.Logger = logging.getLogger("tinker.regularizers")


class StepCounter:
    """The steps of a loss: one for each time that it was evaluated without a failure."""

    def __init__(self, first: int) -> None:
        self._lock = threading.Lock()
        self.step: int = first
        self.warned: set[str] = set()

    def advance(self) -> None:
        """Continue to the next step."""
        with self._lock:
            self.step += 1


@attrs.frozen(kw_only=True)
class Composition:
    """The parts of one loss. ``step`` None counts, a number stays."""

    base: LossWithGradients | CustomLossFn
    evaluate_base: Evaluate
    terms: tuple[Regularizer, ...]
    track_grad_norms: bool
    timeout_seconds: float
    counter: StepCounter
    step: int | None = None

    def check(self, data: list[Datum]) -> None:
        """Let the base and every term look at the data; what they raise names the term."""
        _check("base", self.base, data)
        for term in self.terms:
            _check(f"regularizer {term.name!r}", term.fn, data)

    def evaluate(
        self, data: list[Datum], logprobs: Logprobs
    ) -> tuple[float, Logprobs, dict[str, float]]:
        """Compute everything once: the loss, its gradient and the metrics."""
        step = self.counter.step if self.step is None else self.step
        base, outcomes = self._compute(data, logprobs)
        results: list[tuple[Regularizer, float, TermResult]] = []
        failed: LossTermError | None = None
        for term, outcome in zip(self.terms, outcomes, strict=True):
            try:
                result = _result_of(term, outcome, self.timeout_seconds)
                weight = _weigh(term, step)
            except LossTermError as error:
                failed = failed or error
                report(_event(term, step, error=error))
            else:
                results.append((term, weight, result))
                report(_event(term, step, weight, result))
        if failed is not None:
            raise failed
        if self.step is None:
            self.counter.advance()
        return self._compose(base, results)

    def _compute(
        self, data: list[Datum], logprobs: Logprobs
    ) -> tuple[Evaluated, list[Future[TermResult]]]:
        """Compute the base and all terms: those on other threads first, then base and inline terms,
        then the wait.
        """
        arguments = (data, logprobs, self.timeout_seconds)
        futures = {
            term.name: start_term(term, *arguments) for term in self.terms if term.mode != "inline"
        }
        base = self.evaluate_base(data, [part.copy() for part in logprobs])
        if not math.isfinite(base.loss):
            raise ValueError(f"the base loss is {base.loss}")
        futures |= {
            term.name: start_term(term, *arguments) for term in self.terms if term.mode == "inline"
        }
        wait(futures.values(), timeout=self.timeout_seconds)
        return base, [futures[term.name] for term in self.terms]

    def _compose(
        self, base: Evaluated, results: Sequence[tuple[Regularizer, float, TermResult]]
    ) -> tuple[float, Logprobs, dict[str, float]]:
        gradients = [part.astype(np.float64) for part in base.gradients]
        added = 0.0
        metrics = {**base.metrics, "base/loss": base.loss}
        if self.track_grad_norms:
            metrics["base/grad_norm"] = norm_of(base.gradients)
        for term, weight, result in results:
            added += weight * result.value
            for total, part in zip(gradients, result.gradients, strict=True):
                total += weight * part
            metrics |= self._metrics(term, weight, result)
        found = [part.astype(np.float32) for part in gradients]
        metrics["reg/total"] = added
        if self.track_grad_norms:
            metrics["total_grad_norm"] = norm_of(found)
        return base.loss + added, found, metrics

    def _metrics(self, term: Regularizer, weight: float, result: TermResult) -> dict[str, float]:
        found = {
            "value": result.value,
            "weight": weight,
            "contribution": weight * result.value,
            **result.metrics,
        }
        if not result.depends:
            self._warn(term)
        elif self.track_grad_norms:
            found |= {
                "grad_norm": result.grad_norm,
                "grad_norm_weighted": weight * result.grad_norm,
            }
        return {f"reg/{term.name}/{name}": value for name, value in found.items()}

    def _warn(self, term: Regularizer) -> None:
        if term.name not in self.counter.warned:
            self.counter.warned.add(term.name)
            logger.warning(
                "the regularizer %r does not depend on the log-probabilities: it trains nothing",
                term.name,
            )


def _check(what: str, loss: object, data: list[Datum]) -> None:
    check = getattr(loss, "check", None)
    if not callable(check):
        return
    try:
        check(data)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from error


def _result_of(
    term: Regularizer, outcome: Future[TermResult], timeout_seconds: float
) -> TermResult:
    if not outcome.done():
        error = timeout_error(timeout_seconds)
        raise fail_term(term, error) from error
    return outcome.result()


def _weigh(term: Regularizer, step: int) -> float:
    try:
        return term.weight_at(step)
    except Exception as error:
        raise fail_term(term, error) from error


def _event(
    term: Regularizer,
    step: int,
    weight: float | None = None,
    result: TermResult | None = None,
    error: LossTermError | None = None,
) -> LossTerm:
    return LossTerm(
        operation="forward_backward_custom",
        name=term.name,
        step=step,
        weight=weight,
        value=None if result is None else result.value,
        contribution=None if result is None or weight is None else weight * result.value,
        grad_norm=result.grad_norm if result is not None and result.depends else None,
        seconds=None if result is None else result.seconds,
        error=error,
    )


@attrs.frozen(kw_only=True)
class RegularizedLoss(LossWithGradients):
    """A loss with its terms, for ``forward_backward_custom``; made by :func:`regularized`.

    Attributes:
        fn: What computes it.
        check: What looks at the data before anything is sent.
        composition: Its parts.
    """

    composition: Composition = attrs.field(repr=False)

    @property
    def terms(self) -> tuple[Regularizer, ...]:
        """Return the terms, in their order."""
        return self.composition.terms

    def at_step(self, step: int) -> RegularizedLoss:
        """Return the same loss, fixed at a step of its schedules.

        Without it the loss counts how often it was evaluated. Use it where that is not the step you
        mean, such as several batches before an ``optim_step``.

        Args:
            step: The step, 0 or more.

        Returns:
            A loss that does not count.

        Raises:
            ValueError: The step is negative.
        """
        check_count("step", step, least=0)
        return _wrap(attrs.evolve(self.composition, step=step))


def regularized(
    base: CustomLossFn | LossWithGradients | str,
    terms: Iterable[Regularizer],
    *,
    track_grad_norms: bool = False,
    timeout_seconds: float = 30.0,
    loss_fn_config: Mapping[str, float] | None = None,
    first_step: int = 0,
) -> RegularizedLoss:
    """Add weighted terms to a loss: ``base + sum of weight · term``, for
    ``forward_backward_custom``.

    The base and each term are computed once per step, on all its datums, and differentiated
    separately; the run trains on the weighted sum of the gradients. Gradient norms therefore cost
    nothing extra. If a term fails, returns something else, or returns a value or a gradient that is
    not finite, the step fails with a :class:`tinker.errors.LossTermError` that names it.

    Args:
        base: A custom loss, in torch or by ``tinker.with_gradients``, or the name of a built-in
            loss, computed here by its documented formula: ``cross_entropy``,
            ``importance_sampling``, ``ppo``, ``cispo``, ``dro``.
        terms: The terms, with different names.
        track_grad_norms: Whether to report the L2 norms of the gradients by the log-probabilities.
        timeout_seconds: How long to wait for terms in threads and coroutines once the others are
            computed. A coroutine is then cancelled; a thread cannot be, and its result is dropped.
            Inline terms have no limit.
        loss_fn_config: The options of a base given by its name; missing options have the defaults
            of the local server.
        first_step: The first step of the schedules, for a run that is continued.

    Returns:
        The loss. It reports ``base/loss``, ``reg/total``, and for each term ``reg/<name>/value``,
        ``weight``, ``contribution`` and the metrics of the term; with ``track_grad_norms``
        ``base/grad_norm``, ``reg/<name>/grad_norm``, ``grad_norm_weighted`` and
        ``total_grad_norm``. Metrics of a base function keep their names.

    Raises:
        TypeError: An argument is of another type.
        ValueError: Two terms have the same name, or an argument is out of range or unknown.
        ImportError: The base or a term needs torch, which is not installed.

    >>> import tinker
    >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client(
    ...     "tinker/toy", rank=4
    ... )
    >>> inputs = {"target_tokens": [2, 3], "weights": [1.0, 1.0]}
    >>> datum = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 2]), loss_fn_inputs=inputs)
    >>> @tinker.with_gradients
    ... def doubt(data, logprobs):
    ...     return sum((part**2).sum() for part in logprobs), [2 * part for part in logprobs]
    >>> loss = regularized(
    ...     "cross_entropy", [Regularizer(doubt, weight=0.01)], track_grad_norms=True
    ... )
    >>> metrics = training.forward_backward_custom([datum], loss).result(timeout=30).metrics
    >>> abs(metrics["base/loss"] + 0.01 * metrics["reg/doubt/value"] - metrics["loss:sum"]) < 1e-5
    True
    """
    if isinstance(base, LossHandle):
        raise TypeError(
            "base must be a function: a LossHandle may be computed by the server, "
            "and cannot be added to here"
        )
    if loss_fn_config is not None and not isinstance(base, str):
        raise ValueError("loss_fn_config goes with a base that is the name of a loss")
    check_number("timeout_seconds", timeout_seconds, positive=True)
    check_count("first_step", first_step, least=0)
    checked = make_named_loss(base, loss_fn_config) if isinstance(base, str) else base
    composition = Composition(
        base=checked,
        evaluate_base=evaluator(checked),
        terms=_check_terms(terms),
        track_grad_norms=track_grad_norms,
        timeout_seconds=float(timeout_seconds),
        counter=StepCounter(first_step),
    )
    return _wrap(composition)


def _wrap(composition: Composition) -> RegularizedLoss:
    return RegularizedLoss(
        fn=composition.evaluate, check=composition.check, composition=composition
    )


def _check_terms(terms: Iterable[Regularizer]) -> tuple[Regularizer, ...]:
    found = tuple(terms)
    for index, term in enumerate(found):
        if not isinstance(term, Regularizer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"terms[{index}] must be a Regularizer, got {type(term).__name__}")
        if not isinstance(term.fn, LossWithGradients):
            require_torch()
    if repeated := [
        name for name, count in Counter(term.name for term in found).items() if count > 1
    ]:
        raise ValueError(
            f"terms need different names; several are called {', '.join(map(repr, repeated))}"
        )
    return found


__all__ = [
    "AsyncTermFn",
    "Consistency",
    "ConstantWeight",
    "DecayWeight",
    "ElasticNet",
    "Entropy",
    "GradientPenalty",
    "JS",
    "KL",
    "L1",
    "L2",
    "LinearWeight",
    "LossBreakdown",
    "LossInput",
    "Orthogonality",
    "Reduction",
    "Reference",
    "RegularizedLoss",
    "Regularizer",
    "Target",
    "TermBreakdown",
    "TermFn",
    "TermMode",
    "WarmUpWeight",
    "WeightSchedule",
    "regularized",
]
