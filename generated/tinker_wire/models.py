# generated from openapi.yaml; do not edit
"""Every named schema of the contract: records as frozen structs, the rest as type aliases.

A field that is None is not sent, unless it is required; a field with another default is always sent.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import field as _field

__all__ = [
    "AdamOptimizerConfig",
    "AdamParams",
    "ClientConfigRequest",
    "ClientConfigResponse",
    "ClientDynamicConfigResponse",
    "ClientSessionFinishReason",
    "ClientSessionFinishReasonType",
    "CreateModelRequest",
    "CreateModelResponse",
    "CreateSamplingSessionRequest",
    "CreateSamplingSessionResponse",
    "CreateSessionRequest",
    "CreateSessionResponse",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
    "ErrorResponse",
    "FinishSessionRequest",
    "ForwardBackwardInput",
    "ForwardBackwardOutput",
    "ForwardBackwardRequest",
    "ForwardRequest",
    "FutureMetadataResponse",
    "FutureRetrieveRequest",
    "FutureStatus",
    "GenericEvent",
    "GetInfoRequest",
    "GetInfoResponse",
    "GetSamplerResponse",
    "GetServerCapabilitiesResponse",
    "HealthResponse",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "ImageFormat",
    "JSONValue",
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
    "QueueState",
    "RequestErrorCategory",
    "RequestFailedResponse",
    "SampleRequest",
    "SampleResponse",
    "SampledSequence",
    "SamplingClientKind",
    "SamplingParams",
    "SaveWeightsForSamplerRequest",
    "SaveWeightsForSamplerResponseInternal",
    "SaveWeightsRequest",
    "SaveWeightsResponse",
    "SessionEndEvent",
    "SessionHeartbeatRequest",
    "SessionHeartbeatResponse",
    "SessionStartEvent",
    "Severity",
    "StopCondition",
    "StopReason",
    "StringMap",
    "SupportedModel",
    "TelemetryEvent",
    "TelemetryResponse",
    "TelemetrySendRequest",
    "TensorData",
    "TensorDtype",
    "TensorMap",
    "TokenLogprob",
    "TryAgainResponse",
    "UnhandledExceptionEvent",
    "UntypedAPIFuture",
]


JSONValue: TypeAlias = Any
"""Any JSON value."""

RequestErrorCategory: TypeAlias = Literal["unknown", "server", "user"] | str
"""Whose fault a failed request is."""

ClientSessionFinishReasonType: TypeAlias = Literal["success", "errored", "interrupted"]

TensorDtype: TypeAlias = Literal["int64", "float32"]

ImageFormat: TypeAlias = Literal["png", "jpeg"]

LossFnType: TypeAlias = (
    Literal["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce", "custom"] | str
)
"""Losses known by name; a server may know others."""

LossFnConfig: TypeAlias = dict[str, float | str]

MetricMap: TypeAlias = dict[str, float]
"""Keys are `name:reduction`; the reduction says how values of several chunks combine."""

StringMap: TypeAlias = dict[str, str]

SamplingClientKind: TypeAlias = Literal["snapshot", "inflight"]

StopCondition: TypeAlias = Any
"""Text pieces, token ids, or one text piece. Absent means the end of text; an empty list disables every stop."""

StopReason: TypeAlias = Literal["length", "stop"] | str

TokenLogprob: TypeAlias = tuple[int, float]
"""A token id and its log-probability."""

QueueState: TypeAlias = Literal["active", "paused_capacity", "paused_rate_limit"] | str

Severity: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an error status; anything else than this shape must be tolerated."""

    detail: JSONValue | None = None


class RequestFailedResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A submitted request failed."""

    error: str
    category: RequestErrorCategory


class HealthResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str


class ClientConfigRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    sdk_version: str


class ClientConfigResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits and switches the server wants of a client. Missing keys mean the default."""

    pjwt_auth_enabled: bool = _field(default_factory=lambda: False)
    """Exchange the key for a short-lived JWT."""
    credential_default_source: str = _field(default_factory=lambda: "api_key")
    sample_dispatch_bytes_semaphore_size: int = _field(default_factory=lambda: 10485760)
    """Estimated prompt bytes that may be in submission at once."""
    inflight_response_bytes_semaphore_size: int = _field(default_factory=lambda: 52428800)
    """Bytes of large results that may be fetched and decoded at once."""
    parallel_fwdbwd_chunks: bool = _field(default_factory=lambda: True)
    """Chunks of one call are submitted together, the first one last."""
    proto_compress_fwdbwd: bool = _field(default_factory=lambda: False)
    """Send protobuf bodies zstd-compressed."""
    fwdbwd_max_chunk_len: int = _field(default_factory=lambda: 1024)
    """Most datums in one request."""
    fwdbwd_max_chunk_bytes_count: int = _field(default_factory=lambda: 5000000)
    """Most estimated bytes in one request."""
    fwdbwd_dispatch_bytes_semaphore_size: int = _field(default_factory=lambda: 50000000)
    """Estimated training bytes that may be in submission at once."""
    billing_exception_max_pause_duration_sec: int = _field(default_factory=lambda: 3600)
    sample_no_retries: bool = _field(default_factory=lambda: False)
    sample_enable_stuck_detection: bool = _field(default_factory=lambda: True)
    sample_max_concurrent_requests: int = _field(default_factory=lambda: 2000)
    use_pyqwest_transport: bool = _field(default_factory=lambda: True)
    sample_use_retrieve_futures: bool = _field(default_factory=lambda: False)
    custom_loss_server_side: bool = _field(default_factory=lambda: False)
    sample_join_sampling_session: bool = _field(default_factory=lambda: False)


class ClientDynamicConfigResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    refresh_interval_sec: int = _field(default_factory=lambda: 300)
    sample_cancel_enabled: bool = _field(default_factory=lambda: False)
    sample_cancel_max_batch_size: int = _field(default_factory=lambda: 64)


class CreateSessionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    tags: Sequence[str]
    user_metadata: Metadata | None = None
    sdk_version: str
    project_id: str | None = None
    display_name: str | None = None
    type: Literal["create_session"] = _field(default_factory=lambda: "create_session")


class CreateSessionResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    session_id: str
    info_message: str | None = None
    """To be logged for the user."""
    warning_message: str | None = None
    error_message: str | None = None
    type: Literal["create_session"] | str = _field(default_factory=lambda: "create_session")


class SessionHeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    session_id: str
    type: Literal["session_heartbeat"] = _field(default_factory=lambda: "session_heartbeat")


class SessionHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["session_heartbeat"] | str = _field(default_factory=lambda: "session_heartbeat")


class ClientSessionFinishReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: ClientSessionFinishReasonType


class FinishSessionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    reason: ClientSessionFinishReason
    detail: str | None
    """Sent as null when there is nothing to say."""


class SupportedModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_name: str | None = None
    max_context_length: int | None = None
    trainable: bool | None = None
    sampleable: bool | None = None


class GetServerCapabilitiesResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    supported_models: list[SupportedModel]


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    rank: int
    seed: int | None = None
    train_unembed: bool = _field(default_factory=lambda: True)
    train_mlp: bool = _field(default_factory=lambda: True)
    train_attn: bool = _field(default_factory=lambda: True)


class AdamOptimizerConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="adamw"):
    @property
    def type(self) -> Literal["adamw"]:
        """Always sent; the union is told apart by it."""
        return "adamw"


class DimuonOptimizerConfig(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="dimuon"
):
    version: int = _field(default_factory=lambda: 1)

    @property
    def type(self) -> Literal["dimuon"]:
        """Always sent; the union is told apart by it."""
        return "dimuon"


class CreateModelRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    session_id: str
    model_seq_id: int
    """0, 1, 2, ... per session, numbered by the client."""
    base_model: str
    user_metadata: Metadata | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = _field(default_factory=lambda: AdamOptimizerConfig())
    type: Literal["create_model"] = _field(default_factory=lambda: "create_model")


class CreateModelResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str
    """`<session_id>:train:<model_seq_id>` on the hosted service; opaque elsewhere."""
    type: Literal["create_model"] | str = _field(default_factory=lambda: "create_model")


class GetInfoRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str
    type: Literal["get_info"] = _field(default_factory=lambda: "get_info")


class ModelData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    arch: str | None = None
    model_name: str | None = None
    tokenizer_id: str | None = None
    """A tokenizer to load; what follows the first `:` is a revision."""


class GetInfoResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_data: ModelData
    model_id: str
    optimizer_config: JSONValue | None = None
    is_lora: bool | None = None
    lora_rank: int | None = None
    model_name: str | None = None
    type: Literal["get_info"] | str = _field(default_factory=lambda: "get_info")


class TensorData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor in JSON, flattened row-major. With both `sparse_*` fields it is CSR: `data` holds the listed values and
    `shape` is required; absent entries are 0 in loss inputs and -1 in `target_prompt_logprobs`.
    """

    data: Sequence[int | float]
    dtype: TensorDtype
    shape: Sequence[int] | None = None
    sparse_crow_indices: Sequence[int] | None = None
    sparse_col_indices: Sequence[int] | None = None


class EncodedTextChunk(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="encoded_text"
):
    tokens: Sequence[int]

    @property
    def type(self) -> Literal["encoded_text"]:
        """Always sent; the union is told apart by it."""
        return "encoded_text"


class ImageChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="image"):
    data: bytes
    format: ImageFormat
    expected_tokens: int | None = None

    @property
    def type(self) -> Literal["image"]:
        """Always sent; the union is told apart by it."""
        return "image"


class ImageAssetPointerChunk(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="image_asset_pointer"
):
    format: ImageFormat
    location: str
    expected_tokens: int | None = None

    @property
    def type(self) -> Literal["image_asset_pointer"]:
        """Always sent; the union is told apart by it."""
        return "image_asset_pointer"


class DmelChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="dmel"):
    dmel: bytes

    @property
    def type(self) -> Literal["dmel"]:
        """Always sent; the union is told apart by it."""
        return "dmel"


class ModelInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    chunks: Sequence[ModelInputChunk]


class Datum(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    loss_fn_inputs: TensorMap
    model_input: ModelInput


class ForwardBackwardInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    data: Sequence[Datum]
    loss_fn: LossFnType
    loss_fn_config: LossFnConfig | None = None


class ForwardBackwardRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    forward_backward_input: ForwardBackwardInput
    model_id: str
    seq_id: int | None = None


class ForwardRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    forward_input: ForwardBackwardInput
    model_id: str
    seq_id: int | None = None


class ForwardBackwardOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON form of the message `tinker_public.ForwardBackwardOutput`."""

    loss_fn_output_type: str = _field(default_factory=lambda: "ArrayRecord")
    loss_fn_outputs: list[TensorMap]
    metrics: MetricMap = _field(default_factory=lambda: {})


class AdamParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    learning_rate: float = _field(default_factory=lambda: 0.0001)
    beta1: float = _field(default_factory=lambda: 0.9)
    beta2: float = _field(default_factory=lambda: 0.95)
    eps: float = _field(default_factory=lambda: 1e-12)
    weight_decay: float = _field(default_factory=lambda: 0.0)
    """Decoupled weight decay."""
    grad_clip_norm: float = _field(default_factory=lambda: 0.0)
    """Largest global gradient norm; 0 means no clipping."""


class DimuonParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["dimuon"] = _field(default_factory=lambda: "dimuon")
    learning_rate: float
    grad_clip_norm: float = _field(default_factory=lambda: 0.0)
    beta1: float = _field(default_factory=lambda: 0.9)


class OptimStepRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str
    seq_id: int | None = None
    type: Literal["optim_step"] = _field(default_factory=lambda: "optim_step")
    adam_params: AdamParams | None = None
    optimizer_params: DimuonParams | None = None


class OptimStepResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    metrics: MetricMap | None = None
    type: Literal["optim_step"] | str = _field(default_factory=lambda: "optim_step")


class SaveWeightsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str
    path: str | None = None
    """The checkpoint name, not a full path."""
    seq_id: int | None = None
    ttl_seconds: int | None = None
    overwrite: bool = _field(default_factory=lambda: False)
    user_metadata: StringMap | None = None
    type: Literal["save_weights"] = _field(default_factory=lambda: "save_weights")


class SaveWeightsResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    """`tinker://<training_run_id>/weights/<name>`"""
    type: Literal["save_weights"] | str = _field(default_factory=lambda: "save_weights")


class SaveWeightsForSamplerRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: SamplingClientKind = _field(default_factory=lambda: "snapshot")
    seq_id: int | None = None
    ttl_seconds: int | None = None
    user_metadata: StringMap | None = None
    type: Literal["save_weights_for_sampler"] = _field(default_factory=lambda: "save_weights_for_sampler")


class SaveWeightsForSamplerResponseInternal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str | None = None
    sampling_session_id: str | None = None
    type: Literal["save_weights_for_sampler"] | str = _field(default_factory=lambda: "save_weights_for_sampler")


class LoadWeightsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: Metadata | None = None
    path: str
    optimizer: bool
    """Restore the optimizer state too."""
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None
    type: Literal["load_weights"] = _field(default_factory=lambda: "load_weights")


class LoadWeightsResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str | None = None
    model_id: str | None = None
    type: Literal["load_weights"] | str = _field(default_factory=lambda: "load_weights")


class CreateSamplingSessionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None
    type: Literal["create_sampling_session"] = _field(default_factory=lambda: "create_sampling_session")


class CreateSamplingSessionResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    sampling_session_id: str
    type: Literal["create_sampling_session"] | str = _field(default_factory=lambda: "create_sampling_session")


class GetSamplerResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    sampler_id: str
    base_model: str
    model_path: str | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    max_tokens: int | None = None
    seed: int | None = None
    stop: StopCondition | None = None
    temperature: float = _field(default_factory=lambda: 1.0)
    top_k: int = _field(default_factory=lambda: -1)
    top_p: float = _field(default_factory=lambda: 1.0)


class SampleRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    num_samples: int = _field(default_factory=lambda: 1)
    prompt: ModelInput
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    """0 to about 10^18; more than a double holds."""
    prompt_logprobs: bool = _field(default_factory=lambda: False)
    topk_prompt_logprobs: int = _field(default_factory=lambda: 0)
    topk_sample_logprobs: int = _field(default_factory=lambda: 0)
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: int = _field(default_factory=lambda: 0)
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool = _field(default_factory=lambda: False)
    type: Literal["sample"] = _field(default_factory=lambda: "sample")


class SampledSequence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    stop_reason: StopReason
    tokens: list[int]
    logprobs: list[float] | None = None
    sequence_id: str | None = None
    topk_logprobs: list[list[TokenLogprob] | None] | None = None


class SampleResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON form of the message `tinker_public.SampleResponse`."""

    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | None = None
    topk_prompt_logprobs: list[list[TokenLogprob] | None] | None = None
    prompt_cache_hit_tokens: int | None = None
    type: Literal["sample"] | str = _field(default_factory=lambda: "sample")


class UntypedAPIFuture(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    request_id: str
    model_id: str | None = None
    sample_sequence_ids: list[str] | None = None


class FutureRetrieveRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    request_id: str
    allow_metadata_only: bool = _field(default_factory=lambda: False)


class FutureStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer of `retrieve_future` says about the future, whatever else it holds."""

    type: str | None = None
    status: str | None = None
    request_id: str | None = None
    queue_state: QueueState | None = None
    queue_state_reason: str | None = None
    response_payload_size: int | None = None
    error: JSONValue | None = None
    category: str | None = None
    detail: JSONValue | None = None


class TryAgainResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["try_again"] = _field(default_factory=lambda: "try_again")
    request_id: str
    queue_state: QueueState
    queue_state_reason: str | None = None


class FutureMetadataResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: Literal["complete_metadata"] = _field(default_factory=lambda: "complete_metadata")
    request_id: str
    response_payload_size: int


class SessionStartEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="SESSION_START"
):
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime.datetime

    @property
    def event(self) -> Literal["SESSION_START"]:
        """Always sent; the union is told apart by it."""
        return "SESSION_START"


class SessionEndEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="SESSION_END"
):
    duration: str
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime.datetime

    @property
    def event(self) -> Literal["SESSION_END"]:
        """Always sent; the union is told apart by it."""
        return "SESSION_END"


class UnhandledExceptionEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="UNHANDLED_EXCEPTION"
):
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


class GenericEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="GENERIC_EVENT"
):
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


class TelemetrySendRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    events: Sequence[TelemetryEvent]
    platform: str
    sdk_version: str
    session_id: str
    process_uuid: str


class TelemetryResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str


Metadata: TypeAlias = dict[str, JSONValue]
"""Free key/value pairs of the user; the values are strings in the SDKs, the wire takes any JSON."""

OptimizerConfig: TypeAlias = AdamOptimizerConfig | DimuonOptimizerConfig

ModelInputChunk: TypeAlias = EncodedTextChunk | ImageChunk | ImageAssetPointerChunk | DmelChunk

TensorMap: TypeAlias = dict[str, TensorData]

TelemetryEvent: TypeAlias = SessionStartEvent | SessionEndEvent | UnhandledExceptionEvent | GenericEvent
