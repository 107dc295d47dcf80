"""One running vLLM: its requests, the adapters that it has loaded, and whether it answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import msgspec

from tinker._wire import EventDecoder
from tinker.local.engines.protocol import EngineError, SampleJob, SampleResult, TokenListener
from tinker.local.engines.vllm.process import VLLMProcess
from tinker.local.engines.vllm.requests import VLLMAnswer, VLLMChoice, VLLMParams, VLLMTokens, read_result

CONNECT_SECONDS = 10.0
PROBE_SECONDS = 0.5  # between two looks whether it answers
MAX_PROBES = 600  # of one that somebody else starts
MAX_PROBES_OF_START = 1800  # of one that is started here: it may have to download a large model
MAX_REQUESTS = 512  # at once, since each has a connection; vLLM queues what it cannot run
MAX_MESSAGE = 500
UNLOAD_SECONDS = 5.0
NEEDS = "start it with --enable-scale-out, --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
log: logging.Logger = logging.getLogger("tinker.local")


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
    """One vLLM at a URL, which serves a model by one of ``names``; errors show the first. A ``process`` is started here.

    Used on the event loop of one sampler. ``running`` counts the requests that it works on, ``asked`` all so far.
    """

    def __init__(self, url: str, names: Sequence[str], process: VLLMProcess | None = None) -> None:
        self._url, self._names, self._process = url, names, process
        headers = {"authorization": f"Bearer {process.key}"} if process is not None else {}
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # the server limits how long a sample takes
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
        """Return the task that waits until it answers, and starts its process again if that has ended.

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
                self.failure = ReplicaFailed(f"the vLLM at {self._url} does not answer: {type(error).__name__}")
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
            self._loads[name] = asyncio.ensure_future(self._change_adapter("/v1/load_lora_adapter", body))
        try:
            await asyncio.shield(self._loads[name])
        except Exception:
            self._loads.pop(name, None)
            raise

    async def unload(self, name: str) -> None:
        """Unload an adapter, if it is loaded here; a vLLM that does not answer has lost it anyway."""
        load = self._loads.pop(name, None)
        if load is not None and self.is_up:
            with contextlib.suppress(httpx.TransportError, ReplicaFailed, EngineError, TimeoutError):
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

        ``handed`` has the tokens of each sample that the listener has received; those of a second attempt must be the same.
        The listener counts the samples from ``first`` on.
        Raises ReplicaFailed when the sample may be sent again, EngineError when vLLM refuses it.
        """
        self.running += 1
        self.asked += 1
        try:
            async with self._room:
                if adapter is not None:
                    await self._load(*adapter)
                model = self._model if adapter is None else adapter[0]
                body = {"model": model, "token_ids": job.tokens.tolist(), "sampling_params": params, "priority": job.priority}
                if job.listener is None:
                    return await self._sample(job, body)
                drawn = [VLLMChoice(index=first + index, logprobs=VLLMTokens([])) for index in range(job.num_samples)]
                await self._stream(job.listener, body, drawn, handed)
                return read_result(job, drawn)
        except (httpx.TransportError, ReplicaFailed) as error:
            self.is_up = False
            raise ReplicaFailed(str(error) or f"the vLLM at {self._url} broke off: {type(error).__name__}") from error
        finally:
            self.running -= 1

    async def _sample(self, job: SampleJob, body: dict[str, Any]) -> SampleResult:
        response = await self._client.post("/inference/v1/generate", json=body)
        answer = msgspec.json.decode(_read(self._url, response.status_code, response.content), type=VLLMAnswer)
        choices = sorted(answer.choices, key=lambda one: one.index)
        if len(choices) != job.num_samples:
            raise ReplicaFailed(f"the vLLM at {self._url} answered {len(choices)} of {job.num_samples} samples")
        for choice in choices:
            _check_end(self._url, choice.finish_reason)
        return read_result(job, choices)

    async def _stream(
        self, listener: TokenListener, body: dict[str, Any], drawn: Sequence[VLLMChoice], handed: Sequence[list[int]]
    ) -> None:
        """Hand the tokens to the listener as they come. It ends the request, which nobody needs then, by returning False."""
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
                for data in [event.data for event in decoder.feed(piece) if event.data.startswith("{")]:
                    answer = msgspec.json.decode(data, type=VLLMAnswer)
                    if answer.error is not None:
                        raise ReplicaFailed(f"the vLLM at {self._url} failed: {answer.error.get('message')}")
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
    """Return the content of an answer. Raises EngineError for a refusal, ReplicaFailed where another attempt may help."""
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


def _hand_over(listener: TokenListener, whole: VLLMChoice, part: VLLMChoice, handed: list[int]) -> bool:
    """Append a part to its sample, and hand over what is new; return whether the listener wants more.

    Raises RuntimeError where a second attempt draws other tokens than those that were handed over.
    """
    drawn, wants_more = whole.drawn, True
    for number, token in enumerate(part.drawn, start=1):
        drawn.append(token)
        if len(drawn) > len(handed):
            handed.append(token.token_id)
            reason = whole.finish_reason if number == len(part.drawn) else None
            wants_more = listener.take(whole.index, token.token_id, token.logprob, reason) and wants_more
        elif token.token_id != handed[len(drawn) - 1]:
            raise RuntimeError("the sampler was started again during this stream, and does not repeat its tokens")
    return wants_more
