"""Public types: inputs, tensors, parameters and results."""

from typing import TYPE_CHECKING

from tinker._basics.lazy import LazyNames, find_made_modules

if TYPE_CHECKING:
    from tinker_wire.models import AccessibleSearchOwner as AccessibleSearchOwner
    from tinker_wire.models import AccessScope as AccessScope
    from tinker_wire.models import ActiveSessionStatusQuery as ActiveSessionStatusQuery
    from tinker_wire.models import AuditEventType as AuditEventType
    from tinker_wire.models import AuditLogEntry as AuditLogEntry
    from tinker_wire.models import AuditLogResponse as AuditLogResponse
    from tinker_wire.models import AuthTokenResponse as AuthTokenResponse
    from tinker_wire.models import BillingEventInfo as BillingEventInfo
    from tinker_wire.models import BillingUsageEvent as BillingUsageEvent
    from tinker_wire.models import BillingUsageResponse as BillingUsageResponse
    from tinker_wire.models import BillingUsageSession as BillingUsageSession
    from tinker_wire.models import CancelledSessionStatusQuery as CancelledSessionStatusQuery
    from tinker_wire.models import Checkpoint as Checkpoint
    from tinker_wire.models import CheckpointArchiveUrlResponse as CheckpointArchiveUrlResponse
    from tinker_wire.models import CheckpointBillingEvent as CheckpointBillingEvent
    from tinker_wire.models import CheckpointSearchCursor as CheckpointSearchCursor
    from tinker_wire.models import CheckpointSearchRequest as CheckpointSearchRequest
    from tinker_wire.models import CheckpointSearchResponse as CheckpointSearchResponse
    from tinker_wire.models import CheckpointsListResponse as CheckpointsListResponse
    from tinker_wire.models import ClientConfigRequest as ClientConfigRequest
    from tinker_wire.models import ClientConfigResponse as ClientConfigResponse
    from tinker_wire.models import ClientDynamicConfigResponse as ClientDynamicConfigResponse
    from tinker_wire.models import (
        ClientFinishedSessionStatusQuery as ClientFinishedSessionStatusQuery,
    )
    from tinker_wire.models import ClientSessionFinished as ClientSessionFinished
    from tinker_wire.models import ClientSessionFinishErrored as ClientSessionFinishErrored
    from tinker_wire.models import ClientSessionFinishInterrupted as ClientSessionFinishInterrupted
    from tinker_wire.models import ClientSessionFinishReason as ClientSessionFinishReason
    from tinker_wire.models import ClientSessionFinishReasonType as ClientSessionFinishReasonType
    from tinker_wire.models import ClientSessionFinishSuccess as ClientSessionFinishSuccess
    from tinker_wire.models import CopyWeightsRequest as CopyWeightsRequest
    from tinker_wire.models import CopyWeightsResponse as CopyWeightsResponse
    from tinker_wire.models import CreateCustomLossRequest as CreateCustomLossRequest
    from tinker_wire.models import CreateCustomLossResponse as CreateCustomLossResponse
    from tinker_wire.models import CreateModelRequest as CreateModelRequest
    from tinker_wire.models import CreateModelResponse as CreateModelResponse
    from tinker_wire.models import CreateSamplingSessionRequest as CreateSamplingSessionRequest
    from tinker_wire.models import CreateSamplingSessionResponse as CreateSamplingSessionResponse
    from tinker_wire.models import CreateSessionRequest as CreateSessionRequest
    from tinker_wire.models import CreateSessionResponse as CreateSessionResponse
    from tinker_wire.models import (
        CurrentCheckpointStorageUsageItem as CurrentCheckpointStorageUsageItem,
    )
    from tinker_wire.models import (
        CurrentCheckpointStorageUsageResponse as CurrentCheckpointStorageUsageResponse,
    )
    from tinker_wire.models import Cursor as Cursor
    from tinker_wire.models import CustomLossGraph as CustomLossGraph
    from tinker_wire.models import CustomLossInput as CustomLossInput
    from tinker_wire.models import CustomLossNode as CustomLossNode
    from tinker_wire.models import CustomLossNodeOp as CustomLossNodeOp
    from tinker_wire.models import (
        ExternalWeightsUploadFinishRequest as ExternalWeightsUploadFinishRequest,
    )
    from tinker_wire.models import (
        ExternalWeightsUploadFinishResult as ExternalWeightsUploadFinishResult,
    )
    from tinker_wire.models import (
        ExternalWeightsUploadStartRequest as ExternalWeightsUploadStartRequest,
    )
    from tinker_wire.models import (
        ExternalWeightsUploadStartResult as ExternalWeightsUploadStartResult,
    )
    from tinker_wire.models import ExternalWeightsUrlsResponse as ExternalWeightsUrlsResponse
    from tinker_wire.models import FailedSessionStatusQuery as FailedSessionStatusQuery
    from tinker_wire.models import FutureCompletion as FutureCompletion
    from tinker_wire.models import FutureFailed as FutureFailed
    from tinker_wire.models import FutureFinished as FutureFinished
    from tinker_wire.models import FutureRetrieveRequest as FutureRetrieveRequest
    from tinker_wire.models import FuturesRetrieveRequest as FuturesRetrieveRequest
    from tinker_wire.models import FuturesRetrieveResponse as FuturesRetrieveResponse
    from tinker_wire.models import GenericEvent as GenericEvent
    from tinker_wire.models import GetInfoRequest as GetInfoRequest
    from tinker_wire.models import GetInfoResponse as GetInfoResponse
    from tinker_wire.models import GetSamplerResponse as GetSamplerResponse
    from tinker_wire.models import GetServerCapabilitiesResponse as GetServerCapabilitiesResponse
    from tinker_wire.models import GetSessionResponse as GetSessionResponse
    from tinker_wire.models import HealthResponse as HealthResponse
    from tinker_wire.models import ImageFormat as ImageFormat
    from tinker_wire.models import JoinSamplingSessionRequest as JoinSamplingSessionRequest
    from tinker_wire.models import JoinSamplingSessionResponse as JoinSamplingSessionResponse
    from tinker_wire.models import ListSessionsResponse as ListSessionsResponse
    from tinker_wire.models import LoadWeightsRequest as LoadWeightsRequest
    from tinker_wire.models import LoadWeightsResponse as LoadWeightsResponse
    from tinker_wire.models import ModelData as ModelData
    from tinker_wire.models import OptimStepResponse as OptimStepResponse
    from tinker_wire.models import OwnSearchOwner as OwnSearchOwner
    from tinker_wire.models import QueueState as QueueState
    from tinker_wire.models import RequestFailedResponse as RequestFailedResponse
    from tinker_wire.models import SamplingClientKind as SamplingClientKind
    from tinker_wire.models import SamplingPrefillBillingEvent as SamplingPrefillBillingEvent
    from tinker_wire.models import SamplingSampleBillingEvent as SamplingSampleBillingEvent
    from tinker_wire.models import SamplingSessionFuturesTarget as SamplingSessionFuturesTarget
    from tinker_wire.models import SaveWeightsExternalRequest as SaveWeightsExternalRequest
    from tinker_wire.models import (
        SaveWeightsExternalResponseInternal as SaveWeightsExternalResponseInternal,
    )
    from tinker_wire.models import SaveWeightsForSamplerRequest as SaveWeightsForSamplerRequest
    from tinker_wire.models import (
        SaveWeightsForSamplerResponseInternal as SaveWeightsForSamplerResponseInternal,
    )
    from tinker_wire.models import SaveWeightsRequest as SaveWeightsRequest
    from tinker_wire.models import SearchOwner as SearchOwner
    from tinker_wire.models import SessionActive as SessionActive
    from tinker_wire.models import SessionCancelled as SessionCancelled
    from tinker_wire.models import SessionEndEvent as SessionEndEvent
    from tinker_wire.models import SessionFailed as SessionFailed
    from tinker_wire.models import SessionFailedReason as SessionFailedReason
    from tinker_wire.models import SessionFailedRequestReason as SessionFailedRequestReason
    from tinker_wire.models import (
        SessionFailedSamplingSessionReason as SessionFailedSamplingSessionReason,
    )
    from tinker_wire.models import SessionFailedTrainingRunReason as SessionFailedTrainingRunReason
    from tinker_wire.models import SessionHeartbeatRequest as SessionHeartbeatRequest
    from tinker_wire.models import SessionHeartbeatResponse as SessionHeartbeatResponse
    from tinker_wire.models import SessionSearchCursor as SessionSearchCursor
    from tinker_wire.models import SessionSearchRequest as SessionSearchRequest
    from tinker_wire.models import SessionSearchResponse as SessionSearchResponse
    from tinker_wire.models import SessionStartEvent as SessionStartEvent
    from tinker_wire.models import SessionStatus as SessionStatus
    from tinker_wire.models import SessionStatusQuery as SessionStatusQuery
    from tinker_wire.models import SessionSummary as SessionSummary
    from tinker_wire.models import Severity as Severity
    from tinker_wire.models import StopReason as StopReason
    from tinker_wire.models import StorageBillingEvent as StorageBillingEvent
    from tinker_wire.models import SupportedModel as SupportedModel
    from tinker_wire.models import TelemetryEvent as TelemetryEvent
    from tinker_wire.models import TelemetryResponse as TelemetryResponse
    from tinker_wire.models import TelemetrySendRequest as TelemetrySendRequest
    from tinker_wire.models import TrainingBillingEvent as TrainingBillingEvent
    from tinker_wire.models import TrainingRun as TrainingRun
    from tinker_wire.models import TrainingRunsResponse as TrainingRunsResponse
    from tinker_wire.models import TryAgainResponse as TryAgainResponse
    from tinker_wire.models import UnhandledExceptionEvent as UnhandledExceptionEvent
    from tinker_wire.models import UnloadModelRequest as UnloadModelRequest
    from tinker_wire.models import UnloadModelResponse as UnloadModelResponse
    from tinker_wire.models import UntypedAPIFuture as UntypedAPIFuture
    from tinker_wire.models import UserSearchOwner as UserSearchOwner
    from tinker_wire.models import WeightsInfoResponse as WeightsInfoResponse

    from tinker.types.model_input import Datum as Datum
    from tinker.types.model_input import DmelChunk as DmelChunk
    from tinker.types.model_input import EncodedTextChunk as EncodedTextChunk
    from tinker.types.model_input import ImageAssetPointerChunk as ImageAssetPointerChunk
    from tinker.types.model_input import ImageChunk as ImageChunk
    from tinker.types.model_input import LossFnInputs as LossFnInputs
    from tinker.types.model_input import ModelInput as ModelInput
    from tinker.types.model_input import ModelInputChunk as ModelInputChunk
    from tinker.types.model_input import PromptProvenanceSpan as PromptProvenanceSpan
    from tinker.types.model_input import ProvenanceSpan as ProvenanceSpan
    from tinker.types.model_input import ProvenanceSpans as ProvenanceSpans
    from tinker.types.model_input import SampledProvenanceSpan as SampledProvenanceSpan
    from tinker.types.params import AdamOptimizerConfig as AdamOptimizerConfig
    from tinker.types.params import AdamParams as AdamParams
    from tinker.types.params import CheckpointType as CheckpointType
    from tinker.types.params import DimuonOptimizerConfig as DimuonOptimizerConfig
    from tinker.types.params import DimuonParams as DimuonParams
    from tinker.types.params import ForwardBackwardInput as ForwardBackwardInput
    from tinker.types.params import ForwardBackwardRequest as ForwardBackwardRequest
    from tinker.types.params import ForwardRequest as ForwardRequest
    from tinker.types.params import GetBillingUsageRequest as GetBillingUsageRequest
    from tinker.types.params import (
        GetCurrentCheckpointStorageUsageRequest as GetCurrentCheckpointStorageUsageRequest,
    )
    from tinker.types.params import LoraConfig as LoraConfig
    from tinker.types.params import LossFnType as LossFnType
    from tinker.types.params import ModelID as ModelID
    from tinker.types.params import OptimizerConfig as OptimizerConfig
    from tinker.types.params import OptimParams as OptimParams
    from tinker.types.params import OptimStepRequest as OptimStepRequest
    from tinker.types.params import ParsedCheckpointTinkerPath as ParsedCheckpointTinkerPath
    from tinker.types.params import RequestID as RequestID
    from tinker.types.params import SampleRequest as SampleRequest
    from tinker.types.params import SamplingParams as SamplingParams
    from tinker.types.results import CustomLossInputRank as CustomLossInputRank
    from tinker.types.results import EventType as EventType
    from tinker.types.results import ForwardBackwardOutput as ForwardBackwardOutput
    from tinker.types.results import FutureRetrieveResponse as FutureRetrieveResponse
    from tinker.types.results import LossFnOutput as LossFnOutput
    from tinker.types.results import PromptAltTokens as PromptAltTokens
    from tinker.types.results import RequestErrorCategory as RequestErrorCategory
    from tinker.types.results import SampledSequence as SampledSequence
    from tinker.types.results import SampleResponse as SampleResponse
    from tinker.types.results import SampleStreamChunk as SampleStreamChunk
    from tinker.types.results import SaveWeightsExternalResponse as SaveWeightsExternalResponse
    from tinker.types.results import SaveWeightsForSamplerResponse as SaveWeightsForSamplerResponse
    from tinker.types.results import SaveWeightsResponse as SaveWeightsResponse
    from tinker.types.results import TopkLogprobs as TopkLogprobs
    from tinker.types.results import WhoamiResponse as WhoamiResponse
    from tinker.types.tensor_data import TensorData as TensorData
    from tinker.types.tensor_data import TensorDtype as TensorDtype

    TelemetryBatch = TelemetrySendRequest
else:
    _names = LazyNames(__name__)
    __getattr__, __dir__ = _names.load, _names.list
    __path__ += find_made_modules(__name__)
