"""Saves and loads."""

from steps import step
from world import ADAM, TEXT, World, datum, near, params, prompt, tokens_of, wait

AREA = "Saves and loads"


@step(AREA, "save a state")
def save(world: World) -> None:
    assert "://" in wait(world.trained.save_state("first")).path


@step(AREA, "its name is in the path")
def name(world: World) -> None:
    assert world.state.endswith("/by-heart"), world.state


@step(AREA, "a state with a time to live")
def ttl(world: World) -> None:
    assert "://" in wait(world.trained.save_state("for-an-hour", ttl_seconds=3600)).path


@step(AREA, "load a state into a new adapter", seconds=120)
def load(world: World) -> None:
    expected, trainer = world.loss(world.trained), world.new_trainer()
    wait(trainer.load_state(world.state))
    assert near([expected], [world.loss(trainer)], 0.05), (
        f"{expected} before, {world.loss(trainer)} after"
    )


@step(AREA, "load a state into an adapter that has trained", seconds=120)
def load_later(world: World) -> None:
    expected, trainer = world.loss(world.trained), world.new_trainer()
    wait(trainer.forward_backward([datum(TEXT[20:37])], "cross_entropy"))
    wait(trainer.optim_step(ADAM))
    wait(trainer.load_state(world.state))
    assert near([expected], [world.loss(trainer)], 0.05), (
        f"{expected} before, {world.loss(trainer)} after"
    )


def _steps_from(world: World, trainer) -> float:
    for _ in range(2):
        wait(trainer.forward_backward([datum()], "cross_entropy"))
        wait(trainer.optim_step(ADAM))
    return world.loss(trainer)


@step(AREA, "load a state with its optimizer, and go on as before", seconds=150)
def load_with_optimizer(world: World) -> None:
    trainers = [world.new_trainer(), world.new_trainer()]
    for trainer in trainers:
        wait(trainer.load_state_with_optimizer(world.state))
    losses = [_steps_from(world, trainer) for trainer in trainers]
    plain = world.new_trainer()
    wait(plain.load_state(world.state))
    fresh = _steps_from(world, plain)
    assert near(losses[:1], losses[1:]), losses
    assert abs(losses[0] - fresh) > 1e-3, (
        f"the optimizer makes no difference: {losses[0]}, without it {fresh}"
    )


@step(AREA, "a training client from a state", seconds=120)
def from_state(world: World) -> None:
    trainer = wait(world.service.create_training_client_from_state(world.state), 100)
    assert near([world.loss(world.trained)], [world.loss(trainer)], 0.05)


@step(AREA, "a training client from a state with its optimizer", seconds=120)
def from_state_with_optimizer(world: World) -> None:
    trainer = wait(world.service.create_training_client_from_state_with_optimizer(world.state), 100)
    assert near([world.loss(world.trained)], [world.loss(trainer)], 0.05)


@step(AREA, "save weights for sampling")
def save_for_sampler(world: World) -> None:
    assert "://" in wait(world.trained.save_weights_for_sampler("for-sampling")).path


@step(AREA, "sample from saved weights by their path", seconds=120)
def sampler_by_path(world: World) -> None:
    sampler = wait(world.service.create_sampling_client(model_path=world.sampler_path), 100)
    assert tokens_of(wait(sampler.sample(prompt(), 1, params())))


@step(AREA, "a sampling client of the weights as they are", seconds=120)
def sampler_now(world: World) -> None:
    assert tokens_of(wait(world.trained_sampler.sample(prompt(), 1, params())))


@step(AREA, "its samples show what was learnt", seconds=120)
def learnt(world: World) -> None:
    tokens = prompt(TEXT[:17])
    trained = sum(wait(world.trained_sampler.compute_logprobs(tokens))[1:])
    base = sum(wait(world.base_sampler.compute_logprobs(tokens))[1:])
    assert trained > base + 1, f"trained {trained}, base {base}"


@step(AREA, "its logprobs are those of training", seconds=120)
def same_logprobs(world: World) -> None:
    sampled = wait(world.trained_sampler.compute_logprobs(prompt(TEXT[:17])))[1:]
    assert near([-sum(sampled)], [world.loss(world.trained)], 0.2), (
        f"{-sum(sampled)}, in training {world.loss(world.trained)}"
    )


@step(AREA, "it keeps its weights while training goes on", seconds=150)
def snapshot(world: World) -> None:
    trainer = world.new_trainer()
    wait(trainer.forward_backward([datum()], "cross_entropy"))
    wait(trainer.optim_step(ADAM))
    sampler = wait(trainer.save_weights_and_get_sampling_client(), 80)
    before = wait(sampler.compute_logprobs(prompt()))[1:]
    for _ in range(2):
        wait(trainer.forward_backward([datum()], "cross_entropy"))
        wait(trainer.optim_step(ADAM))
    assert near(before, wait(sampler.compute_logprobs(prompt()))[1:], 1e-3)
