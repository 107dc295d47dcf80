"""Handlers of sampling sessions, samples and futures: fetched, listed, cancelled."""

from __future__ import annotations

import contextlib
import math
import threading
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response, StreamingResponse
from tinker_wire import models

from tinker._wire import EVENT_STREAM, json, proto
from tinker.local.call import APICall, APIProblem, Profile
from tinker.local.engines import protocol
from tinker.local.engines.protocol import (
    Engine,
    EngineError,
    Float32,
    Int32,
    SampleJob,
    Sampler,
    SampleResult,
    TokenListener,
)
from tinker.local.handlers import common
from tinker.local.scheduling import SampleTask
from tinker.local.state import SHUTTING_DOWN, SharedData, State
from tinker.local.storage.futures import (
    STREAM_KEY,
    Notifier,
    RequestFailure,
    RequestOutcome,
    ServerFuture,
    request_key,
)
from tinker.local.storage.sessions import MAX_CLIENTS, LoadWeights, SamplerRecord
from tinker.types.results import (
    EMPTY_LOGPROB,
    EMPTY_TOKEN_ID,
    PromptAltTokens,
    SampledSequence,
    SampleResponse,
    TopkLogprobs,
)
from tinker.types.tensor_data import TensorData, dimensions
from tinker.wire import encode_result


async def retrieve_future(state: State, call: APICall) -> msgspec.Struct | Response:
    """Return the result, "try again" after ``hold_seconds``, or first the size of a
    large result.
    """
    request = call.read(models.FutureRetrieveRequest)
    profile = state.settings.profile
    future = state.futures.find(request.request_id)
    if future.session is not None:
        future.session.last_seen = state.clock()
    outcome = await future.wait(state.settings.hold_seconds)
    if outcome is None:
        # those of clients that know fewer fields read a queue state from 408 only
        sent = msgspec.json.decode(call.content, type=dict[str, object])
        is_old = not sent.keys() >= set(models.FutureRetrieveRequest.__struct_fields__)
        return _try_again(future, is_old, profile)
    if outcome is SHUTTING_DOWN and state.journal.is_kept:
        raise APIProblem(503, SHUTTING_DOWN.error)  # the restarted server will continue it
    if isinstance(outcome, RequestFailure) and profile.failed_status != 200:
        raise APIProblem(profile.failed_status, outcome.error)
    media_type, content = await _encode_result(
        state, future, outcome, proto_wanted=call.accepts_proto and profile.protobuf
    )
    if (
        request.allow_metadata_only
        and profile.announces_size
        and len(content) > state.settings.inline_result_bytes
    ):
        future.encoded = media_type, content
        return models.FutureMetadataResponse(
            request_id=future.request_id, response_payload_size=len(content)
        )
    future.encoded = None
    state.futures.mark_read(future)
    return Response(content, media_type=media_type)


async def retrieve_futures(state: State, call: APICall) -> models.FuturesRetrieveResponse:
    """Return the requests of one client that have completed since the cursor; wait while there are
    none.
    """
    request = call.read(models.FuturesRetrieveRequest)
    hold = state.settings.hold_seconds
    with state.lock() as shared:
        log = shared.store.sampler(request.target.sampling_session_id).completion_log(
            request.target.cloned_sampler_id
        )
        for request_id in request.retrieved_request_ids:
            state.futures.release(request_id)
    await log.wait(
        request.prev_cursor, hold if request.timeout is None else min(request.timeout, hold)
    )
    with state.lock() as shared:
        completed, cursor = log.after(request.prev_cursor), log.cursor
    completions: list[models.FutureCompletion] = [
        models.FutureFailed(request_id=one.request_id)
        if one.failed
        else await _describe_finished(state, one.request_id)
        for one in completed
    ]
    return models.FuturesRetrieveResponse(completions=completions, cursor=cursor)


async def _describe_finished(state: State, request_id: str) -> models.FutureFinished:
    size = None  # of a result that was dropped; another one is kept, encoded, until it is sent
    with contextlib.suppress(APIProblem):
        future = state.futures.find(request_id)
        if future.outcome is not None:
            future.encoded = await _encode_result(state, future, future.outcome, proto_wanted=True)
            size = len(future.encoded[1])
    return models.FutureFinished(request_id=request_id, response_payload_uncompressed_size=size)


async def cancel_future(state: State, call: APICall) -> None:
    """Cancel a waiting sample, or discard the result of a running one. Other and unknown requests
    are ignored.
    """
    request_id = call.read(models.CancelFutureRequest).request_id
    with contextlib.suppress(APIProblem):
        state.cancel_sample(state.futures.find(request_id))


def _try_again(future: ServerFuture, old: bool, profile: Profile) -> msgspec.Struct | Response:
    reason = future.progress()
    again = models.TryAgainResponse(
        request_id=future.request_id, queue_state="active", queue_state_reason=reason
    )
    if not old and profile.pending_status == 200:
        return again
    status = models.FutureStatus(
        request_id=future.request_id,
        queue_state=again.queue_state,
        queue_state_reason=reason,
        detail=reason or "still queued or running",
    )
    content = msgspec.json.encode(profile.pending_body(msgspec.to_builtins(status)))
    return Response(content, status_code=408, media_type=json.MEDIA_TYPE)


async def _encode_result(
    state: State, future: ServerFuture, outcome: RequestOutcome, *, proto_wanted: bool
) -> tuple[str, bytes]:
    """Return the media type and bytes of a result; an announced result is kept
    until it is fetched.
    """
    is_small = isinstance(outcome, (RequestFailure, msgspec.Struct))
    media_type = proto.MEDIA_TYPE if proto_wanted and not is_small else json.MEDIA_TYPE
    if future.encoded is not None and future.encoded[0] == media_type:
        return future.encoded
    content = await state.offload(future.nbytes, lambda: _encode_outcome(outcome, media_type))
    if media_type == json.MEDIA_TYPE:
        content = state.settings.profile.rewrite_result(type(outcome), content)
    return media_type, content


def _encode_outcome(outcome: RequestOutcome, media_type: str) -> bytes:
    """Encode a result, or a failure where JSON cannot carry it (NaN): clients would repeat after an
    error status forever.
    """
    if not isinstance(outcome, RequestFailure):
        try:
            return encode_result(outcome, media_type)
        except ValueError as error:
            outcome = RequestFailure(
                f"the result cannot be sent as {media_type}: {error}", "server"
            )
    return json.encode(
        models.RequestFailedResponse(
            error=outcome.error,
            category=outcome.category,
            failed_operation=outcome.failed_operation,
        )
    )


STREAM_HEADERS = {
    "content-type": f"{EVENT_STREAM}; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
#: Clients give up a connection that is silent for a minute.
KEEP_ALIVE_SECONDS = 10.0
KEEP_ALIVE = b": waiting\n\n"
_CLOSED = RequestFailure("the client closed the stream", "user")


def check_sample(request: models.SampleRequest, max_samples: int) -> None:
    """Raise APIProblem 400 for a number of samples that is out of range, and for a request whose
    answer would be empty.
    """
    if not 1 <= request.num_samples <= max_samples:
        raise APIProblem(
            400, f"num_samples is {request.num_samples}; it must be 1 to {max_samples}"
        )
    if request.sampling_params.max_tokens == 0 and not any(_prompt_scores(request).values()):
        raise APIProblem(
            400,
            "max_tokens is 0; it must be at least 1, unless log-probabilities of "
            "the prompt are requested",
        )


def _prompt_scores(request: models.SampleRequest) -> dict[str, object]:
    """Return the fields that ask for scores of the prompt, with falsy values where they ask for
    none.
    """
    return {
        "prompt_logprobs": request.prompt_logprobs,
        "topk_prompt_logprobs": request.topk_prompt_logprobs,
        "target_prompt_logprobs": request.target_prompt_logprobs is not None,
        "prompt_alt_tokens_k": request.prompt_alt_tokens_k,
    }


def needs_engine(request: models.SampleRequest) -> bool:
    """Return whether the engine itself has to sample: samplers that are elsewhere score no prompts
    and read no images.
    """
    is_text = all(isinstance(chunk, models.EncodedTextChunk) for chunk in request.prompt.chunks)
    return not is_text or any(_prompt_scores(request).values())


def check_stream(request: models.SampleRequest, max_samples: int) -> None:
    """Raise APIProblem 400 as :func:`check_sample` does, and for scores, which are not streamed."""
    check_sample(request, max_samples)
    wanted = {**_prompt_scores(request), "topk_sample_logprobs": request.topk_sample_logprobs}
    if named := [name for name, value in wanted.items() if value]:
        raise APIProblem(400, f"{', '.join(named)} cannot be streamed; use asample")


#: A token, its log-probability, and the stop reason of the last one.
DrawnToken: TypeAlias = tuple[int, float, str | None]


class TokenStream:
    """The tokens of one request, between the engine's thread, which puts them in, and the loop of
    the connection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notifier = Notifier()
        self._waiting: dict[int, list[DrawnToken]] = {}
        self._begun: set[int] = set()
        self._closed = False

    # In the engine's thread

    def take(self, index: int, token: int, logprob: float, stop_reason: str | None) -> bool:
        """Receive the next token of a sample; return False if the client has disconnected."""
        with self._lock:
            self._begun.add(index)
            self._waiting.setdefault(index, []).append((token, logprob, stop_reason))
        self._notifier.notify_all()
        return not self._closed

    def notify(self, future: ServerFuture) -> None:
        """Wake the connection: its future is done."""
        self._notifier.notify_all()

    # On the loop of the connection

    async def events(
        self, state: State, future: ServerFuture
    ) -> AsyncGenerator[models.SampleStreamEvent | None]:
        """Yield the events of the stream until its last one, None as a sign of life. Closing it
        ends the work.
        """
        try:
            while True:
                await self._notifier.wait(
                    lambda: bool(self._waiting) or future.outcome is not None, KEEP_ALIVE_SECONDS
                )
                outcome = future.outcome
                with self._lock:
                    drawn, self._waiting = self._waiting, {}
                if not drawn and outcome is None:
                    yield None
                for index, tokens in drawn.items():
                    yield models.SampleStreamEvent(
                        type="tokens",
                        index=index,
                        tokens=[token for token, _, _ in tokens],
                        logprobs=[logprob for _, logprob, _ in tokens],
                        stop_reason=tokens[-1][2],
                    )
                if outcome is not None:
                    for event in self._last_events(outcome):
                        yield event
                    return
        finally:
            self._close(state, future)

    def _close(self, state: State, future: ServerFuture) -> None:
        self._closed = True
        with state.lock():
            state.served.drop_sample(future)
        state.futures.resolve(future, _CLOSED)
        state.futures.release(future.request_id)

    def _last_events(self, outcome: RequestOutcome) -> Iterable[models.SampleStreamEvent]:
        """Return the ends of samples without a token, and the end of the stream."""
        if isinstance(outcome, RequestFailure):
            return [
                models.SampleStreamEvent(
                    type="failed", error=outcome.error, category=outcome.category
                )
            ]
        assert isinstance(outcome, SampleResponse)
        empty = [
            models.SampleStreamEvent(type="tokens", index=index, stop_reason=sequence.stop_reason)
            for index, sequence in enumerate(outcome.sequences)
            if index not in self._begun
        ]
        return [*empty, models.SampleStreamEvent(type="done")]


async def encode_events(
    source: AsyncGenerator[models.SampleStreamEvent | None],
) -> AsyncGenerator[bytes]:
    """Encode a stream as server-sent events. Closing it closes the source."""
    async with contextlib.aclosing(source) as events:
        async for event in events:
            yield KEEP_ALIVE if event is None else b"data: " + json.encode(event) + b"\n\n"


# The parameters of jobs that are called as in the contract.
_SAME = [name for name in models.SamplingParams.__struct_fields__ if name != "stop"]
NO_TOKEN = -1  # a cell of target_prompt_logprobs that asks for nothing


class OwnSampleRequest(models.SampleRequest, frozen=True, kw_only=True):
    """A sample of ``/v1`` with what the contract has not: ids that end a sample besides its texts,
    and its least length.
    """

    ends: Sequence[int] | None = None
    min_tokens: int = 0


@attrs.frozen(kw_only=True)
class Sampling:
    """The source of samples: the weights, their engine, and the base model's name; and the sampling
    session, if it is one.
    """

    weights: LoadWeights
    engine: Engine
    base_model: str
    sampler: SamplerRecord | None = None

    @classmethod
    def find(
        cls,
        state: State,
        shared: SharedData,
        engines: Sequence[Engine],
        request: models.SampleRequest,
    ) -> Sampling:
        """Find the source that a request names. Raises APIProblem 400 or 404."""
        if request.sampling_session_id is None:
            return _find_source(state, shared, engines, request.base_model, request.model_path)
        sampler = shared.store.sampler(request.sampling_session_id)
        assert sampler.weights is not None
        engine = common.find_engine(state.served.engines, sampler.engine_model)
        return cls(
            weights=sampler.weights, engine=engine, base_model=sampler.base_model, sampler=sampler
        )

    def put(
        self,
        state: State,
        request: models.SampleRequest,
        future: ServerFuture,
        ids: Sequence[str],
        stream: TokenStream | None = None,
    ) -> None:
        """Queue a request whose future is open, and whose sequences get these ids.

        Sequences that are recorded are kept, so that training requests of their session may name
        them.
        """

        def respond(result: SampleResult) -> SampleResponse:
            usage_key = (
                (None, None, self.base_model)
                if session is None
                else session.usage_key(self.base_model)
            )
            with state.lock() as shared:
                shared.usage.count("sampling_prefill", prompt, usage_key)
                shared.usage.count(
                    "sampling_sample", sum(len(one.tokens) for one in result.sequences), usage_key
                )
                if (
                    session is not None
                    and session.end is None
                    and stream is None
                    and request.record_stability_info
                ):
                    for sequence_id, sampled in zip(ids, result.sequences, strict=True):
                        shared.recorded.add(sequence_id, session.session_id, prompt, sampled)
            return to_response(request, result, ids)

        prompt = sum(map(_count_chunk, request.prompt.chunks))
        session = None if self.sampler is None else self.sampler.session
        task = SampleTask(
            future,
            lambda sampler: to_job(sampler, request, self.weights, stream),
            respond,
            self._find_session_end,
            request.num_samples * prompt,
            request.sampling_params.priority or 0,
        )
        served = state.served.find(self.engine.base_model)
        (served.scores if needs_engine(request) else served.samples).put(task)
        state.notify()

    def _find_session_end(self) -> RequestFailure | None:
        """Return a failure once the session of a sample has ended."""
        if self.sampler is None or self.sampler.session.end is None:
            return None
        return RequestFailure(f"session {self.sampler.session.session_id!r} has ended", "user")


async def create_sampling_session(
    state: State, call: APICall
) -> models.CreateSamplingSessionResponse:
    """Create the sampling session ``<session>:sample:<n>``; the same number and source again return
    the same one.
    """
    request = call.read(models.CreateSamplingSessionRequest)
    engines = await state.engines()
    with state.lock() as shared:
        state.require_open()
        session = shared.store.live_session(request.session_id)
        source = _find_source(state, shared, engines, request.base_model, request.model_path)
        by_number = state.settings.profile.ids.by_number
        sampler = session.samplers.get(request.sampling_session_seq_id) if by_number else None
        wanted = source.base_model, request.model_path
        if sampler is None or (sampler.base_model, sampler.model_path) != wanted:
            number, name = request.sampling_session_seq_id, source.engine.base_model
            sampler = shared.store.new_sampler(session, number, source.base_model, name)
            sampler.requested_name, sampler.model_path = request.base_model, request.model_path
            sampler.weights = source.weights
            shared.store.add_sampler(number, sampler)
            common.write_down(
                state, call, sampler.sampler_id, lambda: shared.store.drop_sampler(sampler)
            )
    return models.CreateSamplingSessionResponse(sampling_session_id=sampler.sampler_id)


async def join_sampling_session(state: State, call: APICall) -> models.JoinSamplingSessionResponse:
    """Return the number of one more client: 1, 2, 3, ..."""
    request = call.read(models.JoinSamplingSessionRequest)
    with state.lock() as shared:
        sampler = shared.store.sampler(request.sampling_session_id)
        number = sampler.add_client()
        common.write_down(state, call, sampler.sampler_id, sampler.drop_client)
        return models.JoinSamplingSessionResponse(client_counter=number)


def _find_source(
    state: State,
    shared: SharedData,
    engines: Sequence[Engine],
    base_model: str | None,
    path: str | None,
) -> Sampling:
    """Find the weights to sample from. Raises APIProblem 400 or 404."""
    asked = None if base_model is None else common.choose_engine_for(state, engines, base_model)
    if path is None:
        if asked is None:
            raise APIProblem(400, "either base_model or model_path says what to sample from")
        return Sampling(weights=lambda _: None, engine=asked[0], base_model=asked[1])
    try:
        record, folder = state.checkpoints.find(path, "sampler_weights")
    except EngineError as error:
        raise APIProblem(404, str(error), code="checkpoint_not_found") from error
    shared.audit.record_checkpoint("checkpoint_read", record, "sample")
    offered = engines if asked is None or state.settings.any_base_model else [asked[0]]
    engine = next((one for one in offered if one.base_model == record.engine_model), None)
    if engine is None:
        raise APIProblem(
            400,
            f"{path} was trained on {record.engine_model!r}; this server has "
            f"{common.join_names(offered)}",
        )
    return Sampling(
        weights=lambda sampler: state.snapshots.get(sampler, folder, record.created_at),
        engine=engine,
        base_model=record.base_model if asked is None else asked[1],
    )


async def get_sampler(state: State, call: APICall) -> models.GetSamplerResponse:
    """Describe a sampling session."""
    with state.lock() as shared:
        sampler = shared.store.sampler(call.path["sampler_id"])
    return models.GetSamplerResponse(
        sampler_id=sampler.sampler_id,
        base_model=common.visible_name(call, sampler.base_model, sampler.requested_name),
        model_path=sampler.model_path,
        tokenizer_id=common.tokenizer_for(
            call, common.find_engine(await state.engines(), sampler.engine_model)
        ),
    )


async def asample(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Sample from a sampling session, a base model or a checkpoint; the same number and body return
    the same future.
    """
    return await submit_sample(state, call, call.read(models.SampleRequest))


async def submit_sample(
    state: State, call: APICall, request: models.SampleRequest
) -> models.UntypedAPIFuture:
    """Queue a sample and return its future. Raises APIProblem when it is refused."""
    check_sample(request, state.settings.max_samples)
    engines = await state.engines()
    with state.lock() as shared:
        state.require_open()
        source = Sampling.find(state, shared, engines, request)
        sampler = source.sampler
        owner = "sample" if sampler is None else sampler.sampler_id
        numbered = sampler is not None and request.seq_id is not None
        key = request_key(owner, request.seq_id if numbered else uuid.uuid4())
        sequence_ids = [f"{key}:sequence:{index}" for index in range(request.num_samples)]
        same, model = common.fingerprint(request), source.engine.base_model
        request_id = state.futures.find_request_id(key, same)
        if request_id is None:
            future = ServerFuture(key, same, is_sample=True, engine_model=model)
            if sampler is not None:
                log = sampler.completion_log((request.seq_id or 0) // MAX_CLIENTS)
                future.on_done = lambda done: log.add(
                    done.request_id, failed=isinstance(done.outcome, RequestFailure)
                )
                future.session = sampler.session
                future.span = sampler.session.new_span("asample", owner)
            request_id = state.futures.open(future).request_id
            if numbered:  # without a number its client cannot ask for it again
                undo, number = partial(state.futures.forget, future), request.seq_id
                common.write_down(state, call, owner, undo, request_id=key, number=number)
            source.put(state, request, future, sequence_ids)
    return models.UntypedAPIFuture(request_id=request_id, sample_sequence_ids=sequence_ids)


async def stream_sample(state: State, call: APICall) -> Response:
    """Sample, and stream the tokens as the engine draws them. A client that disconnects ends the
    work.
    """
    events = encode_events(await open_stream(state, call.read(models.SampleRequest)))
    return StreamingResponse(events, headers=STREAM_HEADERS)


async def open_stream(
    state: State, request: models.SampleRequest
) -> AsyncGenerator[models.SampleStreamEvent | None]:
    """Queue a sample and return its events, None as a sign of life. Raises APIProblem when it is
    refused.

    Closing the generator ends the work.
    """
    check_stream(request, state.settings.max_samples)
    engines = await state.engines()
    with state.lock() as shared:
        state.require_open()
        source, stream = Sampling.find(state, shared, engines, request), TokenStream()
        key, engine_model = f"{STREAM_KEY}{uuid.uuid4()}", source.engine.base_model
        future = state.futures.open(
            ServerFuture(key, engine_model=engine_model, on_done=stream.notify)
        )
        source.put(
            state, request, future, [str(index) for index in range(request.num_samples)], stream
        )
    return stream.events(state, future)


def _count_chunk(chunk: models.ModelInputChunk) -> int:
    """Count the tokens of a text, or what an image is said to have."""
    if isinstance(chunk, models.EncodedTextChunk):
        return len(chunk.tokens)
    return max(0, (chunk.expected_tokens or 0) if isinstance(chunk, models.ImageChunk) else 0)


def to_job(
    sampler: Sampler,
    request: models.SampleRequest,
    weights: LoadWeights,
    listener: TokenListener | None = None,
) -> SampleJob:
    with protocol.explain("the prompt", ValueError, OverflowError):
        prompt = json.public_model_input(request.prompt)
    (tokens, images), params = (
        common.read_input(sampler, prompt, "the prompt"),
        request.sampling_params,
    )
    _check_last_n(request, len(tokens))
    given: dict[str, Any] = {
        name: value for name in _SAME if (value := getattr(params, name)) is not None
    }
    given.setdefault("max_tokens", sampler.max_context_length - len(tokens))
    stop, ends, min_tokens = _read_stop(params.stop), None, 0
    if isinstance(request, OwnSampleRequest):
        ends, min_tokens = request.ends, request.min_tokens
    job = SampleJob(
        tokens=tokens,
        images=images,
        weights=weights(sampler),
        num_samples=request.num_samples,
        **given,
        stop=stop if ends is None else [*(stop or ()), *ends],
        min_tokens=min_tokens,
        prompt_logprobs=request.prompt_logprobs,
        topk_prompt_logprobs=request.topk_prompt_logprobs,
        topk_sample_logprobs=request.topk_sample_logprobs,
        prompt_targets=_prompt_targets(request, len(tokens)),
        prompt_alternatives=request.prompt_alt_tokens_k,
        listener=listener,
    )
    protocol.check_alternatives(job)
    return job


def _prompt_targets(request: models.SampleRequest, length: int) -> protocol.PromptTargets | None:
    """Return the cells of ``target_prompt_logprobs`` that hold a token, row by row."""
    if request.target_prompt_logprobs is None:
        return None
    rows, tokens = _read_target_cells(request.target_prompt_logprobs, length)
    wanted = tokens != NO_TOKEN
    if not wanted.any():
        raise EngineError("target_prompt_logprobs does not name any token")
    return protocol.PromptTargets(positions=rows[wanted] + 1, tokens=tokens[wanted])


def _read_target_cells(
    tensor: models.TensorData, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row and token of every cell. Raises EngineError unless it is int64, with one row less
    than the prompt.
    """
    with protocol.explain("target_prompt_logprobs", ValueError, OverflowError):
        public = json.public_tensor(tensor)
    shape = dimensions(public)
    if public.dtype != "int64" or len(shape) != 2 or shape[0] != length - 1:
        raise EngineError(
            f"target_prompt_logprobs is {public.dtype} {shape}; it must be "
            f"int64 [{length - 1}, K] for this prompt"
        )
    values = public.values.reshape(-1).astype(np.int64)
    if public.sparse_crow_indices is None:
        return np.repeat(np.arange(length - 1), shape[1]), values
    return np.repeat(np.arange(length - 1), np.diff(public.sparse_crow_indices)), values


def _target_tensor(request: models.SampleRequest, logprobs: Float32 | None) -> TensorData | None:
    """Return the log-probabilities in the shape and layout of the request, 0 where no token was
    named.
    """
    asked = request.target_prompt_logprobs
    if asked is None or logprobs is None:
        return None
    public = json.public_tensor(asked)
    values = np.zeros(public.values.size, np.float32)
    values[public.values.reshape(-1) != NO_TOKEN] = logprobs
    if public.sparse_crow_indices is None:
        return TensorData.from_numpy(values.reshape(dimensions(public)))
    return TensorData(
        values, "float32", public.shape, public.sparse_crow_indices, public.sparse_col_indices
    )


def _check_last_n(request: models.SampleRequest, length: int) -> None:
    last = request.prompt_logprobs_last_n
    if last is None:
        return
    if not request.prompt_logprobs:
        raise EngineError("prompt_logprobs_last_n needs prompt_logprobs")
    if not 1 <= last < length:
        raise EngineError(
            f"prompt_logprobs_last_n is {last}; it must be 1 to {length - 1} for this prompt"
        )


def _read_stop(stop: models.StopCondition | None) -> Sequence[str] | Sequence[int] | None:
    if stop is None or isinstance(stop, str):
        return None if stop is None else [stop]
    pieces = cast("Sequence[object]", stop) if isinstance(stop, list) else [None]
    if all(isinstance(piece, str) for piece in pieces):
        return cast("list[str]", pieces)
    if all(isinstance(piece, int) and not isinstance(piece, bool) for piece in pieces):
        return cast("list[int]", pieces)
    raise EngineError("stop must be a string, a list of strings or a list of token ids")


def to_response(
    request: models.SampleRequest, result: SampleResult, sequence_ids: Sequence[str]
) -> SampleResponse:
    return SampleResponse(
        sequences=[
            SampledSequence(
                stop_reason=sampled.stop_reason,
                sequence_id=sequence_id,
                tokens_np=sampled.tokens,
                logprobs_np=sampled.logprobs,
                topk_logprobs_np=_topk_table(sampled.topk),
            )
            for sampled, sequence_id in zip(result.sequences, sequence_ids, strict=True)
        ],
        prompt_logprobs_np=_keep_last(result.prompt_logprobs, request.prompt_logprobs_last_n),
        topk_prompt_logprobs_np=_topk_table(
            _keep_last_rows(result.topk_prompt, request.prompt_logprobs_last_n)
        ),
        target_prompt_logprobs=_target_tensor(request, result.target_logprobs),
        prompt_alt_tokens=None
        if result.alternatives is None
        else PromptAltTokens(
            tokens=TensorData.from_numpy(result.alternatives[0].astype(np.int64)),
            logprobs=TensorData.from_numpy(result.alternatives[1]),
        ),
    )


def _keep_last(logprobs: Float32 | None, count: int | None) -> Float32 | None:
    if logprobs is None or count is None:
        return logprobs
    return np.concatenate([np.full(len(logprobs) - count, math.nan, np.float32), logprobs[-count:]])


def _keep_last_rows(
    topk: tuple[Int32, Float32] | None, count: int | None
) -> tuple[Int32, Float32] | None:
    """Empty the cells before the last rows, as the contract does."""
    if topk is None or count is None:
        return topk
    ids, logprobs = topk[0].copy(), topk[1].copy()
    ids[:-count], logprobs[:-count] = EMPTY_TOKEN_ID, EMPTY_LOGPROB
    return ids, logprobs


def _topk_table(topk: tuple[Int32, Float32] | None) -> TopkLogprobs | None:
    return None if topk is None else TopkLogprobs(*topk)
