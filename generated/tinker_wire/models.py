# generated from openapi.yaml; do not edit
"""Every named schema of the contract: records as frozen values, the rest as type aliases.

A field that is None is not sent, unless it is required; a field with another default is always sent.
"""

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import field as _field

from tinker_records import Record as _Record

from .runtime import read_open as _read_open

__all__ = [
    "AccessScope",
    "AccessibleSearchOwner",
    "ActiveSessionStatusQuery",
    "AdamOptimizerConfig",
    "AdamParams",
    "AuditEventType",
    "AuditLogEntry",
    "AuditLogResponse",
    "AuthTokenRequest",
    "AuthTokenResponse",
    "BillingEventInfo",
    "BillingUsageEvent",
    "BillingUsageResponse",
    "BillingUsageSession",
    "BillingUsageSessions",
    "CancelFutureRequest",
    "CancelledSessionStatusQuery",
    "Checkpoint",
    "CheckpointArchiveUrlResponse",
    "CheckpointBillingEvent",
    "CheckpointSearchCursor",
    "CheckpointSearchRequest",
    "CheckpointSearchResponse",
    "CheckpointType",
    "CheckpointsListResponse",
    "ClientConfigRequest",
    "ClientConfigResponse",
    "ClientDynamicConfigResponse",
    "ClientFinishedSessionStatusQuery",
    "ClientSessionFinishErrored",
    "ClientSessionFinishInterrupted",
    "ClientSessionFinishReason",
    "ClientSessionFinishReasonType",
    "ClientSessionFinishSuccess",
    "ClientSessionFinished",
    "CopyWeightsRequest",
    "CopyWeightsResponse",
    "CreateCustomLossRequest",
    "CreateCustomLossResponse",
    "CreateModelRequest",
    "CreateModelResponse",
    "CreateSamplingSessionRequest",
    "CreateSamplingSessionResponse",
    "CreateSessionRequest",
    "CreateSessionResponse",
    "CurrentCheckpointStorageUsageItem",
    "CurrentCheckpointStorageUsageResponse",
    "Cursor",
    "CustomLossArguments",
    "CustomLossGraph",
    "CustomLossInput",
    "CustomLossKwargs",
    "CustomLossNode",
    "CustomLossNodeOp",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
    "ErrorDetail",
    "ErrorResponse",
    "ExternalWeightsUploadFinishRequest",
    "ExternalWeightsUploadFinishResult",
    "ExternalWeightsUploadStartRequest",
    "ExternalWeightsUploadStartResult",
    "ExternalWeightsUrlsResponse",
    "FailedSessionStatusQuery",
    "FinishSessionRequest",
    "ForwardBackwardInput",
    "ForwardBackwardOutput",
    "ForwardBackwardRequest",
    "ForwardRequest",
    "FutureAnswer",
    "FutureCompletion",
    "FutureFailed",
    "FutureFinished",
    "FutureMetadataResponse",
    "FutureRetrieveRequest",
    "FutureStatus",
    "FuturesRetrieveRequest",
    "FuturesRetrieveResponse",
    "GenericEvent",
    "GetInfoRequest",
    "GetInfoResponse",
    "GetSamplerResponse",
    "GetServerCapabilitiesResponse",
    "GetSessionResponse",
    "HealthResponse",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "ImageFormat",
    "JSONValue",
    "JoinSamplingSessionRequest",
    "JoinSamplingSessionResponse",
    "ListSessionsResponse",
    "LoadWeightsRequest",
    "LoadWeightsResponse",
    "LoraConfig",
    "LossFnConfig",
    "LossFnType",
    "Metadata",
    "MetricMap",
    "ModelData",
    "ModelInput",
    "ModelInputChunk",
    "OptimStepRequest",
    "OptimStepResponse",
    "OptimizerConfig",
    "OptimizerParams",
    "OwnSearchOwner",
    "QueueState",
    "RequestErrorCategory",
    "RequestFailedResponse",
    "RequestType",
    "SampleRequest",
    "SampleResponse",
    "SampleStreamEvent",
    "SampleStreamEventType",
    "SampledSequence",
    "SamplingClientKind",
    "SamplingParams",
    "SamplingPrefillBillingEvent",
    "SamplingSampleBillingEvent",
    "SamplingSessionFuturesTarget",
    "SaveWeightsExternalRequest",
    "SaveWeightsExternalResponseInternal",
    "SaveWeightsForSamplerRequest",
    "SaveWeightsForSamplerResponseInternal",
    "SaveWeightsRequest",
    "SaveWeightsResponse",
    "SearchOwner",
    "SelfApiKeyDetails",
    "SelfApiKeyOrganization",
    "SelfApiKeyResponse",
    "SelfApiKeyUser",
    "SessionActive",
    "SessionCancelled",
    "SessionEndEvent",
    "SessionFailed",
    "SessionFailedCategory",
    "SessionFailedReason",
    "SessionFailedRequestReason",
    "SessionFailedSamplingSessionReason",
    "SessionFailedTrainingRunReason",
    "SessionHeartbeatRequest",
    "SessionHeartbeatResponse",
    "SessionSearchCursor",
    "SessionSearchRequest",
    "SessionSearchResponse",
    "SessionStartEvent",
    "SessionStatus",
    "SessionStatusQuery",
    "SessionSummary",
    "SetCheckpointTtlRequest",
    "SetSessionProjectRequest",
    "Severity",
    "StopCondition",
    "StopReason",
    "StorageBillingEvent",
    "StringMap",
    "SupportedModel",
    "TelemetryEvent",
    "TelemetryResponse",
    "TelemetrySendRequest",
    "TensorData",
    "TensorDtype",
    "TensorMap",
    "TokenLogprob",
    "TraceExportResponse",
    "TraceExportStatus",
    "TrainingBillingEvent",
    "TrainingRun",
    "TrainingRunsResponse",
    "TryAgainResponse",
    "TtlSeconds",
    "UnhandledExceptionEvent",
    "UnloadModelRequest",
    "UnloadModelResponse",
    "UntypedAPIFuture",
    "UserSearchOwner",
    "ValidationProblem",
    "WeightsInfoRequest",
    "WeightsInfoResponse",
]


JSONValue: TypeAlias = Any
"""Any JSON value."""

Metadata: TypeAlias = dict[str, JSONValue]
"""Free key/value pairs of the user; the values are strings in the SDKs, the wire takes any JSON."""

StringMap: TypeAlias = dict[str, str]
"""Free key/value pairs of the user."""

ErrorDetail: TypeAlias = Any
"""A text for the user, or the list of what is wrong with a body (422)."""


class ErrorResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an error status. Proxies send text, HTML or nothing instead; a client must survive that."""

    detail: ErrorDetail | None = None


class ValidationProblem(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of a request body, in the form of FastAPI."""

    loc: list[int | str]
    """Where: `body`, then field names and list indices."""
    msg: str
    type: str
    """A word for the kind of fault."""
    input: JSONValue | None = None
    ctx: JSONValue | None = None


RequestErrorCategory: TypeAlias = Literal["unknown", "server", "user"] | str
"""Whose fault a failed request is; lower case. Clients take an unknown word for `unknown`."""


class RequestFailedResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A submitted request failed. Whatever else has a member `error` is read as this."""

    __module__ = "tinker.types"

    error: str
    """A text for the user."""
    category: RequestErrorCategory


class HealthResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    status: str


class ClientConfigRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    sdk_version: str
    """The version of the client; 0.38.0 or the like."""


class ClientConfigResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Limits and switches the server wants of a client. A missing setting means the default, an unknown one is ignored."""

    __module__ = "tinker.types"

    pjwt_auth_enabled: bool = _field(default_factory=lambda: False)
    """Exchange the key for a short-lived JWT (`auth_token`)."""
    credential_default_source: str = _field(default_factory=lambda: "api_key")
    """`credential_cmd` makes the client use its credential command for the exchange, whatever key it has."""
    sample_dispatch_bytes_semaphore_size: int = _field(default_factory=lambda: 10485760)
    """Estimated prompt bytes that may be in submission at once."""
    inflight_response_bytes_semaphore_size: int = _field(default_factory=lambda: 52428800)
    """Bytes of large results that may be fetched and decoded at once."""
    parallel_fwdbwd_chunks: bool = _field(default_factory=lambda: True)
    """Chunks of one call are submitted together, the first one last."""
    proto_compress_fwdbwd: bool = _field(default_factory=lambda: False)
    """Send protobuf bodies zstd-compressed, with `Content-Encoding: zstd`."""
    fwdbwd_max_chunk_len: int = _field(default_factory=lambda: 1024)
    """Most datums in one request."""
    fwdbwd_max_chunk_bytes_count: int = _field(default_factory=lambda: 5000000)
    """Most estimated bytes in one request; a single larger datum goes alone."""
    fwdbwd_dispatch_bytes_semaphore_size: int = _field(default_factory=lambda: 50000000)
    """Estimated training bytes that may be in submission at once."""
    billing_exception_max_pause_duration_sec: int = _field(default_factory=lambda: 3600)
    """How long the client waits out status 402."""
    sample_no_retries: bool = _field(default_factory=lambda: False)
    """Samples are not retried and not limited in number."""
    sample_enable_stuck_detection: bool = _field(default_factory=lambda: True)
    """Give up sampling when nothing succeeds for two hours."""
    sample_max_concurrent_requests: int = _field(default_factory=lambda: 2000)
    """Most samples of one client that are unanswered at a time, over any number of the caller."""
    use_pyqwest_transport: bool = _field(default_factory=lambda: True)
    """About the official client's HTTP library; others ignore it."""
    sample_use_retrieve_futures: bool = _field(default_factory=lambda: False)
    """Learn of completed samples through `retrieve_futures`."""
    custom_loss_server_side: bool = _field(default_factory=lambda: False)
    """Upload custom losses with `create_custom_loss` instead of computing them on the client."""
    sample_join_sampling_session: bool = _field(default_factory=lambda: False)
    """Copies of a sampling client get their number from `join_sampling_session`."""


class ClientDynamicConfigResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that a client asks for again and again. A missing one means the default."""

    __module__ = "tinker.types"

    refresh_interval_sec: int = _field(default_factory=lambda: 300)
    """Seconds until the client asks again; at least 10 are taken."""
    sample_cancel_enabled: bool = _field(default_factory=lambda: False)
    """Send `cancel_future` for samples nobody waits for."""
    sample_cancel_max_batch_size: int = _field(default_factory=lambda: 64)
    """Most of these at a time."""


class SupportedModel(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    model_name: str | None = None
    """As in `base_model`; it may hold `/` and `:`."""
    max_context_length: int | None = None
    """Prompt and continuation together."""
    trainable: bool | None = None
    sampleable: bool | None = None


class GetServerCapabilitiesResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    supported_models: list[SupportedModel]


class AuthTokenRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """An empty object; the credential is in `X-API-Key`."""


class AuthTokenResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    jwt: str
    """A JWT with `iat` and `exp`; `sub` and `email` say whose it is."""
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "jwt",
        }
    )


class SelfApiKeyOrganization(_Record, frozen=True, kw_only=True, omit_defaults=True):
    name: str


class SelfApiKeyUser(_Record, frozen=True, kw_only=True, omit_defaults=True):
    email: str


class SelfApiKeyDetails(_Record, frozen=True, kw_only=True, omit_defaults=True):
    org_details: SelfApiKeyOrganization
    user_details: SelfApiKeyUser


class SelfApiKeyResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The API key that asked."""

    key_id: int
    name: str
    note: str
    details: SelfApiKeyDetails


class CreateSessionRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    tags: Sequence[str]
    """Words of the user, without order; from `TINKER_TAGS`."""
    user_metadata: Metadata | None = None
    sdk_version: str
    """The server may answer messages about it."""
    project_id: str | None = None
    display_name: str | None = None
    """Not unique; for lists and searches."""
    type: Literal["create_session"] = _field(default_factory=lambda: "create_session")


class CreateSessionResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    session_id: str
    """Opaque. Model ids and sampler ids may be made from it."""
    info_message: str | None = None
    """Logged for the user."""
    warning_message: str | None = None
    """Logged for the user as a warning."""
    error_message: str | None = None
    """Logged for the user as an error; nothing fails."""
    type: Literal["create_session"] | str = _field(default_factory=lambda: "create_session")


class SessionHeartbeatRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    session_id: str
    type: Literal["session_heartbeat"] = _field(default_factory=lambda: "session_heartbeat")


class SessionHeartbeatResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    type: Literal["session_heartbeat"] | str = _field(default_factory=lambda: "session_heartbeat")


ClientSessionFinishReasonType: TypeAlias = Literal["success", "errored", "interrupted"] | str
"""How a session went, as its client saw it."""


class ClientSessionFinishSuccess(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="success"
):
    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["success"]:
        """Always sent; the union is told apart by it."""
        return "success"


class ClientSessionFinishErrored(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="errored"
):
    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["errored"]:
        """Always sent; the union is told apart by it."""
        return "errored"


class ClientSessionFinishInterrupted(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="interrupted"
):
    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["interrupted"]:
        """Always sent; the union is told apart by it."""
        return "interrupted"


_CLIENT_SESSION_FINISH_REASON: dict[str, type[msgspec.Struct]] = {
    "success": ClientSessionFinishSuccess,
    "errored": ClientSessionFinishErrored,
    "interrupted": ClientSessionFinishInterrupted,
}
if TYPE_CHECKING:
    ClientSessionFinishReason: TypeAlias = (
        ClientSessionFinishSuccess | ClientSessionFinishErrored | ClientSessionFinishInterrupted | dict[str, Any]
    )
    """How a session went, as its client saw it.

    A member with another type is a dictionary.
    """
else:
    ClientSessionFinishReason = Any


class FinishSessionRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    reason: ClientSessionFinishReason
    detail: str | None
    """Sent as null when there is nothing to say."""

    def __post_init__(self) -> None:
        _read_open(self, "reason", "type", _CLIENT_SESSION_FINISH_REASON)


class ListSessionsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    sessions: list[str]


class GetSessionResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    training_run_ids: list[str]
    sampler_ids: list[str]
    user_metadata: StringMap | None = None
    display_name: str | None = None


class SetSessionProjectRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    project_id: str
    """The project to move the session into."""


TraceExportStatus: TypeAlias = Literal["pending", "ready", "failed"] | str


class TraceExportResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    status: TraceExportStatus
    url: str | None = None
    """Where the trace is; with `ready` only."""
    error: str | None = None
    """What went wrong; with `failed` only."""
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "url",
        }
    )


class OwnSearchOwner(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="own"):
    """Sessions of the user."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["own"]:
        """Always sent; the union is told apart by it."""
        return "own"


class AccessibleSearchOwner(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="accessible"):
    """Every session that the user may see."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["accessible"]:
        """Always sent; the union is told apart by it."""
        return "accessible"


class UserSearchOwner(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="user"):
    """Sessions of these users."""

    __module__ = "tinker.types"

    owner_urns: Sequence[str]

    @property
    def type(self) -> Literal["user"]:
        """Always sent; the union is told apart by it."""
        return "user"


SearchOwner: TypeAlias = OwnSearchOwner | AccessibleSearchOwner | UserSearchOwner


class ActiveSessionStatusQuery(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="active"):
    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["active"]:
        """Always sent; the union is told apart by it."""
        return "active"


class CancelledSessionStatusQuery(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="cancelled"
):
    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["cancelled"]:
        """Always sent; the union is told apart by it."""
        return "cancelled"


class FailedSessionStatusQuery(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="failed"):
    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["failed"]:
        """Always sent; the union is told apart by it."""
        return "failed"


class ClientFinishedSessionStatusQuery(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="client_finished"
):
    __module__ = "tinker.types"

    reasons: Sequence[ClientSessionFinishReasonType] | None = None
    """Any reason when missing."""

    @property
    def type(self) -> Literal["client_finished"]:
        """Always sent; the union is told apart by it."""
        return "client_finished"


SessionStatusQuery: TypeAlias = (
    ActiveSessionStatusQuery | CancelledSessionStatusQuery | FailedSessionStatusQuery | ClientFinishedSessionStatusQuery
)


class SessionSearchCursor(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The last session of a page; opaque to clients."""

    __module__ = "tinker.types"

    last_created_at: datetime.datetime
    """With a time zone."""
    last_session_id: str


class SessionSearchRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    session_id: str | None = None
    project_ids: Sequence[str] | None = None
    user_metadata: StringMap = _field(default_factory=lambda: {})
    """Pairs that a session must have, among others."""
    display_name: str | None = None
    """A part of the name."""
    owner: SearchOwner = _field(default_factory=lambda: OwnSearchOwner())
    statuses: Sequence[SessionStatusQuery] | None = None
    """Any of them."""
    limit: int = _field(default_factory=lambda: 50)
    cursor: SessionSearchCursor | None = None


class SessionActive(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="active"):
    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["active"]:
        """Always sent; the union is told apart by it."""
        return "active"


class SessionCancelled(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="cancelled"):
    __module__ = "tinker.types"

    detail: str | None = None

    @property
    def type(self) -> Literal["cancelled"]:
        """Always sent; the union is told apart by it."""
        return "cancelled"


class ClientSessionFinished(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="client_finished"
):
    """The client finished the session."""

    __module__ = "tinker.types"

    reason: ClientSessionFinishReason
    detail: str | None = None

    @property
    def type(self) -> Literal["client_finished"]:
        """Always sent; the union is told apart by it."""
        return "client_finished"

    def __post_init__(self) -> None:
        _read_open(self, "reason", "type", _CLIENT_SESSION_FINISH_REASON)


SessionFailedCategory: TypeAlias = Literal["user", "internal"] | str


class SessionFailedRequestReason(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="request"
):
    __module__ = "tinker.types"

    request_id: str
    request_type: str

    @property
    def type(self) -> Literal["request"]:
        """Always sent; the union is told apart by it."""
        return "request"


class SessionFailedTrainingRunReason(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="training_run"
):
    __module__ = "tinker.types"

    training_run_id: str

    @property
    def type(self) -> Literal["training_run"]:
        """Always sent; the union is told apart by it."""
        return "training_run"


class SessionFailedSamplingSessionReason(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="sampling_session"
):
    __module__ = "tinker.types"

    sampling_session_id: str

    @property
    def type(self) -> Literal["sampling_session"]:
        """Always sent; the union is told apart by it."""
        return "sampling_session"


_SESSION_FAILED_REASON: dict[str, type[msgspec.Struct]] = {
    "request": SessionFailedRequestReason,
    "training_run": SessionFailedTrainingRunReason,
    "sampling_session": SessionFailedSamplingSessionReason,
}
if TYPE_CHECKING:
    SessionFailedReason: TypeAlias = (
        SessionFailedRequestReason
        | SessionFailedTrainingRunReason
        | SessionFailedSamplingSessionReason
        | dict[str, Any]
    )
    """What failed.

    A member with another type is a dictionary.
    """
else:
    SessionFailedReason = Any


class SessionFailed(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="failed"):
    __module__ = "tinker.types"

    category: SessionFailedCategory
    reason: SessionFailedReason
    message: str

    @property
    def type(self) -> Literal["failed"]:
        """Always sent; the union is told apart by it."""
        return "failed"

    def __post_init__(self) -> None:
        _read_open(self, "reason", "type", _SESSION_FAILED_REASON)


_SESSION_STATUS: dict[str, type[msgspec.Struct]] = {
    "failed": SessionFailed,
    "cancelled": SessionCancelled,
    "client_finished": ClientSessionFinished,
    "active": SessionActive,
}
if TYPE_CHECKING:
    SessionStatus: TypeAlias = SessionFailed | SessionCancelled | ClientSessionFinished | SessionActive | dict[str, Any]
    """How a session stands.

    A member with another type is a dictionary.
    """
else:
    SessionStatus = Any


class SessionSummary(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    session_id: str
    created_at: datetime.datetime
    owner: str
    """A URN."""
    project_id: str
    status: SessionStatus | None = None
    checkpoints_count: int
    display_name: str | None = None
    user_metadata: StringMap | None = None
    checkpoint_storage_bytes: int | None = None

    def __post_init__(self) -> None:
        _read_open(self, "status", "type", _SESSION_STATUS, nullable=True)


class SessionSearchResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    sessions: list[SessionSummary]
    next_cursor: SessionSearchCursor | None = None


class LoraConfig(_Record, frozen=True, kw_only=True, omit_defaults=True):
    rank: int
    """SDKs send 32 where the user says nothing."""
    seed: int | None = None
    """For the initial weights."""
    train_unembed: bool = _field(default_factory=lambda: True)
    train_mlp: bool = _field(default_factory=lambda: True)
    """MLP layers and experts."""
    train_attn: bool = _field(default_factory=lambda: True)
    """Attention layers. At least one of the three is true."""


class AdamOptimizerConfig(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="adamw"):
    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["adamw"]:
        """Always sent; the union is told apart by it."""
        return "adamw"


class DimuonOptimizerConfig(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="dimuon"):
    __module__ = "tinker.types"

    version: int = _field(default_factory=lambda: 1)

    @property
    def type(self) -> Literal["dimuon"]:
        """Always sent; the union is told apart by it."""
        return "dimuon"


_OPTIMIZER_CONFIG: dict[str, type[msgspec.Struct]] = {
    "adamw": AdamOptimizerConfig,
    "dimuon": DimuonOptimizerConfig,
}
if TYPE_CHECKING:
    OptimizerConfig: TypeAlias = AdamOptimizerConfig | DimuonOptimizerConfig | dict[str, Any]
    """The optimizer family of a model, fixed at its creation. Other families keep their fields.

    A member with another type is a dictionary.
    """
else:
    OptimizerConfig = Any


class CreateModelRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    session_id: str
    model_seq_id: int
    """0, 1, 2, ... per session, numbered by the client."""
    base_model: str
    """A name of `get_server_capabilities`."""
    user_metadata: Metadata | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = _field(default_factory=lambda: AdamOptimizerConfig())
    type: Literal["create_model"] = _field(default_factory=lambda: "create_model")

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_config", "type", _OPTIMIZER_CONFIG)


class CreateModelResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    model_id: str
    """`<session_id>:train:<model_seq_id>`; also the training run id."""
    type: Literal["create_model"] | str = _field(default_factory=lambda: "create_model")


class GetInfoRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    model_id: str
    type: Literal["get_info"] = _field(default_factory=lambda: "get_info")


class ModelData(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    arch: str | None = None
    model_name: str | None = None
    tokenizer_id: str | None = None
    """A tokenizer to load; what follows the first `:` is a revision."""


class GetInfoResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    model_data: ModelData
    model_id: str
    optimizer_config: OptimizerConfig = _field(default_factory=lambda: AdamOptimizerConfig())
    is_lora: bool | None = None
    lora_rank: int | None = None
    model_name: str | None = None
    type: Literal["get_info"] | str | None = _field(default_factory=lambda: "get_info")

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_config", "type", _OPTIMIZER_CONFIG)


class UnloadModelRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Deprecated."""

    __module__ = "tinker.types"

    model_id: str
    type: Literal["unload_model"] = _field(default_factory=lambda: "unload_model")


class UnloadModelResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Deprecated."""

    __module__ = "tinker.types"

    model_id: str
    type: Literal["unload_model"] | str | None = _field(default_factory=lambda: "unload_model")


TensorDtype: TypeAlias = Literal["int64", "float32"]


class TensorData(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor in JSON, flattened row-major. With both `sparse_*` fields it is CSR: `data` holds the listed values and
    `shape` is required; absent entries are 0 in loss inputs and -1 in `target_prompt_logprobs`.
    """

    data: Sequence[int | float]
    dtype: TensorDtype
    shape: Sequence[int] | None = None
    """One dimension when missing."""
    sparse_crow_indices: Sequence[int] | None = None
    """Row pointers, one more than rows."""
    sparse_col_indices: Sequence[int] | None = None
    """One for each value."""


ImageFormat: TypeAlias = Literal["png", "jpeg"]


class EncodedTextChunk(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="encoded_text"):
    tokens: Sequence[int]

    @property
    def type(self) -> Literal["encoded_text"]:
        """Always sent; the union is told apart by it."""
        return "encoded_text"


class ImageChunk(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="image"):
    data: bytes
    """The file. Raw bytes in protobuf."""
    format: ImageFormat
    expected_tokens: int | None = None
    """How many tokens the client counts for it; the server may refuse another number."""
    height: int | None = None
    """Deprecated. Of 0.4.1 clients only."""
    width: int | None = None
    """Deprecated. Of 0.4.1 clients only."""
    tokens: int | None = None
    """Deprecated. What `expected_tokens` is now; of 0.4.1 clients only."""

    @property
    def type(self) -> Literal["image"]:
        """Always sent; the union is told apart by it."""
        return "image"


class ImageAssetPointerChunk(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="image_asset_pointer"
):
    """An image that the server fetches. In JSON only, so not in a protobuf `forward_backward`."""

    format: ImageFormat
    location: str
    """A path or a URL."""
    expected_tokens: int | None = None

    @property
    def type(self) -> Literal["image_asset_pointer"]:
        """Always sent; the union is told apart by it."""
        return "image_asset_pointer"


class DmelChunk(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="dmel"):
    """Audio features."""

    dmel: bytes
    """A serialized tensor: perhaps a byte 254, a dtype byte, then the number of dimensions and the dimensions as
    LEB128; the first one is the length in tokens.
    """

    @property
    def type(self) -> Literal["dmel"]:
        """Always sent; the union is told apart by it."""
        return "dmel"


ModelInputChunk: TypeAlias = EncodedTextChunk | ImageChunk | ImageAssetPointerChunk | DmelChunk
"""Told apart by `type`; clients of 2025 leave it out, and the other fields tell."""


class ModelInput(_Record, frozen=True, kw_only=True, omit_defaults=True):
    chunks: Sequence[ModelInputChunk]


TensorMap: TypeAlias = dict[str, TensorData]


class Datum(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """One example in JSON. `cross_entropy` reads `target_tokens` and `weights`, the policy losses `target_tokens`,
    `logprobs`, `advantages` and `weights`; a server refuses what its loss does not know. Provenance spans exist in
    protobuf only.
    """

    loss_fn_inputs: TensorMap
    model_input: ModelInput


LossFnType: TypeAlias = (
    Literal["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce", "custom"] | str
)
"""Losses known by name; a server may know others."""

LossFnConfig: TypeAlias = dict[str, float | str]
"""Settings of the loss, such as `clip_low_threshold` and `clip_high_threshold` (ratios), `kl_coeff`, or `loss_id` of a
custom loss.
"""


class ForwardBackwardInput(_Record, frozen=True, kw_only=True, omit_defaults=True):
    data: Sequence[Datum]
    loss_fn: LossFnType
    loss_fn_config: LossFnConfig | None = None


class ForwardBackwardRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    forward_backward_input: ForwardBackwardInput
    model_id: str
    seq_id: int | None = None
    """1, 2, 3, ... per model, numbered by the client."""


class ForwardRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    forward_input: ForwardBackwardInput
    model_id: str
    seq_id: int | None = None


MetricMap: TypeAlias = dict[str, float]
"""Keys are `name:reduction`; the reduction (sum, mean, min, max, slack, unique, hash2) says how values of several
chunks combine.
"""


class ForwardBackwardOutput(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON form of the message `tinker_public.ForwardBackwardOutput`."""

    loss_fn_output_type: str = _field(default_factory=lambda: "ArrayRecord")
    loss_fn_outputs: list[TensorMap]
    """One for each datum; `logprobs` is what custom losses need."""
    metrics: MetricMap = _field(default_factory=lambda: {})


class CustomLossInput(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    name: str
    rank: int
    """Number of dimensions."""


CustomLossNodeOp: TypeAlias = Literal[
    "placeholder", "get_attr", "call_function", "call_method", "call_module", "output"
]

CustomLossArguments: TypeAlias = Sequence[JSONValue]
"""Arguments of a node. A JSON scalar or list stands for itself; anything else is an object with one key: `ref` (a
node), `tuple`, `dict`, `slice`, `ellipsis`, `float` (inf, -inf, nan), `dtype`, `device`, `layout` or
`memory_format`.
"""

CustomLossKwargs: TypeAlias = dict[str, JSONValue]


class CustomLossNode(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    op: CustomLossNodeOp
    name: str
    """Unique in its graph."""
    target: str
    """A function such as `torch.exp`, `operator.mul` or `math.log`, a method name, or `output`."""
    args: CustomLossArguments = _field(default_factory=lambda: [])
    kwargs: CustomLossKwargs = _field(default_factory=lambda: {})


class CustomLossGraph(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A traced function; the argument of its output node is a tuple of the loss and a dict of metrics named
    `custom/<name>:sum` or `custom/<name>:mean`.
    """

    __module__ = "tinker.types"

    format: int = _field(default_factory=lambda: 1)
    nodes: Sequence[CustomLossNode]


class CreateCustomLossRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    session_id: str
    custom_loss_seq_id: int
    """0, 1, 2, ... per session, numbered by the client."""
    name: str
    inputs: Sequence[CustomLossInput]
    """The first one is `logprobs`."""
    graph: CustomLossGraph
    type: Literal["create_custom_loss"] = _field(default_factory=lambda: "create_custom_loss")


class CreateCustomLossResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    loss_id: str
    type: Literal["create_custom_loss"] | str = _field(default_factory=lambda: "create_custom_loss")


class AdamParams(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Of one step. Without a `type`; clients of 2025 send only what the user gave."""

    learning_rate: float = _field(default_factory=lambda: 0.0001)
    beta1: float = _field(default_factory=lambda: 0.9)
    beta2: float = _field(default_factory=lambda: 0.95)
    eps: float = _field(default_factory=lambda: 1e-12)
    weight_decay: float = _field(default_factory=lambda: 0.0)
    """Decoupled weight decay."""
    grad_clip_norm: float = _field(default_factory=lambda: 0.0)
    """Largest global gradient norm; 0 means no clipping."""


class DimuonParams(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="dimuon"):
    learning_rate: Annotated[float, msgspec.Meta(ge=0)]
    grad_clip_norm: float = _field(default_factory=lambda: 0.0)
    """0 and less mean no clipping."""
    beta1: Annotated[float, msgspec.Meta(ge=0, lt=1)] = _field(default_factory=lambda: 0.9)

    @property
    def type(self) -> Literal["dimuon"]:
        """Always sent; the union is told apart by it."""
        return "dimuon"


_OPTIMIZER_PARAMS: dict[str, type[msgspec.Struct]] = {
    "dimuon": DimuonParams,
}
if TYPE_CHECKING:
    OptimizerParams: TypeAlias = DimuonParams | dict[str, Any]
    """Parameters of one step of an optimizer that is not Adam.

    A member with another type is a dictionary.
    """
else:
    OptimizerParams = Any


class OptimStepRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str
    seq_id: int | None = None
    type: Literal["optim_step"] = _field(default_factory=lambda: "optim_step")
    adam_params: AdamParams | None = None
    optimizer_params: OptimizerParams | None = None

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_params", "type", _OPTIMIZER_PARAMS, nullable=True)


class OptimStepResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    metrics: MetricMap | None = None
    type: Literal["optim_step"] | str = _field(default_factory=lambda: "optim_step")


TtlSeconds: TypeAlias = int
"""Seconds until the checkpoint expires, from an hour to ten years; missing means never."""


class SaveWeightsRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    model_id: str
    path: str | None = None
    """The checkpoint name, not a full path."""
    seq_id: int | None = None
    ttl_seconds: TtlSeconds | None = None
    overwrite: bool = _field(default_factory=lambda: False)
    user_metadata: StringMap | None = None
    type: Literal["save_weights"] = _field(default_factory=lambda: "save_weights")


class SaveWeightsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    """`tinker://<training_run_id>/weights/<name>`"""
    type: Literal["save_weights"] | str | None = _field(default_factory=lambda: "save_weights")


SamplingClientKind: TypeAlias = Literal["snapshot", "inflight"]
"""`snapshot` weights stay, `inflight` weights follow later inflight saves of the model."""


class SaveWeightsForSamplerRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Either `path` or `sampling_session_seq_id` is given."""

    __module__ = "tinker.types"

    model_id: str
    path: str | None = None
    """The checkpoint name."""
    sampling_session_seq_id: int | None = None
    """The number of the sampling session to open, as in `create_sampling_session`."""
    kind: SamplingClientKind = _field(default_factory=lambda: "snapshot")
    seq_id: int | None = None
    ttl_seconds: TtlSeconds | None = None
    user_metadata: StringMap | None = None
    type: Literal["save_weights_for_sampler"] = _field(default_factory=lambda: "save_weights_for_sampler")


class SaveWeightsForSamplerResponseInternal(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    path: str | None = None
    """`tinker://<training_run_id>/sampler_weights/<name>`, for a named save."""
    sampling_session_id: str | None = None
    """The session to sample from, for a save without a name."""
    type: Literal["save_weights_for_sampler"] | str | None = _field(default_factory=lambda: "save_weights_for_sampler")


class SaveWeightsExternalRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    model_id: str
    path: str
    """The checkpoint name."""
    seq_id: int | None = None
    ttl_seconds: TtlSeconds | None = None
    age_encryption_recipients: Sequence[str] | None = None
    """Public keys (`age1...` or SSH) that the files are encrypted for."""
    type: Literal["save_weights_external"] = _field(default_factory=lambda: "save_weights_external")


class SaveWeightsExternalResponseInternal(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    path: str | None = None
    """`tinker://<training_run_id>/external_weights/<name>`"""
    size_bytes: int | None = None
    type: Literal["save_weights_external"] | str | None = _field(default_factory=lambda: "save_weights_external")


class LoadWeightsRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    """Instead of the one that the checkpoint was made from."""
    user_metadata: Metadata | None = None
    path: str
    """`tinker://<training_run_id>/weights/<name>`"""
    optimizer: bool = _field(default_factory=lambda: False)
    """Restore the optimizer state too."""
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None
    """Grants access to somebody else's checkpoint. A secret, and in the body here."""
    type: Literal["load_weights"] = _field(default_factory=lambda: "load_weights")
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "weights_access_token",
        }
    )

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_config", "type", _OPTIMIZER_CONFIG, nullable=True)


class LoadWeightsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    path: str | None = None
    model_id: str | None = None
    type: Literal["load_weights"] | str | None = _field(default_factory=lambda: "load_weights")


class WeightsInfoRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    tinker_path: str
    """The checkpoint, `tinker://<training_run_id>/<kind>/<name>`."""


class WeightsInfoResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    base_model: str
    optimizer_config: OptimizerConfig = _field(default_factory=lambda: AdamOptimizerConfig())
    is_lora: bool
    lora_rank: int | None = None
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_config", "type", _OPTIMIZER_CONFIG)


class CopyWeightsRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    session_id: str | None = None
    model_seq_id: int | None = None
    destination_project_id: str | None = None
    source_path: str
    """A tinker path of any kind."""
    ttl_seconds: TtlSeconds | None = None
    weights_access_token: str | None = None
    """Clients send the header instead."""
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "weights_access_token",
        }
    )


class CopyWeightsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    tinker_path: str


CheckpointType: TypeAlias = Literal["training", "sampler", "external"] | str
"""The kinds `weights`, `sampler_weights` and `external_weights` of tinker paths, by their type names."""


class Checkpoint(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    checkpoint_id: str
    """`<kind>/<name>`: two segments of a path."""
    checkpoint_type: CheckpointType
    time: datetime.datetime
    tinker_path: str
    size_bytes: int | None = None
    public: bool = _field(default_factory=lambda: False)
    user_metadata: StringMap | None = None
    expires_at: datetime.datetime | None = None
    """Never when missing or null."""
    base_model: str | None = None


class CheckpointSearchCursor(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The last checkpoint of a page; opaque to clients."""

    __module__ = "tinker.types"

    last_created_at: datetime.datetime
    """With a time zone."""
    last_checkpoint_uuid: str


class CheckpointSearchRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    project_ids: Sequence[str] | None = None
    """Any of them; every project whose checkpoints the user may list when missing."""
    user_metadata: StringMap = _field(default_factory=lambda: {})
    """Pairs that a checkpoint must have, among others."""
    checkpoint_type: CheckpointType | None = None
    owner: SearchOwner = _field(default_factory=lambda: OwnSearchOwner())
    base_models: Sequence[str] | None = None
    """Any of them; none matches an empty list."""
    limit: int = _field(default_factory=lambda: 50)
    cursor: CheckpointSearchCursor | None = None


class CheckpointSearchResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    checkpoints: list[Checkpoint]
    next_cursor: CheckpointSearchCursor | None = None


class ExternalWeightsUploadStartRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    base_model: str
    """The base model of the adapter."""
    lora_config: LoraConfig
    """The shape of the adapter."""
    destination_project_id: str | None = None
    """The project of the checkpoint; the user's default when missing."""


class ExternalWeightsUploadStartResult(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    upload_id: str
    """The upload."""
    urls: StringMap
    """Relative file name to signed URL."""
    expires: datetime.datetime
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "urls",
        }
    )


class ExternalWeightsUploadFinishRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    upload_id: str
    """The upload, as `external_weights_upload_start` named it."""


class ExternalWeightsUploadFinishResult(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    tinker_path: str


class Cursor(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Where a page stands in the whole list."""

    __module__ = "tinker.types"

    offset: int
    limit: int
    total_count: int


class CheckpointsListResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


class TrainingRun(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    training_run_id: str
    base_model: str
    model_owner: str
    """A URN."""
    is_lora: bool
    corrupted: bool = _field(default_factory=lambda: False)
    """The run failed in a way that it cannot go on from."""
    lora_rank: int | None = None
    last_request_time: datetime.datetime
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None
    user_metadata: StringMap | None = None


class TrainingRunsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    training_runs: list[TrainingRun]
    cursor: Cursor


class SetCheckpointTtlRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    ttl_seconds: TtlSeconds | None
    """Seconds from now, an hour to ten years. Null, which is sent, makes the checkpoint stay forever."""


class ExternalWeightsUrlsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    urls: StringMap
    """Relative file name to signed URL."""
    expires: datetime.datetime
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "urls",
        }
    )


class CheckpointArchiveUrlResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Deprecated."""

    __module__ = "tinker.types"

    url: str
    expires: datetime.datetime
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "url",
        }
    )


class CreateSamplingSessionRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    session_id: str
    sampling_session_seq_id: int
    """0, 1, 2, ... per session, numbered by the client."""
    base_model: str | None = None
    model_path: str | None = None
    """A tinker path of kind `sampler_weights`; the official client wants `tinker://`, servers have other schemes."""
    type: Literal["create_sampling_session"] = _field(default_factory=lambda: "create_sampling_session")


class CreateSamplingSessionResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    sampling_session_id: str
    """Opaque; `<session_id>:sample:<n>` on the hosted service."""
    type: Literal["create_sampling_session"] | str = _field(default_factory=lambda: "create_sampling_session")


class JoinSamplingSessionRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    sampling_session_id: str
    type: Literal["join_sampling_session"] = _field(default_factory=lambda: "join_sampling_session")


class JoinSamplingSessionResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    client_counter: int
    type: Literal["join_sampling_session"] | str = _field(default_factory=lambda: "join_sampling_session")


class GetSamplerResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    sampler_id: str
    base_model: str
    model_path: str | None = None
    tokenizer_id: str | None = None
    """A tokenizer to load, as in `ModelData`; missing or null where the name of the base model says which."""


StopCondition: TypeAlias = Any
"""Text pieces, token ids, or one text piece. Absent means the end of text; an empty list disables every stop."""


class SamplingParams(_Record, frozen=True, kw_only=True, omit_defaults=True):
    max_tokens: int | None = None
    """To the end of the context when missing."""
    seed: int | None = None
    stop: StopCondition | None = None
    temperature: float = _field(default_factory=lambda: 1.0)
    top_k: int = _field(default_factory=lambda: -1)
    """-1 means all tokens."""
    top_p: float = _field(default_factory=lambda: 1.0)


class SampleRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Addressed by `sampling_session_id` with `seq_id`, or by `base_model` or `model_path` alone."""

    num_samples: int = _field(default_factory=lambda: 1)
    prompt: ModelInput
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    """0, 1, 2, ... per client of the session, plus 10⁹ times the number of a copy: up to about 10¹⁸, more than a double
    holds.
    """
    prompt_logprobs: bool = _field(default_factory=lambda: False)
    topk_prompt_logprobs: int = _field(default_factory=lambda: 0)
    topk_sample_logprobs: int = _field(default_factory=lambda: 0)
    target_prompt_logprobs: TensorData | None = None
    """Token ids to score, int64, one row less than the prompt has tokens; row i belongs to position i+1, and -1 means
    nothing.
    """
    prompt_alt_tokens_k: int = _field(default_factory=lambda: 0)
    """How many drawn alternatives of each prompt token to answer."""
    prompt_logprobs_last_n: int | None = None
    """Only that many positions at the end of the prompt are scored; needs `prompt_logprobs`."""
    record_stability_info: bool = _field(default_factory=lambda: False)
    type: Literal["sample"] = _field(default_factory=lambda: "sample")


StopReason: TypeAlias = Literal["length", "stop"] | str

TokenLogprob: TypeAlias = tuple[int, float]
"""A token id and its log-probability."""


class SampledSequence(_Record, frozen=True, kw_only=True, omit_defaults=True):
    stop_reason: StopReason
    tokens: list[int]
    logprobs: list[float] | None = None
    sequence_id: str | None = None
    topk_logprobs: list[list[TokenLogprob] | None] | None = None


class SampleResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON form of the message `tinker_public.SampleResponse`."""

    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | None = None
    """One for each prompt token; null where there is none (the first)."""
    topk_prompt_logprobs: list[list[TokenLogprob] | None] | None = None
    prompt_cache_hit_tokens: int | None = None
    type: Literal["sample"] | str = _field(default_factory=lambda: "sample")


SampleStreamEventType: TypeAlias = Literal["tokens", "done", "failed"] | str


class SampleStreamEvent(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Some tokens of one sample, or the end of the stream."""

    type: SampleStreamEventType
    """A client ignores types that it does not know."""
    index: int = _field(default_factory=lambda: 0)
    """Which of the samples the tokens belong to."""
    tokens: list[int] = _field(default_factory=lambda: [])
    """The tokens that were drawn since the event before."""
    logprobs: list[float] = _field(default_factory=lambda: [])
    """One for each of the tokens."""
    stop_reason: StopReason | None = None
    """Of the last tokens of a sample."""
    error: str | None = None
    """What went wrong; with `failed` only."""
    category: RequestErrorCategory | None = None
    """With `failed` only."""


class UntypedAPIFuture(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    request_id: str
    """Opaque, and the same for the same request submitted again."""
    model_id: str | None = None
    sample_sequence_ids: list[str] | None = None
    """One for each sample; `asample` only."""


class FutureRetrieveRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    request_id: str
    allow_metadata_only: bool = _field(default_factory=lambda: False)
    """A large result may be announced by its size."""


RequestType: TypeAlias = (
    Literal[
        "CreateModel",
        "ForwardBackward",
        "Forward",
        "OptimStep",
        "SaveWeights",
        "LoadWeights",
        "SaveWeightsForSampler",
        "SaveWeightsExternal",
        "Sample",
        "CreateCustomLoss",
    ]
    | str
)
"""The kind of result that a client awaits."""

QueueState: TypeAlias = Literal["active", "paused_capacity", "paused_rate_limit"] | str
"""Why a request has no result yet."""

FutureAnswer: TypeAlias = Any
"""What `retrieve_future` answers in JSON, told apart from top to bottom; a result is that of the submitted operation.
"""


class FutureStatus(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer of `retrieve_future` says about the future, whatever else it holds."""

    type: str | None = None
    status: str | None = None
    request_id: str | None = None
    queue_state: QueueState | None = None
    queue_state_reason: str | None = None
    """For the user."""
    response_payload_size: int | None = None
    error: JSONValue | None = None
    category: str | None = None
    detail: JSONValue | None = None


class TryAgainResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Still queued or running."""

    __module__ = "tinker.types"

    type: Literal["try_again"] = _field(default_factory=lambda: "try_again")
    request_id: str
    queue_state: QueueState
    queue_state_reason: str | None = None
    """For the user."""


class FutureMetadataResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """There is a large result; ask again for it."""

    status: Literal["complete_metadata"] = _field(default_factory=lambda: "complete_metadata")
    request_id: str | None = None
    response_payload_size: int
    """Bytes of the body that will be sent."""


class SamplingSessionFuturesTarget(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    type: Literal["sampling_session"] = _field(default_factory=lambda: "sampling_session")
    sampling_session_id: str
    cloned_sampler_id: int = _field(default_factory=lambda: 0)
    """The number of the client: `seq_id` of its requests divided by 10⁹."""


class FuturesRetrieveRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    target: SamplingSessionFuturesTarget
    prev_cursor: int = _field(default_factory=lambda: 0)
    """The cursor of the last answer; 0 at first."""
    timeout: float | None = None
    """Seconds to hold the request; missing means about 30, and 0 answers at once."""
    retrieved_request_ids: Sequence[str] = _field(default_factory=lambda: [])
    """Requests whose result or error was fetched since the last poll, sorted."""


class FutureFinished(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="state", tag="finished"):
    __module__ = "tinker.types"

    request_id: str
    response_payload_uncompressed_size: int | None = None
    """Bytes of the result; a client makes room for that much."""

    @property
    def state(self) -> Literal["finished"]:
        """Always sent; the union is told apart by it."""
        return "finished"


class FutureFailed(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="state", tag="failed"):
    __module__ = "tinker.types"

    request_id: str

    @property
    def state(self) -> Literal["failed"]:
        """Always sent; the union is told apart by it."""
        return "failed"


_FUTURE_COMPLETION: dict[str, type[msgspec.Struct]] = {
    "finished": FutureFinished,
    "failed": FutureFailed,
}
if TYPE_CHECKING:
    FutureCompletion: TypeAlias = FutureFinished | FutureFailed | dict[str, Any]
    """One completed request.

    A member with another state is a dictionary.
    """
else:
    FutureCompletion = Any


class FuturesRetrieveResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    completions: list[FutureCompletion]
    cursor: int
    """Opaque."""

    def __post_init__(self) -> None:
        _read_open(self, "completions", "state", _FUTURE_COMPLETION, many=True)


class CancelFutureRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    request_id: str


Severity: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class SessionStartEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="SESSION_START"):
    __module__ = "tinker.types"

    event_id: str
    """Unique."""
    event_session_index: int
    """0, 1, 2, ... per session."""
    severity: Severity
    timestamp: datetime.datetime

    @property
    def event(self) -> Literal["SESSION_START"]:
        """Always sent; the union is told apart by it."""
        return "SESSION_START"


class SessionEndEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="SESSION_END"):
    __module__ = "tinker.types"

    duration: str
    """As Python prints a time difference: `H:MM:SS.ffffff`."""
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime.datetime

    @property
    def event(self) -> Literal["SESSION_END"]:
        """Always sent; the union is told apart by it."""
        return "SESSION_END"


class UnhandledExceptionEvent(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="UNHANDLED_EXCEPTION"
):
    __module__ = "tinker.types"

    error_message: str
    error_type: str
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime.datetime
    traceback: str | None = None

    @property
    def event(self) -> Literal["UNHANDLED_EXCEPTION"]:
        """Always sent; the union is told apart by it."""
        return "UNHANDLED_EXCEPTION"


class GenericEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="GENERIC_EVENT"):
    __module__ = "tinker.types"

    event_id: str
    event_name: str
    event_session_index: int
    severity: Severity
    timestamp: datetime.datetime
    event_data: Metadata = _field(default_factory=lambda: {})

    @property
    def event(self) -> Literal["GENERIC_EVENT"]:
        """Always sent; the union is told apart by it."""
        return "GENERIC_EVENT"


TelemetryEvent: TypeAlias = SessionStartEvent | SessionEndEvent | UnhandledExceptionEvent | GenericEvent


class TelemetrySendRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    events: Sequence[TelemetryEvent]
    platform: str
    """Linux, Darwin or Windows."""
    sdk_version: str
    session_id: str
    """`sessionless-<uuid>` where there is no session."""
    process_uuid: str | None = None
    """One for each process of a client."""


class TelemetryResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    status: Literal["accepted"] | str = _field(default_factory=lambda: "accepted")


AccessScope: TypeAlias = Literal["owned", "accessible"]
"""What belongs to the user, or everything the user may see."""

AuditEventType: TypeAlias = Literal["all", "checkpoints", "projects", "teams", "organizations"] | str


class AuditLogEntry(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    timestamp: datetime.datetime
    event: str
    event_details: Metadata = _field(default_factory=lambda: {})
    model_id: str | None = None
    tinker_path: str | None = None
    purpose: str | None = None


class AuditLogResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    entries: list[AuditLogEntry]


class TrainingBillingEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="training"):
    __module__ = "tinker.types"

    token_count: int

    @property
    def type(self) -> Literal["training"]:
        """Always sent; the union is told apart by it."""
        return "training"


class SamplingPrefillBillingEvent(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="sampling_prefill"
):
    __module__ = "tinker.types"

    cached: bool
    token_count: int

    @property
    def type(self) -> Literal["sampling_prefill"]:
        """Always sent; the union is told apart by it."""
        return "sampling_prefill"


class SamplingSampleBillingEvent(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="sampling_sample"
):
    __module__ = "tinker.types"

    token_count: int

    @property
    def type(self) -> Literal["sampling_sample"]:
        """Always sent; the union is told apart by it."""
        return "sampling_sample"


class CheckpointBillingEvent(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="checkpoint"
):
    __module__ = "tinker.types"

    count: int

    @property
    def type(self) -> Literal["checkpoint"]:
        """Always sent; the union is told apart by it."""
        return "checkpoint"


class StorageBillingEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="storage"):
    __module__ = "tinker.types"

    free: bool = _field(default_factory=lambda: False)
    gigabyte_hours: float

    @property
    def type(self) -> Literal["storage"]:
        """Always sent; the union is told apart by it."""
        return "storage"


_BILLING_EVENT_INFO: dict[str, type[msgspec.Struct]] = {
    "training": TrainingBillingEvent,
    "sampling_prefill": SamplingPrefillBillingEvent,
    "sampling_sample": SamplingSampleBillingEvent,
    "checkpoint": CheckpointBillingEvent,
    "storage": StorageBillingEvent,
}
if TYPE_CHECKING:
    BillingEventInfo: TypeAlias = (
        TrainingBillingEvent
        | SamplingPrefillBillingEvent
        | SamplingSampleBillingEvent
        | CheckpointBillingEvent
        | StorageBillingEvent
        | dict[str, Any]
    )
    """What was used.

    A member with another type is a dictionary.
    """
else:
    BillingEventInfo = Any


class BillingUsageEvent(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    bucket_start: datetime.datetime
    bucket_end: datetime.datetime
    base_model: str | None = None
    user_id: str | None = None
    user_name: str | None = None
    session_id: str | None = None
    project_id: str | None = None
    estimated_cost_usd: float | None = None
    effective_rate_usd_per_million_tokens: float | None = None
    effective_rate_usd_per_gigabyte_month: float | None = None
    event_info: BillingEventInfo

    def __post_init__(self) -> None:
        _read_open(self, "event_info", "type", _BILLING_EVENT_INFO)


class BillingUsageSession(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    user_metadata: StringMap | None = None


BillingUsageSessions: TypeAlias = dict[str, BillingUsageSession]
"""Session id to what is known of it."""


class BillingUsageResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    data: list[BillingUsageEvent]
    sessions: BillingUsageSessions = _field(default_factory=lambda: {})
    cost_data_through: datetime.datetime | None = None
    """Costs are known up to here."""


class CurrentCheckpointStorageUsageItem(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    project_id: str | None = None
    org_user_urn: str | None = None
    user_email: str | None = None
    user_name: str | None = None
    checkpoint_count: int
    size_bytes: int
    size_gigabytes: float
    estimated_monthly_cost_usd: float | None = None


class CurrentCheckpointStorageUsageResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    __module__ = "tinker.types"

    effective_rate_usd_per_gigabyte_month: float | None = None
    data: list[CurrentCheckpointStorageUsageItem]
