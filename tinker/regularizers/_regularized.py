"""A loss with terms as a custom loss: the checks of its arguments, and one step of it, put together
and reported.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait

import attrs
import numpy as np

from tinker._checks import check_count, check_number
from tinker._training import Evaluate, Evaluated, Logprobs, evaluator, report, require_torch
from tinker.custom_loss import CustomLossFn, LossHandle, LossWithGradients
from tinker.errors import LossTermError
from tinker.observing import LossTerm
from tinker.regularizers._base_losses import make_named_loss
from tinker.regularizers._term import (
    Regularizer,
    TermResult,
    fail_term,
    norm_of,
    start_term,
    timeout_error,
)
from tinker.types.datum import Datum

logger = logging.getLogger("tinker.regularizers")


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
