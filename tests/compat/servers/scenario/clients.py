"""Clients: what the server says of itself, training clients and sampling clients."""

from steps import step
from world import TEXT, World, datum, logprobs_of, near, offered, params, prompt, tokens_of, wait

import tinker

AREA = "Clients"


@step(AREA, "the capabilities name the model")
def capabilities(world: World) -> None:
    names = [
        one.model_name for one in wait(world.service.get_server_capabilities()).supported_models
    ]
    assert world.model in names, f"the models are called {names}"


@step(AREA, "create a training client", seconds=120)
def create(world: World) -> None:
    assert wait(world.trainer.get_info()).model_id


@step(AREA, "its description: model, rank, id")
def describe(world: World) -> None:
    info = wait(world.trainer.get_info())
    assert info.model_data.model_name == world.model, info
    assert info.lora_rank == 8, info


@step(AREA, "two training clients of one session")
def two(world: World) -> None:
    first, second = wait(world.trainer.get_info()), wait(world.new_trainer(rank=4).get_info())
    assert first.model_id != second.model_id, first


@step(AREA, "adapters of parts of the model")
def parts(world: World) -> None:
    trainer = world.new_trainer(train_mlp=False, train_unembed=False)
    assert logprobs_of(wait(trainer.forward_backward([datum()], "cross_entropy")))


@step(AREA, "facts of the user's about a run")
def metadata(world: World) -> None:
    assert wait(world.new_trainer(user_metadata={"run": "comparison"}).get_info()).model_id


@step(AREA, "the same seed makes the same adapter", seconds=120)
def seeds(world: World) -> None:
    losses = []
    for seed in (5, 5, 6):
        trainer = world.new_trainer(seed=seed)
        wait(trainer.forward_backward([datum()], "cross_entropy"))
        wait(trainer.optim_step(tinker.AdamParams(learning_rate=1e-2)))
        losses.append(world.loss(trainer))
    assert near(losses[:1], losses[1:2], 1e-3), f"losses after a step {losses}"
    assert abs(losses[0] - losses[2]) > 1e-4, f"the seed changes nothing: {losses}"


@step(AREA, "the tokenizer of a training client", seconds=200)
def tokenizer(world: World) -> None:
    loaded = world.trainer.get_tokenizer()
    assert loaded.decode(loaded.encode("quick fox")) == "quick fox"


@step(AREA, "a second session beside the first")
def sessions(world: World) -> None:
    other = world.open_service(user_metadata={"second": "session"})
    trainer = wait(other.create_lora_training_client(base_model=world.model, rank=4), 80)
    assert wait(trainer.get_info()).model_id != wait(world.trainer.get_info()).model_id


@step(AREA, "a sampling client of the base model")
def base_sampler(world: World) -> None:
    assert len(tokens_of(wait(world.base_sampler.sample(prompt(TEXT[:5]), 1, params())))[0]) <= 5


@step(AREA, "a sampling client names its base model")
def base_model(world: World) -> None:
    assert offered(world.sampler, "get_base_model")() == world.model


@step(AREA, "two sampling clients of one session")
def two_samplers(world: World) -> None:
    other = wait(world.service.create_sampling_client(base_model=world.model), 80)
    assert tokens_of(wait(other.sample(prompt(), 1, params()))) and tokens_of(
        wait(world.base_sampler.sample(prompt(), 1, params()))
    )
