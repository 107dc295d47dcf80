"""The random program: it pipelines requests on its runs, looks at results early, late or never, and
things happen to it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import msgspec

import tinker
from simulation.calls import SHARES, Call, Run, Unknown, Violation, datum
from simulation.effects import LEARNING_RATE
from simulation.interrupts import interrupt
from simulation.loops import Loop
from simulation.network import ORIGIN
from simulation.server import Request
from tinker._sampling.portable import to_handle
from tinker.futures import failure_of

if TYPE_CHECKING:
    from simulation.world import World

#: How often each operation is drawn.
WEIGHTS = {
    "gradient": 30,
    "batch": 4,
    "step": 22,
    "forward": 2,
    "custom": 3,
    "save": 3,
    "save_for_sampler": 2,
    "load": 1,
    "bad_gradient": 3,
    "bad_step": 1,
    "sampler": 1,
    "sampler_of_run": 1,
    "sample": 8,
    "logprobs": 1,
    "look": 16,
    "look_at_all": 2,
    "cancel": 2,
    "timeout": 2,
    "pause": 10,
    "long_pause": 1,
    "new_run": 1.5,
    "run_from_save": 0.5,
    "new_service": 0.4,
    "close_service": 0.2,
    "restart": 0.7,
    "end_session": 0.2,
    "storm": 0.5,
    "calm": 1,
    "clock_jump": 0.3,
}
#: The same, in half of the episodes.
MORE_WEIGHTS = WEIGHTS | {
    "old_run": 1,
    "new_service": 1.5,
    "close_service": 1,
    "loop": 1,
    "interrupted_call": 3,
    "interrupted_look": 1,
    "copied_sampler": 1,
    "moved_sampler": 1,
    "black_hole": 0.5,
    "half_open": 0.5,
    "client_clock_jump": 0.3,
}
ALWAYS_OPEN = 2  # services
LONGEST_CALL = 100  # of functions that a call calls


@tinker.with_gradients
def own_loss(data: Any, logprobs: Any) -> Any:
    """Return a custom loss without torch."""
    return 1.0, [0 * part - 1 for part in logprobs]


class User:
    """The program and its objects. ``number`` in each operation is uniform in [0, 1) and chooses
    among them.
    """

    def __init__(self, world: World, draw: random.Random) -> None:
        self.world, self.draw = world, draw
        self.services: list[tinker.ServiceClient] = []
        self.runs: list[Run] = []
        self.samplers: list[tinker.SamplingClient] = []
        self.creations: dict[tinker.SamplingClient, tuple[Run, Call]] = {}  # the saves of samplers
        self.others: list[Any] = []  # futures of no run
        # of what is received for a sample
        self.checks: list[tuple[Any, Callable[[Any], bool]]] = []
        self.readers: list[asyncio.Task[None]] = []  # of streams
        self.saves: list[Any] = []
        self.loops: list[Loop] = []
        self.names = 0
        self.has_joined = False
        self._restarting: asyncio.Task[None] | None = None

    async def do(self, name: str, number: float) -> None:
        """Do one operation of the plan."""
        if not self.runs:
            self._open_service()
            self._open_run()
        try:
            await getattr(self, name)(number)
        except tinker.ClientClosedError:
            self.world.reached["call on a closed client"] += 1

    def _open_service(self) -> None:
        loop = self.world.loop
        breaker = (
            tinker.CircuitBreaker(failures=3, clock=loop.time) if self.world.has_breakers else None
        )
        self.services.append(
            tinker.ServiceClient(
                base_url=ORIGIN,
                api_key="tml-simulated",
                clock=loop.clock(),
                circuit_breaker=breaker,
            )
        )

    def _open_run(self, number: float = 0.99) -> None:
        service = _pick(self.services, number)
        client = service.create_lora_training_client("tinker/toy", rank=1, seed=7)
        self.runs.append(Run(client, service))

    def _run(self, number: float) -> Run:
        return _pick(self.runs[-3:], number)

    # ---------------------------------------------------------------------------- requests of a run

    async def gradient(self, number: float) -> None:
        run = self._run(number)
        run.add("G", run.client.forward_backward([datum(run.next_tag)], "cross_entropy"), outputs=1)

    async def batch(self, number: float) -> None:
        run = self._run(number)
        data = [
            datum(run.next_tag + place) for place in range(2 + int(number * 100) % (SHARES - 2))
        ]
        run.add("G", run.client.forward_backward(data, "cross_entropy"), outputs=len(data))

    async def step(self, number: float) -> None:
        run = self._run(number)
        run.add(
            "S",
            run.client.optim_step(tinker.AdamParams(learning_rate=run.next_tag * LEARNING_RATE)),
        )

    async def forward(self, number: float) -> None:
        run = self._run(number)
        run.add("V", run.client.forward([datum(run.next_tag)], "cross_entropy"), outputs=1)

    async def custom(self, number: float) -> None:
        run = self._run(number)
        run.add("G", run.client.forward_backward_custom([datum(run.next_tag)], own_loss), outputs=1)

    async def old_run(self, number: float) -> None:
        """Train a run that was left, perhaps of a service that was closed."""
        run = _pick(self.runs, number * 7919 % 1)
        run.add("G", run.client.forward_backward([datum(run.next_tag)], "cross_entropy"))

    async def bad_gradient(self, number: float) -> None:
        """Is accepted, and fails when it runs: its token is outside of the vocabulary."""
        run = self._run(number)
        run.add("G", run.client.forward_backward([datum(2_000_000)], "cross_entropy"))

    async def bad_step(self, number: float) -> None:
        run = self._run(number)
        run.add(
            "S", run.client.optim_step(tinker.AdamParams(learning_rate=1e-4, grad_clip_norm=-1.0))
        )

    async def save(self, number: float) -> None:
        run = self._run(number)
        self.names += 1
        self.saves.append(run.add("V", run.client.save_state(f"save-{self.names}")).future)

    async def save_for_sampler(self, number: float) -> None:
        run = self._run(number)
        self.names += 1
        run.add("V", run.client.save_weights_for_sampler(f"sampler-{self.names}"))

    def _saved_path(self, number: float) -> str | None:
        done = [
            one
            for one in self.saves
            if one.done() and not one.cancelled() and one._exception is None
        ]
        return _pick(done, number).result(0).path if done else None

    async def load(self, number: float) -> None:
        run, path = self._run(number), self._saved_path(number)
        if path is not None:
            call = run.client.load_state if number < 0.5 else run.client.load_state_with_optimizer
            run.add("L", call(path), path)

    async def run_from_save(self, number: float) -> None:
        path = self._saved_path(number)
        if path is not None:
            service = _pick(self.services, number)
            self.runs.append(
                Run(service.create_training_client_from_state_with_optimizer(path), service)
            )

    # -------------------------------------------------------------------------------------- samples

    async def sampler(self, number: float) -> None:
        self.samplers.append(
            _pick(self.services, number).create_sampling_client(base_model="tinker/toy")
        )

    async def sampler_of_run(self, number: float) -> None:
        run = self._run(number)
        self.samplers.append(run.client.save_weights_and_get_sampling_client())
        self.creations[self.samplers[-1]] = run, run.add("V", self.samplers[-1]._ready)

    async def sample(self, number: float) -> None:
        if self.samplers:
            prompt = tinker.ModelInput.from_ints([5] * (2 + int(number * 10)))
            params = tinker.SamplingParams(max_tokens=2, seed=1)
            sampler, count = _pick(self.samplers[-3:], number), 1 + int(number * 3)
            if self.world.streams:
                stream = sampler.sample_stream(prompt, count, params)
                self.others.append(stream._future)
                self.readers.append(
                    asyncio.create_task(self._read(stream, sampler, count * params.max_tokens))
                )
            else:
                future = sampler.sample(prompt, count, params)
                self.others.append(future)
                self.checks.append((future, lambda result: len(result.sequences) == count))

    async def _read(
        self, stream: tinker.SampleStream, sampler: tinker.SamplingClient, most: int
    ) -> None:
        """Read a stream to its end, or until it breaks."""
        received = 0
        try:
            async for chunk in stream:
                received += len(chunk.tokens)
        except tinker.SampleStreamError as error:
            self.world.reached["a stream breaks"] += 1
            if error.received_tokens != received:
                raise Violation(
                    "a broken stream says what it gave: "
                    f"{error.received_tokens} for {received} tokens"
                ) from error
        except (tinker.TinkerError, CancelledError):  # of the stream, or of its sampler
            self.world.reached["a stream fails"] += 1
            if sampler in self.creations:  # its failure may be that of a request of the run
                run, call = self.creations[sampler]
                run.receive(call)
        else:
            self.world.reached["a stream ends"] += 1
        del stream, sampler  # an error keeps this frame
        if received > most:
            raise Violation(f"a stream gives what was asked for: {received} of {most} tokens")

    async def copied_sampler(self, number: float) -> None:
        """Copy a sampler, as a pickle does in its own process."""
        self._copy_sampler(number, is_elsewhere=False)

    async def moved_sampler(self, number: float) -> None:
        """Copy a sampler to another process, which joins the session."""
        self._copy_sampler(number, is_elsewhere=True)

    def _copy_sampler(self, number: float, *, is_elsewhere: bool) -> None:
        ready = [one for one in self.samplers if one._ready.done() and not one._ready.cancelled()]
        found = [one for one in ready if failure_of(one._ready) is None]
        if found:
            state = _pick(found, number)._sampler.state()
            state = msgspec.structs.replace(state, origin="elsewhere") if is_elsewhere else state
            self.samplers.append(tinker.SamplingClient.from_sampler_handle(to_handle(state)))
            self.others.append(self.samplers[-1]._ready)
            self.has_joined |= is_elsewhere
            self.world.reached[
                "a sampler joins from elsewhere" if is_elsewhere else "a sampler is copied"
            ] += 1

    def forget_samplers(self) -> None:
        self.samplers, self.others, self.checks, self.readers = [], [], [], []

    async def logprobs(self, number: float) -> None:
        if self.samplers:
            prompt = tinker.ModelInput.from_ints([5] * (2 + int(number * 10)))
            future = _pick(self.samplers[-3:], number).compute_logprobs(prompt)
            self.others.append(future)
            self.checks.append((future, lambda result: len(result) == prompt.length))

    # -------------------------------------------------------------------- what it does with futures

    def _calls(self, number: float) -> tuple[Run, list[Call]]:
        run = self._run(number)
        return run, [
            call for call in run.calls if not call.is_received and not call.future.cancelled()
        ][-12:]

    async def look(self, number: float) -> None:
        """Wait for an outcome, for some time, and receive it."""
        run, calls = self._calls(number)
        if calls:
            call = _pick(calls, number * 7 % 1)
            await self._wait(call, 60.0 * self.draw.random() ** 3)
            run.receive(call)
            self._note(call)

    async def look_at_all(self, number: float) -> None:
        run, calls = self._calls(number)
        for call in calls:
            await self._wait(call, 30.0)
            run.receive(call)
            self._note(call)

    async def _wait(self, call: Call, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await call.future.wait()
        except TimeoutError:
            self.world.reached["looked too early"] += 1

    def _note(self, call: Call) -> None:
        error = call.error
        if error is not None:
            self.world.reached[f"received {call.kind} {type(error).__name__}"] += 1
        if call.is_stopped:
            self.world.reached["not run" if "was not run" in str(error) else "not sent"] += 1

    async def cancel(self, number: float) -> None:
        _, calls = self._calls(number)
        if calls:
            call = _pick(calls, number * 7 % 1)
            progress = call.future.progress
            when = (
                "done"
                if call.future.done()
                else "sending"
                if progress.is_sending
                else "waiting"
                if progress.request_id
                else "queued"
            )
            call.future.cancel()
            self.world.reached[f"cancelled while {when}"] += 1

    async def timeout(self, number: float) -> None:
        """Await a future with a timeout, which cancels it."""
        run, calls = self._calls(number)
        if calls:
            call = _pick(calls, number * 7 % 1)
            try:
                await call.future.result_async(0.01 + 5.0 * self.draw.random())
            except (TimeoutError, asyncio.CancelledError):
                self.world.reached["awaited with a timeout"] += 1
            except Exception:
                run.receive(call)
            else:
                self._note(call)

    async def interrupted_call(self, number: float) -> None:
        """Call something, and be interrupted meanwhile: it is called or not, and the next call
        works.
        """
        run = self._run(number)
        tag, calls = run.next_tag, int(number * 7919 % 1 * LONGEST_CALL)
        # Made before, as making it takes more calls for the first time in a process than later.
        data, params = [datum(tag)], tinker.AdamParams(learning_rate=tag * LEARNING_RATE)
        if number * 13 % 1 < 0.5:
            kind, call = "G", lambda: run.client.forward_backward(data, "cross_entropy")
        else:
            kind, call = "S", lambda: run.client.optim_step(params)
        try:
            future = interrupt(call, calls)
        except KeyboardInterrupt:
            self.world.reached["interrupted in a call"] += 1
            future = Unknown()
        run.add(kind, future)

    async def interrupted_look(self, number: float) -> None:
        """Be interrupted while asking for the result of something that is done, which can be asked
        for again.
        """
        run, calls = self._calls(number)
        done = [call for call in calls if call.future.done()]
        if done:
            call = _pick(done, number)
            try:
                interrupt(
                    lambda: call.future.exception(0), int(number * 7919 % 1 * LONGEST_CALL / 10)
                )
            except KeyboardInterrupt:
                self.world.reached["interrupted in a look"] += 1
            run.receive(call)

    async def loop(self, number: float) -> None:
        """Begin a loop that recovers its run."""
        if len(self.loops) < 3:
            service = _pick(self.services[-ALWAYS_OPEN:], number)
            count, save_every = 2 + int(number * 7919 % 1 * 12), 1 + int(number * 13 % 1 * 5)
            self.loops.append(
                Loop(self.world, service, f"loop-{len(self.loops)}", count, save_every)
            )

    async def pause(self, number: float) -> None:
        await asyncio.sleep(number**4 * 5.0)

    async def long_pause(self, number: float) -> None:
        await asyncio.sleep(number * 120.0)

    # ----------------------------------------------------------------------- what happens around it

    async def new_run(self, number: float) -> None:
        if len(self.runs) < 8:
            self._open_run(number)

    async def new_service(self, number: float) -> None:
        if len(self.services) < 4:
            self._open_service()
            self._open_run()

    async def close_service(self, number: float) -> None:
        if len(self.services) > ALWAYS_OPEN:
            self.others.append(_pick(self.services[:-ALWAYS_OPEN], number).close())

    async def restart(self, number: float) -> None:
        """Kill the server, and start it again some time later."""
        if self.world.server.has_written_everything:
            self.world.judge_before_kill()
            self.world.server.kill()
            self.world.reached[f"restart, durability {self.world.server.settings.durability}"] += 1
            self._restarting = asyncio.create_task(self._start_later(number**3 * 60.0))

    async def _start_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.world.server.start()

    async def restarted(self) -> None:
        """Wait until the server is up again."""
        assert self._restarting is not None
        await self._restarting

    async def end_session(self, number: float) -> None:
        """Let somebody else end the session of a service."""
        session = _pick(self.services, number)._opened
        if (
            session is not None
            and session.session.session_id is not None
            and self.world.server.is_up
        ):
            self.world.reached["session ended"] += 1
            path = f"/api/v1/sessions/{session.session.session_id}/finish"
            body = b'{"reason":{"type":"success"},"detail":null}'
            self.world.server.begin(
                Request("POST", path, {"content-type": "application/json"}, body), lambda _: None
            )

    async def storm(self, number: float) -> None:
        status = (429, 402, 503)[int(number * 3)]
        self.world.network.storm = f"status {status}"
        self.world.reached[f"storm of {status}"] += 1

    async def black_hole(self, number: float) -> None:
        self.world.network.storm = "lost"
        self.world.reached["nothing arrives for a while"] += 1

    async def half_open(self, number: float) -> None:
        self.world.network.storm = "silent"
        self.world.reached["nothing comes back for a while"] += 1

    async def calm(self, number: float) -> None:
        self.world.network.storm = None

    async def clock_jump(self, number: float) -> None:
        self.world.server.wall_offset += (number - 0.5) * 1e6
        self.world.reached["clock jump"] += 1

    async def client_clock_jump(self, number: float) -> None:
        self.world.loop.wall_offset += (number - 0.5) * 1e6
        self.world.reached["clock jump of the client"] += 1


def _pick(found: Sequence[Any], number: float) -> Any:
    return found[min(int(number * len(found)), len(found) - 1)]
