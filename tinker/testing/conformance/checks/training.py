"""Models, their gradients and their optimizer, by small cases whose outcome is known."""

from __future__ import annotations

from tinker_wire import models
from tinker_wire.api import training as api
from tinker_wire.runtime import Request

from tinker.testing.conformance.bench import Bench
from tinker.testing.conformance.outcome import Absent, Contradiction, Failed, Refused
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.trainee import (
    ADAM,
    DATA,
    ONE,
    OTHER,
    STILL,
    Floats,
    Trainee,
    alike,
    create,
    datum,
    distance,
    effect,
    learned,
    loss_of,
    proportional,
)


@check("create_model", core=True)
def model(bench: Bench) -> None:
    """A model is created; its id is made of the session's and its number, as clients that compute it expect."""
    trainee = create(bench, 3)
    wanted = f"{bench.session()}:train:3"
    bench.expect(trainee.model_id == wanted, f"the model id is {trainee.model_id!r} instead of {wanted!r}")


@check("get_info", core=True)
def info(bench: Bench) -> None:
    """A model says what it was made from."""
    trainee = create(bench)
    found = bench.call(api.get_info(models.GetInfoRequest(model_id=trainee.model_id)))
    bench.require(found.model_id == trainee.model_id, f"asked for {trainee.model_id!r}, answered {found.model_id!r}")
    name = found.model_data.model_name or found.model_name
    bench.expect(name == bench.base_model(), f"made from {bench.base_model()!r}, it says {name!r}")
    bench.expect(found.lora_rank in (8, None), f"made with rank 8, it says {found.lora_rank}")


@check("get_training_run", core=True)
def run(bench: Bench) -> None:
    """A training run is found under the model's id, with its rank and base model."""
    trainee = create(bench)
    found = bench.call(api.get_training_run(training_run_id=trainee.model_id))
    bench.require(found.training_run_id == trainee.model_id, f"the run's id is {found.training_run_id!r}")
    bench.expect(found.base_model == bench.base_model(), f"the base model is {found.base_model!r}")
    bench.expect(found.is_lora and found.lora_rank in (8, None), f"made with rank 8, it says {found.lora_rank}")


@check("list_training_runs", core=True)
def runs(bench: Bench) -> None:
    """Runs are listed, the one used last first, with a cursor that counts them."""
    trainee = create(bench)
    page = bench.call(api.list_training_runs(limit=1))
    found = [one.training_run_id for one in page.training_runs]
    bench.require(len(found) <= 1, f"a page of one holds {len(found)} runs")
    bench.expect(found == [trainee.model_id], f"the run used last is {trainee.model_id!r}, the first one listed {found}")
    cursor = (page.cursor.offset, page.cursor.limit)
    bench.expect(cursor == (0, 1) and page.cursor.total_count >= 1, f"the cursor of the first page of one is {page.cursor}")


@check("forward_backward", "optim_step", "retrieve_future", core=True)
def learns(bench: Bench) -> None:
    """Steps on the same data lower its loss."""
    trainee = create(bench)
    losses = [trainee.loss()]
    for _ in range(8):
        bench.result(trainee.step(ADAM))
        losses.append(trainee.loss())
    values = [loss_of(bench, bench.result(promise)) for promise in losses]
    if not values[-1] < values[0]:
        raise Contradiction(f"eight steps took the loss from {values[0]:g} to {values[-1]:g}")


@check("optim_step")
def zero_rate(bench: Bench) -> None:
    """A step with a learning rate of 0 changes nothing."""
    before, after = learned(bench, 0, lambda trainee: trainee.learn(params=STILL))
    bench.require(distance(before, after) <= 1e-3, f"the logprobs moved by {distance(before, after):g}")


@check("forward_backward", "optim_step")
def forward_only(bench: Bench) -> None:
    """A loss without a gradient leaves none: the step after it changes nothing."""

    def script(trainee: Trainee) -> None:
        bench.result(trainee.loss(backward=False))
        bench.result(trainee.step())

    before, after = learned(bench, 0, script)
    bench.require(distance(before, after) <= 1e-3, f"the logprobs moved by {distance(before, after):g}")


@check("forward_backward", "optim_step")
def accumulates(bench: Bench) -> None:
    """Gradients add up until the step: two requests of one datum each are one request of both."""

    def apart(trainee: Trainee) -> None:
        bench.result(trainee.loss([ONE]))
        bench.result(trainee.loss([OTHER]))
        bench.result(trainee.step())

    before, together = learned(bench, 0, lambda trainee: trainee.learn(DATA))
    _, summed = learned(bench, 1, apart)
    moved = effect(before, together)
    if alike(summed, together, moved):
        return
    if alike(summed, learned(bench, 2, lambda trainee: trainee.learn([OTHER]))[1], moved):
        raise Contradiction("only the last gradient before the step counts: the others are lost")
    bench.differs(f"two requests move the logprobs by {distance(before, summed):g}, one request with both by {moved:g}")


@check("optim_step")
def clears(bench: Bench) -> None:
    """A step uses the gradient up: the next one, without a gradient and without momentum, changes nothing."""
    between: list[Floats] = []

    def script(trainee: Trainee) -> None:
        trainee.learn()
        between.append(trainee.logprobs())
        bench.result(trainee.step())

    before, after = learned(bench, 0, script)
    moved = effect(before, between[0])
    bench.require(alike(between[0], after, moved), "the step after the step used the same gradient again")


@check("optim_step")
def clipping(bench: Bench) -> None:
    """`grad_clip_norm` bounds the gradient: with a tiny bound the step is tiny."""
    tight = proportional(bench, grad_clip_norm=1e-6)
    before, free = learned(bench, 0, lambda trainee: trainee.learn())
    _, clipped = learned(bench, 1, lambda trainee: trainee.learn(params=tight))
    moved = effect(before, free)
    bench.expect(distance(before, clipped) < 0.1 * moved, "grad_clip_norm has no effect")


@check("create_model")
def seed(bench: Bench) -> None:
    """Adapters of the same seed learn the same."""
    before, one = learned(bench, 0, lambda trainee: trainee.learn())
    _, other = learned(bench, 1, lambda trainee: trainee.learn())
    bench.expect(alike(one, other, effect(before, one)), f"the logprobs differ by {distance(one, other):g} after one step")


@check("optim_step")
def dimuon(bench: Bench) -> None:
    """A model with the optimizer family `dimuon` takes its parameters and learns."""
    try:
        trainee = create(bench, optimizer_config=models.DimuonOptimizerConfig())
    except (Refused, Failed) as error:
        raise Absent(str(error)) from error
    before = trainee.logprobs()
    bench.result(trainee.loss())
    params = models.DimuonParams(learning_rate=0.02)
    body = models.OptimStepRequest(model_id=trainee.model_id, seq_id=3, optimizer_params=params)
    trainee.number = 4
    bench.result(bench.submit(api.optim_step(body), models.OptimStepResponse))
    effect(before, trainee.logprobs())


@check("create_custom_loss")
def custom_loss(bench: Bench) -> None:
    """An uploaded loss is computed: minus the sum of logprobs times weights, which `cross_entropy` is too."""
    trainee = create(bench)
    promise = bench.submit(_custom_loss(bench), models.CreateCustomLossResponse)
    loss_id = bench.result(promise).loss_id
    data = [datum(weights=[0.5, 1.0, 0.0, 0.5]), datum(weights=[2.0, 1.0, 1.0, 0.0])]
    plain = loss_of(bench, trainee.output(data, backward=False))
    custom = loss_of(bench, trainee.output(data, "custom", {"loss_id": loss_id}, backward=False))
    bench.expect(abs(plain - custom) <= 1e-3 * (1 + abs(plain)), f"cross_entropy is {plain:g}, the same uploaded {custom:g}")


def _custom_loss(bench: Bench) -> Request[models.UntypedAPIFuture]:
    """The graph of ``-(logprobs * weights).sum()`` over all datums."""
    ref = {"ref": "logprobs"}
    nodes = [
        models.CustomLossNode(op="placeholder", name="logprobs", target="logprobs"),
        models.CustomLossNode(op="placeholder", name="weights", target="weights"),
        models.CustomLossNode(op="call_function", name="mul", target="operator.mul", args=[ref, {"ref": "weights"}]),
        models.CustomLossNode(op="call_method", name="sum_1", target="sum", args=[{"ref": "mul"}]),
        models.CustomLossNode(op="call_function", name="neg", target="operator.neg", args=[{"ref": "sum_1"}]),
        models.CustomLossNode(op="output", name="output", target="output", args=[{"tuple": [{"ref": "neg"}, {"dict": {}}]}]),
    ]
    body = models.CreateCustomLossRequest(
        session_id=bench.session(),
        custom_loss_seq_id=0,
        name="conformance",
        inputs=[models.CustomLossInput(name="logprobs", rank=1), models.CustomLossInput(name="weights", rank=1)],
        graph=models.CustomLossGraph(nodes=nodes),
    )
    return api.create_custom_loss(body)


@check("unload_model")
def unload(bench: Bench) -> None:
    """A model can be unloaded."""
    trainee = create(bench)
    body = models.UnloadModelRequest(model_id=trainee.model_id)
    found = bench.result(bench.submit(api.unload_model(body), models.UnloadModelResponse))
    bench.expect(found.model_id == trainee.model_id, f"unloaded {trainee.model_id!r}, answered {found.model_id!r}")
