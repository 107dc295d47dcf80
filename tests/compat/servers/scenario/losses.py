"""Losses and optimizer steps."""

import contextlib

import numpy as np
from steps import step
from world import ADAM, TEXT, World, datum, logprobs_of, near, prompt, sampled_datum, tensor, wait

import tinker
from tinker import types

AREA = "Losses"


@step(AREA, "cross_entropy: logprobs and their weighted sum")
def cross_entropy(world: World) -> None:
    weights = [0.0] * 8 + [1.0] * 8
    output = wait(
        world.trainer.forward_backward([datum(TEXT[:17], weights=weights)], "cross_entropy")
    )
    logprobs = logprobs_of(output)
    assert len(logprobs) == 16, logprobs
    expected = -sum(a * b for a, b in zip(logprobs, weights, strict=True))
    assert near([output.metrics["loss:sum"]], [expected]), (
        f"{output.metrics}, by the logprobs {expected}"
    )


@step(AREA, "forward without a gradient")
def forward(world: World) -> None:
    trainer = world.new_trainer()
    before = logprobs_of(wait(trainer.forward([datum()], "cross_entropy")))
    with contextlib.suppress(tinker.TinkerError):  # a server may refuse a step without a gradient
        wait(trainer.optim_step(ADAM))
    assert near(before, logprobs_of(wait(trainer.forward([datum()], "cross_entropy"))), 1e-3), (
        "a forward pass was a step"
    )


@step(AREA, "forward and forward_backward agree")
def agree(world: World) -> None:
    one = logprobs_of(wait(world.trainer.forward([datum()], "cross_entropy")))
    assert near(
        one, logprobs_of(wait(world.trainer.forward_backward([datum()], "cross_entropy")))
    ), one


@step(AREA, "an optimizer step")
def optim_step(world: World) -> None:
    wait(world.trainer.forward_backward([datum()], "cross_entropy"))
    wait(world.trainer.optim_step(ADAM))


@step(AREA, "an optimizer step without a gradient before it")
def bare_step(world: World) -> None:
    wait(world.new_trainer().optim_step(ADAM))


@step(AREA, "training lowers the loss")
def learns(world: World) -> None:
    assert world.loss(world.trained) < 0.9 * world.loss(world.new_trainer())


@step(AREA, "a learning rate of 0 changes nothing")
def still(world: World) -> None:
    trainer = world.trainer
    before = world.loss(trainer)
    wait(trainer.forward_backward([datum()], "cross_entropy"))
    wait(trainer.optim_step(types.AdamParams(learning_rate=0.0)))
    assert near([before], [world.loss(trainer)]), before


@step(AREA, "weight decay, betas, clipping")
def options(world: World) -> None:
    wait(world.trainer.forward_backward([datum()], "cross_entropy"))
    adam = types.AdamParams(
        learning_rate=1e-3, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, grad_clip_norm=1.0
    )
    wait(world.trainer.optim_step(adam))


@step(AREA, "gradients add up until the step", seconds=120)
def accumulate(world: World) -> None:
    first, second = datum(TEXT[:17]), datum(TEXT[16:33])
    losses = []
    for trainer, batches in zip(
        world.twins(), ([[first], [second]], [[first, second]]), strict=True
    ):
        for batch in batches:
            wait(trainer.forward_backward(batch, "cross_entropy"))
        wait(trainer.optim_step(ADAM))
        losses.append(world.loss(trainer))
    assert near(losses[:1], losses[1:]), f"in two requests {losses[0]}, in one {losses[1]}"


@step(AREA, "sequences of different lengths, in order")
def lengths(world: World) -> None:
    batch = [datum(TEXT[:length]) for length in (17, 5, 30)]
    output = wait(world.trainer.forward_backward(batch, "cross_entropy"))
    assert [len(logprobs_of(output, index)) for index in range(3)] == [16, 4, 29]


@step(AREA, "forty sequences in a call", seconds=120)
def many(world: World) -> None:
    batch = [datum([65 + index, *TEXT[:16]]) for index in range(40)]
    output = wait(world.trainer.forward_backward(batch, "cross_entropy"), 110)
    assert len(output.loss_fn_outputs) == 40


@step(AREA, "a sequence of 300 tokens", seconds=120)
def long(world: World) -> None:
    output = wait(world.trainer.forward_backward([datum((TEXT * 8)[:301])], "cross_entropy"), 110)
    assert len(logprobs_of(output)) == 300


@step(AREA, "lists, numpy and torch as loss inputs")
def arrays(world: World) -> None:
    torch = __import__("torch")
    targets = TEXT[1:17]
    batch = [
        types.Datum(
            model_input=prompt(),
            loss_fn_inputs={"target_tokens": kind(targets), "weights": kind([1.0] * 16)},
        )
        for kind in (list, np.asarray, torch.tensor)
    ]
    output = wait(world.trainer.forward_backward(batch, "cross_entropy"))
    assert near(logprobs_of(output, 0), logprobs_of(output, 1)) and near(
        logprobs_of(output, 0), logprobs_of(output, 2)
    )


@step(AREA, "a sequence in several chunks")
def chunks(world: World) -> None:
    text = types.ModelInput(
        chunks=[types.EncodedTextChunk(tokens=TEXT[:9]), types.EncodedTextChunk(tokens=TEXT[9:16])]
    )
    inputs = {"target_tokens": tensor(TEXT[1:17], "int64"), "weights": tensor([1.0] * 16)}
    whole = wait(world.trainer.forward([datum()], "cross_entropy"))
    parted = wait(
        world.trainer.forward(
            [types.Datum(model_input=text, loss_fn_inputs=inputs)], "cross_entropy"
        )
    )
    assert near(logprobs_of(whole), logprobs_of(parted))


@step(AREA, "several targets for each position")
def soft_targets(world: World) -> None:
    targets = types.TensorData(
        data=[token for start in range(1, 17) for token in TEXT[start : start + 2]],
        dtype="int64",
        shape=[16, 2],
    )
    weights = types.TensorData(data=[0.5] * 32, dtype="float32", shape=[16, 2])
    one = types.Datum(
        model_input=prompt(), loss_fn_inputs={"target_tokens": targets, "weights": weights}
    )
    output = wait(world.trainer.forward_backward([one], "cross_entropy"))
    assert len(output.loss_fn_outputs[0]["logprobs"].tolist()) in (16, 32)


@step(AREA, "importance_sampling")
def importance_sampling(world: World) -> None:
    output = wait(world.trainer.forward_backward([sampled_datum()], "importance_sampling"))
    expected = -sum(np.exp(value + 2.0) for value in logprobs_of(output))
    assert near([output.metrics["loss:sum"]], [float(expected)]), (
        f"{output.metrics}, by the logprobs {expected}"
    )


@step(AREA, "ppo")
def ppo(world: World) -> None:
    output = wait(world.trainer.forward_backward([sampled_datum(-1.0)], "ppo"))
    assert len(logprobs_of(output)) == 16


@step(AREA, "ppo with thresholds")
def ppo_thresholds(world: World) -> None:
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    output = wait(world.trainer.forward_backward([sampled_datum()], "ppo", loss_fn_config=config))
    ratios = [float(np.exp(value + 2.0)) for value in logprobs_of(output)]
    expected = -sum(min(ratio, max(0.9, min(1.1, ratio))) for ratio in ratios)
    assert near([output.metrics["loss:sum"]], [expected]), (
        f"{output.metrics}, by the logprobs {expected}"
    )


@step(AREA, "cispo")
def cispo(world: World) -> None:
    assert len(logprobs_of(wait(world.trainer.forward_backward([sampled_datum()], "cispo")))) == 16


@step(AREA, "dro")
def dro(world: World) -> None:
    output = wait(
        world.trainer.forward_backward([sampled_datum()], "dro", loss_fn_config={"beta": 0.05})
    )
    assert len(logprobs_of(output)) == 16


@step(AREA, "a step after such a loss")
def after(world: World) -> None:
    trainer = world.trainer
    wait(trainer.forward_backward([sampled_datum()], "importance_sampling"))
    wait(trainer.optim_step(ADAM))
    assert np.isfinite(world.loss(trainer))


CUSTOM = "Losses of your own"


def _torch():
    return __import__("torch")


def likelihood(data: list, logprobs: list):
    """Cross entropy, written by a user."""
    loss = -sum(one.sum() for one in logprobs)
    return loss, {"mine": float(loss)}


def preference(data: list, logprobs: list):
    """The first of two sequences is preferred."""
    loss = -_torch().nn.functional.logsigmoid(logprobs[0].sum() - logprobs[1].sum())
    return loss, {"preferred": float(loss)}


@step(CUSTOM, "a loss of one sequence and its metrics")
def custom(world: World) -> None:
    output = wait(world.trainer.forward_backward_custom([datum()], likelihood))
    assert near([output.metrics["mine"]], [-sum(logprobs_of(output))]), output.metrics


@step(CUSTOM, "a loss over a pair of sequences")
def pair(world: World) -> None:
    trainer = world.trainer
    batch = [datum(TEXT[:17]), datum(TEXT[20:37])]
    first = wait(trainer.forward_backward_custom(batch, preference)).metrics["preferred"]
    wait(trainer.optim_step(ADAM))
    assert wait(trainer.forward_backward_custom(batch, preference)).metrics["preferred"] < first


@step(CUSTOM, "it trains as the built-in loss does", seconds=120)
def like_built_in(world: World) -> None:
    losses = []
    for trainer, custom_loss in zip(world.twins(), (True, False), strict=True):
        computation = (
            trainer.forward_backward_custom([datum()], likelihood)
            if custom_loss
            else trainer.forward_backward([datum()], "cross_entropy")
        )
        wait(computation)
        wait(trainer.optim_step(ADAM))
        losses.append(world.loss(trainer))
    assert near(losses[:1], losses[1:]), f"your own {losses[0]}, built in {losses[1]}"


@step(CUSTOM, "an error in the loss reaches its caller, and training goes on")
def error_in_loss(world: World) -> None:
    def broken(data: list, logprobs: list):
        raise ZeroDivisionError("in the loss")

    trainer = world.new_trainer()
    try:
        wait(trainer.forward_backward_custom([datum()], broken))
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError("no error")
    wait(trainer.forward_backward([datum()], "cross_entropy"))
