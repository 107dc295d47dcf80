"""vLLM as the sampler of a base model: one or several that run, each behind a URL, in processes of
their own.

A snapshot is a folder with the files of PEFT and a name that is never used again. Each vLLM loads
it when a sample needs it there, and unloads it when nothing refers to it any more. A sample is one
HTTP request. If the vLLM that it was sent to fails, the sample is sent again: to another one, or
when that one is back.

One thread uses a sampler: its batch runs an event loop, for a short time in each step.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import attrs

from tinker.local.engines.protocol import EngineError, SampleJob, SampleResult
from tinker.local.engines.vllm.replica import Replica, ReplicaFailed, write_params
from tinker.local.storage.disk import Owner, ServerFolder

T = TypeVar("T")
FOLDER = ".samplers"
STEP_SECONDS = 0.02  # a new sample waits this long at most while others run
CANCEL_SECONDS = 1.0
SOCKET_SECONDS = 0.001  # the loop closes a socket after the task that used it
CLOSE_SECONDS = 5.0
MAX_SAMPLES = 64  # of one request; vLLM takes no more than it runs at once, on a CPU 128
MAX_ATTEMPTS = 3  # of a sample, which may be what ends vLLM
BLOCK_TOKENS = 64  # of a prompt, for finding the vLLM that has its beginning in the cache
MAX_BLOCKS = 1 << 16
MAX_AHEAD = 16  # samples that a vLLM may have more than another one before a prompt leaves it
WEIGHTS = "adapter_model.safetensors"


@attrs.frozen(eq=False)
class VLLMAdapter:
    """A snapshot: the name of an adapter, and the folder that it is loaded from."""

    name: str
    folder: Path


class VLLMSampler:
    """A :class:`Sampler` of one base model on one or several vLLMs, which read adapters, made of
    ``files``, below ``root``.

    Making one waits for a vLLM that answers. ``fixes_base``: sample the base model with an adapter
    of zeros. The CPU build of vLLM computes a request that names no adapter with one that another
    request has named.
    """

    image_reader: None = None

    def __init__(
        self,
        make_replicas: Callable[[], Sequence[Replica]],
        files: Collection[str],
        root: Path,
        *,
        fixes_base: bool,
    ) -> None:
        self._files, self._fixes_base, self._owner = files, fixes_base, Owner(root)
        self._folder = ServerFolder(root / FOLDER, self._owner)
        self._base: VLLMAdapter | None = None
        self._dropped: deque[VLLMAdapter] = deque()
        self._places: OrderedDict[int, Replica] = OrderedDict()
        self._loop = asyncio.new_event_loop()
        self._replicas = make_replicas()
        try:
            self.run(self._wait_for_any())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and everything else on the loop meanwhile."""
        return self._loop.run_until_complete(work)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task, which goes on while the loop runs."""
        return self._loop.create_task(work)

    @property
    def max_context_length(self) -> int:
        return min(one.max_context_length for one in self._replicas if one.max_context_length)

    # Snapshots

    def load_snapshot(self, directory: Path) -> VLLMAdapter:
        """Keep the weights in a folder of their own, by links where the file system has them."""
        adapter = self._copy(directory, _link)
        if self._fixes_base and self._base is None:
            self._base = self._copy(directory, _write_zeros)
        dropped = VLLMAdapter(adapter.name, adapter.folder)
        weakref.finalize(adapter, self._dropped.append, dropped).atexit = False
        return adapter

    def _copy(self, directory: Path, copy: Callable[[Path, Path], object]) -> VLLMAdapter:
        name = f"tinker-{uuid.uuid4().hex}"
        folder = self._folder.path() / name
        folder.mkdir()
        try:
            for file in self._files:
                copy(directory / file, folder / file)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise EngineError(
                f"the weights of this sampling session cannot be read: {error.strerror}"
            ) from error
        return VLLMAdapter(name, folder)

    async def free_adapters(self) -> None:
        """Unload the adapters that nothing refers to, and remove their folders."""
        while self._dropped:
            adapter = self._dropped.popleft()
            await asyncio.gather(*(one.unload(adapter.name) for one in self._replicas))
            shutil.rmtree(adapter.folder, ignore_errors=True)

    # Samples

    def open_batch(self, limit: int) -> VLLMBatch:
        """Make an empty batch. vLLM itself limits what runs at once, whatever ``limit`` is."""
        return VLLMBatch(self)

    async def sample(self, job: SampleJob) -> SampleResult:
        """Sample a job, in requests of as many samples as each vLLM takes."""
        firsts = range(0, job.num_samples, MAX_SAMPLES)
        parts = [
            attrs.evolve(job, num_samples=min(MAX_SAMPLES, job.num_samples - first))
            for first in firsts
        ]
        requests = [
            asyncio.ensure_future(self._sample(*one)) for one in zip(parts, firsts, strict=True)
        ]
        try:
            results = await asyncio.gather(*requests)
        finally:
            for request in requests:
                request.cancel()
        return SampleResult(
            sequences=[sequence for result in results for sequence in result.sequences]
        )

    async def _sample(self, job: SampleJob, first: int) -> SampleResult:
        """Sample on a vLLM that answers; on another one, or once more, if that fails."""
        params = write_params(job, first)
        adapter = job.weights if isinstance(job.weights, VLLMAdapter) else self._base
        where = None if adapter is None else (adapter.name, str(adapter.folder.resolve()))
        handed: list[list[int]] = [[] for _ in range(job.num_samples)]
        attempts = 0
        while True:
            replica = await self._choose(job)
            try:
                return await replica.sample(job, where, params, handed, first)
            except ReplicaFailed:
                attempts += 1
                if attempts == MAX_ATTEMPTS:
                    raise

    async def _choose(self, job: SampleJob) -> Replica:
        """Return the vLLM that has sampled the beginning of the prompt, unless it has much more to
        do than another one.
        """
        await self._wait_for_any()
        least = min(
            (one for one in self._replicas if one.is_up), key=lambda one: (one.running, one.asked)
        )
        if len(self._replicas) == 1:
            return least
        blocks = _hash_blocks(job)
        known = next(
            (self._places[block] for block in reversed(blocks) if block in self._places), least
        )
        chosen = known if known.is_up and known.running <= least.running + MAX_AHEAD else least
        for block in blocks:
            self._places[block] = chosen
            self._places.move_to_end(block)
        while len(self._places) > MAX_BLOCKS:
            self._places.popitem(last=False)
        return chosen

    async def _wait_for_any(self) -> None:
        """Wait until a vLLM answers; the others are asked meanwhile. Raises ReplicaFailed where
        none answers in time.
        """
        attempts = {one.connect() for one in self._replicas if not one.is_up}
        while attempts and not any(one.is_up for one in self._replicas):
            _, attempts = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
        if not any(one.is_up for one in self._replicas):
            raise self._replicas[0].failure

    # End

    def close(self) -> None:
        """Unload the adapters, and end the vLLMs that were started here. Callable where another
        loop runs.
        """
        try:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: self.run(self._disconnect())).result()
        finally:
            for one in self._replicas:
                one.stop()
            self._loop.close()
            self._folder.clear()
            self._owner.release()

    async def _disconnect(self) -> None:
        await asyncio.wait(
            [asyncio.ensure_future(one.close()) for one in self._replicas], timeout=CLOSE_SECONDS
        )


class VLLMBatch:
    """A :class:`SampleBatch` of requests to vLLM."""

    def __init__(self, sampler: VLLMSampler) -> None:
        self._sampler = sampler
        self._tasks: dict[object, asyncio.Task[SampleResult]] = {}
        self._ended: list[object] = []
        self._has_ended = asyncio.Event()

    @property
    def tokens(self) -> int:
        """Return 0, since nothing is held here."""
        return 0

    def add(self, ticket: object, job: SampleJob) -> None:
        self._tasks[ticket] = task = self._sampler.start(self._sampler.sample(job))
        task.add_done_callback(lambda _: self._end(ticket))

    def _end(self, ticket: object) -> None:
        self._ended.append(ticket)
        self._has_ended.set()

    def drop(self, ticket: object) -> None:
        """End a request; vLLM ends the sample when the connection is closed."""
        if (task := self._tasks.pop(ticket, None)) is not None:
            task.cancel()
            self._sampler.run(_close(task))

    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        """Wait, briefly, for a request that ends."""
        self._sampler.run(self._wait())
        ended, self._ended = self._ended, []
        self._has_ended.clear()
        return [
            (ticket, _outcome(self._tasks.pop(ticket))) for ticket in ended if ticket in self._tasks
        ]

    async def _wait(self) -> None:
        await self._sampler.free_adapters()
        try:
            await asyncio.wait_for(self._has_ended.wait(), STEP_SECONDS)
        except TimeoutError:
            pass


async def _close(task: asyncio.Task[SampleResult]) -> None:
    await asyncio.wait([task], timeout=CANCEL_SECONDS)
    await asyncio.sleep(SOCKET_SECONDS)


def _outcome(task: asyncio.Task[SampleResult]) -> SampleResult | Exception:
    error = task.exception()
    if error is None:
        return task.result()
    return (
        error
        if isinstance(error, Exception)
        else RuntimeError(f"the sampler was interrupted: {error!r}")
    )


def _hash_blocks(job: SampleJob) -> list[int]:
    """Return a hash for every beginning of the prompt that ends with a block, with its adapter; the
    last one is the prompt.
    """
    hashes, before = list[int](), id(job.weights)
    for start in range(0, len(job.tokens), BLOCK_TOKENS):
        before = hash((before, job.tokens[start : start + BLOCK_TOKENS].tobytes()))
        hashes.append(before)
    return hashes


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _write_zeros(source: Path, target: Path) -> None:
    """Copy a file; of weights in the format of safetensors, the header alone, and zeros for the
    numbers.
    """
    content = source.read_bytes()
    if source.name == WEIGHTS:
        start = 8 + int.from_bytes(content[:8], "little")
        content = content[:start] + bytes(len(content) - start)
    target.write_bytes(content)
