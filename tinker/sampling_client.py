"""SamplingClient: many samples at once from one set of weights."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.api import futures as futures_api
from tinker_wire.api import sampling as api

from tinker import _tokenizers
from tinker._http import (
    RESUBMISSIONS,
    SAMPLE,
    SUBMIT,
    Policy,
    Purpose,
    SampleAdmission,
    Verdict,
    judge,
    sampling_policy,
    tracked,
)
from tinker._runtime import Runtime, is_of_this_process
from tinker._sampling import portable as _clones
from tinker._session import Completions, Facts, Started, report_pause, sample_response
from tinker._training import PROMPT_TOKEN_NBYTES, chunk_nbytes
from tinker._validate import check_sample
from tinker._wire import json
from tinker.errors import APIError, APIStatusError, TinkerError
from tinker.futures import APIFuture, SelfFuture, note_submitted, ready, start
from tinker.types.model_input import ModelInput
from tinker.types.params import SamplingParams
from tinker.types.results import SampleResponse
from tinker.types.tensor_data import TensorData

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tinker._session import Telemetry
    from tinker.lib.retry_handler import RetryConfig

logger: logging.Logger = logging.getLogger("tinker")

Open = Callable[[Started], Awaitable[str]]


@attrs.frozen
class _Wanted:
    """The arguments of one sample, checked."""

    prompt: ModelInput
    num_samples: int
    params: SamplingParams
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None

    def __attrs_post_init__(self) -> None:
        check_sample(
            self.prompt,
            self.num_samples,
            self.params,
            include_prompt_logprobs=self.prompt_logprobs,
            topk_prompt_logprobs=self.topk_prompt_logprobs,
            topk_sample_logprobs=self.topk_sample_logprobs,
            target_prompt_logprobs=self.target_prompt_logprobs,
            prompt_alt_tokens_k=self.prompt_alt_tokens_k,
            prompt_logprobs_last_n=self.prompt_logprobs_last_n,
        )


class SamplingClient(SelfFuture):
    """Samples from a base model or from saved weights, which do not change.

    Made by ``ServiceClient.create_sampling_client`` or ``TrainingClient.save_weights_and_get_sampling_client``, usable at
    once. Thousands of samples may be asked for at the same time, from whatever threads; they run in no particular order. The
    client is itself the future of its creation.
    """

    def __init__(
        self,
        runtime: Runtime,
        operation: str,
        opened: Open,
        *,
        base_model: Callable[[], Awaitable[str]],
        record_stability_info: bool = False,
        is_clone: bool = False,
        policy: Policy = SAMPLE,
    ) -> None:
        super().__init__(operation)
        self._runtime = runtime
        self._numbers = itertools.count()
        self._record_stability_info = record_stability_info
        self._find_base_model = base_model
        self._session_id = ""
        self._sampling_session_id: str | None = None
        self._base_model: APIFuture[str] | None = None
        self._tokenizer: APIFuture[_tokenizers.Source] | None = None
        self._is_clone = is_clone
        self._policy = policy
        self._clone_id = 0
        self._portable_state: _clones.SamplerState | None = None
        self._completions: Completions | None = None
        tracked(self, runtime.transport.observers)
        start(self, lambda: self._opened(opened))

    def __repr__(self) -> str:
        session_id = getattr(self, "_sampling_session_id", None)  # absent in a subclass that does not call __init__
        return f"<SamplingClient {session_id or 'being created'}>"

    def sample(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> APIFuture[SampleResponse]:
        """Sample ``num_samples`` continuations of ``prompt``.

        ``include_prompt_logprobs`` adds the log-probability of each prompt token; ``topk_prompt_logprobs`` and
        ``topk_sample_logprobs`` the k most likely tokens of each prompt or sampled position. ``target_prompt_logprobs``, an
        int64 tensor ``[len(prompt) - 1, K]``, scores given tokens (-1: none) at each prompt position after the first.

        Raises ValueError or TypeError at once for arguments no server can answer.
        """
        wanted = _Wanted(
            prompt,
            num_samples,
            sampling_params,
            include_prompt_logprobs,
            topk_prompt_logprobs,
            topk_sample_logprobs,
            target_prompt_logprobs,
            prompt_alt_tokens_k,
            prompt_logprobs_last_n,
        )
        future: APIFuture[SampleResponse] = self._future("sample")
        return start(future, lambda: self._sampled(future, wanted))

    def compute_logprobs(self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None) -> APIFuture[list[float | None]]:
        """The log-probability of each prompt token given those before it; the first is None.

        ``prompt_logprobs_last_n`` asks for the last n only; the others are None then.
        """
        last_n = prompt_logprobs_last_n
        wanted = _Wanted(prompt, 1, SamplingParams(max_tokens=1), prompt_logprobs=True, prompt_logprobs_last_n=last_n)
        future: APIFuture[list[float | None]] = self._future("compute_logprobs")

        async def computed() -> list[float | None]:
            return _prompt_logprobs(await self._sampled(future, wanted))

        return start(future, computed)

    def get_base_model(self) -> str:
        """The name of the base model; blocks until the client exists."""
        return self._base_model_future().result()

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the base model; loaded once in a process. Blocks until the client exists.

        It is the one that the server names, else that of the model's name. ImportError without transformers; TinkerError when
        the server's tokenizer cannot be reached from this machine.
        """
        return _tokenizers.load(self._tokenizer_future().result())

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """``text`` in the tokens of :meth:`get_tokenizer`, with those that it puts around a text unless told otherwise."""
        return _tokenizers.encode(self.get_tokenizer(), text, add_special_tokens)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ``tokens`` by :meth:`get_tokenizer`; special tokens are spelled out unless they are to be skipped."""
        return _tokenizers.decode(self.get_tokenizer(), tokens, skip_special_tokens)

    def get_telemetry(self) -> Telemetry | None:
        """As ``ServiceClient.get_telemetry``."""
        return self._runtime.telemetry

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None = None) -> None:
        """Say in the log that samples wait, as this client does by itself, once a minute; see :meth:`observe_queue`."""
        state = str(getattr(queue_state, "value", queue_state))
        report_pause(self._runtime.transport.observers, "sample", state, queue_state_reason)

    def get_sampler_handle(self) -> str:
        """Text from which any process with a credential of its own makes this sampler again; it holds none itself.

        Blocks until the client exists.
        """
        return _clones.to_handle(self._portable())

    @staticmethod
    def from_sampler_handle(handle: str, *, api_key: str | None = None) -> SamplingClient:
        """The sampler of a handle; the credential is ``api_key`` or this process's own. ValueError for no handle."""
        return _restored(_clones.from_handle(handle), api_key)

    def __reduce__(self) -> tuple[object, ...]:
        """Samplers pickle, without a credential: the other process uses its own. Blocks until the client exists."""
        return _restored, (self._portable(),)

    def __deepcopy__(self, memo: dict[int, object]) -> SamplingClient:
        return _restored(self._portable())

    def _portable(self) -> _clones.SamplerState:
        self.result()
        assert self._portable_state is not None
        known = self._base_model
        name = known.result() if known is not None and known.done() and known.exception() is None else None
        return msgspec.structs.replace(self._portable_state, base_model=name)

    # ------------------------------------------------------------------------------------------------- twins of older code

    async def sample_async(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> SampleResponse:
        """:meth:`sample`, awaited."""
        return await self.sample(
            prompt,
            num_samples,
            sampling_params,
            include_prompt_logprobs,
            topk_prompt_logprobs,
            topk_sample_logprobs,
            target_prompt_logprobs,
            prompt_alt_tokens_k,
            prompt_logprobs_last_n,
        )

    async def compute_logprobs_async(self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None) -> list[float | None]:
        """:meth:`compute_logprobs`, awaited."""
        return await self.compute_logprobs(prompt, prompt_logprobs_last_n)

    async def get_base_model_async(self) -> str:
        """:meth:`get_base_model` without blocking."""
        return await self._base_model_future()

    # ------------------------------------------------------------------------------------------------------------- internals

    async def _opened(self, opened: Open) -> None:
        async def open_in(started: Started) -> tuple[Started, str]:
            return started, await opened(started)

        _, (started, session_id) = await self._runtime.session.in_session(open_in)
        if self._is_clone:
            self._clone_id = await self._joined(started, session_id)
        self._opened_as(started.session_id, session_id, started.facts)

    def _opened_as(self, session_id: str, sampling_session_id: str, facts: Facts) -> None:
        """What follows from the sampling session and this clone's number."""
        self._session_id, self._sampling_session_id = session_id, sampling_session_id
        self._numbers = itertools.count(self._clone_id * _clones.NUMBERS_OF_A_CLONE)
        self._portable_state = _clones.SamplerState(
            base_url=self._runtime.config.base_url,
            session_id=session_id,
            sampling_session_id=sampling_session_id,
            base_model=None,
            record_stability_info=self._record_stability_info,
            client_config=facts.config,
            dynamic_config=facts.dynamic,
            origin=_clones.origin_of(self._runtime),
        )
        if facts.config.sample_use_retrieve_futures:
            target = models.SamplingSessionFuturesTarget(
                sampling_session_id=sampling_session_id, cloned_sampler_id=self._clone_id
            )
            self._completions = Completions(self._runtime.transport, self._runtime.thread, target)

    def _future(self, operation: str) -> APIFuture[Any]:
        if not is_of_this_process(self._runtime):
            self._move_here()
        return self._child(tracked(APIFuture[Any](operation), self._runtime.transport.observers))

    def _move_here(self) -> None:
        """In a child made by ``fork``: go on as a clone, with a thread and connections of this process."""
        state = self._portable()
        self._runtime = _clones.runtime_for(state)
        self._loop = self._runtime.thread
        self._clone_id = _clones.drawn_number()
        facts = Facts(state.client_config, answered=True, dynamic=state.dynamic_config)
        self._opened_as(state.session_id, state.sampling_session_id, facts)

    async def _joined(self, started: Started, sampling_session_id: str) -> int:
        """A number for this clone: given by the server where it does that, else drawn."""
        if not started.config.sample_join_sampling_session:
            return _clones.drawn_number()
        request = api.join_sampling_session(models.JoinSamplingSessionRequest(sampling_session_id=sampling_session_id))
        return (await self._runtime.transport.send(request, SUBMIT)).value.client_counter

    def _base_model_future(self) -> APIFuture[str]:
        if self._base_model is None:
            future: APIFuture[str] = self._future("get_base_model")
            self._base_model = start(future, self._asked_base_model)
        return self._base_model

    async def _asked_base_model(self) -> str:
        await self
        return await self._find_base_model()

    def _tokenizer_future(self) -> APIFuture[_tokenizers.Source]:
        known = self._tokenizer
        if known is None or (known.done() and known.exception() is not None):
            future: APIFuture[_tokenizers.Source] = self._future("get_tokenizer")
            known = self._tokenizer = start(future, self._asked_tokenizer)
        return known

    async def _asked_tokenizer(self) -> _tokenizers.Source:
        await self
        assert self._sampling_session_id is not None
        base_model = await self._find_base_model()
        request = api.get_sampler(sampler_id=self._sampling_session_id)
        sampler = await self._runtime.transport.send_optional(request, SUBMIT)
        tokenizer_id = None if sampler is None else sampler.tokenizer_id
        return _tokenizers.resolve(base_model, tokenizer_id)

    async def _sampled(self, future: APIFuture[Any], wanted: _Wanted) -> SampleResponse:
        await ready(self, future)
        session = self._runtime.session
        started = await session.started()
        async with started.limits.samples.take():
            resubmissions = 0
            while True:
                try:
                    return _conformant(wanted, await self._once(started, future, wanted))
                except APIStatusError as error:
                    if (lost := await session.lost_error(self._session_id, error)) is not None:
                        raise lost from error
                    if judge(error) is not Verdict.RESUBMIT or resubmissions == RESUBMISSIONS:
                        raise
                    resubmissions += 1  # the promise expired before it was fetched; nothing was lost but the time of it

    async def _once(self, started: Started, future: APIFuture[Any], wanted: _Wanted) -> SampleResponse:
        transport = self._runtime.transport
        request = api.asample(self._body(wanted), x_tinker_sampling_backpressure="1")
        nbytes = sum(chunk_nbytes(chunk, PROMPT_TOKEN_NBYTES) for chunk in wanted.prompt.chunks)
        completions = self._completions
        with nullcontext(0) if completions is None else completions.submission() as number:
            admit = SampleAdmission(started.limits, nbytes)
            submission = await transport.send(request, self._policy, purpose=Purpose.SAMPLE, admit=admit)
            request_id = submission.value.request_id
            note_submitted(future, request_id, self._runtime.clock.monotonic())
            expected = sample_response(submission.value.sample_sequence_ids or [])
            try:
                if completions is None:
                    return await started.poller.wait(submission, expected, future)
                size = await completions.wait(request_id, number)
                try:
                    return await started.poller.wait(submission, expected, future, result_nbytes=size)
                finally:
                    completions.fetched(request_id)
            except asyncio.CancelledError:
                if started.facts.dynamic.sample_cancel_enabled:
                    self._runtime.thread.background(self._give_up(request_id), "cancel of a sample")
                raise

    async def _give_up(self, request_id: str) -> None:
        """Tell the server that nobody waits any more; it is no matter when that fails."""
        request = futures_api.cancel_future(models.CancelFutureRequest(request_id=request_id))
        try:
            await self._runtime.transport.send(request, SUBMIT)
        except APIError as error:
            logger.debug("cancel of %s: %s", request_id, error)

    def _body(self, wanted: _Wanted) -> models.SampleRequest:
        targets = wanted.target_prompt_logprobs
        return models.SampleRequest(
            num_samples=wanted.num_samples,
            prompt=json.wire_model_input(wanted.prompt),
            sampling_params=_readable(wanted.params),
            sampling_session_id=self._sampling_session_id,
            seq_id=next(self._numbers),
            prompt_logprobs=wanted.prompt_logprobs,
            topk_prompt_logprobs=wanted.topk_prompt_logprobs,
            topk_sample_logprobs=wanted.topk_sample_logprobs,
            target_prompt_logprobs=None if targets is None else json.wire_tensor(targets, "target_prompt_logprobs"),
            prompt_alt_tokens_k=wanted.prompt_alt_tokens_k,
            prompt_logprobs_last_n=wanted.prompt_logprobs_last_n,
            record_stability_info=self._record_stability_info,
        )


def _readable(params: SamplingParams) -> SamplingParams:
    """One stop text goes as a list of one: every server reads that, and some read nothing else."""
    return msgspec.structs.replace(params, stop=[params.stop]) if isinstance(params.stop, str) else params


class _Unsupported(TinkerError, RuntimeError):
    """The server does not do what was asked of it."""


def _conformant(wanted: _Wanted, response: SampleResponse) -> SampleResponse:
    """TinkerError when the server ignored what older servers do not know."""
    if wanted.prompt_alt_tokens_k and response.prompt_alt_tokens is None:
        raise _Unsupported("the server ignored prompt_alt_tokens_k; it does not know alternative tokens")
    if wanted.target_prompt_logprobs is not None and response.target_prompt_logprobs is None:
        raise _Unsupported("the server ignored target_prompt_logprobs; it does not know them")
    return response


def _prompt_logprobs(response: SampleResponse) -> list[float | None]:
    if response.prompt_logprobs is None:
        raise _Unsupported("the server sent no prompt logprobs")
    return response.prompt_logprobs


def _restored(state: _clones.SamplerState, api_key: str | None = None) -> SamplingClient:
    """The sampler of a pickle or a handle: the same session and weights, requests of its own."""
    runtime = _clones.runtime_for(state, api_key)

    async def opened(_: Started) -> str:
        return state.sampling_session_id

    async def found_base_model() -> str:
        if state.base_model is not None:
            return state.base_model
        request = api.get_sampler(sampler_id=state.sampling_session_id)
        return (await runtime.transport.send(request, SUBMIT)).value.base_model

    return SamplingClient(
        runtime,
        "from_sampler_handle",
        opened,
        base_model=found_base_model,
        record_stability_info=state.record_stability_info,
        is_clone=True,
    )


def open_sampler(
    runtime: Runtime,
    base_model: str | None,
    model_path: str | None,
    retry_config: RetryConfig | None,
    record_stability_info: bool,
) -> SamplingClient:
    """A sampling client on a base model or saved weights, by a sampling session of its own."""

    async def opened(started: Started) -> str:
        body = models.CreateSamplingSessionRequest(
            session_id=started.session_id,
            sampling_session_seq_id=next(runtime.session.sampler_numbers),
            base_model=base_model,
            model_path=model_path,
        )
        created = (await runtime.transport.send(api.create_sampling_session(body), SUBMIT)).value
        ids.append(created.sampling_session_id)
        return created.sampling_session_id

    async def found_base_model() -> str:
        if base_model is not None:
            return base_model
        sampler = (await runtime.transport.send(api.get_sampler(sampler_id=ids[0]), SUBMIT)).value
        return sampler.base_model

    ids: list[str] = []
    return SamplingClient(
        runtime,
        "create_sampling_client",
        opened,
        base_model=found_base_model,
        record_stability_info=record_stability_info,
        policy=sampling_policy(retry_config),
    )
