"""The samples of one client: their options, and their requests until the result is there."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sized
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import msgspec
import msgspec.structs
from tinker_wire import models
from tinker_wire.api import futures as futures_api
from tinker_wire.api import sampling as api

from tinker._basics.checks import read_flag, read_integer
from tinker._futures import EventLabels, TokenQueue
from tinker._http import retry
from tinker._http.limits import SampleAdmission
from tinker._http.messages import Purpose
from tinker._http.responses import StreamsAbsent
from tinker._http.retry import Policy
from tinker._http.submission import Fail, Next, Retries
from tinker._runtime import Runtime, is_of_this_process, run
from tinker._sampling import portable
from tinker._session import ServerConfig, SessionContext
from tinker._session.results import SessionPoller, sample_response
from tinker._validate import check_context_length, explain_refused_models, input_length
from tinker._wire import json, prompt_nbytes
from tinker.errors import (
    APIError,
    APIStatusError,
    CircuitOpenError,
    RequestFailedError,
    SampleStreamError,
)
from tinker.futures import APIFuture, on_done, wait_before
from tinker.types._values import np
from tinker.types.model_input import ModelInput, suggest_model_input
from tinker.types.params import ParsedCheckpointTinkerPath, SamplingParams
from tinker.types.results import SampleResponse
from tinker.types.tensor_data import TensorData, dimensions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tinker._tokenizers import TokenizerSource


class SampleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of ``SamplingClient.sample`` but for the prompt, by their names there.

    A record of msgspec, as thousands of them are made at once.
    """

    num_samples: int
    sampling_params: SamplingParams
    include_prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None

    #: Those that count something, for which 0 stands for nothing.
    COUNTS: ClassVar = ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k")

    def __post_init__(self) -> None:
        """Read what is plain data, or a number of numpy or torch. TypeError for what is neither."""
        __tracebackhide__ = True
        params: object = self.sampling_params
        if isinstance(params, Mapping):
            plain = cast("Mapping[str, Any]", params)
            msgspec.structs.force_setattr(self, "sampling_params", SamplingParams(**plain))
        if isinstance(self.num_samples, SamplingParams):
            raise TypeError(
                "num_samples must be an integer, got SamplingParams: "
                "sampling_params comes after num_samples"
            )
        for name in ("num_samples", *self.COUNTS):
            if type(count := getattr(self, name)) is not int:
                msgspec.structs.force_setattr(self, name, read_integer(name, count))
        if type(self.include_prompt_logprobs) is not bool:
            flag = read_flag("include_prompt_logprobs", self.include_prompt_logprobs)
            msgspec.structs.force_setattr(self, "include_prompt_logprobs", flag)
        if self.prompt_logprobs_last_n is not None:
            last = read_integer("prompt_logprobs_last_n", self.prompt_logprobs_last_n)
            msgspec.structs.force_setattr(self, "prompt_logprobs_last_n", last)

    def to_wire(
        self,
        prompt: ModelInput,
        *,
        sampling_session_id: str | None,
        seq_id: int,
        record_stability_info: bool,
    ) -> models.SampleRequest:
        """Return the request's body."""
        targets = self.target_prompt_logprobs
        return models.SampleRequest(
            prompt=json.wire_model_input(prompt),
            sampling_session_id=sampling_session_id,
            seq_id=seq_id,
            record_stability_info=record_stability_info,
            num_samples=self.num_samples,
            sampling_params=_wire_params(self.sampling_params),
            prompt_logprobs=self.include_prompt_logprobs,
            topk_prompt_logprobs=self.topk_prompt_logprobs,
            topk_sample_logprobs=self.topk_sample_logprobs,
            target_prompt_logprobs=None
            if targets is None
            else json.wire_tensor(targets, "target_prompt_logprobs"),
            prompt_alt_tokens_k=self.prompt_alt_tokens_k,
            prompt_logprobs_last_n=self.prompt_logprobs_last_n,
        )

    def find_fault(self, prompt: ModelInput, response: SampleResponse) -> str | None:
        """Return why a response does not answer these options."""
        sequences = response.sequences
        if len(sequences) != self.num_samples:
            return f"{len(sequences)} sequences for num_samples={self.num_samples}"
        first, last = sequences[0], sequences[-1]  # which say whether the server sends any
        has_logprobs = first.logprobs_np is not None or last.logprobs_np is not None
        has_topk = first.topk_logprobs_np is not None or last.topk_logprobs_np is not None
        for index, one in enumerate(sequences):
            count, drawn, topk = len(one.tokens_np), one.logprobs_np, one.topk_logprobs_np
            if has_logprobs and (found := 0 if drawn is None else len(drawn)) != count:
                return f"sequence {index} has {count} tokens and {found} logprobs"
            if has_topk and (found := 0 if topk is None else len(topk.token_ids)) != count:
                return f"sequence {index} has {count} tokens and {found} rows of topk_logprobs"
        asked = (
            self.include_prompt_logprobs,
            self.topk_prompt_logprobs,
            self.target_prompt_logprobs,
            self.prompt_alt_tokens_k,
        )
        return self._find_missing_scores(input_length(prompt), response) if any(asked) else None

    def _find_missing_scores(self, length: int | None, response: SampleResponse) -> str | None:
        """Return which scores of a prompt of this length are missing."""
        drawn, topk = response.prompt_logprobs_np, response.topk_prompt_logprobs_np
        targets, others = response.target_prompt_logprobs, response.prompt_alt_tokens
        # some servers leave the first token out
        starts_late = drawn is not None and len(drawn) > 0 and not np.isnan(drawn[0])
        scores: tuple[tuple[str, object, Sized | None, bool], ...] = (
            ("prompt_logprobs", self.include_prompt_logprobs, drawn, starts_late),
            (
                "topk_prompt_logprobs",
                self.topk_prompt_logprobs,
                None if topk is None else topk.token_ids,
                False,
            ),
            ("target_prompt_logprobs", self.target_prompt_logprobs, targets, True),
            (
                "prompt_alt_tokens",
                self.prompt_alt_tokens_k,
                None if others is None else others.tokens,
                True,
            ),
        )
        for name, asked, rows, is_shorter in scores:
            if asked and rows is None:
                return (
                    f"no {name}, which were asked for; a server that never sends "
                    "them does not support them"
                )
            if (
                asked
                and rows is not None
                and length is not None
                and len(rows) != length - is_shorter
            ):
                return f"{len(rows)} rows of {name} for a prompt of {length} tokens"
        return None


def check_prompt(prompt: ModelInput) -> None:
    """Raise TypeError unless it is a ModelInput; ValueError if it is empty."""
    __tracebackhide__ = True
    if not isinstance(prompt, ModelInput):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"prompt must be a ModelInput, {suggest_model_input(prompt)}")
    if input_length(prompt) == 0:
        raise ValueError("prompt has no tokens")


def check_sample(prompt: ModelInput, options: SampleOptions, longest: int | None) -> None:
    """Raise ValueError or TypeError for arguments of ``sample`` that no server can answer.

    ``longest`` is how many tokens the model takes; None where the server has not said so.
    """
    __tracebackhide__ = True
    if not isinstance(options.sampling_params, SamplingParams):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            "sampling_params must be a SamplingParams, such as SamplingParams(max_tokens=64); "
            f"got {type(options.sampling_params).__name__}"
        )
    if (stop := options.sampling_params.stop) == "" or (isinstance(stop, list) and "" in stop):
        raise ValueError(
            "sampling_params.stop must not contain an empty string, which would "
            "end every sequence at once"
        )
    if options.num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {options.num_samples}")
    for name in options.COUNTS:
        if (count := getattr(options, name)) < 0:
            raise ValueError(f"{name} must not be negative, got {count}")
    if options.prompt_logprobs_last_n is not None:
        _check_last_n(options.prompt_logprobs_last_n, options.include_prompt_logprobs)
    if options.target_prompt_logprobs is not None:
        _check_targets(prompt, options.target_prompt_logprobs)
    if longest is not None:
        check_context_length("prompt", prompt, longest)


def _check_last_n(last_n: int, include_prompt_logprobs: bool) -> None:
    if not include_prompt_logprobs:
        raise ValueError("prompt_logprobs_last_n needs include_prompt_logprobs=True")
    if last_n < 1:
        raise ValueError(f"prompt_logprobs_last_n must be at least 1, got {last_n}")


def _check_targets(prompt: ModelInput, targets: TensorData) -> None:
    if not isinstance(targets, TensorData):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"target_prompt_logprobs must be TensorData, got {type(targets).__name__}")
    shape = dimensions(targets)
    if targets.dtype != "int64" or len(shape) != 2:
        raise ValueError(
            "target_prompt_logprobs must be an int64 tensor of shape [len(prompt) - 1, K]"
        )
    length = input_length(prompt)
    if length is not None and shape[0] != length - 1:
        raise ValueError(
            f"target_prompt_logprobs must have {length - 1} rows, one less than "
            f"the prompt, got {shape[0]}"
        )


def _wire_params(params: SamplingParams) -> models.SamplingParams:
    """Return the record of the parameters, with one stop text as a list of one, which every server
    reads.
    """
    record = models.SamplingParams(
        max_tokens=params.max_tokens,
        seed=params.seed,
        stop=[params.stop] if isinstance(params.stop, str) else params.stop,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        json_schema=params.json_schema,
        priority=params.priority,
    )
    if params.extra is None:
        return record
    # Extra parameters stand beside the others, so what is sent is a mapping in the place of the
    # record.
    return cast("models.SamplingParams", {**msgspec.to_builtins(record), **params.extra})


class SamplerSource(Protocol):
    """The source of the sampling session of one client."""

    @property
    def training_run_id(self) -> str | None:
        """Return the run of the weights; None for a base model, or if it is not known yet."""
        ...

    @property
    def user_metadata(self) -> Mapping[str, object] | None:
        """Return the user's metadata of the run, if it is one of this client's."""
        ...

    @property
    def base_model(self) -> str | None:
        """Return the base model, if it is known without a request."""
        ...

    async def open_session(self, runtime: Runtime, context: SessionContext) -> str:
        """Return the id of the sampling session."""
        ...

    async def find_base_model(self, runtime: Runtime, sampling_session_id: str) -> str:
        """Return the name of the base model."""
        ...


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A base model or saved weights, one of which is given, or a sampling session on one of them
    that another client opened.
    """

    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    user_metadata: None = None

    @property
    def training_run_id(self) -> str | None:
        """Return the run that the path names."""
        if self.model_path is None:
            return None
        try:
            return ParsedCheckpointTinkerPath.from_tinker_path(self.model_path).training_run_id
        except ValueError:  # a path of another server's
            return None

    async def open_session(self, runtime: Runtime, context: SessionContext) -> str:
        """Return the id of the given sampling session, or of a new one."""
        if self.sampling_session_id is not None:
            return self.sampling_session_id
        body = models.CreateSamplingSessionRequest(
            session_id=context.session_id,
            sampling_session_seq_id=next(runtime.session.sampler_numbers),
            base_model=self.base_model,
            model_path=self.model_path,
        )
        with explain_refused_models(self.base_model, runtime.server.known_models):
            return (
                await runtime.transport.send(api.create_sampling_session(body), retry.SUBMIT)
            ).value.sampling_session_id

    async def find_base_model(self, runtime: Runtime, sampling_session_id: str) -> str:
        """Return the given name, or request it."""
        if self.base_model is not None:
            return self.base_model
        return (
            await runtime.transport.send(
                api.get_sampler(sampler_id=sampling_session_id), retry.SUBMIT
            )
        ).value.base_model


_STREAM = api.stream_sample.__name__
_ALONE = nullcontext(0)
logger: logging.Logger = logging.getLogger("tinker")


class SamplerConnection:
    """The sampling session of one client. ``created`` is the future of its creation; operations
    wait for it.
    """

    def __init__(
        self,
        runtime: Runtime,
        operation: str,
        source: SamplerSource,
        *,
        policy: Policy = retry.SAMPLE,
        record_stability_info: bool,
        is_clone: bool = False,
    ) -> None:
        self.runtime: Runtime = runtime
        self.session_id: str | None = None
        self.numbers: itertools.count[int] = itertools.count()
        self.completions: SessionPoller | None = None
        self._source = source
        self.policy: Policy = policy
        self._record_stability_info = record_stability_info
        self._is_clone = is_clone
        self._clone_id = 0
        self.client_session_id: str = ""
        self._state: portable.SamplerState | None = None
        self._base_model: APIFuture[str] | None = None
        self._tokenizer: APIFuture[TokenizerSource] | None = None
        self._labels = EventLabels(
            training_run_id=source.training_run_id, user_metadata=source.user_metadata
        )
        self.created: APIFuture[None] = run(runtime, operation, self._create, labels=self._labels)

    # ------------------------------------------------------------------ operations, from any thread

    def sample(self, prompt: ModelInput, options: SampleOptions) -> APIFuture[SampleResponse]:
        """Sample continuations of the prompt."""
        return run(
            self._runtime_here(),
            "sample",
            lambda future: self._sample(future, prompt, options),
            parent=self.created,
        )

    def stream(self, prompt: ModelInput, options: SampleOptions, to: TokenQueue) -> APIFuture[None]:
        """Sample continuations of the prompt, and pass the tokens on as they arrive; the future is
        done after the last.
        """
        future = run(
            self._runtime_here(),
            "sample_stream",
            lambda future: self._stream(future, prompt, options, to),
            parent=self.created,
        )
        on_done(future, to.events.close)
        return future

    def compute_logprobs(
        self, prompt: ModelInput, options: SampleOptions
    ) -> APIFuture[list[float | None]]:
        """Compute the log-probabilities of the prompt."""
        return run(
            self._runtime_here(),
            "compute_logprobs",
            lambda future: self._compute_logprobs(future, prompt, options),
            parent=self.created,
        )

    def base_model(self) -> APIFuture[str]:
        """Find the name of the base model; a failed request is repeated by the next call."""
        if self._base_model is None or _has_failed(self._base_model):
            self._base_model = run(
                self._runtime_here(), "get_base_model", self.find_base_model, parent=self.created
            )
        return self._base_model

    @property
    def context_length(self) -> int | None:
        """Return the context length of the model; None if the server has not reported it yet."""
        return self.runtime.server.context_lengths.get(self._source.base_model)

    def tokenizer(self) -> APIFuture[TokenizerSource]:
        """Find the tokenizer; a failed request is repeated by the next call."""
        if self._tokenizer is None or _has_failed(self._tokenizer):
            self._tokenizer = run(
                self._runtime_here(), "get_tokenizer", self._find_tokenizer, parent=self.created
            )
        return self._tokenizer

    def find_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Return the tokenizer if it has been loaded; request and load nothing."""
        known = self._tokenizer
        if known is None or not known.done() or _has_failed(known):
            return None
        from tinker._tokenizers import find_loaded

        return find_loaded(known.result(0))

    def state(self) -> portable.SamplerState:
        """Return the state from which another process recreates this sampler. Blocks until it
        exists.
        """
        self.created.result()
        assert self._state is not None
        known = self._base_model
        name = (
            known.result()
            if known is not None and known.done() and not _has_failed(known)
            else None
        )
        return msgspec.structs.replace(self._state, base_model=name)

    def _runtime_here(self) -> Runtime:
        """Return the runtime of this process; a forked child gets another one than its parent."""
        if not is_of_this_process(self.runtime):
            self._reinit_after_fork()
        return self.runtime

    def _reinit_after_fork(self) -> None:
        """Continue as a clone in a child made by ``fork``, with a thread and connections of this
        process.
        """
        state = self.state()
        self.runtime = portable.runtime_for(state)
        self._clone_id = portable.draw_clone_number()
        server_config = ServerConfig(
            state.client_config, answered=True, dynamic=state.dynamic_config
        )
        self._note_created(state.session_id, state.sampling_session_id, server_config)

    # ------------------------------------------------------------------------------------- creation

    async def _create(self, _: APIFuture[None]) -> None:
        context, session_id = await self.runtime.session.in_session(
            partial(self._source.open_session, self.runtime)
        )
        if self._is_clone:
            self._clone_id = await self._join(context, session_id)
        self._note_created(context.session_id, session_id, context.server_config)

    def _note_created(
        self, client_session_id: str, session_id: str, server_config: ServerConfig
    ) -> None:
        """Store the session id; set up numbering, pickling state and polling."""
        self.client_session_id, self.session_id = client_session_id, session_id
        self._labels.sampling_session_id, self._labels.training_run_id = (
            session_id,
            self._source.training_run_id,
        )
        self.numbers = itertools.count(self._clone_id * portable.SEQ_IDS_PER_CLONE)
        self._state = portable.SamplerState(
            base_url=self.runtime.config.base_url,
            session_id=client_session_id,
            sampling_session_id=session_id,
            base_model=None,
            record_stability_info=self._record_stability_info,
            client_config=server_config.config,
            dynamic_config=server_config.dynamic,
            origin=portable.runtime_token(self.runtime),
        )
        if server_config.config.sample_use_retrieve_futures:
            self.completions = SessionPoller(
                self.runtime.transport,
                self.runtime.tasks,
                models.SamplingSessionFuturesTarget(
                    sampling_session_id=session_id, cloned_sampler_id=self._clone_id
                ),
            )

    async def _join(self, context: SessionContext, session_id: str) -> int:
        """Return a number for this clone: the server's, or a random one."""
        if not context.config.sample_join_sampling_session:
            return portable.draw_clone_number()
        request = api.join_sampling_session(
            models.JoinSamplingSessionRequest(sampling_session_id=session_id)
        )
        return (await self.runtime.transport.send(request, retry.SUBMIT)).value.client_counter

    # ---------------------------------------------------------------------------------- information

    async def find_base_model(self, future: APIFuture[Any]) -> str:
        """Return the name of the base model."""
        await wait_before(self.created, future)
        assert self.session_id is not None
        return await self._source.find_base_model(self.runtime, self.session_id)

    async def _find_tokenizer(self, future: APIFuture[TokenizerSource]) -> TokenizerSource:
        base_model = await self.find_base_model(future)
        assert self.session_id is not None
        sampler = await self.runtime.transport.send_optional(
            api.get_sampler(sampler_id=self.session_id), retry.SUBMIT
        )
        from tinker._tokenizers import resolve

        return resolve(base_model, None if sampler is None else sampler.tokenizer_id)

    # -------------------------------------------------------------------------------------- samples

    async def _compute_logprobs(
        self, future: APIFuture[list[float | None]], prompt: ModelInput, options: SampleOptions
    ) -> list[float | None]:
        response = await self._sample(future, prompt, options)
        assert response.prompt_logprobs is not None
        return response.prompt_logprobs

    async def _sample(
        self, future: APIFuture[Any], prompt: ModelInput, options: SampleOptions
    ) -> SampleResponse:
        """Sample; submit again if the result is lost or the server failed, which is harmless."""
        if self.session_id is None:
            await wait_before(self.created, future)
        session = self.runtime.session
        context = session.context or await session.ensure_started()
        async with context.limits.samples:
            admit = SampleAdmission(context.limits, prompt_nbytes(prompt))
            sample = _Sample(self, context, admit, future, prompt, options)
            try:
                return await sample.attempt(Next())
            except (APIStatusError, RequestFailedError) as error:
                step = await sample.fail(error)
            return await self.runtime.transport.drive(sample, step)

    async def _stream(
        self, future: APIFuture[None], prompt: ModelInput, options: SampleOptions, to: TokenQueue
    ) -> None:
        """Receive a stream; without streaming on the server, the tokens of an ordinary sample, all
        at once.
        """
        await wait_before(self.created, future)
        session, findings = self.runtime.session, self.runtime.transport.findings
        context = session.context or await session.ensure_started()
        absence: APIError | None = None
        if not findings.lacks(_STREAM):
            try:
                async with context.limits.samples:
                    await self._receive(context, future, prompt, options, to)
                return
            except StreamsAbsent:
                pass
            except (APIError, RequestFailedError) as error:
                if to.received_tokens:
                    raise SampleStreamError(
                        f"sample_stream failed after {to.received_tokens} tokens: {error}",
                        to.received_tokens,
                    ) from error
                if not isinstance(error, APIError) or not retry.is_absent(error):
                    raise
                absence = error
        response = await self._sample(future, prompt, options)
        if not findings.lacks(_STREAM):
            findings.note_absence(_STREAM, absence)  # and it does not merely not know the sampler
        to.put_response(response)

    async def _receive(
        self,
        context: SessionContext,
        future: APIFuture[None],
        prompt: ModelInput,
        options: SampleOptions,
        to: TokenQueue,
    ) -> None:
        if (meter := future.progress.meter) is not None:
            await meter.identify(partial(self.find_base_model, future))
        request = api.stream_sample(self.to_wire(prompt, options))
        admit = SampleAdmission(context.limits, prompt_nbytes(prompt))
        try:
            await self.runtime.transport.send_stream(request, self.policy, admit, to)
        finally:
            if meter is not None and to.received_tokens:
                meter.note([prompt], sampled=to.received_tokens)

    def to_wire(self, prompt: ModelInput, options: SampleOptions) -> models.SampleRequest:
        """Return the body of the next request."""
        return options.to_wire(
            prompt,
            sampling_session_id=self.session_id,
            seq_id=next(self.numbers),
            record_stability_info=self._record_stability_info,
        )

    def cancel_later(self, context: SessionContext, request_id: str) -> None:
        """Cancel a request on a server that can do that."""
        if context.server_config.dynamic.sample_cancel_enabled:
            self.runtime.tasks.background(
                f"cancel of {request_id}", partial(self._cancel, request_id)
            )

    async def _cancel(self, request_id: str) -> None:
        """Cancel the request on the server; a failure is ignored."""
        request = futures_api.cancel_future(models.CancelFutureRequest(request_id=request_id))
        try:
            await self.runtime.transport.send(request, retry.SUBMIT)
        except (APIError, CircuitOpenError) as error:
            logger.debug("cancel of %s: %s", request_id, error)


class _Sample(msgspec.Struct, eq=False):
    """One sample until its result is there. One whose result is lost is submitted again."""

    connection: SamplerConnection
    context: SessionContext
    admit: SampleAdmission
    future: APIFuture[Any]
    prompt: ModelInput
    options: SampleOptions
    _retries: Retries | None = None

    @property
    def operation(self) -> str:
        return self.future.operation

    async def attempt(self, step: Next) -> SampleResponse:
        """Submit it, and wait for its result."""
        connection, runtime, future = self.connection, self.connection.runtime, self.future
        prompt, options = self.prompt, self.options
        if (meter := future.progress.meter) is not None:
            await meter.identify(partial(connection.find_base_model, future))
        request = api.asample(
            connection.to_wire(prompt, options), x_tinker_sampling_backpressure="1"
        )
        completions = connection.completions
        with _ALONE if completions is None else completions.submission() as number:
            submission = await runtime.transport.send(
                request, connection.policy, purpose=Purpose.SAMPLE, admit=self.admit
            )
            request_id = submission.value.request_id
            expected = sample_response(
                submission.value.sample_sequence_ids or [], partial(options.find_fault, prompt)
            )
            get = partial(self.context.results.wait, submission, expected, future)
            if completions is None:
                result = get()
            else:
                future.progress.note_submitted(request_id, runtime.clock.monotonic())
                result = completions.fetch(request_id, number, lambda n: get(result_nbytes=n))
            if meter is not None:
                result = meter.follow([prompt], result)
            try:
                return await result
            except asyncio.CancelledError:
                connection.cancel_later(self.context, request_id)
                raise

    async def fail(self, error: Exception) -> Next:
        """Decide whether to submit it again, which is harmless."""
        if not isinstance(error, APIStatusError | RequestFailedError):
            return Fail(error)
        connection, runtime = self.connection, self.connection.runtime
        lost = await runtime.session.session_lost_error(connection.client_session_id, error)
        if lost is not None:
            lost.__cause__ = error
            return Fail(lost)
        self._retries = self._retries or runtime.transport.open_retries(connection.policy)
        return self._retries.decide_resubmission(error, runtime.clock.monotonic())


def _has_failed(known: APIFuture[Any]) -> bool:
    return known.done() and (known.cancelled() or known.exception() is not None)
