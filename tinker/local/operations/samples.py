"""A sample request as a job of the engine, and the engine's result as the contract has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tinker_wire import models

from tinker._wire import json
from tinker.local.engines.inputs import check_alternatives
from tinker.local.engines.protocol import (
    EngineError,
    Float32,
    Int32,
    PlacedImage,
    PromptTargets,
    SampleJob,
    Sampler,
    SampleResult,
    TokenListener,
)
from tinker.local.operations.model_inputs import read_input
from tinker.local.storage.sessions import LoadWeights
from tinker.types.results import EMPTY_LOGPROB, EMPTY_TOKEN_ID, PromptAltTokens, SampledSequence, SampleResponse, TopkLogprobs
from tinker.types.tensor_data import TensorData, dimensions

# The parameters of jobs that are called as in the contract.
_SAME = [name for name in models.SamplingParams.__struct_fields__ if name != "stop"]
NO_TOKEN = -1  # a cell of target_prompt_logprobs that asks for nothing


class OwnSampleRequest(models.SampleRequest, frozen=True, kw_only=True):
    """A sample of ``/v1`` with what the contract has not: ids that end a sample besides its texts, and its least length."""

    ends: Sequence[int] | None = None
    min_tokens: int = 0


def count_prompt_tokens(request: models.SampleRequest) -> int:
    """Count the tokens of the prompt: those of text, and what images are said to have."""
    return sum(map(_count_chunk, request.prompt.chunks))


def _count_chunk(chunk: models.ModelInputChunk) -> int:
    if isinstance(chunk, models.EncodedTextChunk):
        return len(chunk.tokens)
    return max(0, (chunk.expected_tokens or 0) if isinstance(chunk, models.ImageChunk) else 0)


def to_job(
    sampler: Sampler, request: models.SampleRequest, weights: LoadWeights, listener: TokenListener | None = None
) -> SampleJob:
    (tokens, images), params = _read_prompt(sampler, request.prompt), request.sampling_params
    _check_last_n(request, len(tokens))
    given: dict[str, Any] = {name: value for name in _SAME if (value := getattr(params, name)) is not None}
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
    check_alternatives(job)
    return job


def _prompt_targets(request: models.SampleRequest, length: int) -> PromptTargets | None:
    """Return the cells of ``target_prompt_logprobs`` that hold a token, row by row."""
    if request.target_prompt_logprobs is None:
        return None
    rows, tokens = _read_target_cells(request.target_prompt_logprobs, length)
    wanted = tokens != NO_TOKEN
    if not wanted.any():
        raise EngineError("target_prompt_logprobs does not name any token")
    return PromptTargets(positions=rows[wanted] + 1, tokens=tokens[wanted])


def _read_target_cells(tensor: models.TensorData, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row and token of every cell. Raises EngineError unless it is int64, with one row less than the prompt."""
    try:
        public = json.public_tensor(tensor)
    except (ValueError, OverflowError) as error:
        raise EngineError(f"target_prompt_logprobs: {error}") from error
    shape = dimensions(public)
    if public.dtype != "int64" or len(shape) != 2 or shape[0] != length - 1:
        raise EngineError(
            f"target_prompt_logprobs is {public.dtype} {shape}; it must be int64 [{length - 1}, K] for this prompt"
        )
    values = public.values.reshape(-1).astype(np.int64)
    if public.sparse_crow_indices is None:
        return np.repeat(np.arange(length - 1), shape[1]), values
    return np.repeat(np.arange(length - 1), np.diff(public.sparse_crow_indices)), values


def _target_tensor(request: models.SampleRequest, logprobs: Float32 | None) -> TensorData | None:
    """Return the log-probabilities in the shape and layout of the request, 0 where no token was named."""
    asked = request.target_prompt_logprobs
    if asked is None or logprobs is None:
        return None
    public = json.public_tensor(asked)
    values = np.zeros(public.values.size, np.float32)
    values[public.values.reshape(-1) != NO_TOKEN] = logprobs
    if public.sparse_crow_indices is None:
        return TensorData.from_numpy(values.reshape(dimensions(public)))
    return TensorData(values, "float32", public.shape, public.sparse_crow_indices, public.sparse_col_indices)


def _alternative_tokens(alternatives: tuple[Int32, Float32] | None) -> PromptAltTokens | None:
    if alternatives is None:
        return None
    ids, logprobs = alternatives
    return PromptAltTokens(tokens=TensorData.from_numpy(ids.astype(np.int64)), logprobs=TensorData.from_numpy(logprobs))


def _read_prompt(sampler: Sampler, value: models.ModelInput) -> tuple[Int32, list[PlacedImage]]:
    try:
        public = json.public_model_input(value)
    except (ValueError, OverflowError) as error:
        raise EngineError(f"the prompt: {error}") from error
    return read_input(sampler, public, "the prompt")


def _check_last_n(request: models.SampleRequest, length: int) -> None:
    last = request.prompt_logprobs_last_n
    if last is None:
        return
    if not request.prompt_logprobs:
        raise EngineError("prompt_logprobs_last_n needs prompt_logprobs")
    if not 1 <= last < length:
        raise EngineError(f"prompt_logprobs_last_n is {last}; it must be 1 to {length - 1} for this prompt")


def _read_stop(stop: models.StopCondition | None) -> Sequence[str] | Sequence[int] | None:
    if stop is None or isinstance(stop, str):
        return None if stop is None else [stop]
    pieces = cast("Sequence[object]", stop) if isinstance(stop, list) else [None]
    if all(isinstance(piece, str) for piece in pieces):
        return cast("list[str]", pieces)
    if all(isinstance(piece, int) and not isinstance(piece, bool) for piece in pieces):
        return cast("list[int]", pieces)
    raise EngineError("stop must be a string, a list of strings or a list of token ids")


def to_response(request: models.SampleRequest, result: SampleResult, sequence_ids: Sequence[str]) -> SampleResponse:
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
        topk_prompt_logprobs_np=_topk_table(_keep_last_rows(result.topk_prompt, request.prompt_logprobs_last_n)),
        target_prompt_logprobs=_target_tensor(request, result.target_logprobs),
        prompt_alt_tokens=_alternative_tokens(result.alternatives),
    )


def _keep_last(logprobs: Float32 | None, count: int | None) -> Float32 | None:
    if logprobs is None or count is None:
        return logprobs
    return np.concatenate([np.full(len(logprobs) - count, math.nan, np.float32), logprobs[-count:]])


def _keep_last_rows(topk: tuple[Int32, Float32] | None, count: int | None) -> tuple[Int32, Float32] | None:
    """Empty the cells before the last rows, as the contract does."""
    if topk is None or count is None:
        return topk
    ids, logprobs = topk[0].copy(), topk[1].copy()
    ids[:-count], logprobs[:-count] = EMPTY_TOKEN_ID, EMPTY_LOGPROB
    return ids, logprobs


def _topk_table(topk: tuple[Int32, Float32] | None) -> TopkLogprobs | None:
    return None if topk is None else TopkLogprobs(*topk)
