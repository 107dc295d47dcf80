"""A loss with terms as a custom loss, and the checks of its arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from tinker._checks import check_count, check_number
from tinker._training import evaluator, require_torch
from tinker.custom_loss import CustomLossFn, LossHandle, LossWithGradients
from tinker.regularizers._base_losses import make_named_loss
from tinker.regularizers._composition import Composition, StepCounter
from tinker.regularizers._term import Regularizer


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

        Without it the loss counts how often it was evaluated. Use it where that is not the step you mean, such as several
        batches before an ``optim_step``.

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
    """Add weighted terms to a loss: ``base + sum of weight · term``, for ``forward_backward_custom``.

    The base and each term are computed once per step, on all its datums, and differentiated separately; the run trains on the
    weighted sum of the gradients. Gradient norms therefore cost nothing extra. If a term fails, returns something else, or
    returns a value or a gradient that is not finite, the step fails with a :class:`tinker.errors.LossTermError` that names it.

    Args:
        base: A custom loss, in torch or by ``tinker.with_gradients``, or the name of a built-in loss, computed here by its
            documented formula: ``cross_entropy``, ``importance_sampling``, ``ppo``, ``cispo``, ``dro``.
        terms: The terms, with different names.
        track_grad_norms: Whether to report the L2 norms of the gradients by the log-probabilities.
        timeout_seconds: How long to wait for terms in threads and coroutines once the others are computed. A coroutine is then
            cancelled; a thread cannot be, and its result is dropped. Inline terms have no limit.
        loss_fn_config: The options of a base given by its name; missing options have the defaults of the local server.
        first_step: The first step of the schedules, for a run that is continued.

    Returns:
        The loss. It reports ``base/loss``, ``reg/total``, and for each term ``reg/<name>/value``, ``weight``, ``contribution``
        and the metrics of the term; with ``track_grad_norms`` ``base/grad_norm``, ``reg/<name>/grad_norm``,
        ``grad_norm_weighted`` and ``total_grad_norm``. Metrics of a base function keep their names.

    Raises:
        TypeError: An argument is of another type.
        ValueError: Two terms have the same name, or an argument is out of range or unknown.
        ImportError: The base or a term needs torch, which is not installed.

    >>> import tinker
    >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client("tinker/toy", rank=4)
    >>> inputs = {"target_tokens": [2, 3], "weights": [1.0, 1.0]}
    >>> datum = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 2]), loss_fn_inputs=inputs)
    >>> @tinker.with_gradients
    ... def doubt(data, logprobs):
    ...     return sum((part**2).sum() for part in logprobs), [2 * part for part in logprobs]
    >>> loss = regularized("cross_entropy", [Regularizer(doubt, weight=0.01)], track_grad_norms=True)
    >>> metrics = training.forward_backward_custom([datum], loss).result(timeout=30).metrics
    >>> abs(metrics["base/loss"] + 0.01 * metrics["reg/doubt/value"] - metrics["loss:sum"]) < 1e-5
    True
    """
    if isinstance(base, LossHandle):
        raise TypeError("base must be a function: a LossHandle may be computed by the server, and cannot be added to here")
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
    return RegularizedLoss(fn=composition.evaluate, check=composition.check, composition=composition)


def _check_terms(terms: Iterable[Regularizer]) -> tuple[Regularizer, ...]:
    found = tuple(terms)
    for index, term in enumerate(found):
        if not isinstance(term, Regularizer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"terms[{index}] must be a Regularizer, got {type(term).__name__}")
        if not isinstance(term.fn, LossWithGradients):
            require_torch()
    if repeated := [name for name, count in Counter(term.name for term in found).items() if count > 1]:
        raise ValueError(f"terms need different names; several are called {', '.join(map(repr, repeated))}")
    return found
