"""Handlers of sampling sessions and samples."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from functools import partial

import attrs
from starlette.responses import Response, StreamingResponse
from tinker_wire import models

from tinker.local.call import APICall
from tinker.local.engines.protocol import Engine, EngineError, SampleResult
from tinker.local.errors import APIProblem
from tinker.local.naming import choose_engine_for, find_engine, join_names, tokenizer_for, visible_name
from tinker.local.operations.samples import count_prompt_tokens, to_job, to_response
from tinker.local.operations.streams import (
    EVENT_STREAM,
    STREAM_HEADERS,
    TokenStream,
    check_sample,
    check_stream,
    encode_events,
    needs_engine,
)
from tinker.local.operations.submission import fingerprint, write_down
from tinker.local.scheduling.samples import SampleTask
from tinker.local.state import SharedData, State
from tinker.local.storage.futures import STREAM_KEY, RequestFailure, ServerFuture, request_key
from tinker.local.storage.records import UsageKey
from tinker.local.storage.sessions import MAX_CLIENTS, LoadWeights, SamplerRecord, SessionRecord
from tinker.types.results import SampleResponse


@attrs.frozen(kw_only=True)
class Sampling:
    """The source of samples: the weights, their engine, and the base model's name; and the sampling session, if it is one."""

    weights: LoadWeights
    engine: Engine
    base_model: str
    sampler: SamplerRecord | None = None

    @classmethod
    def find(cls, state: State, shared: SharedData, engines: Sequence[Engine], request: models.SampleRequest) -> Sampling:
        """Find the source that a request names. Raises APIProblem 400 or 404."""
        if request.sampling_session_id is None:
            return _find_source(state, shared, engines, request.base_model, request.model_path)
        sampler = shared.store.sampler(request.sampling_session_id)
        assert sampler.weights is not None
        engine = find_engine(state.served.engines, sampler.engine_model)
        return cls(weights=sampler.weights, engine=engine, base_model=sampler.base_model, sampler=sampler)

    @property
    def usage_key(self) -> UsageKey:
        """Return the key under which its tokens are counted."""
        return (None, None, self.base_model) if self.sampler is None else self.sampler.session.usage_key(self.base_model)

    def put(
        self,
        state: State,
        request: models.SampleRequest,
        future: ServerFuture,
        ids: Sequence[str],
        *,
        recording: SessionRecord | None = None,
        stream: TokenStream | None = None,
    ) -> None:
        """Queue a request whose future is open, and whose sequences get these ids.

        With ``recording`` the sequences are kept, so that training requests of that session may name them.
        """

        def respond(result: SampleResult) -> SampleResponse:
            with state.lock() as shared:
                shared.usage.count("sampling_prefill", prompt, self.usage_key)
                shared.usage.count("sampling_sample", sum(len(one.tokens) for one in result.sequences), self.usage_key)
                for sequence_id, sampled in zip(ids, result.sequences, strict=True):
                    if recording is not None and recording.end is None:
                        shared.recorded.add(sequence_id, recording.session_id, prompt, sampled)
            return to_response(request, result, ids)

        prompt = count_prompt_tokens(request)
        task = SampleTask(
            future,
            lambda sampler: to_job(sampler, request, self.weights, stream),
            respond,
            partial(_find_session_end, self.sampler),
            request.num_samples * prompt,
            request.sampling_params.priority or 0,
        )
        served = state.served.find(self.engine.base_model)
        (served.scores if needs_engine(request) else served.samples).put(task)
        state.notify()


async def create_sampling_session(state: State, call: APICall) -> models.CreateSamplingSessionResponse:
    """Create the sampling session ``<session>:sample:<n>``; the same number and source again return the same one."""
    request = call.read(models.CreateSamplingSessionRequest)
    engines = await state.engines()
    with state.lock() as shared:
        state.require_open()
        session = shared.store.live_session(request.session_id)
        source = _find_source(state, shared, engines, request.base_model, request.model_path)
        by_number = state.settings.profile.ids.by_number
        sampler = session.samplers.get(request.sampling_session_seq_id) if by_number else None
        if sampler is None or (sampler.base_model, sampler.model_path) != (source.base_model, request.model_path):
            number, name = request.sampling_session_seq_id, source.engine.base_model
            sampler = shared.store.new_sampler(session, number, source.base_model, name, request.model_path, source.weights)
            sampler.requested_name = request.base_model
            shared.store.add_sampler(number, sampler)
            write_down(state, call, sampler.sampler_id, lambda: shared.store.drop_sampler(sampler))
    return models.CreateSamplingSessionResponse(sampling_session_id=sampler.sampler_id)


async def join_sampling_session(state: State, call: APICall) -> models.JoinSamplingSessionResponse:
    """Return the number of one more client: 1, 2, 3, ..."""
    request = call.read(models.JoinSamplingSessionRequest)
    with state.lock() as shared:
        sampler = shared.store.sampler(request.sampling_session_id)
        number = sampler.add_client()
        write_down(state, call, sampler.sampler_id, sampler.drop_client)
        return models.JoinSamplingSessionResponse(client_counter=number)


def _find_source(
    state: State, shared: SharedData, engines: Sequence[Engine], base_model: str | None, path: str | None
) -> Sampling:
    """Find the weights to sample from. Raises APIProblem 400 or 404."""
    asked = None if base_model is None else choose_engine_for(state, engines, base_model)
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
        raise APIProblem(400, f"{path} was trained on {record.engine_model!r}; this server has {join_names(offered)}")
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
        base_model=visible_name(call, sampler.base_model, sampler.requested_name),
        model_path=sampler.model_path,
        tokenizer_id=tokenizer_for(call, find_engine(await state.engines(), sampler.engine_model)),
    )


async def asample(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Sample from a sampling session, a base model or a checkpoint; the same number and body return the same future."""
    return await submit_sample(state, call, call.read(models.SampleRequest))


async def submit_sample(state: State, call: APICall, request: models.SampleRequest) -> models.UntypedAPIFuture:
    """Queue a sample and return its future. Raises APIProblem when it is refused."""
    check_sample(request, state.settings.max_samples)
    engines = await state.engines()
    with state.lock() as shared:
        state.require_open()
        return _enqueue(state, call, request, Sampling.find(state, shared, engines, request))


def _enqueue(state: State, call: APICall, request: models.SampleRequest, sampling: Sampling) -> models.UntypedAPIFuture:
    sampler = sampling.sampler
    owner = "sample" if sampler is None else sampler.sampler_id
    numbered = sampler is not None and request.seq_id is not None
    key = request_key(owner, request.seq_id if numbered else uuid.uuid4())
    sequence_ids = [f"{key}:sequence:{index}" for index in range(request.num_samples)]
    request_fingerprint = fingerprint(request)
    request_id = state.futures.find_request_id(key, request_fingerprint)
    if request_id is None:
        future = ServerFuture(key, request_fingerprint, is_sample=True, engine_model=sampling.engine.base_model)
        if sampler is not None:
            log = sampler.completion_log((request.seq_id or 0) // MAX_CLIENTS)
            future.on_done = lambda done: log.add(done.request_id, failed=isinstance(done.outcome, RequestFailure))
            future.session, future.span = sampler.session, sampler.session.new_span("asample", owner)
        request_id = state.futures.open(future).request_id
        if numbered:  # without a number its client cannot ask for it again
            write_down(state, call, owner, lambda: state.futures.forget(future), request_id=key, number=request.seq_id)
        recording = sampler.session if sampler is not None and request.record_stability_info else None
        sampling.put(state, request, future, sequence_ids, recording=recording)
    return models.UntypedAPIFuture(request_id=request_id, sample_sequence_ids=sequence_ids)


async def stream_sample(state: State, call: APICall) -> Response:
    """Sample, and stream the tokens as the engine draws them. A client that disconnects ends the work."""
    events = encode_events(await open_stream(state, call.read(models.SampleRequest)))
    return StreamingResponse(events, media_type=EVENT_STREAM, headers=STREAM_HEADERS)


async def open_stream(state: State, request: models.SampleRequest) -> AsyncGenerator[models.SampleStreamEvent | None]:
    """Queue a sample and return its events, None as a sign of life. Raises APIProblem when it is refused.

    Closing the generator ends the work.
    """
    check_stream(request, state.settings.max_samples)
    engines = await state.engines()
    with state.lock() as shared:
        state.require_open()
        sampling, stream = Sampling.find(state, shared, engines, request), TokenStream()
        engine_model = sampling.engine.base_model
        future = ServerFuture(f"{STREAM_KEY}{uuid.uuid4()}", engine_model=engine_model, on_done=stream.notify)
        state.futures.open(future)
        names = [str(index) for index in range(request.num_samples)]
        sampling.put(state, request, future, names, stream=stream)
    return stream.events(state, future)


def _find_session_end(sampler: SamplerRecord | None) -> RequestFailure | None:
    """Return a failure once the session of a sample has ended."""
    if sampler is None or sampler.session.end is None:
        return None
    return RequestFailure(f"session {sampler.session.session_id!r} has ended", "user")
