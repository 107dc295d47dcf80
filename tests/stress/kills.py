"""Training through ``kill -9`` of a server: it ends, to the last bit, as one whose server is not
killed.

    python tests/stress/kills.py --kills 50                  the client sees no failure
    python tests/stress/kills.py --kills 50 --model tinker/babble             with torch
    python tests/stress/kills.py --kills 4 --durability save --seeds 20
        loops that recover from their last checkpoint, as the server forgets runs, and only those
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray
from server_process import ServerProcess

import tinker
from tinker.recovery import RecoveringTrainingClient, RecoveryPolicy

STEPS_FOR_EACH_KILL, SAMPLE_EVERY, SAVE_EVERY, CUSTOM_EVERY, AT_ONCE = 12, 5, 4, 3, 6
OPERATIONS_BETWEEN, MOMENT_SECONDS, DOWN_SECONDS = (3, 10), 0.05, 0.5
SECONDS = 240.0
SERVER = "server"
LEFTOVERS = (".draft-", ".old-", ".gone-")
Array: TypeAlias = "NDArray[np.float32]"
# so small that every step is clipped
ADAM = tinker.AdamParams(learning_rate=0.01, grad_clip_norm=0.01)
PROMPT = tinker.ModelInput.from_ints(list(b"probe"))
POLICY = RecoveryPolicy(backoff_seconds=0.1)


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


@attrs.define
class Outcome:
    """The outcome of a run, to the last bit: by step its losses, gradient norms and samples, what
    its checkpoints hold, and its weights.
    """

    losses: dict[int, float] = attrs.field(factory=dict)
    norms: dict[int, float] = attrs.field(factory=dict)
    samples: dict[int, list[list[int]]] = attrs.field(factory=dict)
    probe: list[float] = attrs.field(factory=list)
    checkpoints: dict[str, set[tuple[float, ...]]] = attrs.field(factory=dict)
    recoveries: int = attrs.field(default=0, eq=False)
    checkpoint_count: int = attrs.field(default=0, eq=False)

    def note(self, step: int, loss: Any, update: Any, sample: Any) -> None:
        """Wait for what a step has called."""
        self.losses[step] = loss.result(SECONDS).loss
        self.norms[step] = (update.result(SECONDS).metrics or {})["grad_norm:mean"]
        if sample is not None:
            self.samples[step] = [one.tokens for one in sample.result(SECONDS).sequences]


class Counter:
    """Counts acknowledged operations, and lets a thread wait for more of them."""

    def __init__(self) -> None:
        self._count = 0
        self._more = threading.Condition()

    def add(self, _: object = None) -> None:
        with self._more:
            self._count += 1
            self._more.notify_all()

    def wait_for(self, more: int) -> None:
        with self._more:
            wanted = self._count + more
            self._more.wait_for(lambda: self._count >= wanted, timeout=SECONDS)


def call_step(client: Any, step: int, counter: Counter) -> tuple[Any, Any, Any]:
    """Call a step, some with a custom loss, and now and then sample; return the futures."""
    if step % CUSTOM_EVERY:
        loss = client.forward_backward([datum(step)], "cross_entropy")
    else:
        loss = client.forward_backward_custom([datum(step)], squares)
    update = client.optim_step(ADAM)
    update.add_done_callback(counter.add)
    sample = None
    if step % SAMPLE_EVERY == 0:
        params = tinker.SamplingParams(max_tokens=8, seed=step)
        sample = client.save_weights_and_get_sampling_client().sample(PROMPT, 2, params)
    return loss, update, sample


def probe(client: Any) -> list[float]:
    """Return values that identify a set of weights, to the last bit."""
    data = [datum(step) for step in range(0, 30, 3)]
    output = client.forward(data, "cross_entropy").result(SECONDS)
    return [value for one in output.loss_fn_outputs for value in one["logprobs"].tolist()]


def new_run(service: tinker.ServiceClient) -> tinker.TrainingClient:
    base_model = service.get_server_capabilities().supported_models[0].model_name
    assert base_model is not None
    return service.create_lora_training_client(base_model, rank=4, seed=3)


def train(service: tinker.ServiceClient, steps: int, counter: Counter) -> Outcome:
    """Train with several steps in flight; no request fails."""
    client, outcome, called = new_run(service), Outcome(), list[tuple[Any, Any, Any]]()
    for step in range(steps):
        called.append(call_step(client, step, counter))
        if (step + 1) % SAVE_EVERY == 0:
            client.save_state(f"step-{step + 1}")
        if step >= AT_ONCE:
            outcome.note(step - AT_ONCE, *called[step - AT_ONCE])
    for step in range(max(0, steps - AT_ONCE), steps):
        outcome.note(step, *called[step])
    outcome.probe = probe(client)
    return outcome


def train_again(service: tinker.ServiceClient, steps: int, counter: Counter) -> Outcome:
    """Train in a loop that repeats the steps since its last checkpoint when the run is lost."""
    outcome = Outcome()
    client = RecoveringTrainingClient(new_run(service), POLICY)
    ids = {client.model_id}
    for step in client.steps(steps, save_every=SAVE_EVERY):
        with step:
            ids.add(client.model_id)
            outcome.note(step, *call_step(client, step, counter))
    outcome.probe, outcome.recoveries = probe(client), len(ids) - 1
    return outcome


def read_checkpoints(service: tinker.ServiceClient, outcome: Outcome) -> None:
    """Note what the listed checkpoints hold, by their names: the weights after one more step, which
    needs the optimizer's state.
    """
    rest, client = service.create_rest_client(), new_run(service)
    for one in rest.list_user_checkpoints(1000).result(SECONDS).checkpoints:
        client.load_state_with_optimizer(one.tinker_path).result(SECONDS)
        client.forward_backward([datum(0)], "cross_entropy")
        client.optim_step(ADAM)
        name = one.tinker_path.rpartition("/")[2]
        outcome.checkpoints.setdefault(name, set()).add(tuple(probe(client)))
        outcome.checkpoint_count += 1


def run(
    folder: Path,
    steps: int,
    options: Sequence[str] = (),
    *,
    durability: str = "step",
    kills: int = 0,
    seed: int = 1,
    parts: Sequence[str] = (SERVER,),
) -> Outcome:
    """Train on a server of which ``parts``, one after the other, are killed at random moments."""
    folder.mkdir(exist_ok=True)
    server = ServerProcess(folder, "--durability", durability, *options)
    counter, draw = Counter(), random.Random(seed)

    def kill() -> None:
        while server.kills < kills:
            counter.wait_for(draw.randint(*OPERATIONS_BETWEEN))
            time.sleep(draw.random() * MOMENT_SECONDS)
            if (part := parts[server.kills % len(parts)]) != SERVER:
                server.kill_part(part, SECONDS)
                continue
            server.kill()
            time.sleep(draw.random() * DOWN_SECONDS)
            server.start()

    killer = threading.Thread(target=kill)
    server.start()
    try:
        with tinker.ServiceClient(base_url=server.url) as service:
            killer.start()
            outcome = (train if durability == "step" else train_again)(service, steps, counter)
            killer.join(SECONDS)
            assert server.kills == kills, (server.kills, "the run ended before the last kill")
        server.kill()  # what counts is what is on the disk
        server.start()
        with tinker.ServiceClient(base_url=server.url) as service:
            read_checkpoints(service, outcome)
    finally:
        server.kill()
    left = [path for path in server.data.rglob("*") if path.name.startswith(LEFTOVERS)]
    assert left == []
    return outcome


def soak(
    seeds: Sequence[int], kills: int, *options: str, durability: str = "step", at_once: int = 1
) -> bool:
    """Run every seed, and print what came of it; return whether all are as without kills."""
    steps, began = kills * STEPS_FOR_EACH_KILL, time.monotonic()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(at_once) as pool:
        start = partial(run, steps=steps, options=options, durability=durability)
        expected = start(Path(name, "quiet"))
        outcomes = pool.map(
            lambda seed: start(Path(name, f"{seed}"), kills=kills, seed=seed), seeds
        )
        differ = 0
        for seed, outcome in zip(seeds, outcomes, strict=True):
            differ += outcome != expected
            files = [one for one in Path(name, f"{seed}").rglob("*") if one.is_file()]
            print(
                f"seed {seed}, kills {kills}, steps {steps}, recoveries {outcome.recoveries}, "
                f"checkpoints {outcome.checkpoint_count}, "
                f"MB kept {sum(one.stat().st_size for one in files) / 1e6:.1f}, "
                f"seconds {time.monotonic() - began:.0f}: "
                f"{'equal' if outcome == expected else 'DIFFERS'}",
                flush=True,
            )
    return not differ


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--durability", choices=["step", "save"], default="step")
    parser.add_argument("--model", help="train this model with the torch engine, and not the toy")
    asked = parser.parse_args()
    options = ["--model", asked.model] if asked.model else []
    is_well = soak(range(asked.seeds), asked.kills, *options, durability=asked.durability)
    raise SystemExit(not is_well)


if __name__ == "__main__":
    main()
