"""Work for any client of the API that is called ``tinker``: training from threads, samplers by the
hundred. Prints what came of it.

Run by chaos.py, in the environment of the client to look at; reads a plan as JSON from standard
input.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from interrupts import IN_A_CALL_SECONDS, IN_A_WAIT_SECONDS, CtrlC, Interrupts

import tinker

BASE_MODEL = "tinker/toy"
STEPS_IN_FLIGHT = 4
FIRST_SUCCESS_SECONDS = 60.0
PATIENCE_SECONDS = 120.0  # for a future, when all work has been submitted
SECRET = "tml-chaos-secret"
# of a caller that is interrupted
IN_FLIGHT, CALLS_OF_A_CLIENT, CALLS_AT_THE_END = 32, 100, 4
Wait: TypeAlias = Callable[[], "str | None"]


@dataclasses.dataclass(kw_only=True)
class Plan:
    """What to do: so many steps and samples each, or as many as ``seconds`` allow."""

    url: str
    training_clients: int = 3
    samplers: int = 200
    services: int = 2
    seconds: float | None = None
    steps: int = 20
    samples: int = 3
    # the seed of the interrupts of another caller, in the main thread
    interrupted_with: int | None = None


@dataclasses.dataclass
class Record:
    """One operation: ``number`` is its place in its client, ``error`` None for success, ``typed``
    whether it is one of the package.

    One that was ``interrupted`` while it was called has no outcome: it may have been made or not.
    """

    client: str
    operation: str
    number: int
    error: str | None = None
    typed: bool = True
    wrong: str | None = None
    interrupted: bool = False
    at: float = dataclasses.field(default_factory=time.monotonic)  # when it ended


class Keeper(logging.Handler):
    """Keeps every log line."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Work:
    """The run of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.records: list[Record] = []
        self.services: list[Any] = [
            tinker.ServiceClient(base_url=plan.url, api_key=f"{SECRET}-{i}")
            for i in range(plan.services)
        ]
        self.made = time.monotonic()
        self.began: float | None = None  # when the first operation succeeded
        self.texts: list[str] = []
        self.interrupts = Interrupts(plan.interrupted_with or 0)

    def more(self, done: int, planned: int) -> bool:
        """Return whether to continue; the time begins with the first success."""
        if self.plan.seconds is None:
            return done < planned
        if self.began is None:
            return time.monotonic() - self.made < FIRST_SUCCESS_SECONDS
        return time.monotonic() - self.began < self.plan.seconds

    def keep(self, record: Record) -> None:
        """Record the outcome of an operation."""
        self.records.append(record)
        if self.began is None and record.error is None and not record.interrupted:
            self.began = time.monotonic()

    def run(self) -> None:
        threads = [
            threading.Thread(target=self.train, args=(i,))
            for i in range(self.plan.training_clients)
        ]
        threads.append(threading.Thread(target=lambda: asyncio.run(self.sample_all())))
        for thread in threads:
            thread.start()
        if self.plan.interrupted_with is not None:
            with self.interrupts:
                self.train_interrupted()
        for thread in threads:
            thread.join()
        for service in self.services:
            service.close("success").result(30)

    def note(self, client: str, operation: str, number: int, wait: Wait) -> bool:
        """Wait for one operation and record its outcome; return whether it succeeded."""
        try:
            record = Record(client, operation, number, wrong=wait())
        except Exception as error:  # noqa: BLE001 - any error is an outcome
            record = self.failed(client, operation, number, error)
        self.keep(record)
        return record.error is None

    def failed(self, client: str, operation: str, number: int, error: BaseException) -> Record:
        self.texts.append(f"{error!r} {error} {vars(error)!r}")
        typed = isinstance(error, getattr(tinker, "TinkerError", Exception)) and not isinstance(
            error, TimeoutError
        )
        return Record(client, operation, number, f"{type(error).__name__}: {error}"[:200], typed)

    # Training: number n is a forward_backward whose first token is n, then an optimizer step whose
    # learning rate is n millionths

    def train(self, index: int) -> None:
        done = 0
        while self.more(done, self.plan.steps):
            done += self.train_one(index, done)

    def train_one(self, index: int, done: int) -> int:
        """One training client, until it fails or all is done; how many steps it tried."""
        try:
            client = self.new_client(index).result()
            name = str(client.get_info().model_id)
        except Exception as error:  # noqa: BLE001
            self.records.append(self.failed(f"creation {index}", "create", 0, error))
            return 0
        number, well = 0, True
        while well and self.more(done + number, self.plan.steps):
            pending: list[tuple[str, int, Wait]] = []
            while len(pending) < 2 * STEPS_IN_FLIGHT and self.more(done + number, self.plan.steps):
                number += 1
                pending += self.submitted(client, number)
            ended = [self.note(name, operation, at, wait) for operation, at, wait in pending]
            well = all(ended)
        return number

    def new_client(self, index: int) -> Any:
        """Create a training client, on one of the services."""
        return self.services[index % len(self.services)].create_lora_training_client(
            base_model=BASE_MODEL, rank=4
        )

    def begin(self, client: Any, operation: str, number: int) -> Wait:
        """Call an operation; return a function that waits for its result."""
        if operation == "forward_backward":
            loss = client.forward_backward([datum(number)], "cross_entropy")
            return lambda: check_loss(loss, number)
        step = client.optim_step(tinker.AdamParams(learning_rate=number * 1e-6))
        return lambda: check_done(step)

    def submitted(self, client: Any, number: int) -> list[tuple[str, int, Wait]]:
        operations = ["forward_backward", "optim_step"]
        try:
            return [
                (operation, number, self.begin(client, operation, number))
                for operation in operations
            ]
        except Exception as error:  # noqa: BLE001 - raised at once by a client that is broken
            raised = error

            def refused() -> str | None:
                raise raised

            return [(operation, number, refused) for operation in operations]

    # Training with interrupts: a call that is interrupted may be lost, and nothing else

    def train_interrupted(self) -> None:
        """Train with one client after the other, until one fails, as a client that hangs is waited
        for once.
        """
        index = done = 0
        while done == 0 or self.more(done, 2 * self.plan.steps):
            index += 1
            try:
                client = self.interrupts.during(partial(self.new_client, index), IN_A_CALL_SECONDS)
            except CtrlC:
                continue
            done += CALLS_OF_A_CLIENT
            if not self.call_interrupted(client, f"interrupted client {index}"):
                return

    def call_interrupted(self, client: Any, description: str) -> bool:
        """Make the calls of one client, the last of them without interrupts; return whether all
        went well.
        """
        if not self.note(description, "create", 0, lambda: check_done(client)):
            return False
        name, pending = str(client.model_id), deque[tuple[str, int, Wait]]()
        for call in range(CALLS_OF_A_CLIENT):
            self.interrupts.are_on = call < CALLS_OF_A_CLIENT - CALLS_AT_THE_END
            operation, number = ("forward_backward", "optim_step")[call % 2], call // 2 + 1
            begin = partial(self.begin, client, operation, number)
            try:
                wait = self.interrupts.during(begin, IN_A_CALL_SECONDS)
            except CtrlC:
                self.records.append(Record(name, operation, number, interrupted=True))
            else:
                pending.append((operation, number, wait))
            if len(pending) == IN_FLIGHT and not self.wait_interrupted(name, *pending.popleft()):
                return False
        ended = [self.note(name, *one) for one in pending]
        self.interrupts.are_on = True
        return all(ended)

    def wait_interrupted(self, name: str, operation: str, number: int, wait: Wait) -> bool:
        """Wait for a call; an interrupt leaves its future as it is, so that it can be waited for
        again.
        """
        with contextlib.suppress(CtrlC, Exception):
            self.interrupts.during(wait, IN_A_WAIT_SECONDS)
        return self.note(name, operation, number, wait)

    # Sampling

    async def sample_all(self) -> None:
        await asyncio.gather(*(self.sample(i) for i in range(self.plan.samplers)))

    async def sample(self, index: int) -> None:
        number = 0
        while self.more(number, self.plan.samples):
            try:
                sampler = await self.services[index % len(self.services)].create_sampling_client(
                    base_model=BASE_MODEL
                )
            except Exception as error:  # noqa: BLE001
                self.records.append(self.failed(f"sampler {index}", "create", 0, error))
                continue
            while self.more(number, self.plan.samples):
                number += 1
                record = await self.sampled(sampler, index, number)
                self.keep(record)
                if record.error is not None:
                    break

    async def sampled(self, sampler: Any, index: int, number: int) -> Record:
        client = f"sampler {index}"
        tokens = prompt_tokens(index, number)
        params = tinker.SamplingParams(max_tokens=3, seed=number)
        try:
            response = await asyncio.wait_for(
                awaited(
                    sampler.sample(
                        tinker.ModelInput.from_ints(tokens), 1, params, include_prompt_logprobs=True
                    )
                ),
                PATIENCE_SECONDS,
            )
        except Exception as error:  # noqa: BLE001
            return self.failed(client, "sample", number, error)
        got = len(response.prompt_logprobs or ())
        return Record(
            client,
            "sample",
            number,
            wrong=None if got == len(tokens) else f"{got} prompt logprobs, not {len(tokens)}",
        )


async def awaited(future: Any) -> Any:
    """Return the result, also of a ``concurrent.futures.Future``."""
    return await (future if hasattr(future, "__await__") else asyncio.wrap_future(future))


def prompt_tokens(index: int, number: int) -> list[int]:
    """Return a prompt whose length tells it from most others."""
    return [97 + (index + n) % 26 for n in range(2 + (7 * index + number) % 31)]


def datum(number: int) -> Any:
    """Return the datum of one step: its number, and so many tokens that results can
    be told apart.
    """
    tokens = [number, *range(1, 3 + number % 17)]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens),
        loss_fn_inputs={"target_tokens": tokens, "weights": [1.0] * len(tokens)},
    )


def check_loss(future: Any, number: int) -> str | None:
    (output,) = future.result(PATIENCE_SECONDS).loss_fn_outputs
    wanted, got = 3 + number % 17, len(output["logprobs"].tolist())
    return None if got == wanted else f"{got} logprobs, not {wanted}"


def check_done(future: Any) -> str | None:
    future.result(PATIENCE_SECONDS)
    return None


# --------------------------------------------------------------------- what a client must not leave


class Before:
    """The tasks, threads and sockets of this process before our client is used."""

    def __init__(self) -> None:
        from tinker._loop import loop_thread

        self.thread = loop_thread()
        ready = threading.Event()
        self.thread.call(ready.set)  # our wake-up sockets exist from here on
        ready.wait()
        self.tasks = set(self.thread._tasks)
        self.threads = set(threading.enumerate())
        self.sockets = open_sockets()

    def left(self, services: list[Any]) -> dict[str, Any]:
        """Return what outlives the use of these clients, after some seconds; empty
        if nothing does.
        """
        ends = time.monotonic() + 5.0
        while (found := self._found(services)) and time.monotonic() < ends:
            time.sleep(0.01)
        return found

    def _found(self, services: list[Any]) -> dict[str, Any]:
        threads = set(threading.enumerate()) - self.threads
        found = {
            "tasks": [task.get_name() for task in set(self.thread._tasks) - self.tasks],
            # those wait for more
            "threads": [one.name for one in threads if not one.name.startswith("asyncio_")],
            "sockets": max(0, open_sockets() - self.sockets),
            "slots": [name for service in services for name in taken_slots(service)],
        }
        return {name: value for name, value in found.items() if value}


def taken_slots(service: Any) -> list[str]:
    """Return the limits of a session of which something is still taken."""
    session = service._opened.session
    if session.session_id is None:
        return []
    limits, fresh = session._known.limits, fresh_limits(session)
    names = [
        "samples",
        "dispatch",
        "throttled_dispatch",
        "prompt_nbytes",
        "training_nbytes",
        "result_nbytes",
    ]
    counts = {name: (free(getattr(limits, name)), free(getattr(fresh, name))) for name in names}
    return [f"{name}: {now} of {most}" for name, (now, most) in counts.items() if now != most]


def free(limit: Any) -> tuple[Any, list[Any]]:
    """Return the remaining budget, or semaphore, and its waiters; nothing of anything without a
    limit.
    """
    left = getattr(limit, "_left", getattr(limit, "_value", None))
    return left, list(getattr(limit, "_waiters", None) or ())


def fresh_limits(session: Any) -> Any:
    from tinker._session import _build_context

    return _build_context("x", session._known.server_config, session._transport).limits


def open_sockets() -> int:
    """How many sockets this process has open; 0 where the system does not tell."""
    folder = Path("/proc/self/fd")
    found = 0
    for entry in folder.iterdir() if folder.exists() else ():
        try:
            found += "socket" in str(entry.readlink())
        except OSError:
            pass
    return found


def main() -> None:
    plan = Plan(**json.load(sys.stdin))
    keeper = Keeper()
    logging.getLogger().addHandler(keeper)
    logging.getLogger("tinker").setLevel(logging.DEBUG)
    before = Before() if importlib.util.find_spec("tinker._loop") is not None else None
    work = Work(plan)
    work.run()
    seconds = time.monotonic() - work.made
    result = {
        "version": tinker.__version__,
        "seconds": seconds,
        "records": [dataclasses.asdict(record) for record in work.records],
        "left_behind": {} if before is None else before.left(work.services),
        "interrupts": work.interrupts.count,
        "secrets": [line[:200] for line in [*keeper.lines, *work.texts] if SECRET in line],
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
