"""The order of requests, and refusals."""

import threading

from steps import step
from world import ADAM, TEXT, World, datum, logprobs_of, params, prompt, types, wait

import tinker

AREA = "Order"


@step(AREA, "a step submitted before the result of its gradient")
def pipelined(world: World) -> None:
    gradient = world.trainer.forward_backward([datum()], "cross_entropy")
    taken = world.trainer.optim_step(ADAM)
    assert logprobs_of(wait(gradient)) and wait(taken) is not None


@step(AREA, "six steps submitted at once, in order", seconds=120)
def six(world: World) -> None:
    trainer = world.new_trainer()
    pending = [
        (trainer.forward_backward([datum()], "cross_entropy"), trainer.optim_step(ADAM))
        for _ in range(6)
    ]
    losses = [-sum(logprobs_of(wait(one))) for one, _ in pending]
    assert losses[0] > losses[1] > losses[2] and losses[5] < losses[0], losses
    wait(pending[-1][1])


@step(AREA, "results received in another order")
def backwards(world: World) -> None:
    pending = [
        world.trainer.forward([datum(TEXT[:length])], "cross_entropy") for length in (5, 9, 13)
    ]
    lengths = [len(logprobs_of(wait(one))) for one in reversed(pending)]
    assert lengths == [12, 8, 4], lengths


@step(AREA, "two training clients in turn", seconds=120)
def interleaved(world: World) -> None:
    trainers = [world.new_trainer(), world.new_trainer()]
    pending = [
        (one.forward_backward([datum()], "cross_entropy"), one.optim_step(ADAM))
        for _ in range(3)
        for one in trainers
    ]
    losses = [-sum(logprobs_of(wait(first))) for first, _ in pending]
    assert losses[0] > losses[2] > losses[4] and losses[1] > losses[3] > losses[5], losses


@step(AREA, "a save between steps has the weights of its place", seconds=120)
def save_between(world: World) -> None:
    trainer = world.new_trainer()
    wait(trainer.forward_backward([datum()], "cross_entropy"))
    steps = [trainer.optim_step(ADAM)]
    now = trainer.forward([datum()], "cross_entropy")
    saved = trainer.save_state("between")
    for _ in range(3):
        steps += [trainer.forward_backward([datum()], "cross_entropy"), trainer.optim_step(ADAM)]
    for one in steps:
        wait(one)
    other = world.new_trainer()
    wait(other.load_state(wait(saved).path))
    expected = -sum(logprobs_of(wait(now)))
    assert abs(world.loss(other) - expected) < 0.05, f"{world.loss(other)}, then {expected}"


REFUSALS = "Refusals"
REFUSED = (tinker.TinkerError, ValueError, TypeError)


def refused(call, seconds: float = 75.0) -> Exception:
    """The refusal of a call, as an error that says so: no failure of the server, no time-out, no
    broken connection.
    """
    try:
        answer = wait(call(), seconds)
    except REFUSED as error:
        status = getattr(error, "status_code", None)
        unclear = isinstance(error, (tinker.APIConnectionError, tinker.InternalServerError)) or (
            status is not None and status >= 500
        )
        if unclear:
            raise AssertionError(
                f"the refusal is {type(error).__name__} {status or ''}: {str(error)[:300]}"
            ) from error
        return error
    raise AssertionError(f"not refused: {str(answer)[:150]}")


def refused_loss(world: World, data: list, loss: str = "cross_entropy", **options) -> None:
    trainer = world.need("a training client to be refused", world.new_trainer)
    refused(lambda: trainer.forward_backward(data, loss, **options))


@step(REFUSALS, "an unknown base model")
def unknown_model(world: World) -> None:
    assert world.trainer  # what is right is not refused
    refused(
        lambda: wait(
            world.service.create_lora_training_client(base_model="nobody/no-model", rank=4), 45
        ).get_info()
    )


@step(REFUSALS, "a rank that is too large")
def large_rank(world: World) -> None:
    assert world.trainer  # what is right is not refused
    refused(
        lambda: wait(
            world.service.create_lora_training_client(base_model=world.model, rank=4096), 45
        ).get_info()
    )


@step(REFUSALS, "an unknown loss")
def unknown_loss(world: World) -> None:
    refused_loss(world, [datum()], "no_such_loss")


@step(REFUSALS, "training goes on after a refused loss")
def goes_on(world: World) -> None:
    trainer = world.new_trainer()
    wait(trainer.forward_backward([datum()], "cross_entropy"))
    refused(lambda: trainer.forward_backward([datum()], "no_such_loss"))
    wait(trainer.forward_backward([datum()], "cross_entropy"))
    wait(trainer.optim_step(ADAM))


@step(REFUSALS, "a loss without its target tokens")
def no_targets(world: World) -> None:
    refused_loss(world, [types.Datum(model_input=prompt(), loss_fn_inputs={"weights": [1.0] * 16})])


@step(REFUSALS, "loss inputs of another length")
def wrong_length(world: World) -> None:
    inputs = {"target_tokens": TEXT[1:10], "weights": [1.0] * 9}
    refused_loss(world, [types.Datum(model_input=prompt(), loss_fn_inputs=inputs)])


@step(REFUSALS, "a token outside the vocabulary, in training")
def wrong_token(world: World) -> None:
    refused_loss(world, [datum([*TEXT[:16], 999_999])])


@step(REFUSALS, "a token outside the vocabulary, in sampling")
def wrong_prompt(world: World) -> None:
    refused(lambda: world.sampler.sample(prompt([1, 2, 999_999]), 1, params()))


@step(REFUSALS, "a prompt longer than the context")
def long_prompt(world: World) -> None:
    refused(lambda: world.sampler.sample(prompt((TEXT * 40)[:1500]), 1, params()))


@step(REFUSALS, "a negative temperature")
def temperature(world: World) -> None:
    refused(lambda: world.sampler.sample(prompt(), 1, params(temperature=-1.0)))


@step(REFUSALS, "a state that is not there")
def unknown_state(world: World) -> None:
    trainer = world.new_trainer()
    refused(lambda: trainer.load_state(world.state.replace("by-heart", "no-such-state")))


@step(REFUSALS, "a path that is none")
def wrong_path(world: World) -> None:
    trainer = world.new_trainer()
    refused(lambda: trainer.load_state("not a path"))


@step(REFUSALS, "a sampling client of weights that are not there")
def unknown_weights(world: World) -> None:
    path = world.sampler_path.replace("by-heart", "no-such-weights")

    def sample():
        return wait(world.service.create_sampling_client(model_path=path), 45).sample(
            prompt(), 1, params()
        )

    refused(sample)


@step(REFUSALS, "a key that is wrong")
def wrong_key(world: World) -> None:
    assert world.trainer  # what is right is not refused
    service = tinker.ServiceClient(base_url=world.base_url, api_key="tml-wrong")
    error = refused(
        lambda: wait(
            service.create_lora_training_client(base_model=world.model, rank=4), 45
        ).get_info()
    )
    assert getattr(error, "status_code", None) in (401, 403), repr(error)


@step(REFUSALS, "a training run that is not there")
def unknown_run(world: World) -> None:
    error = refused(lambda: world.rest.get_training_run("00000000-0000-0000-0000-000000000000"))
    assert isinstance(error, tinker.NotFoundError), repr(error)[:300]


@step(REFUSALS, "a deleted checkpoint that is not there")
def unknown_checkpoint(world: World) -> None:
    run = wait(world.trained.get_info()).model_id
    refused(lambda: world.rest.delete_checkpoint(run, "weights/no-such-checkpoint"))


THREADS = "Threads"


@step(THREADS, "eight threads sample with one client")
def sampling_threads(world: World) -> None:
    sampler = world.sampler
    _in_threads(8, lambda index: wait(sampler.sample(prompt(TEXT[: 4 + index]), 1, params())))


@step(THREADS, "three threads train a client each", seconds=150)
def training_threads(world: World) -> None:
    def train(index: int) -> None:
        trainer = world.new_trainer(seed=index)
        gradient = trainer.forward_backward([datum()], "cross_entropy")
        wait(trainer.optim_step(ADAM))
        assert logprobs_of(wait(gradient))

    _in_threads(3, train)


def _in_threads(count: int, work) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=guarded, args=(index,), daemon=True) for index in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
