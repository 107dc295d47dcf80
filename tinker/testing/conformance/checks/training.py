"""Models, their gradients and their optimizer, by small cases whose outcome is known."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import numpy as np
from tinker_wire import models
from tinker_wire.api import training as api

from tinker.testing.conformance.context import CheckContext, TrainingFixture
from tinker.testing.conformance.outcome import Absent, Failed, Refused, optional
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.values import (
    ADAM,
    ONE,
    OTHER,
    are_alike,
    are_close,
    datum,
    distance,
    effect,
    logprobs_of,
    read_body,
)

_DRIFT = ("drift", "optim_step")


@check("create_model", core=True, basis=True)
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


@check("get_info", core=True)
def info(context: CheckContext) -> None:
    """A model reports what it was created from."""
    fixture = context.borrow()
    found = context.call(api.get_info(models.GetInfoRequest(model_id=fixture.model_id)))
    context.require(
        found.model_id == fixture.model_id,
        f"asked for {fixture.model_id!r}, answered {found.model_id!r}",
    )
    name = found.model_data.model_name or found.model_name
    context.require(
        name == context.base_model(), f"made from {context.base_model()!r}, it says {name!r}"
    )
    context.require(found.lora_rank in (8, None), f"made with rank 8, it says {found.lora_rank}")


@check("get_training_run", core=True)
def run(context: CheckContext) -> None:
    """A training run can be found by the model's id, with its rank and base model."""
    fixture = context.create()
    found = context.call(api.get_training_run(training_run_id=fixture.model_id))
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


@check("list_training_runs", core=True)
def runs(context: CheckContext) -> None:
    """Runs are listed, most recently used first, with a cursor that counts them."""
    fixture = context.create()
    page = context.call(api.list_training_runs(limit=1))
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


@check("forward_backward", "retrieve_future", core=True, basis=True)
def loss(context: CheckContext) -> None:
    """A loss and its gradient can be computed; each target has a logprob."""
    fixture = context.create()
    logprobs_of(fixture.output())


@check("forward_backward", "optim_step", basis=True)
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


@check("optim_step", core=True, basis=True)
def step(context: CheckContext) -> None:
    """A step after a gradient changes the logprobs."""
    effect(*context.measure(0, lambda fixture: fixture.learn()))


@check("forward_backward", "optim_step", "retrieve_future", core=True)
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


@check("optim_step")
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


@check("forward_backward", "optim_step")
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


@check("optim_step", basis=True)
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


@check("optim_step")
def clipping(context: CheckContext) -> None:
    """`grad_clip_norm` bounds the gradient: with a tiny bound the step is tiny."""
    tight = context.gradient_params(grad_clip_norm=1e-6)
    before, free = context.measure(0, lambda fixture: fixture.learn())
    _, clipped = context.measure(1, lambda fixture: fixture.learn(params=tight))
    moved = effect(before, free)
    told = "`grad_clip_norm` has no effect: with a tiny bound the step is as long as without"
    context.require(distance(before, clipped) < 0.1 * moved, told)


@check("create_model", basis=True)
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


@check("create_model")
def own_scale(context: CheckContext) -> None:
    """`lora_alpha`, an extension, is taken, and refused where it cannot be."""
    with optional():
        context.create(lora_config=models.LoraConfig(rank=8, lora_alpha=16.0))
    with suppress(Failed, Refused):
        context.create(1, lora_config=models.LoraConfig(rank=8, lora_alpha=-1.0))
        raise Absent("lora_alpha is ignored")


@check("create_model", "unload_model", "optim_step")
def fresh(context: CheckContext) -> None:
    """A new model has no gradient, even if an earlier model was unloaded with one."""
    context.need("training.forward_only")
    former = context.create()
    context.result(former.loss())
    former.unload()
    moved = distance(*context.measure(1, TrainingFixture.step_without_gradient))
    if moved > 1e-3:
        context.note_leftover_gradient(moved)


@check("optim_step")
def dimuon(context: CheckContext) -> None:
    """A model with the optimizer `dimuon` accepts its parameters and learns."""
    with optional():
        fixture = context.create(optimizer_config=models.DimuonOptimizerConfig())
    before = fixture.logprobs()
    context.result(fixture.loss())
    params = models.DimuonParams(learning_rate=0.02)
    body = models.OptimStepRequest(model_id=fixture.model_id, seq_id=3, optimizer_params=params)
    fixture.number = 4
    with optional(Refused):  # the server took the model for one with its only optimizer
        context.run(api.optim_step(body), models.OptimStepResponse)
    effect(before, fixture.logprobs())


@check("create_custom_loss")
def custom_loss(context: CheckContext) -> None:
    """An uploaded loss is computed correctly: minus the sum of logprobs times weights equals
    `cross_entropy`.
    """
    fixture = context.borrow()
    body = {**read_body("custom_loss"), "session_id": context.session(), "custom_loss_seq_id": 0}
    request = api.create_custom_loss(msgspec.convert(body, models.CreateCustomLossRequest))
    loss_id = context.run(request, models.CreateCustomLossResponse).loss_id
    data = [datum(weights=[0.5, 1.0, 0.0, 0.5]), datum(weights=[2.0, 1.0, 1.0, 0.0])]
    plain = context.loss_of(fixture.output(data, backward=False))
    custom = context.loss_of(fixture.output(data, "custom", {"loss_id": loss_id}, backward=False))
    context.require(
        are_close(plain, custom), f"cross_entropy is {plain:g}, the same uploaded {custom:g}"
    )


@check("unload_model")
def unload(context: CheckContext) -> None:
    """A model can be unloaded."""
    fixture = context.create()
    found = fixture.unload()
    context.expect(
        found.model_id == fixture.model_id,
        f"unloaded {fixture.model_id!r}, answered {found.model_id!r}",
    )
