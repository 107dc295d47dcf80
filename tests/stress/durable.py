"""A run through ``kill -9`` of a server with durability `step`: the client sees no failure, and
ends with the same weights.

python tests/stress/durable.py --kills 50 prints what a run of so many kills came to; with --model
tinker/babble it trains with torch.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray
from server_process import ServerProcess

import tinker

STEPS_FOR_EACH_KILL, SAMPLE_EVERY, SAVE_EVERY, CUSTOM_EVERY, AT_ONCE = 12, 5, 8, 3, 6
OPERATIONS_BETWEEN, MOMENT_SECONDS = (3, 10), 0.05
SECONDS = 240.0
SERVER = "server"
Array: TypeAlias = "NDArray[np.float32]"
# so small that every step is clipped
ADAM = tinker.AdamParams(learning_rate=0.01, grad_clip_norm=0.01)
PROMPT = tinker.ModelInput.from_ints(list(b"probe"))


def datum(step: int) -> tinker.Datum:
    """Return the training datum of a step."""
    tokens = [97 + (7 * step + 5 * n * n) % 26 for n in range(4 + step % 3)]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )


@tinker.with_gradients
def squares(data: Sequence[tinker.Datum], logprobs: Sequence[Array]) -> tuple[float, list[Array]]:
    """Compute a loss in this process, between two requests to the server."""
    return float(sum((part**2).sum() for part in logprobs)), [2 * part for part in logprobs]


@attrs.frozen
class Outcome:
    """The outcome of a run: its losses, gradient norms, samples, checkpoints and weights, to the
    last bit.
    """

    losses: list[float]
    norms: list[float]
    samples: list[list[int]]
    saves: list[str]
    probe: list[float]


class Counter:
    """Counts acknowledged operations, and lets a thread wait for more of them."""

    def __init__(self) -> None:
        self._count = 0
        self._more = threading.Condition()

    def add(self, _: object) -> None:
        with self._more:
            self._count += 1
            self._more.notify_all()

    def wait_for(self, more: int) -> None:
        with self._more:
            wanted = self._count + more
            self._more.wait_for(lambda: self._count >= wanted, timeout=SECONDS)


def train(service: tinker.ServiceClient, steps: int, counter: Counter) -> Outcome:
    """Train with several steps in flight, some of them with a custom loss, and sample and save
    between them.
    """
    base_model = service.get_server_capabilities().supported_models[0].model_name
    assert base_model is not None
    client = service.create_lora_training_client(base_model, rank=4, seed=3)
    losses: list[tinker.APIFuture[tinker.ForwardBackwardOutput]] = []
    updates: list[tinker.APIFuture[tinker.OptimStepResponse]] = []
    samples: list[tinker.APIFuture[tinker.SampleResponse]] = []
    saves: list[tinker.APIFuture[tinker.SaveWeightsResponse]] = []
    for step in range(steps):
        if step % CUSTOM_EVERY:
            losses.append(client.forward_backward([datum(step)], "cross_entropy"))
        else:
            losses.append(client.forward_backward_custom([datum(step)], squares))
        updates.append(client.optim_step(ADAM))
        updates[-1].add_done_callback(counter.add)
        if step % SAMPLE_EVERY == 0:
            sampler = client.save_weights_and_get_sampling_client()
            params = tinker.SamplingParams(max_tokens=8, seed=step)
            samples.append(sampler.sample(PROMPT, 2, params))
        if step % SAVE_EVERY == 0:
            saves.append(client.save_state(f"step-{step}"))
        if step >= AT_ONCE:
            losses[step - AT_ONCE].result(SECONDS)
    output = client.forward([datum(step) for step in range(0, 30, 3)], "cross_entropy").result(
        SECONDS
    )
    return Outcome(
        [one.result(SECONDS).loss for one in losses],
        [(one.result(SECONDS).metrics or {})["grad_norm:mean"] for one in updates],
        [sequence.tokens for one in samples for sequence in one.result(SECONDS).sequences],
        [one.result(SECONDS).path.rpartition("/")[2] for one in saves],
        [value for one in output.loss_fn_outputs for value in one["logprobs"].tolist()],
    )


def undisturbed(folder: Path, steps: int, *options: str) -> Outcome:
    """Return the outcome with a server that is not killed."""
    server = ServerProcess(folder, *options)
    server.start()
    try:
        with tinker.ServiceClient(base_url=server.url) as service:
            return train(service, steps, Counter())
    finally:
        server.kill()


def disturbed(
    folder: Path, kills: int, seed: int, *options: str, parts: Sequence[str] = (SERVER,)
) -> Outcome:
    """Return the outcome with a server of which ``parts``, one after the other, are killed at
    random moments.
    """
    server, counter, draw = (
        ServerProcess(folder, "--durability", "step", *options),
        Counter(),
        random.Random(seed),
    )
    server.start()

    def kill() -> None:
        while server.kills < kills:
            counter.wait_for(draw.randint(*OPERATIONS_BETWEEN))
            time.sleep(draw.random() * MOMENT_SECONDS)
            if (part := parts[server.kills % len(parts)]) != SERVER:
                server.kill_part(part, SECONDS)
                continue
            server.kill()
            server.start()

    killer = threading.Thread(target=kill)
    try:
        with tinker.ServiceClient(base_url=server.url) as service:
            killer.start()
            outcome = train(service, kills * STEPS_FOR_EACH_KILL, counter)
            killer.join(SECONDS)
            assert server.kills == kills, (server.kills, "the run ended before the last kill")
            return outcome
    finally:
        server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", help="train this model with the torch engine, and not the toy")
    arguments = parser.parse_args()
    steps = arguments.kills * STEPS_FOR_EACH_KILL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ["--model", arguments.model] if arguments.model else []
        for part in ("killed", "quiet"):
            (folder / part).mkdir()
        began = time.monotonic()
        outcome = disturbed(folder / "killed", arguments.kills, arguments.seed, *options)
        seconds = time.monotonic() - began
        kept = sum(file.stat().st_size for file in (folder / "killed").rglob("*") if file.is_file())
        same = outcome == undisturbed(folder / "quiet", steps, *options)
    print(
        f"{arguments.kills} kills in {steps} steps, {seconds:.0f} s, {kept / 1e6:.1f} MB kept: "
        f"{'equal' if same else 'DIFFERS'}"
    )
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
