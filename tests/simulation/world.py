"""One episode: a server, a network, and a program that calls what its plan says. Everything comes
from the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import tempfile
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tinker_wire import models
from workload import taken_slots

import tinker
from simulation.calls import Violation
from simulation.effects import EffectLog, weights_differ
from simulation.loop import SimulatedLoop, simulated_loop
from simulation.network import FAULTS, Network, SimulatedEngine
from simulation.server import SimulatedServer
from simulation.user import MORE_WEIGHTS, WEIGHTS, User
from tinker import _runtime
from tinker._loop import loop_thread
from tinker.futures import failure_of

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
END_SECONDS = 20_000.0  # of simulated time, until everything must have ended
FULL_DISKS, STREAMS, BREAKERS = 0.15, 0.2, 0.3  # of the episodes
# ends of the episodes that do more; those in seeds.txt are older, and keep their program
HAVE_MORE = "01259"
LONGEST_SENDING_SECONDS = 700.0  # until a request is given up


class Plan(NamedTuple):
    """What an episode does: the operations, each with a number by which it chooses its objects."""

    seed: str
    operations: tuple[tuple[str, float], ...]
    skipped: frozenset[int] = frozenset()  # exchanges that meet no fault


class Outcome(NamedTuple):
    """How an episode ended; ``met`` are the exchanges that met a fault."""

    failure: str | None
    operations: int
    met: tuple[int, ...]
    steps: int
    now: float


#: What no longer belongs to an episode is collected with it.
WORLDS: weakref.WeakSet[World] = weakref.WeakSet()


def make_plan(seed: str, count: int) -> Plan:
    """Draw the operations of an episode."""
    draw = random.Random(f"{seed} plan")
    table = MORE_WEIGHTS if seed[-1] in HAVE_MORE else WEIGHTS
    names, weights = list(table), list(table.values())
    return Plan(seed, tuple((draw.choices(names, weights)[0], draw.random()) for _ in range(count)))


def run_episode(
    plan: Plan, reached: Counter[str], trace: Callable[[str], object] | None = None
) -> Outcome:
    """Run an episode to its end."""
    with simulated_loop(plan.seed) as loop, tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        world = World(loop, Path(folder), plan, reached)
        world.network.trace = trace
        with world.engines():
            try:
                loop.run_until_complete(world.run())
            except Violation as error:
                failure = str(error)
                for run in world.user.runs:
                    world.network.note(
                        run.describe(world.effects.of_adapter.get(run.model_id or ""))
                    )
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                world.network.note("".join(traceback.format_exception(error)))
            else:
                failure = None
        return Outcome(
            failure, len(plan.operations), tuple(world.network.met), loop.steps, loop.now
        )


class World:
    """The parts of an episode."""

    def __init__(
        self, loop: SimulatedLoop, folder: Path, plan: Plan, reached: Counter[str]
    ) -> None:
        self.loop, self.plan, self.reached = loop, plan, reached
        WORLDS.add(self)
        draw = random.Random(f"{plan.seed} world")
        self.effects = EffectLog()
        self.server = SimulatedServer(loop, folder, self.effects, **_settings(draw))
        self.network = Network(loop, self.server, reached)
        self.network.rate = draw.choice([0.0, 0.02, 0.1, 0.3])
        self.network.faults = FAULTS if draw.random() < 0.5 else draw.sample(FAULTS, 3)
        self.network.skipped = plan.skipped
        self.user = User(self, random.Random(f"{plan.seed} user"))
        self.exchanges: list[SimulatedEngine] = []
        self.streams = random.Random(f"{plan.seed} sse").random() < STREAMS
        self.has_breakers = (
            plan.seed[-1] in HAVE_MORE
            and random.Random(f"{plan.seed} breakers").random() < BREAKERS
        )
        self._filling: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def engines(self) -> Generator[None]:
        """Give every client an engine on the simulated network, and the simulated time."""
        before = _runtime.open_engine, _runtime.Clock
        _runtime.open_engine, _runtime.Clock = self._open_engine, self.loop.clock  # type: ignore[assignment, misc]
        try:
            yield
        finally:
            _runtime.open_engine, _runtime.Clock = before  # type: ignore[misc]

    def _open_engine(self, *_: object, **__: object) -> SimulatedEngine:
        self.exchanges.append(SimulatedEngine(self.network))
        return self.exchanges[-1]

    async def run(self) -> None:
        """Call what the plan says, end everything, and judge."""
        await self.server.start()
        draw = random.Random(f"{self.plan.seed} full")
        if draw.random() < FULL_DISKS:
            self._filling = asyncio.create_task(self._fill_disk(draw))
        for name, number in self.plan.operations:
            self.network.note(f"= {name} {number:.3f}")
            await self.user.do(name, number)
            self.check_loop()
        await self.end()

    async def _fill_disk(self, draw: random.Random) -> None:
        while True:
            await asyncio.sleep(60.0 * draw.random() ** 3)
            self.reached["disk full"] += 1
            self.server.fill_disk()
            await asyncio.sleep(30.0 * draw.random() ** 3)
            self.server.fill_disk(False)

    def check_loop(self) -> None:
        """Nothing fails where nobody sees it, and no number is used for two requests."""
        if self.loop.failures:
            context = self.loop.failures[0]
            raise Violation(
                f"nothing fails unseen: {context['message']}: {context.get('exception')!r}"
            )
        if self.server.reused:
            raise Violation(
                f"no number is used for two requests: {self.server.reused[0]} was used again"
            )

    async def end(self) -> None:
        """Stop the faults, wait for every future, judge, close every client, and look for what is
        left.
        """
        self.network.rate, self.network.storm = 0.0, None
        if self._filling is not None:
            self._filling.cancel()
            self.server.fill_disk(False)
        if not self.server.is_up:
            await self.user.restarted()
        await self._end_futures()
        # a restarted server repeats gradients, and waits for numbers that it had refused
        for _ in range(4):
            if self.server.lives > 1 and self._pending():
                await asyncio.sleep(self.server.settings.gap_seconds + 1.0)
        await self._end_loops()
        self.judge()
        await asyncio.gather(*self.user.readers)
        await self.close()
        self.check_loop()

    async def _end_futures(self) -> None:
        futures = [call.future for run in self.user.runs for call in run.calls] + self.user.others
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                for future in futures:
                    await future.wait()

    async def _end_loops(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await asyncio.gather(*(asyncio.shield(loop.task) for loop in self.user.loops))
        for loop in self.user.loops:
            if not loop.task.done():
                raise Violation(f"every loop ends: {loop.name} does not")
            loop.judge()

    def judge(self) -> None:
        """Compare what the program knows with the server's state."""
        for run in self.user.runs:
            run.check_ended()
            run.check_stops()
            if run.model_id in self.effects.of_adapter:
                self.reached["judged by effects"] += 1
                run.check_effects(self.effects.of_adapter[run.model_id])
        for future in self.user.others:
            if not future.done():
                raise Violation(f"every future ends: {future!r} does not")
        for future, is_right in self.user.checks:
            error = None if future.cancelled() else failure_of(future)
            if isinstance(error, tinker.ConflictError):
                raise Violation(f"each sample has a number of its own: {error}")
            if not future.cancelled() and error is None and not is_right(future.result(0)):
                raise Violation(
                    f"results belong to their requests: {future!r} has "
                    f"{str(future.result(0))[:200]}"
                )
        alive = [run.model_id for run in self.user.runs if run.model_id in self.effects.of_adapter]
        if (
            alive
            and len(self.effects.of_adapter[alive[0]].tags) < 60
            and weights_differ(self.effects, alive[0])
        ):
            raise Violation(
                f"the weights are those of the accepted steps in order: {alive[0]} has others"
            )

    def judge_before_kill(self) -> None:
        """Compare what has ended so far with the effects that are about to be lost, unless they are
        still being repeated.
        """
        for run in self.user.runs:
            effects = self.effects.of_adapter.get(run.model_id or "")
            is_repeating = self.server.lives > 1 and any(
                key.startswith(f"{run.model_id}:") for key in self._pending()
            )
            if (
                effects is not None
                and not is_repeating
                and not any(call.kind == "L" for call in run.calls)
            ):
                done = {number // 8 - 1 for _, number in effects.tags}
                run._check_successes(0, done)

    async def close(self) -> None:
        """Close every client, and look for what is left."""
        # what has begun to be sent is sent to the end, also when its future is cancelled
        if _slots(self.user.services):
            await asyncio.sleep(LONGEST_SENDING_SECONDS)
        slots = _slots(self.user.services)
        for service in self.user.services:
            await service.close()
        if self.user.has_joined:  # a session that was joined for a sampler ends with it
            self.user.forget_samplers()
        await asyncio.sleep(10.0)
        if loop_thread()._tasks:  # what the program dropped may refer to itself
            gc.collect()
            await asyncio.sleep(10.0)
        # of a session whose end was lost, a request may still wait for a number that never comes
        if self._pending():
            await asyncio.sleep(self.server.settings.gap_seconds + 1.0)
        left = [task.get_name() for task in loop_thread()._tasks]
        exchanges = sum(one.open_count for one in self.exchanges)
        pending = self._pending()
        if slots or left or exchanges or pending:
            raise Violation(
                f"nothing is left: slots {slots}, tasks {left}, "
                f"exchanges {exchanges}, server {pending}"
            )
        if self.server.state is not None:
            self.server.kill()

    def _pending(self) -> list[Any]:
        return [] if self.server.state is None else list(self.server.state.futures._pending)


def _slots(services: Sequence[Any]) -> Sequence[str]:
    opened = (
        service for service in services if not service._closed and service._opened is not None
    )
    return [name for service in opened for name in taken_slots(service)]


def _settings(draw: random.Random) -> dict[str, Any]:
    """Draw the settings of a server."""
    config = models.ClientConfigResponse(
        fwdbwd_max_chunk_len=draw.choice([1, 1024]),
        parallel_fwdbwd_chunks=draw.random() < 0.7,
        sample_use_retrieve_futures=draw.random() < 0.3,
    )
    return {
        "durability": draw.choice(["save", "step"]),
        "hold_seconds": draw.choice([0.0, 1.0, 20.0]),
        "result_seconds": draw.choice([5.0, 60.0, 3600.0]),
        "max_results": draw.choice([3, 10_000]),
        "inline_result_bytes": draw.choice([10, 1 << 20]),
        "gap_seconds": draw.choice([2.0, 120.0]),
        "client_config": config,
    }
