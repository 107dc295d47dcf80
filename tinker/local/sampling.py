"""Handlers of sampling sessions and samples."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import cast

import numpy as np
from tinker_wire import models

from tinker._wire import json
from tinker.local.accept import fingerprint
from tinker.local.call import Call
from tinker.local.engines.protocol import Engine, EngineError, Float32, Int32, SampleJob, SampleResult
from tinker.local.problem import Problem
from tinker.local.schedule import Sampling
from tinker.local.state import State
from tinker.local.store import Sampler, Session, Weights, sampler_id
from tinker.local.training import check_base_model, text_tokens
from tinker.types.results import SampledSequence, SampleResponse, TopkLogprobs

# Sampling sessions


async def create_sampling_session(state: State, call: Call) -> models.CreateSamplingSessionResponse:
    """A sampling session ``<session>:sample:<n>``; the same number and source again answer the same one."""
    request = call.read(models.CreateSamplingSessionRequest)
    engine = await state.engine()
    with state.lock:
        state.require_open()
        session = state.store.live_session(request.session_id)
        name = sampler_id(session.session_id, request.sampling_session_seq_id)
        weights, base_model = _source(state, engine, request.base_model, request.model_path)
        if not _is_there(session, request, base_model):
            sampler = Sampler(
                sampler_id=name,
                session=session,
                base_model=base_model,
                model_path=request.model_path,
                weights=weights,
            )
            state.store.add_sampler(session, request.sampling_session_seq_id, sampler)
    return models.CreateSamplingSessionResponse(sampling_session_id=name)


def _is_there(session: Session, request: models.CreateSamplingSessionRequest, base_model: str) -> bool:
    found = session.samplers.get(request.sampling_session_seq_id)
    return found is not None and (found.base_model, found.model_path) == (base_model, request.model_path)


def _source(state: State, engine: Engine, base_model: str | None, path: str | None) -> tuple[Weights, str]:
    """What to sample from, and the base model's name. Problem 400 or 404 when that is not possible."""
    if base_model is not None:
        check_base_model(state, engine, base_model)
    if path is None:
        if base_model is None:
            raise Problem(400, "either base_model or model_path says what to sample from")
        return _base_weights, base_model
    try:
        record, folder = state.checkpoints.find(path, "sampler_weights")
    except EngineError as error:
        raise Problem(404, str(error)) from error
    if record.engine_model != engine.base_model:
        raise Problem(400, f"{path} was trained on {record.engine_model!r}; this server has {engine.base_model!r}")
    return lambda engine: state.snapshots.get(engine, folder, record.created_at), base_model or record.base_model


def _base_weights(engine: Engine) -> None:
    return None


async def get_sampler(state: State, call: Call) -> models.GetSamplerResponse:
    """What a sampling session samples from."""
    with state.lock:
        sampler = state.store.sampler(call.path["sampler_id"])
    return models.GetSamplerResponse(
        sampler_id=sampler.sampler_id, base_model=sampler.base_model, model_path=sampler.model_path
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
            weights, _ = _source(state, engine, request.base_model, request.model_path)
            owner = "sample"
        else:
            sampler = state.store.sampler(request.sampling_session_id)
            assert sampler.weights is not None
            weights, owner = sampler.weights, sampler.sampler_id
        return _accept(state, engine, request, weights, owner)


def _accept(
    state: State, engine: Engine, request: models.SampleRequest, weights: Weights, owner: str
) -> models.UntypedAPIFuture:
    numbered = request.sampling_session_id is not None and request.seq_id is not None
    request_id = f"{owner}:request:{request.seq_id if numbered else uuid.uuid4()}"
    sequence_ids = [f"{request_id}:sequence:{index}" for index in range(request.num_samples)]
    same = fingerprint(request)
    if not state.futures.knows(request_id, same):
        sampling = Sampling(
            future=state.futures.open(request_id, same),
            tokens=_size(request, engine.max_context_length),
            job=lambda engine: _job(engine, request, weights),
            result=lambda result: _response(request, result, sequence_ids),
        )
        state.samples.put(sampling)
        state.notify()
    return models.UntypedAPIFuture(request_id=request_id, sample_sequence_ids=sequence_ids)


def _size(request: models.SampleRequest, longest: int) -> int:
    """Prompt and continuation tokens of all samples, to bound a batch."""
    prompt = sum(len(c.tokens) for c in request.prompt.chunks if isinstance(c, models.EncodedTextChunk))
    wanted = request.sampling_params.max_tokens
    return request.num_samples * (prompt + (longest - prompt if wanted is None else max(0, wanted)))


def _job(engine: Engine, request: models.SampleRequest, weights: Weights) -> SampleJob:
    if request.target_prompt_logprobs is not None or request.prompt_alt_tokens_k:
        raise EngineError("this server does not compute target_prompt_logprobs and prompt_alt_tokens")
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
    )


def _prompt(value: models.ModelInput) -> Int32:
    try:
        return text_tokens(json.public_model_input(value), "the prompt")
    except ValueError as error:
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
        topk_prompt_logprobs_np=_table(result.topk_prompt),
    )


def _last(logprobs: Float32 | None, count: int | None) -> Float32 | None:
    if logprobs is None or count is None:
        return logprobs
    return np.concatenate([np.full(len(logprobs) - count, math.nan, np.float32), logprobs[-count:]])


def _table(topk: tuple[Int32, Float32] | None) -> TopkLogprobs | None:
    return None if topk is None else TopkLogprobs(*topk)
