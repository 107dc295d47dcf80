"""Handlers of sampling sessions and samples."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray
from tinker_wire import models

from tinker._wire import json
from tinker.local.accept import fingerprint
from tinker.local.call import Call
from tinker.local.completions import CompletionLog
from tinker.local.engines.protocol import Engine, EngineError, Float32, Int32, PromptTargets, SampleJob, SampleResult
from tinker.local.futures import Failure, Future
from tinker.local.ledger import Place
from tinker.local.losses import text_tokens
from tinker.local.naming import check_base_model, shown_name, tokenizer_for
from tinker.local.problem import Problem
from tinker.local.schedule import Sampling
from tinker.local.state import State
from tinker.local.store import MAX_CLIENTS, Sampler, Session, Weights
from tinker.types.results import (
    EMPTY_LOGPROB,
    EMPTY_TOKEN_ID,
    PromptAltTokens,
    SampledSequence,
    SampleResponse,
    TopkLogprobs,
)
from tinker.types.tensor_data import TensorData, dimensions

NO_TOKEN = -1  # a cell of target_prompt_logprobs that asks for nothing
CLIENT_NUMBERS = MAX_CLIENTS  # each client of a session has so many numbers for its requests

# Sampling sessions


async def create_sampling_session(state: State, call: Call) -> models.CreateSamplingSessionResponse:
    """A sampling session ``<session>:sample:<n>``; the same number and source again answer the same one."""
    request = call.read(models.CreateSamplingSessionRequest)
    engine = await state.engine()
    with state.lock:
        state.require_open()
        session = state.store.live_session(request.session_id)
        weights, base_model = _source(state, engine, request.base_model, request.model_path)
        sampler = _found(state, session, request, base_model)
        if sampler is None:
            number = request.sampling_session_seq_id
            sampler = state.store.new_sampler(session, number, base_model, request.model_path, weights)
            sampler.asked_as = request.base_model
            state.store.add_sampler(number, sampler)
    return models.CreateSamplingSessionResponse(sampling_session_id=sampler.sampler_id)


def _found(state: State, session: Session, request: models.CreateSamplingSessionRequest, base_model: str) -> Sampler | None:
    """The sampling session that the same request made before."""
    found = session.samplers.get(request.sampling_session_seq_id) if state.settings.profile.names.by_number else None
    same = found is not None and (found.base_model, found.model_path) == (base_model, request.model_path)
    return found if same else None


async def join_sampling_session(state: State, call: Call) -> models.JoinSamplingSessionResponse:
    """The number of one more client: 1, 2, 3, ..."""
    request = call.read(models.JoinSamplingSessionRequest)
    with state.lock:
        return models.JoinSamplingSessionResponse(client_counter=state.store.sampler(request.sampling_session_id).join())


def _source(state: State, engine: Engine, base_model: str | None, path: str | None) -> tuple[Weights, str]:
    """What to sample from, and the base model's name. Problem 400 or 404 when that is not possible."""
    if base_model is not None:
        base_model = check_base_model(state, engine, base_model)
    if path is None:
        if base_model is None:
            raise Problem(400, "either base_model or model_path says what to sample from")
        return _base_weights, base_model
    try:
        record, folder = state.checkpoints.find(path, "sampler_weights")
    except EngineError as error:
        raise Problem(404, str(error)) from error
    state.ledger.note_checkpoint("checkpoint_read", record, "sample")
    if record.engine_model != engine.base_model:
        raise Problem(400, f"{path} was trained on {record.engine_model!r}; this server has {engine.base_model!r}")
    return lambda engine: state.snapshots.get(engine, folder, record.created_at), base_model or record.base_model


def _base_weights(engine: Engine) -> None:
    return None


async def get_sampler(state: State, call: Call) -> models.GetSamplerResponse:
    """What a sampling session samples from."""
    engine = await state.engine()
    with state.lock:
        sampler = state.store.sampler(call.path["sampler_id"])
    return models.GetSamplerResponse(
        sampler_id=sampler.sampler_id,
        base_model=shown_name(call, sampler.base_model, sampler.asked_as),
        model_path=sampler.model_path,
        tokenizer_id=tokenizer_for(call, engine),
    )


# Samples


async def asample(state: State, call: Call) -> models.UntypedAPIFuture:
    """Samples from a sampling session, a base model or a checkpoint; the same number and body answer the same future."""
    request = call.read(models.SampleRequest)
    if not 1 <= request.num_samples <= state.settings.max_samples:
        raise Problem(400, f"num_samples is {request.num_samples}; 1 to {state.settings.max_samples} are possible")
    engine = await state.engine()
    with state.lock:
        state.require_open()
        if request.sampling_session_id is None:
            weights, base_model = _source(state, engine, request.base_model, request.model_path)
            return _accept(state, engine, request, weights, (None, None, base_model), None)
        sampler = state.store.sampler(request.sampling_session_id)
        assert sampler.weights is not None
        place = sampler.session.project_id, sampler.session.session_id, sampler.base_model
        return _accept(state, engine, request, sampler.weights, place, sampler)


def _accept(
    state: State, engine: Engine, request: models.SampleRequest, weights: Weights, place: Place, sampler: Sampler | None
) -> models.UntypedAPIFuture:
    owner = "sample" if sampler is None else sampler.sampler_id
    numbered = sampler is not None and request.seq_id is not None
    key = f"{owner}:request:{request.seq_id if numbered else uuid.uuid4()}"
    sequence_ids = [f"{key}:sequence:{index}" for index in range(request.num_samples)]
    same = fingerprint(request)
    request_id = state.futures.submitted(key, same)
    if request_id is None:
        log = None if sampler is None else sampler.log((request.seq_id or 0) // CLIENT_NUMBERS)
        future = state.futures.open(key, same, None if sampler is None else sampler.session.span("asample", owner))
        future.is_sample = True
        if sampler is not None and log is not None:
            future.on_done = _logger(log)
            future.on_poll = _toucher(state, sampler.session)
        tokens = _size(request, engine.max_context_length)
        state.samples.put(Sampling(future, tokens, _job_of(request, weights), _result_of(state, request, place, sequence_ids)))
        state.notify()
        request_id = future.request_id
    return models.UntypedAPIFuture(request_id=request_id, sample_sequence_ids=sequence_ids)


def _logger(log: CompletionLog) -> Callable[[Future], None]:
    return lambda future: log.add(future.request_id, failed=isinstance(future.outcome, Failure))


def _toucher(state: State, session: Session) -> Callable[[], None]:
    return lambda: state.store.touch(session)


def _job_of(request: models.SampleRequest, weights: Weights) -> Callable[[Engine], SampleJob]:
    return lambda engine: _job(engine, request, weights)


def _result_of(
    state: State, request: models.SampleRequest, place: Place, sequence_ids: Sequence[str]
) -> Callable[[SampleResult], SampleResponse]:
    def result(result: SampleResult) -> SampleResponse:
        with state.lock:
            state.ledger.use("sampling_prefill", _prompt_tokens(request), place)
            state.ledger.use("sampling_sample", sum(len(sampled.tokens) for sampled in result.sequences), place)
        return _response(request, result, sequence_ids)

    return result


def _size(request: models.SampleRequest, longest: int) -> int:
    """Prompt and continuation tokens of all samples, to bound a batch."""
    prompt = _prompt_tokens(request)
    wanted = request.sampling_params.max_tokens
    return request.num_samples * (prompt + (longest - prompt if wanted is None else max(0, wanted)))


def _prompt_tokens(request: models.SampleRequest) -> int:
    return sum(len(chunk.tokens) for chunk in request.prompt.chunks if isinstance(chunk, models.EncodedTextChunk))


def _job(engine: Engine, request: models.SampleRequest, weights: Weights) -> SampleJob:
    tokens, params = _prompt(request.prompt), request.sampling_params
    _check_last_n(request, len(tokens))
    return SampleJob(
        tokens=tokens,
        weights=weights(engine),
        num_samples=request.num_samples,
        max_tokens=engine.max_context_length - len(tokens) if params.max_tokens is None else params.max_tokens,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
        stop=_stop(params.stop),
        prompt_logprobs=request.prompt_logprobs,
        topk_prompt_logprobs=request.topk_prompt_logprobs,
        topk_sample_logprobs=request.topk_sample_logprobs,
        prompt_targets=_targets(request, len(tokens)),
        prompt_alternatives=request.prompt_alt_tokens_k,
    )


def _targets(request: models.SampleRequest, length: int) -> PromptTargets | None:
    """The cells of ``target_prompt_logprobs`` that hold a token, row by row."""
    if request.target_prompt_logprobs is None:
        return None
    rows, tokens = _cells(request.target_prompt_logprobs, length)
    wanted = tokens != NO_TOKEN
    if not wanted.any():
        raise EngineError("target_prompt_logprobs names no token")
    return PromptTargets(positions=rows[wanted] + 1, tokens=tokens[wanted])


def _cells(tensor: models.TensorData, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and token of every cell that is sent. EngineError unless it is int64, with one row less than the prompt."""
    try:
        public = json.public_tensor(tensor)
    except (ValueError, OverflowError) as error:
        raise EngineError(f"target_prompt_logprobs: {error}") from error
    shape = dimensions(public)
    if public.dtype != "int64" or len(shape) != 2 or shape[0] != length - 1:
        raise EngineError(
            f"target_prompt_logprobs is {public.dtype} {shape}; int64 [{length - 1}, K] is needed for this prompt"
        )
    values = public.values.reshape(-1).astype(np.int64)
    if public.sparse_crow_indices is None:
        return np.repeat(np.arange(length - 1), shape[1]), values
    return np.repeat(np.arange(length - 1), np.diff(public.sparse_crow_indices)), values


def _scored(request: models.SampleRequest, logprobs: Float32 | None) -> TensorData | None:
    """The log-probabilities in the shape and layout of the request, 0 where no token was named."""
    asked = request.target_prompt_logprobs
    if asked is None or logprobs is None:
        return None
    public = json.public_tensor(asked)
    values = np.zeros(public.values.size, np.float32)
    values[public.values.reshape(-1) != NO_TOKEN] = logprobs
    if public.sparse_crow_indices is None:
        return TensorData.from_numpy(values.reshape(dimensions(public)))
    return TensorData(values, "float32", public.shape, public.sparse_crow_indices, public.sparse_col_indices)


def _drawn(alternatives: tuple[Int32, Float32] | None) -> PromptAltTokens | None:
    if alternatives is None:
        return None
    ids, logprobs = alternatives
    return PromptAltTokens(tokens=TensorData.from_numpy(ids.astype(np.int64)), logprobs=TensorData.from_numpy(logprobs))


def _prompt(value: models.ModelInput) -> Int32:
    try:
        return text_tokens(json.public_model_input(value), "the prompt")
    except (ValueError, OverflowError) as error:
        raise EngineError(f"the prompt: {error}") from error


def _check_last_n(request: models.SampleRequest, length: int) -> None:
    last = request.prompt_logprobs_last_n
    if last is None:
        return
    if not request.prompt_logprobs:
        raise EngineError("prompt_logprobs_last_n needs prompt_logprobs")
    if not 1 <= last < length:
        raise EngineError(f"prompt_logprobs_last_n is {last}; 1 to {length - 1} is possible for this prompt")


def _stop(stop: models.StopCondition | None) -> Sequence[str] | Sequence[int] | None:
    if stop is None or isinstance(stop, str):
        return None if stop is None else [stop]
    pieces = cast("Sequence[object]", stop) if isinstance(stop, list) else [None]
    if all(isinstance(piece, str) for piece in pieces):
        return cast("list[str]", pieces)
    if all(isinstance(piece, int) and not isinstance(piece, bool) for piece in pieces):
        return cast("list[int]", pieces)
    raise EngineError("stop must be a text, a list of texts or a list of token ids")


def _response(request: models.SampleRequest, result: SampleResult, sequence_ids: Sequence[str]) -> SampleResponse:
    return SampleResponse(
        sequences=[
            SampledSequence(
                stop_reason=sampled.stop_reason,
                sequence_id=sequence_id,
                tokens_np=sampled.tokens,
                logprobs_np=sampled.logprobs,
                topk_logprobs_np=_table(sampled.topk),
            )
            for sampled, sequence_id in zip(result.sequences, sequence_ids, strict=True)
        ],
        prompt_logprobs_np=_last(result.prompt_logprobs, request.prompt_logprobs_last_n),
        topk_prompt_logprobs_np=_table(_last_rows(result.topk_prompt, request.prompt_logprobs_last_n)),
        target_prompt_logprobs=_scored(request, result.target_logprobs),
        prompt_alt_tokens=_drawn(result.alternatives),
    )


def _last(logprobs: Float32 | None, count: int | None) -> Float32 | None:
    if logprobs is None or count is None:
        return logprobs
    return np.concatenate([np.full(len(logprobs) - count, math.nan, np.float32), logprobs[-count:]])


def _last_rows(topk: tuple[Int32, Float32] | None, count: int | None) -> tuple[Int32, Float32] | None:
    """The wire's empty cells before the last rows."""
    if topk is None or count is None:
        return topk
    ids, logprobs = topk[0].copy(), topk[1].copy()
    ids[:-count], logprobs[:-count] = EMPTY_TOKEN_ID, EMPTY_LOGPROB
    return ids, logprobs


def _table(topk: tuple[Int32, Float32] | None) -> TopkLogprobs | None:
    return None if topk is None else TopkLogprobs(*topk)
