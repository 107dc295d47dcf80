"""Models and their steps, the values of losses, the forms of bulk data, the order of requests."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import numpy as np
from tinker_wire import models
from tinker_wire import runs as run_requests
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import training as training_api

from tinker import _wire
from tinker._basics.installation import install_command
from tinker._wire import json, proto
from tinker.testing.conformance import check
from tinker.testing.conformance.connection import BodyFormat
from tinker.testing.conformance.context import (
    ADAM,
    DATA,
    ONE,
    OTHER,
    CheckContext,
    Floats,
    PendingResult,
    TrainingFixture,
    are_alike,
    are_close,
    datum,
    distance,
    effect,
    encode_body,
    logprobs_of,
    read_body,
)
from tinker.testing.conformance.outcome import (
    Absent,
    CheckEnd,
    Contradiction,
    Failed,
    Refused,
    optional,
)
from tinker.types.model_input import Datum, EncodedTextChunk, ModelInput
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

_training_check = partial(check, theme="training")


_DRIFT = ("drift", "optim_step")


@_training_check("create_model", core=True, basis=True)
def model(context: CheckContext) -> None:
    """A model can be created; its id consists of the session's id and its number, as clients that
    compute it expect.
    """
    fixture, other = context.create(3), context.create(4)
    wanted = f"{context.session()}:train:{context.number(3)}"
    context.require(
        fixture.model_id != other.model_id,
        f"two models have the id {other.model_id!r}",
        "",
        "create_model",
    )
    told = f"the model id is {fixture.model_id!r} instead of {wanted!r}"
    context.expect(fixture.model_id == wanted, told, "made names", "create_model")


@_training_check("get_info", core=True)
def info(context: CheckContext) -> None:
    """A model reports what it was created from."""
    fixture = context.borrow()
    found = context.call(training_api.get_info(models.GetInfoRequest(model_id=fixture.model_id)))
    context.require(
        found.model_id == fixture.model_id,
        f"asked for {fixture.model_id!r}, answered {found.model_id!r}",
    )
    name = found.model_data.model_name or found.model_name
    context.require(
        name == context.base_model(), f"made from {context.base_model()!r}, it says {name!r}"
    )
    context.require(found.lora_rank in (8, None), f"made with rank 8, it says {found.lora_rank}")


@_training_check("get_training_run", core=True)
def run(context: CheckContext) -> None:
    """A training run can be found by the model's id, with its rank and base model."""
    fixture = context.create()
    found = context.call(training_api.get_training_run(training_run_id=fixture.model_id))
    context.require(
        found.training_run_id == fixture.model_id, f"the run's id is {found.training_run_id!r}"
    )
    context.require(
        found.base_model == context.base_model(), f"the base model is {found.base_model!r}"
    )
    context.require(
        found.is_lora and found.lora_rank in (8, None),
        f"made with rank 8, it says {found.lora_rank}",
    )


@_training_check("list_training_runs", core=True)
def runs(context: CheckContext) -> None:
    """Runs are listed, most recently used first, with a cursor that counts them."""
    fixture = context.create()
    page = context.call(training_api.list_training_runs(limit=1))
    found = [one.training_run_id for one in page.training_runs]
    context.require(len(found) <= 1, f"a page of one contains {len(found)} runs")
    told = (
        f"runs are not listed most recently used first: used last was {fixture.model_id!r}, and "
        f"the first one listed is {found}"
    )
    context.require(found == [fixture.model_id], told, operation="list_training_runs")
    cursor = (page.cursor.offset, page.cursor.limit)
    context.expect(
        cursor == (0, 1) and page.cursor.total_count >= 1,
        f"the cursor of the first page of one is {page.cursor}",
    )


@_training_check("forward_backward", "retrieve_future", core=True, basis=True)
def loss(context: CheckContext) -> None:
    """A loss and its gradient can be computed; each target has a logprob."""
    fixture = context.create()
    logprobs_of(fixture.output())


@_training_check("forward_backward", "optim_step", basis=True)
def forward_only(context: CheckContext) -> None:
    """A forward pass leaves no gradient: the step after it changes nothing."""

    def script(fixture: TrainingFixture) -> None:
        context.result(fixture.loss(backward=False))
        fixture.step_without_gradient()

    before, after = context.measure(0, script)
    moved = distance(before, after)
    # only once: of the model of an earlier check
    if moved > 1e-3 and distance(*context.measure(1, script)) <= 1e-3:
        context.note_leftover_gradient(moved)
        return
    if moved > 1e-3:
        stepped = context.create(2)
        stepped.step_without_gradient()
        is_still = distance(before, stepped.logprobs()) <= 1e-3
        context.require(is_still, "the first step of a new model moves its logprobs", *_DRIFT)
    told = f"a step after a forward pass alone moves the logprobs by {moved:g}"
    context.require(moved <= 1e-3, told, operation="forward_backward")


@_training_check("optim_step", core=True, basis=True)
def step(context: CheckContext) -> None:
    """A step after a gradient changes the logprobs."""
    effect(*context.measure(0, lambda fixture: fixture.learn()))


@_training_check("forward_backward", "optim_step", "retrieve_future", core=True)
def learns(context: CheckContext) -> None:
    """Steps on the same data lower its loss."""
    context.need("losses.cross_entropy")
    fixture = context.create()
    losses = [fixture.loss()]
    for _ in range(8):
        context.result(fixture.step(ADAM))
        losses.append(fixture.loss())
    values = [context.loss_of(context.result(promise)) for promise in losses]
    context.require(
        values[-1] < values[0], f"eight steps took the loss from {values[0]:g} to {values[-1]:g}"
    )


@_training_check("optim_step")
def zero_rate(context: CheckContext) -> None:
    """A step with a learning rate of 0 changes nothing."""
    context.need("training.clears")
    before, after = context.measure(
        0, lambda fixture: fixture.learn(params=models.AdamParams(learning_rate=0.0))
    )
    moved = distance(before, after)
    context.require(
        moved <= 1e-3, f"a step with a learning rate of 0 moves the logprobs by {moved:g}"
    )


@_training_check("forward_backward", "optim_step")
def accumulates(context: CheckContext) -> None:
    """Gradients accumulate until the step: two requests of one datum each equal one request of
    both.
    """

    def apart(fixture: TrainingFixture) -> None:
        context.result(fixture.loss([ONE]))
        context.result(fixture.loss([OTHER]))
        context.result(fixture.step())

    context.need("training.seed")
    before, together = context.measure(0, lambda fixture: fixture.learn())
    _, summed = context.measure(1, apart)
    moved = effect(before, together)
    _, last = context.measure(2, lambda fixture: fixture.learn([OTHER]))
    context.require(
        not are_alike(summed, last, moved),
        "only the last gradient before the step counts: the others are lost",
    )
    told = (
        f"two requests move the logprobs by {distance(before, summed):g}, one request "
        f"with both by {moved:g}"
    )
    context.require(are_alike(summed, together, moved), told)


@_training_check("optim_step", basis=True)
def clears(context: CheckContext) -> None:
    """A step clears the gradient: the next one, without a gradient and without momentum, changes
    nothing.
    """
    context.need("training.forward_only")
    fixture = context.create()
    before = fixture.logprobs()
    fixture.learn()
    learned = fixture.logprobs()
    fixture.step_without_gradient()
    after = fixture.logprobs()
    is_clear = are_alike(learned, after, effect(before, learned))
    first, second = learned - before, after - learned
    is_again = np.dot(first, second) > 0.5 * np.linalg.norm(first) * np.linalg.norm(second)
    told = "a step without a gradient moves the logprobs, and not where the one before it did"
    context.require(bool(is_clear or is_again), told, *_DRIFT)
    context.require(
        is_clear, "a step uses the gradient of the step before it again", operation="optim_step"
    )


@_training_check("optim_step")
def clipping(context: CheckContext) -> None:
    """`grad_clip_norm` bounds the gradient: with a tiny bound the step is tiny."""
    tight = context.gradient_params(grad_clip_norm=1e-6)
    before, free = context.measure(0, lambda fixture: fixture.learn())
    _, clipped = context.measure(1, lambda fixture: fixture.learn(params=tight))
    moved = effect(before, free)
    told = "`grad_clip_norm` has no effect: with a tiny bound the step is as long as without"
    context.require(distance(before, clipped) < 0.1 * moved, told)


@_training_check("create_model", basis=True)
def seed(context: CheckContext) -> None:
    """Adapters with the same seed learn the same."""
    before, one = context.measure(0, lambda fixture: fixture.learn())
    _, other = context.measure(1, lambda fixture: fixture.learn())
    told = (
        f"after one step on the same data two models of one seed are {distance(one, other):g} "
        "apart in their logprobs"
    )
    context.require(
        are_alike(one, other, effect(before, one)), told, "seed", "create_model", "LoraConfig"
    )


@_training_check("create_model")
def own_scale(context: CheckContext) -> None:
    """`lora_alpha`, an extension, is taken, and refused where it cannot be."""
    with optional():
        context.create(lora_config=models.LoraConfig(rank=8, lora_alpha=16.0))
    with suppress(Failed, Refused):
        context.create(1, lora_config=models.LoraConfig(rank=8, lora_alpha=-1.0))
        raise Absent("lora_alpha is ignored")


@_training_check("create_model", "unload_model", "optim_step")
def fresh(context: CheckContext) -> None:
    """A new model has no gradient, even if an earlier model was unloaded with one."""
    context.need("training.forward_only")
    former = context.create()
    context.result(former.loss())
    former.unload()
    moved = distance(*context.measure(1, TrainingFixture.step_without_gradient))
    if moved > 1e-3:
        context.note_leftover_gradient(moved)


@_training_check("optim_step")
def dimuon(context: CheckContext) -> None:
    """A model with the optimizer `dimuon` accepts its parameters and learns."""
    with optional():
        fixture = context.create(optimizer_config=models.DimuonOptimizerConfig())
    before = fixture.logprobs()
    context.result(fixture.loss())
    params = models.DimuonParams(learning_rate=0.02)
    with optional(Refused):  # the server took the model for one with its only optimizer
        context.result(fixture.submit(run_requests.optim_step(optimizer_params=params)))
    effect(before, fixture.logprobs())


@_training_check("create_custom_loss")
def custom_loss(context: CheckContext) -> None:
    """An uploaded loss is computed correctly: minus the sum of logprobs times weights equals
    `cross_entropy`.
    """
    fixture = context.borrow()
    body = {**read_body("custom_loss"), "session_id": context.session(), "custom_loss_seq_id": 0}
    request = training_api.create_custom_loss(msgspec.convert(body, models.CreateCustomLossRequest))
    loss_id = context.run(request, models.CreateCustomLossResponse).loss_id
    data = [datum(weights=[0.5, 1.0, 0.0, 0.5]), datum(weights=[2.0, 1.0, 1.0, 0.0])]
    plain = context.loss_of(fixture.output(data, backward=False))
    custom = context.loss_of(fixture.output(data, "custom", {"loss_id": loss_id}, backward=False))
    context.require(
        are_close(plain, custom), f"cross_entropy is {plain:g}, the same uploaded {custom:g}"
    )


@_training_check("unload_model")
def unload(context: CheckContext) -> None:
    """A model can be unloaded."""
    fixture = context.create()
    found = fixture.unload()
    context.expect(
        found.model_id == fixture.model_id,
        f"unloaded {fixture.model_id!r}, answered {found.model_id!r}",
    )


_losses_check = partial(check, theme="losses")


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


@_losses_check("forward_backward", core=True, basis=True)
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


@_losses_check("forward_backward", basis=True)
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


@_losses_check("forward_backward")
def without_weights(context: CheckContext) -> None:
    """Without the optional `weights`, each token has weight 1."""
    data = [
        Datum(one.model_input, {"target_tokens": one.loss_fn_inputs["target_tokens"]})
        for one in DATA
    ]
    output = context.borrow().output(data)
    _compare(context, output, -logprobs_of(output, data).sum())


@_losses_check("forward_backward")
def weights(context: CheckContext) -> None:
    """`weights` scale the terms of `cross_entropy`; a token of weight 0 does not count."""
    scale = np.array([1.0, 0.0, 0.5, 2.0, 0.0, -1.0, 3.0])
    data = _data(weights=scale)
    output = context.borrow().output(data)
    _compare(context, output, -(scale * logprobs_of(output, data)).sum())


@_losses_check("forward_backward")
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


@_losses_check("forward_backward")
def importance_sampling(context: CheckContext) -> None:
    """`importance_sampling` is minus the sum of the ratios times the advantages."""
    output, ratios = _with_ratios(context, "importance_sampling")
    _compare(context, output, -(ratios * ADVANTAGES).sum())


@_losses_check("forward_backward", basis=True)
def ppo(context: CheckContext) -> None:
    """`ppo` takes the smaller of the unclipped and the clipped ratio, times the advantage."""
    output, ratios = _with_ratios(context, "ppo", CLIP)
    _compare(context, output, -np.minimum(ratios * ADVANTAGES, _clip(ratios) * ADVANTAGES).sum())


@_losses_check("forward_backward")
def cispo(context: CheckContext) -> None:
    """`cispo` multiplies logprobs and advantages by the clipped ratio."""
    output, ratios = _with_ratios(context, "cispo", CLIP)
    _compare(context, output, -(_clip(ratios) * ADVANTAGES * logprobs_of(output)).sum())


@_losses_check("forward_backward")
def dro(context: CheckContext) -> None:
    """`dro` is a policy gradient with a quadratic penalty of `beta` / 2 on the log-ratios."""
    output, ratios = _with_ratios(context, "dro", {"beta": BETA})
    _compare(
        context,
        output,
        -(logprobs_of(output) * ADVANTAGES - 0.5 * BETA * np.log(ratios) ** 2).sum(),
    )


@_losses_check("forward_backward")
def losses_clipping(context: CheckContext) -> None:
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


@_losses_check("forward_backward")
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


@_losses_check("forward_backward", "optim_step")
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


_wires_check = partial(check, theme="wires")


@_wires_check("forward_backward", "retrieve_future")
def protobuf(context: CheckContext) -> None:
    """A loss can be requested and returned as protobuf."""
    promise = _submit(context.borrow(), "proto")
    answer = context.wait_for_response(promise, protobuf=True)
    context.expect(
        answer.media_type == proto.MEDIA_TYPE,
        f"where protobuf is accepted the result is {answer.media_type}",
    )


@_wires_check("forward_backward", "retrieve_future")
def json_body(context: CheckContext) -> None:
    """A loss can be requested and returned as JSON, as 2025 clients do."""
    promise = _submit(context.borrow(), "json")
    answer = context.wait_for_response(promise, protobuf=False)
    context.require(
        answer.media_type == json.MEDIA_TYPE,
        f"where JSON is accepted the result is {answer.media_type}",
    )
    logprobs_of(context.result(promise, protobuf=False))


@_wires_check("forward")
def forward_json(context: CheckContext) -> None:
    """The older operation for a forward pass returns the same logprobs and loss as
    the newer one.
    """
    fixture = context.borrow()
    older, newer = context.result(_submit(fixture, "json", backward=False)), fixture.output()
    _same(
        context,
        logprobs_of(newer),
        logprobs_of(older, DATA, "forward"),
        "forward_backward",
        "forward",
    )
    one, other = context.loss_of(newer), context.loss_of(older)
    told = f"the loss by forward_backward is {one:g}, by forward {other:g}"
    context.require(
        are_close(one, other), told, operation="forward", schema="ForwardBackwardOutput"
    )


@_wires_check("forward_backward")
def equal_forms(context: CheckContext) -> None:
    """Both forms of a request give the same result, and both forms of a result have the same
    content.
    """
    fixture = context.create()
    one, other = _submit(fixture, "proto", backward=True), _submit(fixture, "json", backward=True)
    results = [
        context.result(promise, protobuf=form) for promise in (one, other) for form in (True, False)
    ]
    values = [logprobs_of(result) for result in results]
    for what, value in zip(
        ("a protobuf request as JSON", "a JSON request", "a JSON request as JSON"), values[1:]
    ):
        _same(context, values[0], value, "a protobuf request", what)
    losses = [context.loss_of(result) for result in results]
    context.require(
        max(losses) - min(losses) <= 1e-3 * (1 + abs(losses[0])),
        f"loss:sum is {losses} in the four forms",
    )


@_wires_check("forward_backward")
def zstd(context: CheckContext) -> None:
    """A protobuf body may be compressed with zstd."""
    if not _wire.available():
        raise Absent(f"not tried: this installation has no zstd ({install_command('zstd')})")
    fixture = context.create()
    request = fixture.request("proto", number=1, backward=False)
    body = _wire.compress([encode_body(request)])
    with optional(Refused):
        promise = context.submit(
            request, ForwardBackwardOutput, content=body, headers={"Content-Encoding": "zstd"}
        )
    fixture.number = 2
    _same(
        context,
        fixture.logprobs(),
        logprobs_of(context.result(promise)),
        "the plain body",
        "the compressed one",
    )


@_wires_check("forward_backward")
def sparse(context: CheckContext) -> None:
    """A sparse tensor equals the dense tensor with its zeros."""
    rows, columns = [0, 1, 3, 4], [0, 0, 1, 1]
    dense = _datum(
        TensorData.from_numpy(np.array([[6, 0], [7, 8], [0, 9]])),
        TensorData.from_numpy(np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 2.0]], np.float32)),
    )
    thin = _datum(
        TensorData([6, 7, 8, 9], "int64", [3, 2], rows, columns),
        TensorData([1.0, 0.5, 0.5, 2.0], "float32", [3, 2], rows, columns),
    )
    fixture = context.borrow()
    with optional(
        CheckEnd, about="several targets at each place are not taken as dense tensors either"
    ):
        one = context.loss_of(fixture.output([dense]))
    with optional():
        other = context.loss_of(fixture.output([thin]))
    context.require(
        are_close(one, other), f"the loss of the dense tensors is {one:g}, of the sparse {other:g}"
    )


@_wires_check("forward_backward")
def chunks(context: CheckContext) -> None:
    """Text in several chunks equals the same text in one chunk."""
    whole = datum((5, 6, 7, 8))
    parts = ModelInput(
        chunks=[
            EncodedTextChunk(tokens=[5]),
            EncodedTextChunk(tokens=[6, 7]),
            EncodedTextChunk(tokens=[8]),
        ]
    )
    fixture = context.borrow()
    one, other = (fixture.logprobs([each]) for each in (whole, Datum(parts, whole.loss_fn_inputs)))
    _same(context, one, other, "one chunk", "three chunks")


@_wires_check("forward_backward")
def order_of_outputs(context: CheckContext) -> None:
    """Outputs are in the order of the data, whatever their lengths."""
    fixture = context.borrow()
    data = [datum(range(5, 5 + length)) for length in (4, 1, 7, 2)]
    alone = np.concatenate([fixture.logprobs([each]) for each in data])
    _same(context, alone, fixture.logprobs(data), "the datums one by one", "the datums together")


def _datum(targets: TensorData, weights: TensorData) -> Datum:
    return Datum(ModelInput.from_ints([5, 6, 7]), {"target_tokens": targets, "weights": weights})


def _submit(
    fixture: TrainingFixture, form: BodyFormat, *, backward: bool = True
) -> PendingResult[ForwardBackwardOutput]:
    """Submit a loss in this format. Absent if the server does not accept it."""
    with optional(Refused):
        return fixture.loss(DATA, form=form, backward=backward)


def _same(context: CheckContext, one: Floats, other: Floats, what: str, against: str) -> None:
    apart = distance(one, other)
    context.require(
        apart <= 1e-2, f"the logprobs of {against} are up to {apart:g} away from those of {what}"
    )


_sequence_check = partial(check, theme="sequence")


_NUMBERS, _REPETITION = "numbers of training", "repetition"


@_sequence_check("forward_backward", "optim_step", "retrieve_future")
def pipeline(context: CheckContext) -> None:
    """Requests can be submitted without waiting, with the same results as one by one."""

    def at_once(fixture: TrainingFixture) -> None:
        promises: list[PendingResult[Any]] = [
            fixture.loss(),
            fixture.step(),
            fixture.loss([ONE]),
            fixture.step(),
        ]
        for promise in reversed(promises):
            context.wait_for_response(promise)

    def one_by_one(fixture: TrainingFixture) -> None:
        fixture.learn()
        fixture.learn([ONE])

    before, wanted = context.measure(0, one_by_one)
    _, found = context.measure(1, at_once)
    context.need("training.seed")
    context.require(
        are_alike(wanted, found, effect(before, wanted)),
        f"the logprobs differ by {distance(wanted, found):g}",
    )


@_sequence_check("forward_backward", "optim_step", basis=True)
def late_arrival(context: CheckContext) -> None:
    """A request that arrives before the one with the number below it waits for that one."""

    def send_swapped(fixture: TrainingFixture) -> None:
        fixture.number += 2
        try:
            step = fixture.step(number=fixture.number - 1)
            loss = fixture.loss(number=fixture.number - 2)
            context.wait_for_response(loss)
            context.wait_for_response(step)
        except (Failed, Refused) as error:
            raise Contradiction(
                f"sent before the one below it, {error}", cause=_NUMBERS, operation=error.operation
            ) from error

    before, wanted = context.measure(0, lambda fixture: fixture.learn())
    moved = effect(before, wanted)
    _, found = context.measure(1, send_swapped)
    is_still = are_alike(before, found, moved)
    context.require(
        not is_still, "the step ran before the gradient with the lower seq_id", _NUMBERS
    )
    context.need("training.seed")
    context.require(
        are_alike(wanted, found, moved), f"the logprobs differ by {distance(wanted, found):g}"
    )


@_sequence_check("forward_backward", "optim_step")
def repetition(context: CheckContext) -> None:
    """Repeating a request under the same number returns the same future and has no other effect."""

    def twice(fixture: TrainingFixture) -> None:
        number, keys = fixture.number, [{"X-Idempotency-Key": str(uuid.uuid4())} for _ in range(4)]
        fixture.number += 2
        losses = [fixture.loss(number=number, headers=key) for key in keys[:2]]
        steps = [fixture.step(number=number + 1, headers=key) for key in keys[2:]]
        for first, again in (losses, steps, (losses[0], fixture.loss(number=number))):
            same = first.request_id == again.request_id
            told = (
                f"{first.operation} again is request {again.request_id!r}, not {first.request_id!r}"
            )
            context.require(same, told, _REPETITION, first.operation)
        promises: list[PendingResult[Any]] = [*losses, *steps]
        for promise in promises:
            context.wait_for_response(promise)

    context.need("training.seed")
    before, wanted = context.measure(0, lambda fixture: fixture.learn())
    moved = effect(before, wanted)
    _, found = context.measure(1, twice)
    told = (
        f"with repetitions the logprobs move by {distance(before, found):g}, without by {moved:g}"
    )
    context.require(are_alike(wanted, found, moved), told, _REPETITION)


@_sequence_check("forward_backward", "optim_step")
def conflict(context: CheckContext) -> None:
    """A different request under a used number is refused with 409."""
    fixture = context.create()
    context.wait_for_response(fixture.loss([ONE], number=1))
    assert context.known.form is not None
    context.expect_refusal(
        fixture.request(context.known.form, [OTHER], number=1), 409, cause=_NUMBERS
    )
    step = run_requests.optim_step(adam_params=models.AdamParams())
    context.expect_refusal(step.fill(fixture.model_id, 1, None), 409, cause=_NUMBERS)


@_sequence_check("create_model")
def model_again(context: CheckContext) -> None:
    """Repeating the creation of a model under the same number returns the same future; with another
    body it is refused.
    """
    request = context.creation()
    one, other = (context.submit(request, models.CreateModelResponse) for _ in range(2))
    told = (
        f"sent twice, create_model answers the requests {one.request_id!r} and {other.request_id!r}"
    )
    context.require(one.request_id == other.request_id, told, _REPETITION, "create_model")
    ids = {context.result(promise).model_id for promise in (one, other)}
    context.require(len(ids) == 1, f"one number makes the models {', '.join(sorted(ids))}")
    context.expect_refusal(context.creation(lora_config=models.LoraConfig(rank=4)), 409)


@_sequence_check("asample")
def sample_again(context: CheckContext) -> None:
    """Repeating a sample under the same number returns the same sample; a different request is
    refused with 409.
    """
    sampler = context.sampler()
    one, other = (sampler.submit(number=0) for _ in range(2))
    told = f"sent twice, asample answers the requests {one.request_id!r} and {other.request_id!r}"
    context.require(one.request_id == other.request_id, told, _REPETITION, "asample")
    ids = [promise.future.sample_sequence_ids for promise in (one, other)]
    context.require(
        ids[0] == ids[1],
        f"sent twice, asample answers the sample_sequence_ids {ids}",
        _REPETITION,
        "asample",
    )
    first, again = (context.result(promise).sequences[0].tokens for promise in (one, other))
    told = f"unseeded samples of the same number are {first} and {again}: it was drawn twice"
    context.require(first == again, told, _REPETITION, "asample")
    context.expect_refusal(sampling_api.asample(sampler.body((9, 10), number=0)), 409)


@_sequence_check("create_sampling_session")
def session_again(context: CheckContext) -> None:
    """Repeating the creation of a sampling session under the same number returns
    the same session.
    """
    one, other = (context.sampler().sampling_session_id for _ in range(2))
    told = f"sent twice, create_sampling_session answers {one!r} and {other!r}"
    context.require(one == other, told, _REPETITION, "create_sampling_session")


@_sequence_check("forward_backward", "optim_step", slow=True)
def gap(context: CheckContext) -> None:
    """A number that never arrives does not block the model forever; polls return within 45 s until
    then.
    """
    context.need("sequence.late_arrival")
    promise = context.create().loss(number=2)
    try:
        context.wait_for_response(promise)
    except Failed:  # a server may give up the request instead of the number
        pass
    except Contradiction as error:
        told = f"request 2 waits for request 1, which never arrives: {error}"
        context.require(error.cause != "late", told, operation="forward_backward")
        raise
