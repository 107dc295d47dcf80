"""One step of a loss with terms: all of them computed, put together, and reported."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait

import attrs
import numpy as np

from tinker._training import Evaluate, Evaluated, Logprobs, report
from tinker.custom_loss import CustomLossFn, LossWithGradients
from tinker.errors import LossTermError
from tinker.observing import LossTerm
from tinker.regularizers._term import Regularizer, TermResult, fail_term, norm_of, start_term, timeout_error
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

    def evaluate(self, data: list[Datum], logprobs: Logprobs) -> tuple[float, Logprobs, dict[str, float]]:
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

    def _compute(self, data: list[Datum], logprobs: Logprobs) -> tuple[Evaluated, list[Future[TermResult]]]:
        """Compute the base and all terms: those on other threads first, then base and inline terms, then the wait."""
        arguments = (data, logprobs, self.timeout_seconds)
        futures = {term.name: start_term(term, *arguments) for term in self.terms if term.mode != "inline"}
        base = self.evaluate_base(data, [part.copy() for part in logprobs])
        if not math.isfinite(base.loss):
            raise ValueError(f"the base loss is {base.loss}")
        futures |= {term.name: start_term(term, *arguments) for term in self.terms if term.mode == "inline"}
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
        found = {"value": result.value, "weight": weight, "contribution": weight * result.value, **result.metrics}
        if not result.depends:
            self._warn(term)
        elif self.track_grad_norms:
            found |= {"grad_norm": result.grad_norm, "grad_norm_weighted": weight * result.grad_norm}
        return {f"reg/{term.name}/{name}": value for name, value in found.items()}

    def _warn(self, term: Regularizer) -> None:
        if term.name not in self.counter.warned:
            self.counter.warned.add(term.name)
            logger.warning("the regularizer %r does not depend on the log-probabilities: it trains nothing", term.name)


def _check(what: str, loss: object, data: list[Datum]) -> None:
    check = getattr(loss, "check", None)
    if not callable(check):
        return
    try:
        check(data)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from error


def _result_of(term: Regularizer, outcome: Future[TermResult], timeout_seconds: float) -> TermResult:
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
