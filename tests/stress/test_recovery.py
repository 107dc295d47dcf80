"""A training loop of a recovering client through ``kill -9`` of the server: it ends with the
weights of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import ServerProcess

import tinker
from tinker.recovery import RecoveringTrainingClient, Recovery, RecoveryPolicy

STEPS, SAVE_EVERY, KILLS = 200, 20, 5
SECONDS = 120.0
PARAMS = tinker.AdamParams(learning_rate=0.01)
POLICY = RecoveryPolicy(backoff_seconds=0.1)


def datum(step: int) -> tinker.Datum:
    """Return the training datum of a step."""
    tokens = [97 + (7 * step + 5 * n * n) % 26 for n in range(4 + step % 3)]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )


def probe(client: tinker.TrainingClient) -> list[float]:
    """Return a value that identifies a set of weights, to the last bit."""
    output = client.forward([datum(step) for step in range(0, 30, 3)], "cross_entropy").result(
        SECONDS
    )
    return [value for one in output.loss_fn_outputs for value in one["logprobs"].tolist()]


def take_step(
    client: tinker.TrainingClient, step: int
) -> tinker.APIFuture[tinker.ForwardBackwardOutput]:
    loss = client.forward_backward([datum(step)], "cross_entropy")
    client.optim_step(PARAMS)
    return loss


def undisturbed(steps: int) -> list[float]:
    """Return the probe after this many steps of a run whose server is not killed."""
    with tinker.ServiceClient(base_url="local://toy") as service:
        client = service.create_lora_training_client("tinker/toy", rank=4, seed=3)
        for step in range(steps):
            take_step(client, step)
        return probe(client)


def start(
    server: ServerProcess, on_recovery: Callable[[Recovery], object]
) -> RecoveringTrainingClient:
    service = tinker.ServiceClient(base_url=server.url)
    training = service.create_lora_training_client("tinker/toy", rank=4, seed=3)
    return RecoveringTrainingClient(training, POLICY, on_recovery=on_recovery)


def kill_steps() -> list[int]:
    """Return the steps in which the server is killed, in four different blocks between saves, and
    in one of them twice.
    """
    draw = random.Random(10)
    return [draw.randrange(20 * block + 1, 20 * block + 19) for block in (0, 2, 5, 9)] + [50]


def check(taken: list[int], recoveries: list[Recovery], kills: list[int]) -> None:
    """Exactly the steps after a save that were done when the server was killed came again."""
    assert len(recoveries) == KILLS
    expected = Counter(range(STEPS))
    for step in kills:
        expected.update(range(step - step % SAVE_EVERY, step + 1))
    again = Counter(taken)
    # a loss may be noticed after a step or two more were called
    late = sum((again - expected).values())
    assert not expected - again
    assert late <= 2 * KILLS
    assert [one.step for one in recoveries] == [step - step % SAVE_EVERY for step in sorted(kills)]


@pytest.mark.soak
def test_five_kills(tmp_path: Path) -> None:
    """A loop that waits for every result loses exactly the unsaved steps, repeats them, and ends
    bit for bit the same.
    """
    server, recoveries, taken, kills = (
        ServerProcess(tmp_path),
        list[Recovery](),
        list[int](),
        kill_steps(),
    )
    left = set(kills)
    server.start()
    try:
        client = start(server, recoveries.append)
        ids = {client.model_id}
        for step in client.steps(STEPS, save_every=SAVE_EVERY):
            with step:
                taken.append(step)
                loss = take_step(client, step)
                if step in left:
                    left.remove(step)
                    server.kill()
                    server.start()
                loss.result(SECONDS)
        assert probe(client) == undisturbed(STEPS)
        ids |= {one.new_run_id for one in recoveries}
        assert client.model_id == recoveries[-1].new_run_id
    finally:
        server.kill()
    assert len(ids) == KILLS + 1
    check(taken, recoveries, kills)


@pytest.mark.soak
def test_kills_of_a_loop_that_looks_at_nothing(tmp_path: Path) -> None:
    """A coroutine that only submits steps notices a loss no later than at the next save, and ends
    the same.
    """
    server, recoveries, steps, kills = ServerProcess(tmp_path), list[Recovery](), 50, [25]
    left = set(kills)
    server.start()

    async def train() -> list[float]:
        client = start(server, recoveries.append)
        async for step in client.steps(steps, save_every=SAVE_EVERY):
            take_step(client, step)
            if step in left:
                left.remove(step)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
        return await asyncio.to_thread(probe, client)

    try:
        assert asyncio.run(train()) == undisturbed(steps)
    finally:
        server.kill()
    assert [one.step for one in recoveries] == [20]
