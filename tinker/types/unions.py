"""Unions that the contract has none of, beside those that it has."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tinker_wire.models import (
    BillingEventInfo,
    ClientSessionFinishReason,
    CreateModelResponse,
    FutureCompletion,
    LoadWeightsResponse,
    OptimStepResponse,
    RequestFailedResponse,
    SessionFailedReason,
    SessionStatus,
    TryAgainResponse,
    UnloadModelResponse,
)

from tinker.types.results import (
    ForwardBackwardOutput,
    SampleResponse,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)

__all__ = [
    "BillingEventInfo",
    "ClientSessionFinishReason",
    "CustomLossInputRank",
    "EventType",
    "FutureCompletion",
    "FutureRetrieveResponse",
    "SessionFailedReason",
    "SessionStatus",
]

FutureRetrieveResponse: TypeAlias = (
    TryAgainResponse
    | ForwardBackwardOutput
    | OptimStepResponse
    | SaveWeightsResponse
    | LoadWeightsResponse
    | SaveWeightsForSamplerResponse
    | SaveWeightsExternalResponse
    | CreateModelResponse
    | UnloadModelResponse
    | SampleResponse
    | RequestFailedResponse
)

EventType: TypeAlias = Literal["SESSION_START", "SESSION_END", "UNHANDLED_EXCEPTION", "GENERIC_EVENT"]
CustomLossInputRank: TypeAlias = Literal[0, 1, 2]
