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

if TYPE_CHECKING:  # which shows the default of a field as it is
    from msgspec import field as _sent
else:
    from tinker_records import sent as _sent

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
    "ErrorCode",
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
    "JSONSchema",
    "JSONValue",
    "JoinSamplingSessionRequest",
    "JoinSamplingSessionResponse",
    "ListSessionsResponse",
    "ListedCheckpointType",
    "ListedClientSessionFinishReasonType",
    "ListedLossFnType",
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

JSONSchema: TypeAlias = dict[str, JSONValue]
"""A JSON schema; an empty one allows any JSON value."""

StringMap: TypeAlias = dict[str, str]
"""Free key/value pairs of the user."""

ErrorCode: TypeAlias = (
    Literal[
        "invalid_request",
        "unauthenticated",
        "payment_required",
        "permission_denied",
        "not_found",
        "method_not_allowed",
        "timeout",
        "conflict",
        "gone",
        "too_large",
        "unsupported_media_type",
        "invalid_body",
        "too_early",
        "too_many_requests",
        "internal",
        "not_implemented",
        "unavailable",
        "base_model_not_offered",
        "session_not_found",
        "session_ended",
        "model_not_found",
        "model_closed",
        "training_run_not_found",
        "sampling_session_not_found",
        "request_not_found",
        "result_expired",
        "checkpoint_not_found",
        "upload_not_found",
        "name_taken",
        "seq_id_free",
        "seq_id_used",
        "limit_reached",
    ]
    | str
)
"""A kind of refusal. Where no other fits, it is the one of the status: `invalid_request` (400), `unauthenticated`
(401), `payment_required` (402), `permission_denied` (403), `not_found` (404), `method_not_allowed` (405), `timeout`
(408), `conflict` (409), `gone` (410), `too_large` (413), `unsupported_media_type` (415), `invalid_body` (422),
`too_early` (425), `too_many_requests` (429), `internal` (500), `not_implemented` (501), `unavailable` (503).
`seq_id_free` says that a request was not carried out and that its number is free: the next request of the run may
have it.
"""

ErrorDetail: TypeAlias = Any
"""A text for the user, or the list of what is wrong with a body (422)."""


class ErrorResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an error status. Proxies send text, HTML or nothing instead; a client must survive that."""

    detail: ErrorDetail | None = None
    """What was wrong: a text, or a list of places."""
    code: ErrorCode | None = None
    """An extension: what kind of refusal this is, for programs. The words of `detail` may change, a code does not."""


class ValidationProblem(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of a request body, in the form of FastAPI."""

    loc: list[int | str]
    """Where: `body`, then field names and list indices."""
    msg: str
    """What is wrong there, for people."""
    type: str
    """A word for the kind of fault."""
    input: JSONValue | None = None
    """The value that was found there."""
    ctx: JSONValue | None = None
    """Numbers and words that `msg` was made of."""


RequestErrorCategory: TypeAlias = Literal["unknown", "server", "user"] | str
"""Whose fault a failed request is; lower case. Clients take an unknown word for `unknown`."""


class RequestFailedResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A submitted request failed. Whatever else has a member `error` is read as this."""

    __module__ = "tinker.types"

    error: str
    """A text for the user."""
    category: RequestErrorCategory
    """Whose fault it is."""
    failed_operation: str | None = None
    """The operation before this request that failed, for which it was not run; see `X-Tinker-Known-Failure`. Missing
    where the request failed by itself.
    """


class HealthResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The server takes work."""

    __module__ = "tinker.types"

    status: Literal["ok"] | str = _sent(default="ok")
    """Always `ok`; official clients take no other word. A server that cannot take work answers 503 instead."""


class ClientConfigRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Who asks for settings."""

    __module__ = "tinker.types"

    sdk_version: str
    """The version of the client; 0.38.0 or the like."""


class ClientConfigResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Limits and switches the server wants of a client. A missing setting means the default, an unknown one is ignored."""

    __module__ = "tinker.types"

    pjwt_auth_enabled: bool = _sent(default=False)
    """Exchange the key for a short-lived JWT (`auth_token`)."""
    credential_default_source: str = _sent(default="api_key")
    """`credential_cmd` makes the client use its credential command for the exchange, whatever key it has."""
    sample_dispatch_bytes_semaphore_size: int = _sent(default=10485760)
    """Estimated prompt bytes that may be in submission at once."""
    inflight_response_bytes_semaphore_size: int = _sent(default=52428800)
    """Bytes of large results that may be fetched and decoded at once."""
    parallel_fwdbwd_chunks: bool = _sent(default=True)
    """Chunks of one call are submitted together, the first one last."""
    proto_compress_fwdbwd: bool = _sent(default=False)
    """Send protobuf bodies zstd-compressed, with `Content-Encoding: zstd`."""
    fwdbwd_max_chunk_len: int = _sent(default=1024)
    """Most datums in one request."""
    fwdbwd_max_chunk_bytes_count: int = _sent(default=5000000)
    """Most estimated bytes in one request; a single larger datum goes alone."""
    fwdbwd_dispatch_bytes_semaphore_size: int = _sent(default=50000000)
    """Estimated training bytes that may be in submission at once."""
    billing_exception_max_pause_duration_sec: int = _sent(default=3600)
    """How long the client waits out status 402."""
    sample_no_retries: bool = _sent(default=False)
    """Samples are not retried and not limited in number."""
    sample_enable_stuck_detection: bool = _sent(default=True)
    """Give up sampling when nothing succeeds for two hours."""
    sample_max_concurrent_requests: int = _sent(default=2000)
    """Most samples of one client that are unanswered at a time, over any number of the caller."""
    use_pyqwest_transport: bool = _sent(default=True)
    """About the official client's HTTP library; others ignore it."""
    sample_use_retrieve_futures: bool = _sent(default=False)
    """Learn of completed samples through `retrieve_futures`."""
    custom_loss_server_side: bool = _sent(default=False)
    """Upload custom losses with `create_custom_loss` instead of computing them on the client."""
    sample_join_sampling_session: bool = _sent(default=False)
    """Copies of a sampling client get their number from `join_sampling_session`."""
    loss_fns: dict[str, list[str]] | None = None
    """Every loss that the server computes, each with the names of its settings, so that a client can refuse other
    names; null when the server does not say.
    """


class ClientDynamicConfigResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that a client asks for again and again. A missing one means the default."""

    __module__ = "tinker.types"

    refresh_interval_sec: int = _sent(default=300)
    """Seconds until the client asks again; at least 10 are taken."""
    sample_cancel_enabled: bool = _sent(default=False)
    """Send `cancel_future` for samples nobody waits for."""
    sample_cancel_max_batch_size: int = _sent(default=64)
    """Most of these at a time."""


class SupportedModel(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A base model that can be used."""

    __module__ = "tinker.types"

    model_name: str | None = None
    """As in `base_model`; it may hold `/` and `:`."""
    max_context_length: int | None = None
    """Prompt and continuation together."""
    trainable: bool | None = None
    """Whether adapters can be trained on it; null when the server does not say."""
    sampleable: bool | None = None
    """Whether it can be sampled; null when the server does not say."""


class GetServerCapabilitiesResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What the server offers."""

    __module__ = "tinker.types"

    supported_models: list[SupportedModel]
    """The base models, in an order of the server."""


class AuthTokenRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """An empty object; the credential is in `X-API-Key`."""


class AuthTokenResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A credential for a while."""

    __module__ = "tinker.types"

    jwt: str
    """A JWT with `iat` and `exp`; `sub` and `email` say whose it is."""
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "jwt",
        }
    )


class SelfApiKeyOrganization(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The organization of a key."""

    name: str
    """Its name."""


class SelfApiKeyUser(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The user of a key."""

    email: str
    """The address of the user."""


class SelfApiKeyDetails(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """To whom a key belongs."""

    org_details: SelfApiKeyOrganization
    """The organization."""
    user_details: SelfApiKeyUser
    """The user."""


class SelfApiKeyResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The API key that asked."""

    key_id: int
    """The number of the key."""
    name: str
    """The name that its owner gave it."""
    note: str
    """A note of its owner."""
    details: SelfApiKeyDetails
    """To whom it belongs."""


class CreateSessionRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A session to open: the frame of models and samplers of one client."""

    __module__ = "tinker.types"

    tags: Sequence[str]
    """Words of the user, without order; from `TINKER_TAGS`."""
    user_metadata: Metadata | None = None
    """What the user wrote about the session; clients of today always send it, with an empty object for nothing."""
    sdk_version: str
    """The server may answer messages about it."""
    project_id: str | None = None
    """The project that the session, its runs and its checkpoints belong to."""
    display_name: str | None = None
    """Not unique; for lists and searches."""
    type: Literal["create_session"] = _sent(default="create_session")
    """Always `create_session`."""


class CreateSessionResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The session, and what its user should be told."""

    __module__ = "tinker.types"

    session_id: str
    """Opaque. Model ids and sampler ids may be made from it."""
    info_message: str | None = None
    """Logged for the user."""
    warning_message: str | None = None
    """Logged for the user as a warning."""
    error_message: str | None = None
    """Logged for the user as an error; nothing fails."""
    type: Literal["create_session"] | str = _sent(default="create_session")
    """Always `create_session`."""


class SessionHeartbeatRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A sign that the client lives."""

    __module__ = "tinker.types"

    session_id: str
    """The session."""
    type: Literal["session_heartbeat"] = _sent(default="session_heartbeat")
    """Always `session_heartbeat`."""


class SessionHeartbeatResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The session lives too."""

    __module__ = "tinker.types"

    type: Literal["session_heartbeat"] | str = _sent(default="session_heartbeat")
    """Always `session_heartbeat`."""


ListedClientSessionFinishReasonType: TypeAlias = Literal["success", "errored", "interrupted"]
"""The listed values of `ClientSessionFinishReasonType`."""

ClientSessionFinishReasonType: TypeAlias = ListedClientSessionFinishReasonType | str
"""How a session went, as its client saw it."""


class ClientSessionFinishSuccess(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="success"
):
    """The program ended as it should."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["success"]:
        """Always `success`."""
        return "success"


class ClientSessionFinishErrored(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="errored"
):
    """The program ended with an error."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["errored"]:
        """Always `errored`."""
        return "errored"


class ClientSessionFinishInterrupted(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="interrupted"
):
    """The program was interrupted."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["interrupted"]:
        """Always `interrupted`."""
        return "interrupted"


_CLIENT_SESSION_FINISH_REASON: dict[str, type[msgspec.Struct]] = {
    "success": ClientSessionFinishSuccess,
    "errored": ClientSessionFinishErrored,
    "interrupted": ClientSessionFinishInterrupted,
}
ClientSessionFinishReason: TypeAlias = (
    ClientSessionFinishSuccess | ClientSessionFinishErrored | ClientSessionFinishInterrupted | dict[str, Any]
)
"""How a session went, as its client saw it.

A member with another type is a dictionary.
"""
if TYPE_CHECKING:
    _ClientSessionFinishReason: TypeAlias = ClientSessionFinishReason
else:  # msgspec decodes no union of records and dictionaries
    _ClientSessionFinishReason = Any


class FinishSessionRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a session, told by its client."""

    reason: _ClientSessionFinishReason
    """How it ended."""
    detail: str | None
    """Sent as null when there is nothing to say."""

    def __post_init__(self) -> None:
        _read_open(self, "reason", "type", _CLIENT_SESSION_FINISH_REASON)


class ListSessionsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A page of sessions."""

    __module__ = "tinker.types"

    sessions: list[str]
    """Their ids, newest first."""


class GetSessionResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a session holds."""

    __module__ = "tinker.types"

    training_run_ids: list[str]
    """Its models."""
    sampler_ids: list[str]
    """Its sampling sessions."""
    user_metadata: StringMap | None = None
    """What the user wrote about it."""
    display_name: str | None = None
    """Its name for people; not unique."""


class SetSessionProjectRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Where a session shall belong."""

    project_id: str
    """The project to move the session into."""


TraceExportStatus: TypeAlias = Literal["pending", "ready", "failed"] | str
"""How far an export is."""


class TraceExportResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """An export, or how far it is."""

    status: TraceExportStatus
    """How far it is."""
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
        """Always `own`."""
        return "own"


class AccessibleSearchOwner(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="accessible"):
    """Every session that the user may see."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["accessible"]:
        """Always `accessible`."""
        return "accessible"


class UserSearchOwner(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="user"):
    """Sessions of these users."""

    __module__ = "tinker.types"

    owner_urns: Sequence[str]
    """The URNs of the users."""

    @property
    def type(self) -> Literal["user"]:
        """Always `user`."""
        return "user"


SearchOwner: TypeAlias = OwnSearchOwner | AccessibleSearchOwner | UserSearchOwner
"""Whose things are searched."""


class ActiveSessionStatusQuery(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="active"):
    """Sessions that live."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["active"]:
        """Always `active`."""
        return "active"


class CancelledSessionStatusQuery(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="cancelled"
):
    """Sessions that were cancelled."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["cancelled"]:
        """Always `cancelled`."""
        return "cancelled"


class FailedSessionStatusQuery(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="failed"):
    """Sessions that failed."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["failed"]:
        """Always `failed`."""
        return "failed"


class ClientFinishedSessionStatusQuery(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="client_finished"
):
    """Sessions that their client has ended."""

    __module__ = "tinker.types"

    reasons: Sequence[ClientSessionFinishReasonType] | None = None
    """Any reason when missing."""

    @property
    def type(self) -> Literal["client_finished"]:
        """Always `client_finished`."""
        return "client_finished"


SessionStatusQuery: TypeAlias = (
    ActiveSessionStatusQuery | CancelledSessionStatusQuery | FailedSessionStatusQuery | ClientFinishedSessionStatusQuery
)
"""One status that a session may have to be found."""


class SessionSearchCursor(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The last session of a page; opaque to clients."""

    __module__ = "tinker.types"

    last_created_at: datetime.datetime
    """With a time zone."""
    last_session_id: str
    """The last session of the page before."""


class SessionSearchRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Conditions, all of which a session must meet."""

    __module__ = "tinker.types"

    session_id: str | None = None
    """The session with this id."""
    project_ids: Sequence[str] | None = None
    """Sessions of one of these projects."""
    user_metadata: StringMap = _field(default_factory=lambda: {})
    """Pairs that a session must have, among others."""
    display_name: str | None = None
    """A part of the name."""
    owner: SearchOwner = _field(default_factory=lambda: OwnSearchOwner())
    """Whose things are searched."""
    statuses: Sequence[SessionStatusQuery] | None = None
    """Any of them."""
    limit: int = _sent(default=50)
    """How many there are on a page at most."""
    cursor: SessionSearchCursor | None = None
    """`next_cursor` of the page before; the first page when missing or null."""


class SessionActive(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="active"):
    """The session lives."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["active"]:
        """Always `active`."""
        return "active"


class SessionCancelled(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="cancelled"):
    """The session was cancelled."""

    __module__ = "tinker.types"

    detail: str | None = None
    """More about it, for people."""

    @property
    def type(self) -> Literal["cancelled"]:
        """Always `cancelled`."""
        return "cancelled"


class ClientSessionFinished(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="client_finished"
):
    """The client finished the session."""

    __module__ = "tinker.types"

    reason: _ClientSessionFinishReason
    """How it ended, in the words of its client."""
    detail: str | None = None
    """More about it, for people."""

    @property
    def type(self) -> Literal["client_finished"]:
        """Always `client_finished`."""
        return "client_finished"

    def __post_init__(self) -> None:
        _read_open(self, "reason", "type", _CLIENT_SESSION_FINISH_REASON)


SessionFailedCategory: TypeAlias = Literal["user", "internal"] | str
"""Whose fault the failure of a session is."""


class SessionFailedRequestReason(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="request"
):
    """The session failed with a request."""

    __module__ = "tinker.types"

    request_id: str
    """The request that failed."""
    request_type: str
    """What was asked for."""

    @property
    def type(self) -> Literal["request"]:
        """Always `request`."""
        return "request"


class SessionFailedTrainingRunReason(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="training_run"
):
    """The session failed with a training run."""

    __module__ = "tinker.types"

    training_run_id: str
    """The run, which is the model id."""

    @property
    def type(self) -> Literal["training_run"]:
        """Always `training_run`."""
        return "training_run"


class SessionFailedSamplingSessionReason(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="sampling_session"
):
    """The session failed with a sampling session."""

    __module__ = "tinker.types"

    sampling_session_id: str
    """The sampling session."""

    @property
    def type(self) -> Literal["sampling_session"]:
        """Always `sampling_session`."""
        return "sampling_session"


_SESSION_FAILED_REASON: dict[str, type[msgspec.Struct]] = {
    "request": SessionFailedRequestReason,
    "training_run": SessionFailedTrainingRunReason,
    "sampling_session": SessionFailedSamplingSessionReason,
}
SessionFailedReason: TypeAlias = (
    SessionFailedRequestReason | SessionFailedTrainingRunReason | SessionFailedSamplingSessionReason | dict[str, Any]
)
"""What failed.

A member with another type is a dictionary.
"""
if TYPE_CHECKING:
    _SessionFailedReason: TypeAlias = SessionFailedReason
else:  # msgspec decodes no union of records and dictionaries
    _SessionFailedReason = Any


class SessionFailed(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="failed"):
    """The session failed."""

    __module__ = "tinker.types"

    category: SessionFailedCategory
    """Whose fault it is."""
    reason: _SessionFailedReason
    """What it failed with."""
    message: str
    """A text for the user."""

    @property
    def type(self) -> Literal["failed"]:
        """Always `failed`."""
        return "failed"

    def __post_init__(self) -> None:
        _read_open(self, "reason", "type", _SESSION_FAILED_REASON)


_SESSION_STATUS: dict[str, type[msgspec.Struct]] = {
    "failed": SessionFailed,
    "cancelled": SessionCancelled,
    "client_finished": ClientSessionFinished,
    "active": SessionActive,
}
SessionStatus: TypeAlias = SessionFailed | SessionCancelled | ClientSessionFinished | SessionActive | dict[str, Any]
"""How a session stands.

A member with another type is a dictionary.
"""
if TYPE_CHECKING:
    _SessionStatus: TypeAlias = SessionStatus
else:  # msgspec decodes no union of records and dictionaries
    _SessionStatus = Any


class SessionSummary(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A session that was found."""

    __module__ = "tinker.types"

    session_id: str
    """The session."""
    created_at: datetime.datetime
    """When it was opened."""
    owner: str
    """A URN."""
    project_id: str
    """The project it belongs to; none when missing or null."""
    status: _SessionStatus | None = None
    """How it is; null when the server does not say."""
    checkpoints_count: int
    """How many checkpoints its runs have."""
    display_name: str | None = None
    """Its name for people; not unique."""
    user_metadata: StringMap | None = None
    """What the user wrote about it."""
    checkpoint_storage_bytes: int | None = None
    """How much they store; null when the server does not say."""

    def __post_init__(self) -> None:
        _read_open(self, "status", "type", _SESSION_STATUS, nullable=True)


class SessionSearchResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A page of sessions."""

    __module__ = "tinker.types"

    sessions: list[SessionSummary]
    """The sessions, newest first."""
    next_cursor: SessionSearchCursor | None = None
    """Goes into `cursor` for the next page; missing or null on the last."""


class LoraConfig(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The shape of an adapter."""

    rank: int
    """SDKs send 32 where the user says nothing."""
    seed: int | None = None
    """For the initial weights."""
    train_unembed: bool = _sent(default=True)
    """Train the unembedding too."""
    train_mlp: bool = _sent(default=True)
    """MLP layers and experts."""
    train_attn: bool = _sent(default=True)
    """Attention layers. At least one of the three is true."""
    lora_alpha: float | None = None
    """An extension: the scale of the adapter, whose update is multiplied by `lora_alpha / rank`. 32 when missing, as on
    every server without it.
    """
    target_modules: Sequence[str] | None = None
    """An extension: adapt these modules only, of those that the three switches leave. Each is the end of a module's
    name, from a dot on, as in PEFT: `q_proj`, `layers.0.mlp.up_proj`.
    """


class AdamOptimizerConfig(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="adamw"):
    """Adam with decoupled weight decay, the usual family."""

    __module__ = "tinker.types"

    @property
    def type(self) -> Literal["adamw"]:
        """Always `adamw`."""
        return "adamw"


class DimuonOptimizerConfig(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="dimuon"):
    """Dimuon, in one of its versions."""

    __module__ = "tinker.types"

    version: int = _sent(default=1)
    """Which version of the family; there is one."""

    @property
    def type(self) -> Literal["dimuon"]:
        """Always `dimuon`."""
        return "dimuon"


_OPTIMIZER_CONFIG: dict[str, type[msgspec.Struct]] = {
    "adamw": AdamOptimizerConfig,
    "dimuon": DimuonOptimizerConfig,
}
OptimizerConfig: TypeAlias = AdamOptimizerConfig | DimuonOptimizerConfig | dict[str, Any]
"""The optimizer family of a model, fixed at its creation. Other families keep their fields.

A member with another type is a dictionary.
"""
if TYPE_CHECKING:
    _OptimizerConfig: TypeAlias = OptimizerConfig
else:  # msgspec decodes no union of records and dictionaries
    _OptimizerConfig = Any


class CreateModelRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A model to make: an adapter on a base model, and its training run."""

    __module__ = "tinker.types"

    session_id: str
    """The session."""
    model_seq_id: int
    """0, 1, 2, ... per session, numbered by the client."""
    base_model: str
    """A name of `get_server_capabilities`."""
    user_metadata: Metadata | None = None
    """What the user wrote about it."""
    lora_config: LoraConfig | None = None
    """The shape of the adapter."""
    optimizer_config: _OptimizerConfig = _field(default_factory=lambda: AdamOptimizerConfig())
    """The family of the optimizer, chosen once for the model."""
    type: Literal["create_model"] = _sent(default="create_model")
    """Always `create_model`."""

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_config", "type", _OPTIMIZER_CONFIG)


class CreateModelResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The model."""

    __module__ = "tinker.types"

    model_id: str
    """`<session_id>:train:<model_seq_id>`; also the training run id."""
    type: Literal["create_model"] | str = _sent(default="create_model")
    """Always `create_model`."""


class GetInfoRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The model to describe."""

    __module__ = "tinker.types"

    model_id: str
    """The model, which is the training run."""
    type: Literal["get_info"] = _sent(default="get_info")
    """Always `get_info`."""


class ModelData(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a model was made from."""

    __module__ = "tinker.types"

    arch: str | None = None
    """The architecture of the base model."""
    model_name: str | None = None
    """The name of the base model."""
    tokenizer_id: str | None = None
    """A tokenizer to load; what follows the first `:` is a revision."""


class GetInfoResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a model is."""

    __module__ = "tinker.types"

    model_data: ModelData
    """What it was made from."""
    model_id: str
    """The model, which is the training run."""
    optimizer_config: _OptimizerConfig = _field(default_factory=lambda: AdamOptimizerConfig())
    """The family of the optimizer, chosen once for the model."""
    is_lora: bool | None = None
    """Whether an adapter is trained, and not all weights."""
    lora_rank: int | None = None
    """The rank of the adapter."""
    model_name: str | None = None
    """The name of the base model."""
    type: Literal["get_info"] | str | None = _sent(default="get_info")
    """Always `get_info`."""

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_config", "type", _OPTIMIZER_CONFIG)


class UnloadModelRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Deprecated. The model that is not needed any more."""

    __module__ = "tinker.types"

    model_id: str
    """The model, which is the training run."""
    type: Literal["unload_model"] = _sent(default="unload_model")
    """Always `unload_model`."""


class UnloadModelResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Deprecated. The model is gone."""

    __module__ = "tinker.types"

    model_id: str
    """The model, which is the training run."""
    type: Literal["unload_model"] | str | None = _sent(default="unload_model")
    """Always `unload_model`."""


TensorDtype: TypeAlias = Literal["int64", "float32"]
"""The type of the numbers of a tensor."""


class TensorData(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor in JSON, flattened row-major. With both `sparse_*` fields it is CSR: `data` holds the listed values and
    `shape` is required; absent entries are 0 in loss inputs and -1 in `target_prompt_logprobs`.
    """

    data: Sequence[int | float]
    """The values, row by row; of a sparse tensor those that are stored."""
    dtype: TensorDtype
    """The type of the values."""
    shape: Sequence[int] | None = None
    """One dimension when missing."""
    sparse_crow_indices: Sequence[int] | None = None
    """Row pointers, one more than rows."""
    sparse_col_indices: Sequence[int] | None = None
    """One for each value."""


ImageFormat: TypeAlias = Literal["png", "jpeg"]
"""How a picture is encoded."""


class EncodedTextChunk(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="encoded_text"):
    """Text, as tokens."""

    tokens: Sequence[int]
    """Ids of the tokenizer of the base model."""

    @property
    def type(self) -> Literal["encoded_text"]:
        """Always `encoded_text`."""
        return "encoded_text"


class ImageChunk(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="image"):
    """A picture, with its bytes."""

    data: bytes
    """The file. Raw bytes in protobuf."""
    format: ImageFormat
    """How the bytes are encoded."""
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
        """Always `image`."""
        return "image"


class ImageAssetPointerChunk(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="image_asset_pointer"
):
    """An image that the server fetches. In JSON only, so not in a protobuf `forward_backward`."""

    format: ImageFormat
    """How the bytes are encoded."""
    location: str
    """A path or a URL."""
    expected_tokens: int | None = None
    """How many tokens the client counts it as; the server may refuse another number."""

    @property
    def type(self) -> Literal["image_asset_pointer"]:
        """Always `image_asset_pointer`."""
        return "image_asset_pointer"


class DmelChunk(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="dmel"):
    """Audio features."""

    dmel: bytes
    """A serialized tensor: perhaps a byte 254, a dtype byte, then the number of dimensions and the dimensions as
    LEB128; the first one is the length in tokens.
    """

    @property
    def type(self) -> Literal["dmel"]:
        """Always `dmel`."""
        return "dmel"


ModelInputChunk: TypeAlias = EncodedTextChunk | ImageChunk | ImageAssetPointerChunk | DmelChunk
"""Told apart by `type`; clients of 2025 leave it out, and the other fields tell."""


class ModelInput(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a model reads: text and pictures, in order."""

    chunks: Sequence[ModelInputChunk]
    """The pieces, one after the other."""


TensorMap: TypeAlias = dict[str, TensorData]
"""Tensors by name."""


class Datum(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """One example in JSON. `cross_entropy` reads `target_tokens` and `weights`, the policy losses `target_tokens`,
    `logprobs`, `advantages` and `weights`; a server refuses what its loss does not know. Provenance spans exist in
    protobuf only.
    """

    loss_fn_inputs: TensorMap
    """What the loss needs: `target_tokens`, `weights`, `advantages` and the like, one row for each token."""
    model_input: ModelInput
    """The tokens that go in."""


ListedLossFnType: TypeAlias = Literal[
    "cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce", "custom"
]
"""The listed values of `LossFnType`."""

LossFnType: TypeAlias = ListedLossFnType | str
"""Losses known by name; a server may know others."""

LossFnConfig: TypeAlias = dict[str, float | str]
"""Settings of the loss, such as `clip_low_threshold` and `clip_high_threshold` (ratios), `kl_coeff`, or `loss_id` of a
custom loss.
"""


class ForwardBackwardInput(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Data and the loss to compute on them."""

    data: Sequence[Datum]
    """The examples, each by itself."""
    loss_fn: LossFnType
    """The loss."""
    loss_fn_config: LossFnConfig | None = None
    """Settings of the loss."""


class ForwardBackwardRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A loss with its gradient, as JSON."""

    forward_backward_input: ForwardBackwardInput
    """The data and the loss."""
    model_id: str
    """The model, which is the training run."""
    seq_id: int | None = None
    """1, 2, 3, ... per model, numbered by the client."""


class ForwardRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A loss without its gradient, as JSON."""

    forward_input: ForwardBackwardInput
    """The data and the loss."""
    model_id: str
    """The model, which is the training run."""
    seq_id: int | None = None
    """Its number among the requests of the model: 1, 2, 3, ..."""


MetricMap: TypeAlias = dict[str, float]
"""Keys are `name:reduction`; the reduction (sum, mean, min, max, slack, unique, hash2) says how values of several
chunks combine.
"""


class ForwardBackwardOutput(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON form of the message `tinker_public.ForwardBackwardOutput`."""

    loss_fn_output_type: str = _sent(default="ArrayRecord")
    """What `loss_fn_outputs` are."""
    loss_fn_outputs: list[TensorMap]
    """One for each datum; `logprobs` is what custom losses need."""
    metrics: MetricMap = _field(default_factory=lambda: {})
    """Numbers by name; what follows the `:` says how those of several requests are combined."""


class CustomLossInput(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """An input of an uploaded loss."""

    __module__ = "tinker.types"

    name: str
    """The name of the tensor; `logprobs` is the first."""
    rank: int
    """Number of dimensions."""


CustomLossNodeOp: TypeAlias = Literal[
    "placeholder", "get_attr", "call_function", "call_method", "call_module", "output"
]
"""What a node of a graph does."""

CustomLossArguments: TypeAlias = Sequence[JSONValue]
"""Arguments of a node. A JSON scalar or list stands for itself; anything else is an object with one key: `ref` (a
node), `tuple`, `dict`, `slice`, `ellipsis`, `float` (inf, -inf, nan), `dtype`, `device`, `layout` or
`memory_format`.
"""

CustomLossKwargs: TypeAlias = dict[str, JSONValue]
"""Arguments of a node by name."""


class CustomLossNode(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a graph."""

    __module__ = "tinker.types"

    op: CustomLossNodeOp
    """What it does."""
    name: str
    """Unique in its graph."""
    target: str
    """A function such as `torch.exp`, `operator.mul` or `math.log`, a method name, or `output`."""
    args: CustomLossArguments = _field(default_factory=lambda: [])
    """Its arguments, in order."""
    kwargs: CustomLossKwargs = _field(default_factory=lambda: {})
    """Its arguments by name."""


class CustomLossGraph(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A traced function; the argument of its output node is a tuple of the loss and a dict of metrics named
    `custom/<name>:sum` or `custom/<name>:mean`.
    """

    __module__ = "tinker.types"

    format: int = _sent(default=1)
    """The version of this form; there is one."""
    nodes: Sequence[CustomLossNode]
    """The steps, each after those it uses."""


class CreateCustomLossRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A loss to upload, by which the session can then train."""

    __module__ = "tinker.types"

    session_id: str
    """The session."""
    custom_loss_seq_id: int
    """0, 1, 2, ... per session, numbered by the client."""
    name: str
    """A name for people."""
    inputs: Sequence[CustomLossInput]
    """The first one is `logprobs`."""
    graph: CustomLossGraph
    """What is computed."""
    type: Literal["create_custom_loss"] = _sent(default="create_custom_loss")
    """Always `create_custom_loss`."""


class CreateCustomLossResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The loss."""

    __module__ = "tinker.types"

    loss_id: str
    """Goes into `loss_fn_config`, under the name `loss_id`, with the loss `custom`."""
    type: Literal["create_custom_loss"] | str = _sent(default="create_custom_loss")
    """Always `create_custom_loss`."""


class AdamParams(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Of one step. Without a `type`; clients of 2025 send only what the user gave."""

    learning_rate: float = _sent(default=0.0001)
    """The size of a step."""
    beta1: float = _sent(default=0.9)
    """How slowly the mean of the gradients changes."""
    beta2: float = _sent(default=0.95)
    """How slowly the mean of their squares changes."""
    eps: float = _sent(default=1e-12)
    """Added to the root of that mean."""
    weight_decay: float = _sent(default=0.0)
    """Decoupled weight decay."""
    grad_clip_norm: float = _sent(default=0.0)
    """Largest global gradient norm; 0 means no clipping."""


class DimuonParams(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="dimuon"):
    """One step of Dimuon."""

    learning_rate: Annotated[float, msgspec.Meta(ge=0)]
    """The size of a step."""
    grad_clip_norm: float = _sent(default=0.0)
    """0 and less mean no clipping."""
    beta1: Annotated[float, msgspec.Meta(ge=0, lt=1)] = _sent(default=0.9)
    """How slowly the mean of the gradients changes."""

    @property
    def type(self) -> Literal["dimuon"]:
        """Always `dimuon`."""
        return "dimuon"


_OPTIMIZER_PARAMS: dict[str, type[msgspec.Struct]] = {
    "dimuon": DimuonParams,
}
OptimizerParams: TypeAlias = DimuonParams | dict[str, Any]
"""Parameters of one step of an optimizer that is not Adam.

A member with another type is a dictionary.
"""
if TYPE_CHECKING:
    _OptimizerParams: TypeAlias = OptimizerParams
else:  # msgspec decodes no union of records and dictionaries
    _OptimizerParams = Any


class OptimStepRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """One step with the gradient since the last one."""

    model_id: str
    """The model, which is the training run."""
    seq_id: int | None = None
    """Its number among the requests of the model: 1, 2, 3, ..."""
    type: Literal["optim_step"] = _sent(default="optim_step")
    """Always `optim_step`."""
    adam_params: AdamParams | None = None
    """The settings of this step, for a model with Adam."""
    optimizer_params: _OptimizerParams | None = None
    """The settings of this step, for another family."""

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_params", "type", _OPTIMIZER_PARAMS, nullable=True)


class OptimStepResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The step is done."""

    __module__ = "tinker.types"

    metrics: MetricMap | None = None
    """Numbers by name; what follows the `:` says how those of several requests are combined."""
    type: Literal["optim_step"] | str = _sent(default="optim_step")
    """Always `optim_step`."""


TtlSeconds: TypeAlias = int
"""Seconds until the checkpoint expires, from an hour to ten years; missing means never."""


class SaveWeightsRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint to train on."""

    __module__ = "tinker.types"

    model_id: str
    """The model, which is the training run."""
    path: str | None = None
    """The checkpoint name, not a full path."""
    seq_id: int | None = None
    """Its number among the requests of the model: 1, 2, 3, ..."""
    ttl_seconds: TtlSeconds | None = None
    """How long the checkpoint lives; forever when missing or null."""
    overwrite: bool = _sent(default=False)
    """Replace a checkpoint of that name."""
    user_metadata: StringMap | None = None
    """What the user wrote about it."""
    keep_last: int | None = None
    """An extension: once this checkpoint is there, delete the oldest ones of the same run and kind until so many are
    left. Published ones stay, and do not count.
    """
    type: Literal["save_weights"] = _sent(default="save_weights")
    """Always `save_weights`."""


class SaveWeightsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoint."""

    path: str
    """`tinker://<training_run_id>/weights/<name>`"""
    type: Literal["save_weights"] | str | None = _sent(default="save_weights")
    """Always `save_weights`."""


SamplingClientKind: TypeAlias = Literal["snapshot", "inflight"]
"""`snapshot` weights stay, `inflight` weights follow later inflight saves of the model."""


class SaveWeightsForSamplerRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Either `path` or `sampling_session_seq_id` is given."""

    __module__ = "tinker.types"

    model_id: str
    """The model, which is the training run."""
    path: str | None = None
    """The checkpoint name."""
    sampling_session_seq_id: int | None = None
    """The number of the sampling session to open, as in `create_sampling_session`."""
    kind: SamplingClientKind = _sent(default="snapshot")
    """Whether later saves replace these weights while they are sampled."""
    seq_id: int | None = None
    """Its number among the requests of the model: 1, 2, 3, ..."""
    ttl_seconds: TtlSeconds | None = None
    """How long the checkpoint lives; forever when missing or null."""
    user_metadata: StringMap | None = None
    """What the user wrote about it."""
    keep_last: int | None = None
    """An extension: once this checkpoint is there, delete the oldest ones of the same run and kind until so many are
    left. Published ones stay, and do not count.
    """
    type: Literal["save_weights_for_sampler"] = _sent(default="save_weights_for_sampler")
    """Always `save_weights_for_sampler`."""


class SaveWeightsForSamplerResponseInternal(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Where to sample from."""

    __module__ = "tinker.types"

    path: str | None = None
    """`tinker://<training_run_id>/sampler_weights/<name>`, for a named save."""
    sampling_session_id: str | None = None
    """The session to sample from, for a save without a name."""
    type: Literal["save_weights_for_sampler"] | str | None = _sent(default="save_weights_for_sampler")
    """Always `save_weights_for_sampler`."""


class SaveWeightsExternalRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint as files to download."""

    __module__ = "tinker.types"

    model_id: str
    """The model, which is the training run."""
    path: str
    """The checkpoint name."""
    seq_id: int | None = None
    """Its number among the requests of the model: 1, 2, 3, ..."""
    ttl_seconds: TtlSeconds | None = None
    """How long the checkpoint lives; forever when missing or null."""
    age_encryption_recipients: Sequence[str] | None = None
    """Public keys (`age1...` or SSH) that the files are encrypted for."""
    type: Literal["save_weights_external"] = _sent(default="save_weights_external")
    """Always `save_weights_external`."""


class SaveWeightsExternalResponseInternal(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoint of files."""

    __module__ = "tinker.types"

    path: str | None = None
    """`tinker://<training_run_id>/external_weights/<name>`"""
    size_bytes: int | None = None
    """How much it stores."""
    type: Literal["save_weights_external"] | str | None = _sent(default="save_weights_external")
    """Always `save_weights_external`."""


class LoadWeightsRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint to load into a model, which exists or is made by this."""

    __module__ = "tinker.types"

    model_id: str | None = None
    """The model that exists; `session_id` and `model_seq_id` are missing then."""
    seq_id: int | None = None
    """Its number among the requests of the model: 1, 2, 3, ..."""
    session_id: str | None = None
    """The session of the model to make."""
    model_seq_id: int | None = None
    """The number of the model in its session: 0, 1, 2, ..."""
    base_model: str | None = None
    """Instead of the one that the checkpoint was made from."""
    user_metadata: Metadata | None = None
    """What the user wrote about the model to make."""
    path: str
    """`tinker://<training_run_id>/weights/<name>`"""
    optimizer: bool = _sent(default=False)
    """Restore the optimizer state too."""
    optimizer_config: _OptimizerConfig | None = None
    """The family of the optimizer of the model to make; that of the checkpoint when missing or null."""
    weights_access_token: str | None = None
    """Grants access to somebody else's checkpoint. A secret, and in the body here."""
    type: Literal["load_weights"] = _sent(default="load_weights")
    """Always `load_weights`."""
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "weights_access_token",
        }
    )

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_config", "type", _OPTIMIZER_CONFIG, nullable=True)


class LoadWeightsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoint is loaded."""

    __module__ = "tinker.types"

    path: str | None = None
    """The checkpoint."""
    model_id: str | None = None
    """The model that has it now."""
    type: Literal["load_weights"] | str | None = _sent(default="load_weights")
    """Always `load_weights`."""


class WeightsInfoRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoint to describe."""

    tinker_path: str
    """The checkpoint, `tinker://<training_run_id>/<kind>/<name>`."""


class WeightsInfoResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """From what a checkpoint was made."""

    __module__ = "tinker.types"

    base_model: str
    """The model under the adapter."""
    optimizer_config: _OptimizerConfig = _field(default_factory=lambda: AdamOptimizerConfig())
    """The family of the optimizer, chosen once for the model."""
    is_lora: bool
    """Whether an adapter is trained, and not all weights."""
    lora_rank: int | None = None
    """The rank of the adapter."""
    train_unembed: bool | None = None
    """Whether the unembedding was trained; null when unknown."""
    train_mlp: bool | None = None
    """Whether the MLP layers were trained; null when unknown."""
    train_attn: bool | None = None
    """Whether the attention layers were trained; null when unknown."""

    def __post_init__(self) -> None:
        _read_open(self, "optimizer_config", "type", _OPTIMIZER_CONFIG)


class CopyWeightsRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint to copy, and where to."""

    __module__ = "tinker.types"

    session_id: str | None = None
    """The session that the run of the copy belongs to."""
    model_seq_id: int | None = None
    """The number of the model in its session: 0, 1, 2, ..."""
    destination_project_id: str | None = None
    """The project of the copy."""
    source_path: str
    """A tinker path of any kind."""
    ttl_seconds: TtlSeconds | None = None
    """How long the checkpoint lives; forever when missing or null."""
    weights_access_token: str | None = None
    """Clients send the header instead."""
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "weights_access_token",
        }
    )


class CopyWeightsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The copy."""

    __module__ = "tinker.types"

    tinker_path: str
    """The checkpoint, `tinker://<training_run_id>/<kind>/<name>`."""


ListedCheckpointType: TypeAlias = Literal["training", "sampler", "external"]
"""The listed values of `CheckpointType`."""

CheckpointType: TypeAlias = ListedCheckpointType | str
"""The kinds `weights`, `sampler_weights` and `external_weights` of tinker paths, by their type names."""


class Checkpoint(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint that is stored."""

    __module__ = "tinker.types"

    checkpoint_id: str
    """`<kind>/<name>`: two segments of a path."""
    checkpoint_type: CheckpointType
    """What the checkpoint is for."""
    time: datetime.datetime
    """When it was saved."""
    tinker_path: str
    """The checkpoint, `tinker://<training_run_id>/<kind>/<name>`."""
    size_bytes: int | None = None
    """How much it stores."""
    public: bool = _sent(default=False)
    """Whether everybody can load and sample it."""
    user_metadata: StringMap | None = None
    """What the user wrote about it."""
    expires_at: datetime.datetime | None = None
    """Never when missing or null."""
    base_model: str | None = None
    """The model under the adapter."""


class CheckpointSearchCursor(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The last checkpoint of a page; opaque to clients."""

    __module__ = "tinker.types"

    last_created_at: datetime.datetime
    """With a time zone."""
    last_checkpoint_uuid: str
    """The last checkpoint of the page before, as the server calls it."""


class CheckpointSearchRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Conditions, all of which a checkpoint must meet."""

    __module__ = "tinker.types"

    project_ids: Sequence[str] | None = None
    """Any of them; every project whose checkpoints the user may list when missing."""
    user_metadata: StringMap = _field(default_factory=lambda: {})
    """Pairs that a checkpoint must have, among others."""
    checkpoint_type: CheckpointType | None = None
    """Checkpoints for this alone."""
    owner: SearchOwner = _field(default_factory=lambda: OwnSearchOwner())
    """Whose things are searched."""
    base_models: Sequence[str] | None = None
    """Any of them; none matches an empty list."""
    limit: int = _sent(default=50)
    """How many there are on a page at most."""
    cursor: CheckpointSearchCursor | None = None
    """`next_cursor` of the page before; the first page when missing or null."""


class CheckpointSearchResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A page of checkpoints."""

    __module__ = "tinker.types"

    checkpoints: list[Checkpoint]
    """The checkpoints, newest first."""
    next_cursor: CheckpointSearchCursor | None = None
    """Goes into `cursor` for the next page; missing or null on the last."""


class ExternalWeightsUploadStartRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """An adapter that is about to be sent."""

    __module__ = "tinker.types"

    base_model: str
    """The base model of the adapter."""
    lora_config: LoraConfig
    """The shape of the adapter."""
    destination_project_id: str | None = None
    """The project of the checkpoint; the user's default when missing."""


class ExternalWeightsUploadStartResult(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Where its files go."""

    __module__ = "tinker.types"

    upload_id: str
    """The upload."""
    urls: StringMap
    """Relative file name to signed URL."""
    expires: datetime.datetime
    """When the URLs end."""
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "urls",
        }
    )


class ExternalWeightsUploadFinishRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """An upload whose files are all sent."""

    __module__ = "tinker.types"

    upload_id: str
    """The upload, as `external_weights_upload_start` named it."""


class ExternalWeightsUploadFinishResult(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoint that was made of them."""

    __module__ = "tinker.types"

    tinker_path: str
    """The checkpoint, `tinker://<training_run_id>/<kind>/<name>`."""


class Cursor(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Where a page stands in the whole list."""

    __module__ = "tinker.types"

    offset: int
    """How many come before the page."""
    limit: int
    """How many were asked for."""
    total_count: int
    """How many there are in all."""


class CheckpointsListResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Checkpoints."""

    __module__ = "tinker.types"

    checkpoints: list[Checkpoint]
    """The checkpoints."""
    cursor: Cursor | None = None
    """Where the page stands; null where all are listed."""


class TrainingRun(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A training run."""

    __module__ = "tinker.types"

    training_run_id: str
    """The run, which is the model id."""
    base_model: str
    """The model under the adapter."""
    model_owner: str
    """A URN."""
    is_lora: bool
    """Whether an adapter is trained, and not all weights."""
    corrupted: bool = _sent(default=False)
    """The run failed in a way that it cannot go on from."""
    lora_rank: int | None = None
    """The rank of the adapter."""
    last_request_time: datetime.datetime
    """When it was used last."""
    last_checkpoint: Checkpoint | None = None
    """The newest checkpoint to train on."""
    last_sampler_checkpoint: Checkpoint | None = None
    """The newest checkpoint to sample from."""
    user_metadata: StringMap | None = None
    """What the user wrote about it."""


class TrainingRunsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A page of training runs."""

    __module__ = "tinker.types"

    training_runs: list[TrainingRun]
    """The runs, the one used last first."""
    cursor: Cursor
    """Where the page stands."""


class SetCheckpointTtlRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """How long a checkpoint shall live."""

    ttl_seconds: TtlSeconds | None
    """Seconds from now, an hour to ten years. Null, which is sent, makes the checkpoint stay forever."""


class ExternalWeightsUrlsResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Where the files of a checkpoint are."""

    __module__ = "tinker.types"

    urls: StringMap
    """Relative file name to signed URL."""
    expires: datetime.datetime
    """When the URLs end."""
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "urls",
        }
    )


class CheckpointArchiveUrlResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Deprecated. Where the archive of a checkpoint is."""

    __module__ = "tinker.types"

    url: str
    """A signed URL."""
    expires: datetime.datetime
    """When the URL ends."""
    _secret_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "url",
        }
    )


class CreateSamplingSessionRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A base model or a checkpoint to sample from."""

    __module__ = "tinker.types"

    session_id: str
    """The session."""
    sampling_session_seq_id: int
    """0, 1, 2, ... per session, numbered by the client."""
    base_model: str | None = None
    """The base model; `model_path` is missing then."""
    model_path: str | None = None
    """A tinker path of kind `sampler_weights`; the official client wants `tinker://`, servers have other schemes."""
    type: Literal["create_sampling_session"] = _sent(default="create_sampling_session")
    """Always `create_sampling_session`."""


class CreateSamplingSessionResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling session."""

    __module__ = "tinker.types"

    sampling_session_id: str
    """Opaque; `<session_id>:sample:<n>` on the hosted service."""
    type: Literal["create_sampling_session"] | str = _sent(default="create_sampling_session")
    """Always `create_sampling_session`."""


class JoinSamplingSessionRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling session of which a copy is made."""

    __module__ = "tinker.types"

    sampling_session_id: str
    """The sampling session."""
    type: Literal["join_sampling_session"] = _sent(default="join_sampling_session")
    """Always `join_sampling_session`."""


class JoinSamplingSessionResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The number of the copy."""

    __module__ = "tinker.types"

    client_counter: int
    """Client number k numbers its samples from k times 10⁹."""
    type: Literal["join_sampling_session"] | str = _sent(default="join_sampling_session")
    """Always `join_sampling_session`."""


class GetSamplerResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a sampling session samples from."""

    __module__ = "tinker.types"

    sampler_id: str
    """The sampling session."""
    base_model: str
    """The base model, also under a checkpoint."""
    model_path: str | None = None
    """The checkpoint that it samples from; null for a base model."""
    tokenizer_id: str | None = None
    """A tokenizer to load, as in `ModelData`; missing or null where the name of the base model says which."""


StopCondition: TypeAlias = Any
"""Text pieces, token ids, or one text piece. Absent means the end of text; an empty list disables every stop."""


class SamplingParams(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are drawn."""

    max_tokens: int | None = None
    """To the end of the context when missing."""
    seed: int | None = None
    """The same seed draws the same tokens, where nothing else changes."""
    stop: StopCondition | None = None
    """What ends a sample. The token that ends it is its last one, and the stop reason is `stop`."""
    temperature: float = _sent(default=1.0)
    """0 takes the likeliest token, 1 draws by the probabilities of the model."""
    top_k: int = _sent(default=-1)
    """-1 means all tokens."""
    top_p: float = _sent(default=1.0)
    """Draw from the likeliest tokens that have this much probability together."""
    min_p: float | None = None
    """An extension: leave out the tokens that are less likely than this part of the likeliest one, after the
    temperature and before `top_k` and `top_p`. A server without it ignores it, or refuses it by name.
    """
    presence_penalty: float | None = None
    """An extension: subtract this from the logit of each token that has been drawn."""
    frequency_penalty: float | None = None
    """An extension: subtract this from the logit of a token for each time that it has been drawn."""
    repetition_penalty: float | None = None
    """An extension: of each token of the prompt and of the sample so far, divide a positive logit by this, and multiply
    a negative one by it. It comes before the other two penalties.
    """
    json_schema: JSONSchema | None = None
    """An extension: draw only tokens whose text can become a JSON value that this schema allows. Log-probabilities stay
    those of the model. A server without it ignores it, or refuses it by name.
    """
    priority: int | None = None
    """An extension: of the samples that wait for their turn, those with the lowest number begin first, and those with
    the same number in their order. Without it the number is 0.
    """


class SampleRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Addressed by `sampling_session_id` with `seq_id`, or by `base_model` or `model_path` alone."""

    num_samples: int = _sent(default=1)
    """How many continuations."""
    prompt: ModelInput
    """What is continued."""
    sampling_params: SamplingParams
    """How the tokens are drawn."""
    base_model: str | None = None
    """Without a session: the base model to sample from."""
    model_path: str | None = None
    """Without a session: the checkpoint to sample from."""
    sampling_session_id: str | None = None
    """What to sample from."""
    seq_id: int | None = None
    """0, 1, 2, ... per client of the session, plus 10⁹ times the number of a copy: up to about 10¹⁸, more than a double
    holds.
    """
    prompt_logprobs: bool = _sent(default=False)
    """Score the tokens of the prompt too."""
    topk_prompt_logprobs: int = _sent(default=0)
    """How many of the likeliest tokens to answer for each token of the prompt."""
    topk_sample_logprobs: int = _sent(default=0)
    """How many of the likeliest tokens to answer for each token that is drawn."""
    target_prompt_logprobs: TensorData | None = None
    """Token ids to score, int64, one row less than the prompt has tokens; row i belongs to position i+1, and -1 means
    nothing.
    """
    prompt_alt_tokens_k: int = _sent(default=0)
    """How many drawn alternatives of each prompt token to answer."""
    prompt_logprobs_last_n: int | None = None
    """Only that many positions at the end of the prompt are scored; needs `prompt_logprobs`."""
    record_stability_info: bool = _sent(default=False)
    """Keep what `stable_reinforce` needs of each sequence, for training requests of the same session that name its
    `sequence_id`.
    """
    type: Literal["sample"] = _sent(default="sample")
    """Always `sample`."""


StopReason: TypeAlias = Literal["length", "stop"] | str
"""Why a sample ended."""

TokenLogprob: TypeAlias = tuple[int, float]
"""A token id and its log-probability."""


class SampledSequence(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """One continuation."""

    stop_reason: StopReason
    """Why it ended."""
    tokens: list[int]
    """What was drawn."""
    logprobs: list[float] | None = None
    """The logprob of each token; null when the server gives none."""
    sequence_id: str | None = None
    """The id of the continuation."""
    topk_logprobs: list[list[TokenLogprob] | None] | None = None
    """The likeliest tokens at the place of each token, best first."""


class SampleResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON form of the message `tinker_public.SampleResponse`."""

    sequences: list[SampledSequence]
    """The continuations, as many as were asked for."""
    prompt_logprobs: list[float | None] | None = None
    """One for each prompt token; null where there is none (the first)."""
    topk_prompt_logprobs: list[list[TokenLogprob] | None] | None = None
    """The likeliest tokens at the place of each token of the prompt; null for the first."""
    prompt_cache_hit_tokens: int | None = None
    """How many tokens of the prompt were found in a cache."""
    type: Literal["sample"] | str = _sent(default="sample")
    """Always `sample`."""


SampleStreamEventType: TypeAlias = Literal["tokens", "done", "failed"] | str
"""What an event of a stream says."""


class SampleStreamEvent(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Some tokens of one sample, or the end of the stream."""

    type: SampleStreamEventType
    """A client ignores types that it does not know."""
    index: int = _sent(default=0)
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
    """The promise of a result."""

    __module__ = "tinker.types"

    request_id: str
    """Opaque, and the same for the same request submitted again."""
    model_id: str | None = None
    """The model that the request is for, where there is one."""
    sample_sequence_ids: list[str] | None = None
    """One for each sample; `asample` only."""


class FutureRetrieveRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The result to fetch."""

    __module__ = "tinker.types"

    request_id: str
    """As the submission was answered."""
    allow_metadata_only: bool = _sent(default=False)
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
"""What `retrieve_future` answers in JSON. With the type `try_again`, ask again; with the status `complete_metadata`,
ask for a body of that size; with an `error`, the request has failed; otherwise this is the result of the submitted
operation.
"""


class FutureStatus(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer of `retrieve_future` says about the future, whatever else it holds."""

    type: str | None = None
    """`try_again` while there is no result."""
    status: str | None = None
    """`complete_metadata` for a large result."""
    request_id: str | None = None
    """The submitted request."""
    queue_state: QueueState | None = None
    """Why it waits, or that it runs."""
    queue_state_reason: str | None = None
    """For the user."""
    response_payload_size: int | None = None
    """How many bytes the result has."""
    error: JSONValue | None = None
    """What went wrong."""
    category: str | None = None
    """Whose fault it is."""
    failed_operation: str | None = None
    """The operation before it for whose failure it was not run."""
    detail: JSONValue | None = None
    """What was wrong, from servers that answer failures as a status."""


class TryAgainResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Still queued or running."""

    __module__ = "tinker.types"

    type: Literal["try_again"] = _sent(default="try_again")
    """Always `try_again`."""
    request_id: str
    """The submitted request."""
    queue_state: QueueState
    """Why it waits, or that it runs."""
    queue_state_reason: str | None = None
    """For the user."""


class FutureMetadataResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """There is a large result; ask again for it."""

    status: Literal["complete_metadata"] = _sent(default="complete_metadata")
    """Always `complete_metadata`."""
    request_id: str | None = None
    """The submitted request."""
    response_payload_size: int
    """Bytes of the body that will be sent."""


class SamplingSessionFuturesTarget(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The samples of one client of a sampling session."""

    __module__ = "tinker.types"

    type: Literal["sampling_session"] = _sent(default="sampling_session")
    """Always `sampling_session`."""
    sampling_session_id: str
    """The sampling session."""
    cloned_sampler_id: int = _sent(default=0)
    """The number of the client: `seq_id` of its requests divided by 10⁹."""


class FuturesRetrieveRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """Whose completions to tell, and from where on."""

    __module__ = "tinker.types"

    target: SamplingSessionFuturesTarget
    """Whose requests."""
    prev_cursor: int = _sent(default=0)
    """The cursor of the last answer; 0 at first."""
    timeout: float | None = None
    """Seconds to hold the request; missing means about 30, and 0 answers at once."""
    retrieved_request_ids: Sequence[str] = _field(default_factory=lambda: [])
    """Requests whose result or error was fetched since the last poll, sorted."""


class FutureFinished(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="state", tag="finished"):
    """A request that has a result."""

    __module__ = "tinker.types"

    request_id: str
    """The submitted request."""
    response_payload_uncompressed_size: int | None = None
    """Bytes of the result; a client makes room for that much."""

    @property
    def state(self) -> Literal["finished"]:
        """Always `finished`."""
        return "finished"


class FutureFailed(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="state", tag="failed"):
    """A request that failed; its error is fetched like a result."""

    __module__ = "tinker.types"

    request_id: str
    """The submitted request."""

    @property
    def state(self) -> Literal["failed"]:
        """Always `failed`."""
        return "failed"


_FUTURE_COMPLETION: dict[str, type[msgspec.Struct]] = {
    "finished": FutureFinished,
    "failed": FutureFailed,
}
FutureCompletion: TypeAlias = FutureFinished | FutureFailed | dict[str, Any]
"""One completed request.

A member with another state is a dictionary.
"""
if TYPE_CHECKING:
    _FutureCompletion: TypeAlias = FutureCompletion
else:  # msgspec decodes no union of records and dictionaries
    _FutureCompletion = Any


class FuturesRetrieveResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What has completed."""

    __module__ = "tinker.types"

    completions: list[_FutureCompletion]
    """The requests, oldest first."""
    cursor: int
    """Opaque; the next request has it in `prev_cursor`."""

    def __post_init__(self) -> None:
        _read_open(self, "completions", "state", _FUTURE_COMPLETION, many=True)


class CancelFutureRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A request that nobody waits for."""

    request_id: str
    """The submitted request."""


Severity: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
"""How grave an event is."""


class SessionStartEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="SESSION_START"):
    """A client has begun."""

    __module__ = "tinker.types"

    event_id: str
    """Unique."""
    event_session_index: int
    """0, 1, 2, ... per session."""
    severity: Severity
    """How grave it is."""
    timestamp: datetime.datetime
    """When it happened."""

    @property
    def event(self) -> Literal["SESSION_START"]:
        """Always `SESSION_START`."""
        return "SESSION_START"


class SessionEndEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="SESSION_END"):
    """A client has ended."""

    __module__ = "tinker.types"

    duration: str
    """As Python prints a time difference: `H:MM:SS.ffffff`."""
    event_id: str
    """A new id for each event, by which a repeated one is known."""
    event_session_index: int
    """Its place among the events of the session: 0, 1, 2, ..."""
    severity: Severity
    """How grave it is."""
    timestamp: datetime.datetime
    """When it happened."""

    @property
    def event(self) -> Literal["SESSION_END"]:
        """Always `SESSION_END`."""
        return "SESSION_END"


class UnhandledExceptionEvent(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="UNHANDLED_EXCEPTION"
):
    """A program ended with an exception."""

    __module__ = "tinker.types"

    error_message: str
    """The text of the exception."""
    error_type: str
    """The name of its class."""
    event_id: str
    """A new id for each event, by which a repeated one is known."""
    event_session_index: int
    """Its place among the events of the session: 0, 1, 2, ..."""
    severity: Severity
    """How grave it is."""
    timestamp: datetime.datetime
    """When it happened."""
    traceback: str | None = None
    """Where it was raised."""

    @property
    def event(self) -> Literal["UNHANDLED_EXCEPTION"]:
        """Always `UNHANDLED_EXCEPTION`."""
        return "UNHANDLED_EXCEPTION"


class GenericEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="GENERIC_EVENT"):
    """Something else."""

    __module__ = "tinker.types"

    event_id: str
    """A new id for each event, by which a repeated one is known."""
    event_name: str
    """What happened."""
    event_session_index: int
    """Its place among the events of the session: 0, 1, 2, ..."""
    severity: Severity
    """How grave it is."""
    timestamp: datetime.datetime
    """When it happened."""
    event_data: Metadata = _field(default_factory=lambda: {})
    """More about it."""

    @property
    def event(self) -> Literal["GENERIC_EVENT"]:
        """Always `GENERIC_EVENT`."""
        return "GENERIC_EVENT"


TelemetryEvent: TypeAlias = SessionStartEvent | SessionEndEvent | UnhandledExceptionEvent | GenericEvent
"""Something that a client reports about itself."""


class TelemetrySendRequest(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A batch of events of one session."""

    __module__ = "tinker.types"

    events: Sequence[TelemetryEvent]
    """The events."""
    platform: str
    """Linux, Darwin or Windows."""
    sdk_version: str
    """The version of the client."""
    session_id: str
    """`sessionless-<uuid>` where there is no session."""
    process_uuid: str | None = None
    """One for each process of a client."""


class TelemetryResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The events have arrived."""

    __module__ = "tinker.types"

    status: Literal["accepted"] | str = _sent(default="accepted")
    """Always `accepted`."""


AccessScope: TypeAlias = Literal["owned", "accessible"]
"""What belongs to the user, or everything the user may see."""

AuditEventType: TypeAlias = Literal["all", "checkpoints", "projects", "teams", "organizations"] | str
"""What the audit log tells apart."""


class AuditLogEntry(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit log."""

    __module__ = "tinker.types"

    timestamp: datetime.datetime
    """When it happened."""
    event: str
    """What happened."""
    event_details: Metadata = _field(default_factory=lambda: {})
    """More about it, as the kind of event has it."""
    model_id: str | None = None
    """The model it was about."""
    tinker_path: str | None = None
    """The checkpoint it was about."""
    purpose: str | None = None
    """Why it was done."""


class AuditLogResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The audit log."""

    __module__ = "tinker.types"

    entries: list[AuditLogEntry]
    """The lines, oldest first."""


class TrainingBillingEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="training"):
    """Tokens that were trained on."""

    __module__ = "tinker.types"

    token_count: int
    """How many tokens were charged."""

    @property
    def type(self) -> Literal["training"]:
        """Always `training`."""
        return "training"


class SamplingPrefillBillingEvent(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="sampling_prefill"
):
    """Tokens of prompts."""

    __module__ = "tinker.types"

    cached: bool
    """Whether they were found in a cache, which costs less."""
    token_count: int
    """How many tokens were charged."""

    @property
    def type(self) -> Literal["sampling_prefill"]:
        """Always `sampling_prefill`."""
        return "sampling_prefill"


class SamplingSampleBillingEvent(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="sampling_sample"
):
    """Tokens that were drawn."""

    __module__ = "tinker.types"

    token_count: int
    """How many tokens were charged."""

    @property
    def type(self) -> Literal["sampling_sample"]:
        """Always `sampling_sample`."""
        return "sampling_sample"


class CheckpointBillingEvent(
    _Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="checkpoint"
):
    """Checkpoints that were saved."""

    __module__ = "tinker.types"

    count: int
    """How many."""

    @property
    def type(self) -> Literal["checkpoint"]:
        """Always `checkpoint`."""
        return "checkpoint"


class StorageBillingEvent(_Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="storage"):
    """Storage of checkpoints."""

    __module__ = "tinker.types"

    free: bool = _sent(default=False)
    """Whether it costs nothing."""
    gigabyte_hours: float
    """How much for how long."""

    @property
    def type(self) -> Literal["storage"]:
        """Always `storage`."""
        return "storage"


_BILLING_EVENT_INFO: dict[str, type[msgspec.Struct]] = {
    "training": TrainingBillingEvent,
    "sampling_prefill": SamplingPrefillBillingEvent,
    "sampling_sample": SamplingSampleBillingEvent,
    "checkpoint": CheckpointBillingEvent,
    "storage": StorageBillingEvent,
}
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
if TYPE_CHECKING:
    _BillingEventInfo: TypeAlias = BillingEventInfo
else:  # msgspec decodes no union of records and dictionaries
    _BillingEventInfo = Any


class BillingUsageEvent(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What one user used of one kind within an hour."""

    __module__ = "tinker.types"

    bucket_start: datetime.datetime
    """The full hour it begins with."""
    bucket_end: datetime.datetime
    """The full hour it ends before."""
    base_model: str | None = None
    """The base model that was used."""
    user_id: str | None = None
    """The user."""
    user_name: str | None = None
    """The name of the user."""
    session_id: str | None = None
    """The session that used it."""
    project_id: str | None = None
    """The project of the session."""
    estimated_cost_usd: float | None = None
    """What it is estimated to cost, in US dollars."""
    effective_rate_usd_per_million_tokens: float | None = None
    """The price of tokens, in US dollars."""
    effective_rate_usd_per_gigabyte_month: float | None = None
    """The price of storage, in US dollars."""
    event_info: _BillingEventInfo
    """What was used."""

    def __post_init__(self) -> None:
        _read_open(self, "event_info", "type", _BILLING_EVENT_INFO)


class BillingUsageSession(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A session of the usage."""

    __module__ = "tinker.types"

    user_metadata: StringMap | None = None
    """What the user wrote about it."""


BillingUsageSessions: TypeAlias = dict[str, BillingUsageSession]
"""Session id to what is known of it."""


class BillingUsageResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """The usage of some hours."""

    __module__ = "tinker.types"

    data: list[BillingUsageEvent]
    """What was used."""
    sessions: BillingUsageSessions = _field(default_factory=lambda: {})
    """The sessions that used it, by id."""
    cost_data_through: datetime.datetime | None = None
    """Costs are known up to here."""


class CurrentCheckpointStorageUsageItem(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What the checkpoints of one user in one project store."""

    __module__ = "tinker.types"

    project_id: str | None = None
    """The project."""
    org_user_urn: str | None = None
    """The URN of the user."""
    user_email: str | None = None
    """The address of the user."""
    user_name: str | None = None
    """The name of the user."""
    checkpoint_count: int
    """How many checkpoints."""
    size_bytes: int
    """How many bytes."""
    size_gigabytes: float
    """The same in gigabytes."""
    estimated_monthly_cost_usd: float | None = None
    """What it is estimated to cost in a month, in US dollars."""


class CurrentCheckpointStorageUsageResponse(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """What checkpoints store now."""

    __module__ = "tinker.types"

    effective_rate_usd_per_gigabyte_month: float | None = None
    """The price of storage, in US dollars."""
    data: list[CurrentCheckpointStorageUsageItem]
    """By project and user."""
