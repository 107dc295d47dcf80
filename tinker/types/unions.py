"""Unions of the kinds of a response's parts. A kind that this version does not know is a dictionary, as the server wrote it."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from tinker_wire.models import (
    CheckpointBillingEvent,
    ClientSessionFinished,
    ClientSessionFinishErrored,
    ClientSessionFinishInterrupted,
    ClientSessionFinishSuccess,
    CreateModelResponse,
    FutureFailed,
    FutureFinished,
    LoadWeightsResponse,
    OptimStepResponse,
    RequestFailedResponse,
    SamplingPrefillBillingEvent,
    SamplingSampleBillingEvent,
    SessionActive,
    SessionCancelled,
    SessionFailed,
    SessionFailedRequestReason,
    SessionFailedSamplingSessionReason,
    SessionFailedTrainingRunReason,
    StorageBillingEvent,
    TrainingBillingEvent,
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

Unknown: TypeAlias = dict[str, Any]

ClientSessionFinishReason: TypeAlias = (
    ClientSessionFinishSuccess | ClientSessionFinishErrored | ClientSessionFinishInterrupted | Unknown
)
SessionFailedReason: TypeAlias = (
    SessionFailedRequestReason | SessionFailedTrainingRunReason | SessionFailedSamplingSessionReason | Unknown
)
SessionStatus: TypeAlias = SessionFailed | SessionCancelled | ClientSessionFinished | SessionActive | Unknown
BillingEventInfo: TypeAlias = (
    TrainingBillingEvent
    | SamplingPrefillBillingEvent
    | SamplingSampleBillingEvent
    | CheckpointBillingEvent
    | StorageBillingEvent
    | Unknown
)
FutureCompletion: TypeAlias = FutureFinished | FutureFailed | Unknown
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
