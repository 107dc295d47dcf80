"""openpipe-art: its TinkerNativeBackend, from rollouts by its OpenAI endpoint to trained steps,
checkpoints, a resumed run and a fork.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

# litellm, which art imports, else asks the network for prices
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import art
import openai
import pytest
from art.tinker_native import TinkerNativeBackend
from reporting import MODEL, PATIENCE_SECONDS, register_tokenizer, report

ARGUMENTS = {"renderer_name": "role_colon", "training_client_args": {"rank": 8, "seed": 1}}
QUESTION: Any = {"role": "user", "content": "Say hi."}
loop = asyncio.new_event_loop()
backend: TinkerNativeBackend
model: art.TrainableModel[Any, Any]


def in_one_loop(step: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a step on the backend's loop, where the endpoint is a task across steps."""
    return functools.wraps(step)(
        lambda: asyncio.run_coroutine_threadsafe(step(), loop).result(PATIENCE_SECONDS)
    )


async def register(name: str) -> tuple[TinkerNativeBackend, art.TrainableModel[Any, Any]]:
    """Return a backend on the folder `art`, with this model, as a new process has them."""
    made = art.TrainableModel(
        name=name,
        project="steps",
        base_model=MODEL,
        _internal_config={"tinker_native_args": ARGUMENTS},
    )
    behind = TinkerNativeBackend(path="art")
    await made.register(behind, _openai_client_config={"server_args": {"host": "127.0.0.1"}})
    return behind, made


async def ask(step: int | None = None, **options: Any) -> Any:
    """Completions of the model after that step."""
    create = model.openai_client().chat.completions.create
    return await create(
        model=model.get_inference_name(step), messages=[QUESTION], max_tokens=8, **options
    )


async def gather(seed: int) -> art.TrajectoryGroup:
    """Eight rollouts; the more spaces one has, the better."""
    choices = (await ask(n=8, seed=seed)).choices
    rewards = [
        sum(one.token == "token_id:32" for one in choice.logprobs.content) / 8 for choice in choices
    ]
    pairs = zip(choices, rewards, strict=True)
    return art.TrajectoryGroup(
        [
            art.Trajectory(messages_and_choices=[QUESTION, one], reward=reward)
            for one, reward in pairs
        ]
    )


async def train(seed: int, **options: Any) -> float:
    """One step on fresh rollouts; returns their mean reward."""
    group = await gather(seed)
    result = await backend.train(
        model, [group], loss_fn="importance_sampling", learning_rate=5e-3, **options
    )
    assert result.step == await model.get_step()
    assert result.metrics["data/step_num_datums"] == 8
    return sum(one.reward for one in group.trajectories) / 8


@in_one_loop
async def registered_model() -> None:
    global backend, model
    backend, model = await register("first")
    assert (await model.get_step(), model.get_inference_name()) == (0, "first@0")


@in_one_loop
async def rollouts() -> None:
    answer = await ask(n=2, seed=1)
    assert answer.usage.completion_tokens == sum(
        len(one.logprobs.content) for one in answer.choices
    )
    assert all(token.logprob <= 0 for one in answer.choices for token in one.logprobs.content)


@in_one_loop
async def importance_sampling_steps() -> None:
    rewards = [await train(seed, save_checkpoint=seed == 6) for seed in range(1, 7)]
    assert sum(rewards[3:]) > sum(rewards[:3]), rewards


@in_one_loop
async def earlier_step() -> None:
    """The endpoint still serves the weights from before the training."""
    before, after = [[one.logprobs for one in (await ask(step, seed=9)).choices] for step in (0, 6)]
    assert before != after


@in_one_loop
async def step_that_is_not_there() -> None:
    with pytest.raises(openai.NotFoundError, match="No sampler checkpoint for step 99"):
        await ask(99)


@in_one_loop
async def resumed_run() -> None:
    """A new process finds the last checkpoint, serves it and trains on from it."""
    global backend, model
    before = (await ask(6, temperature=0.01, seed=9)).choices[0].logprobs
    await backend.close()
    backend, model = await register("first")
    assert await model.get_step() == 6
    assert (await ask(6, temperature=0.01, seed=9)).choices[0].logprobs == before
    await train(7)
    assert await model.get_step() == 7


@in_one_loop
async def forked_model() -> None:
    """Another model begins at a checkpoint of the first."""
    global backend, model
    await backend.close()
    backend, model = await register("second")
    await backend._experimental_fork_checkpoint(model, from_model="first")
    assert await model.get_step() == 6
    await train(8, save_checkpoint=True)
    await backend.close()


if __name__ == "__main__":
    register_tokenizer()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    report([
        registered_model, rollouts, importance_sampling_steps, earlier_step, step_that_is_not_there, resumed_run, forked_model,
    ])  # fmt: skip
