"""Order and repetition: requests take effect once, by their number, however often and in whatever order they arrive."""

from __future__ import annotations

import uuid
from typing import Any

from tinker_wire import models
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import training as training_api

from tinker.testing.conformance.bench import Bench, Promise
from tinker.testing.conformance.outcome import Contradiction
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.sampler import Sampler
from tinker.testing.conformance.trainee import ONE, OTHER, Trainee, alike, create, creation, distance, effect, learned


@check("forward_backward", "optim_step", "retrieve_future")
def pipelined(bench: Bench) -> None:
    """Requests may be submitted without waiting, and give what they give one by one."""

    def at_once(trainee: Trainee) -> None:
        promises: list[Promise[Any]] = [trainee.loss(), trainee.step(), trainee.loss([ONE]), trainee.step()]
        for promise in reversed(promises):
            bench.outcome(promise)

    def one_by_one(trainee: Trainee) -> None:
        trainee.learn()
        trainee.learn([ONE])

    before, wanted = learned(bench, 0, one_by_one)
    _, found = learned(bench, 1, at_once)
    bench.expect(alike(wanted, found, effect(before, wanted)), f"the logprobs differ by {distance(wanted, found):g}")


@check("forward_backward", "optim_step")
def late_arrival(bench: Bench) -> None:
    """A request that arrives before the one with the number below it waits for that one."""

    def swapped(trainee: Trainee) -> None:
        trainee.number += 2
        step = trainee.step(number=trainee.number - 1)
        loss = trainee.loss(number=trainee.number - 2)
        bench.outcome(loss)
        bench.outcome(step)

    before, wanted = learned(bench, 0, lambda trainee: trainee.learn())
    moved = effect(before, wanted)
    _, found = learned(bench, 1, swapped)
    if alike(before, found, moved):
        raise Contradiction("the step ran before the gradient with the lower seq_id")
    bench.expect(alike(wanted, found, moved), f"the logprobs differ by {distance(wanted, found):g}")


@check("forward_backward", "optim_step")
def repeated(bench: Bench) -> None:
    """The same request again under the same number answers the same future and has no effect."""

    def twice(trainee: Trainee) -> None:
        number, keys = trainee.number, [{"X-Idempotency-Key": str(uuid.uuid4())} for _ in range(4)]
        trainee.number += 2
        losses = [trainee.loss(number=number, headers=key) for key in keys[:2]]
        steps = [trainee.step(number=number + 1, headers=key) for key in keys[2:]]
        losses.append(trainee.loss(number=number))
        for first, again in ((losses[0], losses[1]), (steps[0], steps[1]), (losses[0], losses[2])):
            same = first.request_id == again.request_id
            bench.expect(same, f"{first.operation} again is request {again.request_id!r}, not {first.request_id!r}")
        for promise in losses:
            bench.outcome(promise)
        for step in steps:
            bench.outcome(step)

    def doubled(trainee: Trainee) -> None:
        bench.result(trainee.loss())
        trainee.learn()

    before, wanted = learned(bench, 0, lambda trainee: trainee.learn())
    moved = effect(before, wanted)
    _, found = learned(bench, 1, twice)
    if alike(wanted, found, moved):
        return
    if alike(learned(bench, 2, doubled)[1], found, moved):
        raise Contradiction("a repeated loss is computed twice: its gradient counts twice")
    raise Contradiction(f"with repetitions the logprobs move by {distance(before, found):g}, without by {moved:g}")


@check("forward_backward", "optim_step")
def conflict(bench: Bench) -> None:
    """Another request under a number that is used is refused with 409."""
    trainee = create(bench)
    bench.outcome(trainee.loss([ONE], number=1))
    assert bench.link.form is not None
    bench.refused(trainee.request(bench.link.form, [OTHER], number=1), 409)
    bench.refused(training_api.optim_step(models.OptimStepRequest(model_id=trainee.model_id, seq_id=1)), 409)


@check("create_model")
def model_again(bench: Bench) -> None:
    """Creating the model of the same number again answers the same future; with another body it is refused."""
    request = creation(bench)
    one, other = (bench.submit(request, models.CreateModelResponse) for _ in range(2))
    bench.require(one.request_id == other.request_id, f"the requests are {one.request_id!r} and {other.request_id!r}")
    ids = {bench.result(promise).model_id for promise in (one, other)}
    bench.require(len(ids) == 1, f"one number makes the models {', '.join(sorted(ids))}")
    bench.refused(creation(bench, lora_config=models.LoraConfig(rank=4)), 409)


@check("asample")
def sample_again(bench: Bench) -> None:
    """The same sample again under the same number is the same sample; another one is refused with 409."""
    sampler = Sampler.on_base(bench)
    one, other = (sampler.submit(number=0) for _ in range(2))
    bench.expect(one.request_id == other.request_id, f"the requests are {one.request_id!r} and {other.request_id!r}")
    first, again = (bench.result(promise).sequences[0].tokens for promise in (one, other))
    bench.require(first == again, f"unseeded samples of the same number are {first} and {again}: it was drawn twice")
    bench.refused(sampling_api.asample(sampler.body(number=0, max_tokens=2)), 409)


@check("forward_backward", "optim_step", slow=True)
def gap(bench: Bench) -> None:
    """A number that never arrives does not hold the model up for ever."""
    trainee = create(bench)
    bench.outcome(trainee.loss(number=2))
