"""vLLM as a sampler, over HTTP: started here, or running elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import attrs
import httpx
import msgspec
import numpy as np

from tinker._wire import EventDecoder
from tinker.local.engines import Placement, protocol
from tinker.local.engines.protocol import (
    Engine,
    EngineError,
    Float32,
    Int32,
    SampleJob,
    SampleResult,
    TokenListener,
    log,
)
from tinker.local.storage import Owner, ServerFolder, link_file
from tinker.types.results import EMPTY_LOGPROB, EMPTY_TOKEN_ID

# ``vllm serve`` as a child process of the server.

STOP_SECONDS = 10.0
LOG_TAIL_NBYTES = 2000
LOCALHOST = "127.0.0.1"


class VLLMProcess:
    """A vLLM on a free port of this machine, started by :meth:`ensure`, and again when it has
    ended.

    It needs the ``key``, since other users of this machine can reach the port. What it writes is in
    the file ``output``. It also ends when this process is killed, where the system has ``setpriv``.
    """

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        self.key: str = secrets.token_hex()
        self.has_started: bool = False
        self._output = output
        with socket.socket() as probe:
            probe.bind((LOCALHOST, 0))
            self._port: int = probe.getsockname()[1]
        self._arguments = [*arguments, "--host", LOCALHOST, "--port", str(self._port)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self._port}"

    def ensure(self) -> None:
        """Start it unless it runs. Raises OSError where there is no vLLM, or where it has ended
        before it answered.
        """
        code = None if self._process is None else self._process.poll()
        if self._process is not None and code is None:
            return
        if code is not None:
            self.stop()
            if not self.has_started:
                tail = self._output.read_bytes()[-LOG_TAIL_NBYTES:]
                raise OSError(
                    f"vLLM ended with code {code} when it was started; {self._output} ends "
                    f"with:\n{tail.decode(errors='replace').strip()}"
                )
            log.error(
                "vLLM ended with code %d, and is started again; its samples are sent again", code
            )
        self._start()

    def _start(self) -> None:
        program = shutil.which("vllm")
        if program is None:
            raise FileNotFoundError(
                "there is no program `vllm` on PATH: install vLLM, in an environment of "
                "its own if need be"
            )
        killed_with_parent = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        self._output.parent.mkdir(parents=True, exist_ok=True)
        self.has_started = False
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own vLLM, without a shell
                [*killed_with_parent, program, "serve", *self._arguments],
                env={
                    **os.environ,
                    "VLLM_API_KEY": self.key,
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for the server, which ends it afterwards
            )

    def stop(self) -> None:
        """End it and all of its processes."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its engine's processes do not end with it
        process.wait()


# A sample job as a request of ``POST /inference/v1/generate``, and what vLLM answers as the job's
# result. No I/O.

VLLMParams: TypeAlias = dict[str, Any]
# vLLM adds the number of the sample to it, so neighboring seeds must not be neighbors there
MAX_SEED = 2**62
LEAST_TOP_P = 1e-9  # takes the likeliest token alone; vLLM refuses 0


class LikelyToken(msgspec.Struct):
    """A token and its log-probability."""

    token_id: int
    logprob: float


EMPTY_CELL = LikelyToken(EMPTY_TOKEN_ID, EMPTY_LOGPROB)


class VLLMToken(LikelyToken):
    """A drawn token, with the likeliest ones at its place."""

    top_logprobs: list[LikelyToken] = []


class VLLMTokens(msgspec.Struct):
    """Drawn tokens, in their order."""

    content: list[VLLMToken] | None = None


class VLLMChoice(msgspec.Struct):
    """One of the samples of a request: all of it, or of a stream the next part."""

    index: int = 0
    logprobs: VLLMTokens | None = None
    finish_reason: str | None = None

    @property
    def drawn(self) -> list[VLLMToken]:
        """Return its tokens; appending to them adds to the choice."""
        return (
            [] if self.logprobs is None or self.logprobs.content is None else self.logprobs.content
        )


class VLLMAnswer(msgspec.Struct):
    """What vLLM answers to a request, or an event of its stream; ``error`` is that of a stream that
    has failed.
    """

    choices: list[VLLMChoice] = []
    error: dict[str, Any] | None = None


def write_params(job: SampleJob, first: int = 0) -> VLLMParams:
    """Return the parameters of a job that draws tokens after a text, its samples counted from
    ``first`` on.

    vLLM refuses values that it does not take.

    Scores of prompts are not asked for. vLLM 0.32 takes the rows of the prompt for those of samples
    where an adapter changes the output layer: it ends on a CPU, and cannot be right elsewhere.
    """
    texts = [stop for stop in job.stop or () if isinstance(stop, str)]
    params: VLLMParams = {
        "n": job.num_samples,
        "max_tokens": job.max_tokens,
        "min_tokens": job.min_tokens,
        "temperature": job.temperature,
        "top_k": job.top_k,
        "top_p": max(job.top_p, LEAST_TOP_P),
        "min_p": job.min_p,
        "presence_penalty": job.presence_penalty,
        "frequency_penalty": job.frequency_penalty,
        "repetition_penalty": job.repetition_penalty,
        "seed": int(np.random.default_rng(protocol.noise_seed(job)).integers(MAX_SEED)) + first,
        # Of the k likeliest tokens vLLM leaves out the last where the drawn one is not among them.
        "logprobs": job.topk_sample_logprobs and job.topk_sample_logprobs + 1,
        "ignore_eos": job.stop is not None,
        "stop": texts,
        "stop_token_ids": [stop for stop in job.stop or () if not isinstance(stop, str)],
        "detokenize": bool(texts),
        "skip_special_tokens": False,
    }
    if job.json_schema is not None:
        params["structured_outputs"] = {"json": job.json_schema}
    return params


def read_result(job: SampleJob, choices: Sequence[VLLMChoice]) -> SampleResult:
    """Return the result of a job from its samples, which a stream has delivered in parts."""
    return SampleResult(
        sequences=[
            protocol.Continuation(
                tokens=np.array([one.token_id for one in choice.drawn], np.int32),
                logprobs=np.array([one.logprob for one in choice.drawn], np.float32),
                stop_reason=choice.finish_reason or "length",
                topk=_read_topk(
                    job.topk_sample_logprobs, [one.top_logprobs for one in choice.drawn]
                ),
            )
            for choice in choices
        ]
    )


def _read_topk(k: int, rows: Sequence[Sequence[LikelyToken]]) -> tuple[Int32, Float32] | None:
    """Return the ids and log-probabilities of the k likeliest tokens of each row, with empty cells
    where there are fewer.
    """
    if not k:
        return None
    ordered = [sorted(row, key=lambda one: -one.logprob)[:k] for row in rows]
    cells = [row + [EMPTY_CELL] * (k - len(row)) for row in ordered]
    ids = np.array([[one.token_id for one in row] for row in cells], np.int32)
    logprobs = np.array([[one.logprob for one in row] for row in cells], np.float32)
    return ids.reshape(-1, k), logprobs.reshape(-1, k)


CONNECT_SECONDS = 10.0
PROBE_SECONDS = 0.5  # between two looks whether it answers
MAX_PROBES = 600  # of one that somebody else starts
MAX_PROBES_OF_START = 1800  # of one that is started here: it may have to download a large model
MAX_REQUESTS = 512  # at once, since each has a connection; vLLM queues what it cannot run
MAX_MESSAGE = 500
UNLOAD_SECONDS = 5.0
NEEDS = "start it with --enable-scale-out, --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"


class ReplicaFailed(ConnectionError):
    """A vLLM did not answer, or not what was asked for; the sample may be sent again."""


class _ListedModel(msgspec.Struct):
    """A model or an adapter in ``GET /v1/models``; ``parent`` is None for a model."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_ListedModel]


class Replica:
    """One vLLM at a URL, which serves a model by one of ``names``; errors show the first. A
    ``process`` is started here.

    Used on the event loop of one sampler. ``running`` counts the requests that it works on,
    ``asked`` all so far.
    """

    def __init__(self, url: str, names: Sequence[str], process: VLLMProcess | None = None) -> None:
        self._url, self._names, self._process = url, names, process
        headers = {"authorization": f"Bearer {process.key}"} if process is not None else {}
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            # the server limits how long a sample takes
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )
        self._room = asyncio.Semaphore(MAX_REQUESTS)
        self._loads: dict[str, asyncio.Future[None]] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._model = ""
        self.max_context_length: int = 0
        self.failure: ReplicaFailed = ReplicaFailed(f"the vLLM at {url} has not been asked yet")
        self.is_up: bool = False
        self.running: int = 0
        self.asked: int = 0

    # Whether it answers

    def connect(self) -> asyncio.Task[None]:
        """Return the task that waits until it answers, and starts its process again if that has
        ended.

        At its end ``is_up`` says whether it does, and ``failure`` why not.
        """
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.ensure_future(self._connect())
        return self._connecting

    async def _connect(self) -> None:
        for attempt in range(MAX_PROBES if self._process is None else MAX_PROBES_OF_START):
            try:
                if self._process is not None:
                    self._process.ensure()
                answer = await self._client.get("/v1/models", timeout=CONNECT_SECONDS)
                self._read_models(_read(self._url, answer.status_code, answer.content))
                self.is_up = True
                return
            except httpx.TransportError as error:
                self.failure = ReplicaFailed(
                    f"the vLLM at {self._url} does not answer: {type(error).__name__}"
                )
                if attempt == 0:
                    log.warning("waiting for the vLLM at %s", self._url)
            except (EngineError, OSError, msgspec.DecodeError) as error:
                self.failure = ReplicaFailed(str(error))
                return
            await asyncio.sleep(PROBE_SECONDS)

    def _read_models(self, content: bytes) -> None:
        listed = msgspec.json.decode(content, type=_ModelList).data
        served = [one for one in listed if one.parent is None]
        found = next((one for one in served if {one.id, one.root} & {*self._names}), None)
        if found is None:
            there = ", ".join(one.id for one in served)
            raise ReplicaFailed(f"the vLLM at {self._url} serves {there}, not {self._names[0]}")
        self._model, self.max_context_length = found.id, found.max_model_len or 0
        loading = {name: load for name, load in self._loads.items() if not load.done()}
        self._loads = {one.id: _make_done() for one in listed if one.parent is not None} | loading
        if self._process is not None:
            self._process.has_started = True

    # Adapters

    async def _load(self, name: str, folder: str) -> None:
        """Load an adapter once, however many samples need it."""
        if name not in self._loads:
            body = {"lora_name": name, "lora_path": folder}
            self._loads[name] = asyncio.ensure_future(
                self._change_adapter("/v1/load_lora_adapter", body)
            )
        try:
            await asyncio.shield(self._loads[name])
        except Exception:
            self._loads.pop(name, None)
            raise

    async def unload(self, name: str) -> None:
        """Unload an adapter, if it is loaded here; a vLLM that does not answer has
        lost it anyway.
        """
        load = self._loads.pop(name, None)
        if load is not None and self.is_up:
            with contextlib.suppress(
                httpx.TransportError, ReplicaFailed, EngineError, TimeoutError
            ):
                async with asyncio.timeout(UNLOAD_SECONDS):
                    await load
                    await self._change_adapter("/v1/unload_lora_adapter", {"lora_name": name})

    async def _change_adapter(self, path: str, body: dict[str, str]) -> None:
        answer = await self._client.post(path, json=body)
        status = answer.status_code
        if status >= 500 and (await self._client.get("/health")).is_success:
            status = 400  # vLLM reports an adapter that it cannot load as its own fault
        _read(self._url, status, answer.content)

    # Samples

    async def sample(
        self,
        job: SampleJob,
        adapter: tuple[str, str] | None,
        params: VLLMParams,
        handed: Sequence[list[int]],
        first: int,
    ) -> SampleResult:
        """Sample with an adapter, which is a name and a folder, or without.

        ``handed`` has the tokens of each sample that the listener has received; those of a second
        attempt must be the same. The listener counts the samples from ``first`` on. Raises
        ReplicaFailed when the sample may be sent again, EngineError when vLLM refuses it.
        """
        self.running += 1
        self.asked += 1
        try:
            async with self._room:
                if adapter is not None:
                    await self._load(*adapter)
                model = self._model if adapter is None else adapter[0]
                body = {
                    "model": model,
                    "token_ids": job.tokens.tolist(),
                    "sampling_params": params,
                    "priority": job.priority,
                }
                if job.listener is None:
                    return await self._sample(job, body)
                drawn = [
                    VLLMChoice(index=first + index, logprobs=VLLMTokens([]))
                    for index in range(job.num_samples)
                ]
                await self._stream(job.listener, body, drawn, handed)
                return read_result(job, drawn)
        except (httpx.TransportError, ReplicaFailed) as error:
            self.is_up = False
            raise ReplicaFailed(
                str(error) or f"the vLLM at {self._url} broke off: {type(error).__name__}"
            ) from error
        finally:
            self.running -= 1

    async def _sample(self, job: SampleJob, body: dict[str, Any]) -> SampleResult:
        response = await self._client.post("/inference/v1/generate", json=body)
        answer = msgspec.json.decode(
            _read(self._url, response.status_code, response.content), type=VLLMAnswer
        )
        choices = sorted(answer.choices, key=lambda one: one.index)
        if len(choices) != job.num_samples:
            raise ReplicaFailed(
                f"the vLLM at {self._url} answered {len(choices)} of {job.num_samples} samples"
            )
        for choice in choices:
            _check_end(self._url, choice.finish_reason)
        return read_result(job, choices)

    async def _stream(
        self,
        listener: TokenListener,
        body: dict[str, Any],
        drawn: Sequence[VLLMChoice],
        handed: Sequence[list[int]],
    ) -> None:
        """Hand the tokens to the listener as they come. It ends the request, which nobody needs
        then, by returning False.
        """
        async with contextlib.aclosing(self._events({**body, "stream": True})) as events:
            async for event in events:
                for part in event.choices:
                    whole = drawn[part.index]
                    if part.finish_reason is not None:
                        _check_end(self._url, part.finish_reason)
                        whole.finish_reason = part.finish_reason
                    if not _hand_over(listener, whole, part, handed[part.index]):
                        return
        for whole in drawn:
            _check_end(self._url, whole.finish_reason)

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[VLLMAnswer]:
        async with self._client.stream("POST", "/inference/v1/generate", json=body) as response:
            if not response.is_success:
                _read(self._url, response.status_code, await response.aread())
            decoder = EventDecoder()
            async for piece in response.aiter_bytes():
                for data in [
                    event.data for event in decoder.feed(piece) if event.data.startswith("{")
                ]:
                    answer = msgspec.json.decode(data, type=VLLMAnswer)
                    if answer.error is not None:
                        raise ReplicaFailed(
                            f"the vLLM at {self._url} failed: {answer.error.get('message')}"
                        )
                    yield answer

    # End

    async def close(self) -> None:
        """Unload every adapter that was loaded from here, and close the connections."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._process is None:
            await asyncio.gather(*(self.unload(name) for name in list(self._loads)))
        await self._client.aclose()

    def stop(self) -> None:
        """End the process that was started here."""
        if self._process is not None:
            self._process.stop()


def _make_done() -> asyncio.Future[None]:
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def _read(url: str, status: int, content: bytes) -> bytes:
    """Return the content of an answer. Raises EngineError for a refusal, ReplicaFailed where
    another attempt may help.
    """
    if status < 300:
        return content
    try:
        message = str(msgspec.json.decode(content)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = f"HTTP {status}"
        if status == 404:
            raise EngineError(f"the vLLM at {url} lacks an endpoint; {NEEDS}") from None
    if status >= 500 or status == 404:  # vLLM was started again, and has lost the adapter
        raise ReplicaFailed(f"the vLLM at {url} failed: {message[:MAX_MESSAGE]}")
    raise EngineError(f"vLLM refuses the request: {message[:MAX_MESSAGE]}")


def _check_end(url: str, reason: str | None) -> None:
    """Raise ReplicaFailed for a sample that ended for no reason of its own."""
    if reason not in ("stop", "length"):
        raise ReplicaFailed(f"the vLLM at {url} ended a sample: {reason}")


def _hand_over(
    listener: TokenListener, whole: VLLMChoice, part: VLLMChoice, handed: list[int]
) -> bool:
    """Append a part to its sample, and hand over what is new; return whether the listener wants
    more.

    Raises RuntimeError where a second attempt draws other tokens than those that were handed over.
    """
    drawn, wants_more = whole.drawn, True
    for number, token in enumerate(part.drawn, start=1):
        drawn.append(token)
        if len(drawn) > len(handed):
            handed.append(token.token_id)
            reason = whole.finish_reason if number == len(part.drawn) else None
            wants_more = (
                listener.take(whole.index, token.token_id, token.logprob, reason) and wants_more
            )
        elif token.token_id != handed[len(drawn) - 1]:
            raise RuntimeError(
                "the sampler was started again during this stream, and does not repeat its tokens"
            )
    return wants_more


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
        adapter = self._copy(directory, link_file)
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
            closing = [one.close() for one in self._replicas]
            waiting = asyncio.wait([*map(self.start, closing)], timeout=CLOSE_SECONDS)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self.run, waiting).result()
        finally:
            for one in self._replicas:
                one.stop()
            self._loop.close()
            self._folder.clear()
            self._owner.release()


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
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_ended.wait(), STEP_SECONDS)


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


def _write_zeros(source: Path, target: Path) -> None:
    """Copy a file; of weights in the format of safetensors, the header alone, and zeros for the
    numbers.
    """
    content = source.read_bytes()
    if source.name == WEIGHTS:
        start = 8 + int.from_bytes(content[:8], "little")
        content = content[:start] + bytes(len(content) - start)
    target.write_bytes(content)


# of the vLLM that is started here, where its arguments do not say otherwise
MAX_RANK, MAX_ADAPTERS = 32, 4


def open_vllm(
    open_engine: Callable[[], Engine],
    urls: Sequence[str],
    arguments: str,
    placement: Placement,
    root: Path,
) -> VLLMSampler:
    """Return the sampler of an engine, which is open: the vLLMs at these URLs, or without any one
    that is started here.

    Raises OSError where none answers, or one serves another model.
    """
    engine = open_engine()
    names = [engine.base_model, engine.tokenizer_id, *engine.aliases]
    if urls:
        return VLLMSampler(
            lambda: [Replica(url, names) for url in urls],
            engine.adapter_files,
            root,
            fixes_base=False,
        )
    from tinker.local.engines.torch.engine import find_place

    # the trainer's, whose data type its sampler should share
    place = find_place(placement)
    dtype = str(place.dtype).removeprefix("torch.")
    process = VLLMProcess(
        _write_arguments(engine, dtype, arguments),
        root / f"vllm-{Path(engine.base_model).name}.log",
    )
    return VLLMSampler(
        lambda: [Replica(process.url, names, process)],
        engine.adapter_files,
        root,
        fixes_base=place.device.type == "cpu",
    )


def _write_arguments(engine: Engine, dtype: str, more: str) -> list[str]:
    options = {
        "--served-model-name": engine.base_model,
        "--dtype": dtype,
        "--max-lora-rank": str(MAX_RANK),
        "--max-loras": str(MAX_ADAPTERS),
        "--max-logprobs": "-1",
        "--scheduling-policy": "priority",
    }
    flat = [part for pair in options.items() for part in pair]
    return [engine.tokenizer_id, *flat, "--enable-lora", "--enable-scale-out", *shlex.split(more)]
