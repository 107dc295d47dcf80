"""One running vLLM: its requests, the adapters that it has loaded, and whether it answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import msgspec
import numpy as np

from tinker._wire import EventDecoder
from tinker.local.engines.inputs import noise_seed
from tinker.local.engines.protocol import (
    Continuation,
    EngineError,
    Float32,
    Int32,
    SampleJob,
    SampleResult,
    TokenListener,
)
from tinker.types.results import EMPTY_LOGPROB, EMPTY_TOKEN_ID

# ``vllm serve`` as a child process of the server.

log: logging.Logger = logging.getLogger("tinker.local")
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
        self._port = _find_port()
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
                raise OSError(
                    f"vLLM ended with code {code} when it was started; {self._output} ends "
                    f"with:\n{self._tail()}"
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

    def _tail(self) -> str:
        return self._output.read_bytes()[-LOG_TAIL_NBYTES:].decode(errors="replace").strip()


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        port: int = probe.getsockname()[1]
        return port


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
        "seed": int(np.random.default_rng(noise_seed(job)).integers(MAX_SEED)) + first,
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
    return SampleResult(sequences=[_read_sequence(job, choice) for choice in choices])


def _read_sequence(job: SampleJob, choice: VLLMChoice) -> Continuation:
    return Continuation(
        tokens=np.array([one.token_id for one in choice.drawn], np.int32),
        logprobs=np.array([one.logprob for one in choice.drawn], np.float32),
        stop_reason=choice.finish_reason or "length",
        topk=_read_topk(job.topk_sample_logprobs, [one.top_logprobs for one in choice.drawn]),
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
