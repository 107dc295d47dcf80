"""Training through ``kill -9`` of the server: workers resume from their checkpoints, and lose
nothing else.

A killed server forgets sessions, runs and samplers; checkpoints stay. Each worker trains a fixed
number of steps on fixed data, so what must come of it is known from a run without kills.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from server_process import ServerProcess

import tinker
from tinker.testing import toy_server

BASE_MODEL = "tinker/toy"
WORKERS, STEPS, SAVE_EVERY = 4, 24, 4
LATEST = "latest"  # the name of the checkpoint that each save of a run replaces
PATIENCE_SECONDS = 120.0
GUARD_SECONDS = 400.0
# A kill comes when so many more operations have been acknowledged, and a moment; then the server is
# down for a while.
OPERATIONS_BETWEEN, MOMENT_SECONDS, DOWN_SECONDS = (15, 60), 0.05, 0.5
LEFTOVERS = (".draft-", ".old-", ".gone-")
PROMPT = tinker.ModelInput.from_ints(list(b"probe"))


def datum(worker: int, step: int) -> tinker.Datum:
    """Return the training datum of a worker's step."""
    tokens = [97 + (5 * worker + 3 * step + n) % 26 for n in range(4 + step % 3)]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


def take_step(client: tinker.TrainingClient, worker: int, step: int) -> list[Any]:
    """Submit one step; return the futures of its two operations."""
    loss = client.forward_backward([datum(worker, step)], "cross_entropy")
    return [loss, client.optim_step(tinker.AdamParams(learning_rate=0.01))]


def probe(client: tinker.TrainingClient, worker: int) -> list[float]:
    """Return a value that identifies the weights of one step of one worker."""
    output = client.forward([datum(worker, n) for n in range(1, 4)], "cross_entropy").result(
        PATIENCE_SECONDS
    )
    return [value for one in output.loss_fn_outputs for value in one["logprobs"].tolist()]


@cache
def undisturbed() -> list[list[list[float]]]:
    """Return the probes of each worker after each step, and before the first, of a run without
    kills.
    """
    with toy_server(keep=False) as server:
        service = server.service()
        return [_undisturbed(new_run(service, worker), worker) for worker in range(WORKERS)]


def _undisturbed(client: tinker.TrainingClient, worker: int) -> list[list[float]]:
    probes = [probe(client, worker)]
    for step in range(1, STEPS + 1):
        for future in take_step(client, worker, step):
            future.result(PATIENCE_SECONDS)
        probes.append(probe(client, worker))
    return probes


def new_run(service: tinker.ServiceClient, worker: int) -> tinker.TrainingClient:
    """Create a worker's run."""
    return service.create_lora_training_client(BASE_MODEL, rank=4, seed=worker)


@dataclasses.dataclass
class Saved:
    """A checkpoint that the server acknowledged: after this step of this worker, or a later one."""

    worker: int
    step: int


class Ledger:
    """The observations of all threads of a run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.saved: dict[str, Saved] = {}
        self.workers: dict[str, int] = {}  # by run
        self.complaints: list[str] = []

    def count(self, what: str) -> None:
        """Count one of these."""
        with self._changed:
            self.counts[what] += 1
            self._changed.notify_all()

    def save(self, path: str, worker: int, step: int) -> None:
        """Note a save that was acknowledged."""
        with self._changed:
            self.saved[path] = Saved(worker, step)
        self.count("saves")

    def fail(self, where: str, error: Exception) -> None:
        """Note a failure. It must say that the session is lost, itself or as what an operation
        before it met.
        """
        cause = error.__cause__ if isinstance(error, tinker.PrecedingRequestFailed) else error
        with self._changed:
            self.errors[type(error).__name__] += 1
            if not isinstance(cause, tinker.SessionLostError):
                self.complaints.append(
                    f"{where} failed otherwise: {error!r}, because of {cause!r}"[:500]
                )

    def wait_for(self, operations: int, seconds: float) -> bool:
        """Wait until so many operations have been acknowledged."""
        with self._changed:
            return self._changed.wait_for(lambda: self.counts["operations"] >= operations, seconds)


class Worker:
    """Trains from where the last acknowledged checkpoint is, until all steps are done and saved."""

    def __init__(self, service: tinker.ServiceClient, index: int, ledger: Ledger) -> None:
        self._service, self._index, self._ledger = service, index, ledger
        self._step, self._path = 0, ""

    def run(self) -> None:
        """Train, as often as it takes."""
        ends = time.monotonic() + GUARD_SECONDS
        while self._step < STEPS and time.monotonic() < ends:
            try:
                self._train(self._client())
            except tinker.TinkerError as error:
                self._ledger.fail(f"worker {self._index}", error)
        if self._step < STEPS:
            self._ledger.complaints.append(
                f"worker {self._index} had not ended after {GUARD_SECONDS:g} s"
            )

    def _client(self) -> tinker.TrainingClient:
        if self._path:
            client = self._service.create_training_client_from_state_with_optimizer(self._path)
        else:
            client = new_run(self._service, self._index)
        self._ledger.workers[client.model_id] = self._index
        self._ledger.count("runs")
        return client

    def _train(self, client: tinker.TrainingClient) -> None:
        """Submit blocks of steps with a save each, all in flight at once; continue only where all
        of a block succeeded.
        """
        while self._step < STEPS:
            first, last = self._step + 1, self._step + SAVE_EVERY
            pending = [
                future
                for step in range(first, last + 1)
                for future in take_step(client, self._index, step)
            ]
            saves = [client.save_state(f"{last:04}"), client.save_state(LATEST, overwrite=True)]
            failures = [self._failure(future) for future in pending]
            failures += [self._failure(save, last) for save in saves]
            if failed := [error for error in failures if error is not None]:
                for error in failed[1:]:
                    self._ledger.fail(f"worker {self._index}", error)
                raise failed[0]

    def _failure(self, future: Any, step: int = 0) -> Exception | None:
        """Wait for one operation; a save, made after a step, is noted at once, whatever becomes of
        others.
        """
        try:
            result = future.result(PATIENCE_SECONDS)
        except tinker.TinkerError as error:
            return error
        self._ledger.count("operations")
        if step:
            self._ledger.save(result.path, self._index, step)
            self._step, self._path = step, result.path
        return None


class Sampler:
    """Samples from the base model until it is stopped; the same seed must give the same tokens."""

    def __init__(self, service: tinker.ServiceClient, ledger: Ledger) -> None:
        self._service, self._ledger = service, ledger
        self._seen: dict[int, list[int]] = {}
        self.stop = threading.Event()

    def run(self) -> None:
        """Sample, with a new client after each that was lost."""
        while not self.stop.is_set():
            try:
                sampler = self._service.create_sampling_client(base_model=BASE_MODEL).result(
                    PATIENCE_SECONDS
                )
                while not self.stop.is_set():
                    self._sample(sampler)
            except tinker.TinkerError as error:
                self._ledger.fail("sampler", error)

    def _sample(self, sampler: tinker.SamplingClient) -> None:
        seed = self._ledger.counts["samples"] % 10
        params = tinker.SamplingParams(max_tokens=4, seed=seed)
        tokens = sampler.sample(PROMPT, 1, params).result(PATIENCE_SECONDS).sequences[0].tokens
        if self._seen.setdefault(seed, tokens) != tokens:
            self._ledger.complaints.append(
                f"seed {seed} gave {tokens}, and before {self._seen[seed]}"
            )
        self._ledger.count("samples")


def kill_again_and_again(
    server: ServerProcess, ledger: Ledger, kills: int, draw: random.Random, over: Callable[[], bool]
) -> None:
    """Kill the server and start it again, so often, at moments that the work brings about."""
    for _ in range(kills):
        wanted = ledger.counts["operations"] + draw.randint(*OPERATIONS_BETWEEN)
        while not ledger.wait_for(wanted, 0.5):
            if over():
                return
        time.sleep(draw.uniform(0, MOMENT_SECONDS))
        server.kill()
        time.sleep(draw.uniform(0, DOWN_SECONDS))
        server.start()


def verify(service: tinker.ServiceClient, server: ServerProcess, ledger: Ledger) -> None:
    """Every checkpoint that was acknowledged is listed, and every listed one is whole: weights and
    optimizer of its step.
    """
    listed = {
        one.tinker_path
        for one in service.create_rest_client().list_user_checkpoints(1000).result(60).checkpoints
    }
    ledger.complaints += [
        f"acknowledged and not listed: {path}" for path in sorted(ledger.saved.keys() - listed)
    ]
    client = new_run(service, 0)
    for path in sorted(listed):
        if problem := _problem(client, path, ledger):
            ledger.complaints.append(f"{path}: {problem}")
        ledger.count("checkpoints verified")
    left = [str(path) for path in server.data.rglob("*") if path.name.startswith(LEFTOVERS)]
    ledger.complaints += [f"left behind: {path}" for path in left]


def _problem(client: tinker.TrainingClient, path: str, ledger: Ledger) -> str | None:
    run, _, name = path.removeprefix("tinker://").split("/")
    worker, acknowledged = ledger.workers.get(run), ledger.saved.get(path)
    if worker is None:
        return "of a run that nobody has"
    try:
        client.load_state_with_optimizer(path).result(PATIENCE_SECONDS)
        found = probe(client, worker)
    except tinker.TinkerError as error:
        return f"cannot be loaded: {error!r}"
    least = int(name) if name != LATEST else acknowledged.step if acknowledged is not None else 1
    most = int(name) if name != LATEST else STEPS
    known = undisturbed()[worker]
    step = next((step for step in range(least, most + 1) if known[step] == found), None)
    if step is None:
        return f"holds the weights of no step from {least} to {most}"
    return _optimizer_problem(client, worker, step)


def _optimizer_problem(client: tinker.TrainingClient, worker: int, step: int) -> str | None:
    """Return how the next step differs from the run without kills, None where it does not."""
    if step == STEPS:
        return None
    for future in take_step(client, worker, step + 1):
        future.result(PATIENCE_SECONDS)
    return (
        None
        if probe(client, worker) == undisturbed()[worker][step + 1]
        else "holds another optimizer state"
    )


@dataclasses.dataclass
class KillsOutcome:
    """The outcome of one seed."""

    seed: int
    ledger: Ledger
    kills: int
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Return the totals in a readable form."""
        counts, lost = self.ledger.counts, sum(self.ledger.errors.values())
        return {
            "seed": self.seed,
            "kills": self.kills,
            "operations done": counts["operations"],
            "lost with their session": lost,
            "runs": counts["runs"],
            "samples": counts["samples"],
            "saves": counts["saves"],
            "checkpoints verified": counts["checkpoints verified"],
            "seconds": round(self.seconds, 1),
        }

    def complaints(self) -> list[str]:
        """Return every violation of the guarantees."""
        return self.ledger.complaints


def run(seed: int, kills: int = 3) -> KillsOutcome:
    """Run one seed with a separate server."""
    undisturbed()
    began, ledger = time.monotonic(), Ledger()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        server = ServerProcess(Path(folder))
        server.start()
        services = [tinker.ServiceClient(base_url=server.url) for _ in range(2)]
        try:
            _work(server, services, ledger, random.Random(seed), kills)
            server.kill()
            server.start()
            verify(services[0], server, ledger)
            for service in services:
                service.close().result(30)
        finally:
            server.kill()
    return KillsOutcome(seed, ledger, server.kills - 1, time.monotonic() - began)


def _work(
    server: ServerProcess, services: list[Any], ledger: Ledger, draw: random.Random, kills: int
) -> None:
    sampler = Sampler(services[1], ledger)
    workers = [
        threading.Thread(target=Worker(services[i % 2], i, ledger).run) for i in range(WORKERS)
    ]
    sampling = threading.Thread(target=sampler.run)
    for thread in (*workers, sampling):
        thread.start()
    kill_again_and_again(
        server, ledger, kills, draw, lambda: not any(thread.is_alive() for thread in workers)
    )
    for thread in workers:
        thread.join()
    sampler.stop.set()
    sampling.join()
