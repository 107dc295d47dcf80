"""The losses by their values: what a server answers must follow from the logprobs that it answers
with them.

So any model will do, and any precision: the same numbers go into the formula here as went into the
server's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinker.testing.conformance.context import CheckContext, TrainingFixture
from tinker.testing.conformance.outcome import optional
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.values import (
    DATA,
    Floats,
    are_alike,
    are_close,
    datum,
    distance,
    effect,
    logprobs_of,
)
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

#: How much likelier each token is made to look than when it was sampled: inside the usual clip
#: range, and beyond both ends.
RATIOS = np.array([1.05, 0.4, 1.9, 0.95, 1.5, 0.7, 1.0])
ADVANTAGES = np.array([1.0, -0.5, 2.0, 0.25, -1.0, 1.5, -2.0])
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
BETA = 0.3
_TOKENS = ((5, 6, 7, 8), (9, 10, 11))
_PARTS = (slice(0, 4), slice(4, 7))
_ABOUT = ("values of losses", "forward_backward", "ForwardBackwardOutput")
_GRADIENTS = ("training.seed", "training.clears", "losses.cross_entropy", "losses.places")
_SHIFTED = ("shifted logprobs", *_ABOUT[1:])


@check("forward_backward", core=True, basis=True)
def cross_entropy(context: CheckContext) -> None:
    """`cross_entropy` is minus the sum of the logprobs of the targets."""
    output = context.borrow().output(DATA)
    rows, found = [-logprobs_of(output)[part] for part in _PARTS], context.loss_of(output)
    wanted, means = float(np.concatenate(rows).sum()), [float(row.mean()) for row in rows]
    others = {
        "other sign": [-wanted],
        "mean loss": [wanted / 7, wanted / 2, sum(means), sum(means) / 2],
    }
    causes = [
        cause
        for cause, values in others.items()
        if any(are_close(found, value) for value in values)
    ]
    told = f"loss:sum is {found:g}; by the answered logprobs it is {wanted:g}"
    context.require(
        are_close(wanted, found), told, (causes or ["values of losses"])[0], *_ABOUT[1:]
    )


@check("forward_backward", basis=True)
def places(context: CheckContext) -> None:
    """The logprobs are in the order of the targets: with the weight of one token, the loss is minus
    its logprob.
    """
    context.need("losses.cross_entropy")
    output = context.borrow().output(_data(weights=np.eye(7)[1]))
    found, row = -context.loss_of(output), logprobs_of(output)[_PARTS[0]]
    is_other = not are_close(found, row[1]) and any(are_close(found, one) for one in row)
    context.require(
        not is_other,
        f"with the weight of token 1 alone the loss is {-found:g}, the logprobs are {row}",
        *_SHIFTED,
    )


@check("forward_backward")
def without_weights(context: CheckContext) -> None:
    """Without the optional `weights`, each token has weight 1."""
    data = [
        Datum(one.model_input, {"target_tokens": one.loss_fn_inputs["target_tokens"]})
        for one in DATA
    ]
    output = context.borrow().output(data)
    _compare(context, output, -logprobs_of(output, data).sum())


@check("forward_backward")
def weights(context: CheckContext) -> None:
    """`weights` scale the terms of `cross_entropy`; a token of weight 0 does not count."""
    scale = np.array([1.0, 0.0, 0.5, 2.0, 0.0, -1.0, 3.0])
    data = _data(weights=scale)
    output = context.borrow().output(data)
    _compare(context, output, -(scale * logprobs_of(output, data)).sum())


@check("forward_backward")
def many_targets(context: CheckContext) -> None:
    """`cross_entropy` accepts several targets at each position, each with its weight."""
    scale = np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]], np.float32)
    targets = TensorData.from_numpy(np.array([[6, 7], [7, 8], [5, 9]]))
    inputs = {"target_tokens": targets, "weights": TensorData.from_numpy(scale)}
    data = [Datum(datum((5, 6, 7)).model_input, inputs)]
    output = _attempt(context.borrow(), data, "cross_entropy", None)
    values = [
        fields["logprobs"].to_numpy().size
        for fields in output.loss_fn_outputs
        if "logprobs" in fields
    ]
    told = f"several targets at a place are not supported: 3 places of 2 have logprobs for {values}"
    context.require(values == [6], told, "", *_ABOUT[1:])
    _compare(context, output, -(scale.reshape(-1) * logprobs_of(output, data)).sum())


@check("forward_backward")
def importance_sampling(context: CheckContext) -> None:
    """`importance_sampling` is minus the sum of the ratios times the advantages."""
    output, ratios = _with_ratios(context, "importance_sampling")
    _compare(context, output, -(ratios * ADVANTAGES).sum())


@check("forward_backward", basis=True)
def ppo(context: CheckContext) -> None:
    """`ppo` takes the smaller of the unclipped and the clipped ratio, times the advantage."""
    output, ratios = _with_ratios(context, "ppo", CLIP)
    _compare(context, output, -np.minimum(ratios * ADVANTAGES, _clip(ratios) * ADVANTAGES).sum())


@check("forward_backward")
def cispo(context: CheckContext) -> None:
    """`cispo` multiplies logprobs and advantages by the clipped ratio."""
    output, ratios = _with_ratios(context, "cispo", CLIP)
    _compare(context, output, -(_clip(ratios) * ADVANTAGES * logprobs_of(output)).sum())


@check("forward_backward")
def dro(context: CheckContext) -> None:
    """`dro` is a policy gradient with a quadratic penalty of `beta` / 2 on the log-ratios."""
    output, ratios = _with_ratios(context, "dro", {"beta": BETA})
    _compare(
        context,
        output,
        -(logprobs_of(output) * ADVANTAGES - 0.5 * BETA * np.log(ratios) ** 2).sum(),
    )


@check("forward_backward")
def clipping(context: CheckContext) -> None:
    """Tokens that `ppo` clips have no gradient: a step after them alone changes nothing."""
    context.need("losses.ppo", "training.clears")
    fixture = context.create()
    fixture.learn()  # which uses up any gradient that the server has kept from another model
    before = fixture.logprobs()
    data = _policy_data(before, np.full(len(before), 3.0), np.ones(len(before)))
    _attempt(fixture, data, "ppo", CLIP)
    context.result(fixture.step())
    moved = distance(before, fixture.logprobs())
    context.require(
        moved <= 1e-3, f"a step after tokens that `ppo` clips moves the logprobs by {moved:g}"
    )


@check("forward_backward")
def policy_gradient(context: CheckContext) -> None:
    """At ratio 1 and advantage 1, `importance_sampling` has the gradient of `cross_entropy`."""
    context.need(*_GRADIENTS)
    before, one = context.measure(0, lambda fixture: fixture.learn())
    policy = context.create(1)
    data = _policy_data(policy.logprobs(), np.ones(len(before)), np.ones(len(before)))
    _attempt(policy, data, "importance_sampling", None)
    context.result(policy.step())
    other = policy.logprobs()
    same = are_alike(one, other, distance(before, one))
    told = (
        f"after one step of `importance_sampling` the logprobs are {distance(one, other):g} away "
        "from `cross_entropy`"
    )
    context.require(same, told)


@check("forward_backward", "optim_step")
def gradient_weights(context: CheckContext) -> None:
    """Weights scale the gradient of `cross_entropy`: with half the weights the step is half as
    long.
    """
    context.need(*_GRADIENTS)
    before, whole = context.measure(0, lambda fixture: fixture.learn())
    halved = _data(weights=np.full(7, 0.5))
    _, half = context.measure(1, lambda fixture: fixture.learn(halved))
    ratio = distance(before, half) / effect(before, whole)
    told = f"with half the weights the logprobs move {ratio:.2f} times as far, not half as far"
    context.require(0.35 < ratio < 0.7, told)


def _with_ratios(
    context: CheckContext, loss_fn: str, config: Mapping[str, float] | None = None
) -> tuple[ForwardBackwardOutput, Floats]:
    """Return the loss of tokens whose sampling logprobs give about ``RATIOS``, and the exact
    ratios.
    """
    context.need("losses.places")
    fixture = context.borrow()
    now = fixture.logprobs()
    data = _policy_data(now, RATIOS, ADVANTAGES)
    output = _attempt(fixture, data, loss_fn, config)
    sampled = np.concatenate([one.loss_fn_inputs["logprobs"].to_numpy() for one in data]).astype(
        np.float64
    )
    return output, np.exp(logprobs_of(output) - sampled)


def _policy_data(now: Floats, ratios: Floats, advantages: Floats) -> list[Datum]:
    return _data(logprobs=now - np.log(ratios), advantages=advantages)


def _data(**inputs: Floats) -> list[Datum]:
    """Return the two datums of ``_TOKENS``, each with its part of the inputs."""
    first, second = (
        {name: values.astype(np.float32)[part] for name, values in inputs.items()}
        for part in _PARTS
    )
    return [datum(_TOKENS[0], None, **first), datum(_TOKENS[1], None, **second)]


def _attempt(
    fixture: TrainingFixture, data: list[Datum], loss_fn: str, config: Mapping[str, float] | None
) -> ForwardBackwardOutput:
    """Return the result. Absent if the server does not know the loss, or not in this form."""
    with optional():
        return fixture.output(data, loss_fn, config)


def _clip(ratios: Floats) -> Floats:
    return np.clip(ratios, CLIP["clip_low_threshold"], CLIP["clip_high_threshold"])


def _compare(context: CheckContext, output: ForwardBackwardOutput, wanted: float) -> None:
    context.need("losses.cross_entropy", "losses.places")
    found, name = context.loss_of(output), context.check.partition(".")[2]
    context.require(
        are_close(wanted, found),
        f"`loss:sum` of `{name}` is {found:g}; by the answered logprobs it is {wanted:g}",
    )
