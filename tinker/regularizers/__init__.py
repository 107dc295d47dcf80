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

from tinker.regularizers._breakdown import LossBreakdown, TermBreakdown
from tinker.regularizers._cells import LossInput, Reduction, Reference
from tinker.regularizers._regularized import RegularizedLoss, regularized
from tinker.regularizers._schedules import (
    ConstantWeight,
    DecayWeight,
    LinearWeight,
    WarmUpWeight,
    WeightSchedule,
)
from tinker.regularizers._term import AsyncTermFn, Regularizer, TermFn, TermMode
from tinker.regularizers._terms import (
    JS,
    KL,
    L1,
    L2,
    Consistency,
    ElasticNet,
    Entropy,
    GradientPenalty,
    Orthogonality,
    Target,
)

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
