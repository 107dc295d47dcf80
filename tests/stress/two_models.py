"""One server with two base models, eight training clients and sixty-four samplers, all as fast as
they can.

python tests/stress/two_models.py --minutes 10 prints what was done, by whom, and how much memory
the server held meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
from server_process import ServerProcess

import tinker

MODELS = ("soak/one", "soak/two")
CLIENTS_PER_MODEL, SAMPLERS_PER_CLIENT, NEW_WEIGHTS_EVERY = 4, 8, 25
ADAM = tinker.AdamParams(learning_rate=1e-3)
PROMPT = tinker.ModelInput.from_ints(list(b"Once upon a time"))
DATUM = tinker.Datum(
    model_input=tinker.ModelInput.from_ints(list(b"the quick brown fox")),
    loss_fn_inputs={"target_tokens": list(b"he quick brown fox ")},
)
Goal = Callable[[int], bool]  # whether a worker that has done this much continues


@attrs.define
class Tally:
    """The totals: ``steps`` by client, ``samples`` by sampler, ``errors`` by message, ``memory`` by
    minute in bytes.
    """

    steps: Counter[str] = attrs.field(factory=Counter)
    samples: Counter[str] = attrs.field(factory=Counter)
    errors: Counter[str] = attrs.field(factory=Counter)
    memory: list[int] = attrs.field(factory=list)

    def summarize(self) -> list[str]:
        """Return the totals in a readable form."""
        lines = [
            (
                f"{sum(self.steps.values())} steps, {sum(self.samples.values())} samples, "
                f"{sum(self.errors.values())} errors"
            )
        ]
        lines += [f"  {count} x {text}" for text, count in self.errors.items()]
        for what, counts in (
            ("steps of a client", self.steps),
            ("samples of a sampler", self.samples),
        ):
            least, most = min(counts.values()), max(counts.values())
            lines.append(f"{what}: {least} to {most}, ratio {most / least:.3f}")
        for model in MODELS:
            mean = [
                statistics.mean(n for name, n in counts.items() if model in name)
                for counts in (self.steps, self.samples)
            ]
            lines.append(
                f"{model}: {mean[0]:.0f} steps of a client, {mean[1]:.0f} samples of "
                "a sampler, on average"
            )
        return [*lines, "MB by minute: " + ", ".join(f"{one / 1e6:.0f}" for one in self.memory)]


class Client:
    """A training client with its samplers, which go on with its newest weights from
    time to time.
    """

    def __init__(
        self, service: tinker.ServiceClient, model: str, number: int, tally: Tally
    ) -> None:
        self._service, self._model, self._tally = service, model, tally
        self.name = f"{model} {number}"
        self._sampler: tinker.SamplingClient | None = None

    async def run(self, steps: Goal, samples: Goal) -> None:
        """Train and sample until the goals are reached."""
        try:
            training = await self._service.create_lora_training_client_async(self._model, rank=8)
            self._sampler = await training.save_weights_and_get_sampling_client_async()
        except tinker.TinkerError as error:
            self._tally.errors[repr(error)] += 1
            return
        samplers = [
            self._sample(f"{self.name} {number}", samples) for number in range(SAMPLERS_PER_CLIENT)
        ]
        await asyncio.gather(self._train(training, steps), *samplers)

    async def _train(self, training: tinker.TrainingClient, go_on: Goal) -> None:
        while go_on(self._tally.steps[self.name]):
            try:
                loss = await training.forward_backward_async([DATUM], "cross_entropy")
                step = await training.optim_step_async(ADAM)
                await loss
                await step
                self._tally.steps[self.name] += 1
                if self._tally.steps[self.name] % NEW_WEIGHTS_EVERY == 0:
                    self._sampler = await training.save_weights_and_get_sampling_client_async()
            except tinker.TinkerError as error:
                self._tally.errors[repr(error)] += 1

    async def _sample(self, name: str, go_on: Goal) -> None:
        params = tinker.SamplingParams(max_tokens=16)
        while go_on(self._tally.samples[name]):
            assert self._sampler is not None
            try:
                await self._sampler.sample_async(PROMPT, 1, params)
                self._tally.samples[name] += 1
            except tinker.TinkerError as error:
                self._tally.errors[repr(error)] += 1


async def work(url: str, steps: Goal, samples: Goal, tally: Tally) -> None:
    """Let all clients work, half of them on each model."""
    services = [tinker.ServiceClient(base_url=url) for _ in MODELS]
    clients = [
        Client(service, model, number, tally)
        for service, model in zip(services, MODELS, strict=True)
        for number in range(CLIENTS_PER_MODEL)
    ]
    await asyncio.gather(*(client.run(steps, samples) for client in clients))
    for service in services:
        service.close().result(30)


def serve_two(folder: Path) -> ServerProcess:
    """Return a server of two toy base models."""
    return ServerProcess(
        folder, "--engine", "toy", *(word for model in MODELS for word in ("--model", model))
    )


async def soak(server: ServerProcess, minutes: int) -> Tally:
    """Work for so many minutes, and look at the server's memory after each."""
    tally, ends = Tally(), time.monotonic() + 60 * minutes
    goal: Goal = lambda _: time.monotonic() < ends  # noqa: E731
    task = asyncio.create_task(work(server.url, goal, goal, tally))
    for minute in range(1, minutes + 1):
        await asyncio.sleep(ends - 60 * (minutes - minute) - time.monotonic())
        tally.memory.append(server.read_memory())
    await task
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = serve_two(Path(folder))
        server.start()
        try:
            tally = asyncio.run(soak(server, arguments.minutes))
        finally:
            server.kill()
    print("\n".join(tally.summarize()))
    raise SystemExit(bool(tally.errors))


if __name__ == "__main__":
    main()
