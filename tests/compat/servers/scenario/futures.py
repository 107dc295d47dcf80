"""Futures, asyncio, pickles, other processes and the end."""

import asyncio
import concurrent.futures
import pickle
import subprocess
import sys
import time
from pathlib import Path

from steps import step
from world import (
    ADAM,
    TEXT,
    World,
    datum,
    logprobs_of,
    near,
    offered,
    params,
    prompt,
    tokens_of,
    wait,
)

import tinker

AREA = "Futures and asyncio"
HERE = Path(__file__).parent
AWAITED_SECONDS = 60


def plain(future):
    """The future of the standard library, which some clients give from theirs."""
    return future if isinstance(future, concurrent.futures.Future) else future.future()


@step(AREA, "a time-out leaves the result to come")
def timeout(world: World) -> None:
    future = world.trainer.forward_backward([datum()], "cross_entropy")
    try:
        future.result(timeout=0)
    except (TimeoutError, concurrent.futures.TimeoutError):
        pass
    assert logprobs_of(wait(future))


@step(AREA, "a result twice")
def twice(world: World) -> None:
    future = world.trainer.forward([datum()], "cross_entropy")
    assert near(logprobs_of(wait(future)), logprobs_of(wait(future)), 0)


@step(AREA, "samples as they are ready")
def as_completed(world: World) -> None:
    sampler = world.sampler
    pending = [plain(sampler.sample(prompt(TEXT[: 4 + index]), 1, params())) for index in range(4)]
    assert len([one.result() for one in concurrent.futures.as_completed(pending, timeout=60)]) == 4


@step(AREA, "a future awaited")
def awaited(world: World) -> None:
    async def train():
        future = world.trainer.forward([datum()], "cross_entropy")
        return await asyncio.wait_for(_ready(future), AWAITED_SECONDS)

    assert logprobs_of(asyncio.run(train()))


async def _ready(value):
    """What becomes of a value by awaiting it, once or twice, as the versions of the
    client want it.
    """
    while hasattr(value, "__await__"):
        known, value = value, await value
        if value is known:  # a client that can be awaited
            break
    return value


@step(AREA, "train in a coroutine")
def train_async(world: World) -> None:
    async def train():
        trainer = world.trainer
        gradient = await trainer.forward_backward_async([datum()], "cross_entropy")
        step_taken = await trainer.optim_step_async(ADAM)
        output = await _ready(gradient)
        await _ready(step_taken)
        return output

    assert logprobs_of(asyncio.run(asyncio.wait_for(train(), AWAITED_SECONDS)))


@step(AREA, "create a training client in a coroutine")
def create_async(world: World) -> None:
    async def create():
        trainer = await _ready(
            world.service.create_lora_training_client_async(base_model=world.model, rank=4)
        )
        return await _ready(trainer.get_info_async())

    assert asyncio.run(asyncio.wait_for(create(), 80)).model_id


@step(AREA, "ten samples with gather", seconds=120)
def gather(world: World) -> None:
    sampler = world.sampler

    async def sample():
        asked = [
            _ready(sampler.sample_async(prompt(TEXT[: 4 + index]), 1, params()))
            for index in range(10)
        ]
        return await asyncio.gather(*asked)

    assert len(asyncio.run(asyncio.wait_for(sample(), 110))) == 10


@step(AREA, "save and sample in a coroutine", seconds=120)
def save_async(world: World) -> None:
    async def work():
        sampler = await _ready(world.trained.save_weights_and_get_sampling_client_async())
        return await _ready(sampler.sample_async(prompt(), 1, params()))

    assert tokens_of(asyncio.run(asyncio.wait_for(work(), 110)))


@step(AREA, "lists in a coroutine")
def lists_async(world: World) -> None:
    assert world.trained

    async def work():
        return await _ready(world.rest.list_training_runs_async(limit=5))

    assert asyncio.run(asyncio.wait_for(work(), AWAITED_SECONDS)).training_runs


@step(AREA, "a loss of one's own in a coroutine")
def custom_async(world: World) -> None:
    def likelihood(data, logprobs):
        loss = -sum(one.sum() for one in logprobs)
        return loss, {"mine": float(loss)}

    async def work():
        return await _ready(world.trainer.forward_backward_custom_async([datum()], likelihood))

    assert "mine" in asyncio.run(asyncio.wait_for(work(), AWAITED_SECONDS)).metrics


PROCESSES = "Pickles, processes, the end"


@step(PROCESSES, "a pickled sampling client")
def pickled(world: World) -> None:
    sampler = pickle.loads(pickle.dumps(world.sampler))
    assert tokens_of(wait(sampler.sample(prompt(), 1, params())))


def in_process(world: World, code: str, *arguments: str, seconds: float = 80) -> str:
    """What a program prints that runs in a process of its own, and has to end by itself."""
    command = [sys.executable, "-c", code, world.base_url, world.api_key, world.model, *arguments]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, cwd=world.folder
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"the process did not end within {seconds:.0f} s") from error
    assert ended.returncode == 0, ended.stderr[-500:]
    return ended.stdout


@step(PROCESSES, "a pickled sampling client in another process")
def other_process(world: World) -> None:
    path = world.folder / "sampler.pickle"
    path.write_bytes(pickle.dumps(world.sampler))
    code = (
        "import os, pickle, sys, tinker; from tinker import types\n"
        "os.environ['TINKER_API_KEY'] = sys.argv[2]\n"
        "sampler = pickle.load(open(sys.argv[4], 'rb'))\n"
        "answer = sampler.sample(types.ModelInput.from_ints([65, 66]), 1, "
        "types.SamplingParams(max_tokens=2)).result(timeout=50)\n"
        "print(len(answer.sequences))\n"
    )
    assert in_process(world, code, str(path)).split() == ["1"]


@step(PROCESSES, "a program that closes nothing ends")
def ends(world: World) -> None:
    code = (
        "import sys, tinker\n"
        "service = tinker.ServiceClient(base_url=sys.argv[1], api_key=sys.argv[2])\n"
        "answer = service.get_server_capabilities()\n"
        "print(len((answer.result() if hasattr(answer, 'result') else answer).supported_models))\n"
    )
    assert in_process(world, code).split()[0].isdigit()


@step(PROCESSES, "close a session")
def close(world: World) -> None:
    service = world.open_service()
    assert wait(service.get_server_capabilities()) is not None
    wait(offered(service, "close")("success"))


@step(PROCESSES, "what comes after close is refused at once")
def after_close(world: World) -> None:
    service = world.open_service()
    assert wait(service.get_server_capabilities()) is not None
    wait(offered(service, "close")("success"))
    begun = time.monotonic()
    try:
        wait(
            wait(service.create_lora_training_client(base_model=world.model, rank=4), 30).get_info()
        )
    except Exception as error:
        assert not isinstance(error, (TimeoutError, tinker.APITimeoutError)), repr(error)
        assert time.monotonic() - begun < 10, repr(error)
    else:
        raise AssertionError("a closed client makes training clients")


@step(PROCESSES, "a new session after that")
def reopened(world: World) -> None:
    service = world.open_service()
    trainer = wait(service.create_lora_training_client(base_model=world.model, rank=4), 80)
    assert wait(trainer.get_info()).model_id
