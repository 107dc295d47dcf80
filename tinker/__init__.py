"""tinker: an independent client for the Tinker training and sampling API.

    import tinker

    service = tinker.ServiceClient(base_url="local://")
    training = service.create_lora_training_client(base_model="tinker/babble", rank=16)

Names are loaded on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tinker._version import OPEN_VERSION, __title__, __version__

if TYPE_CHECKING:
    from httpx import Timeout

    from tinker import auth, types
    from tinker import checkpoints as checkpoints
    from tinker import circuit_breaker as circuit_breaker
    from tinker import errors as errors
    from tinker import lib as lib
    from tinker import local as local
    from tinker import observing as observing
    from tinker import proto as proto
    from tinker import recovery as recovery
    from tinker import regularizers as regularizers
    from tinker import testing as testing
    from tinker import usage as usage
    from tinker import wire as wire
    from tinker._config import Config as Config
    from tinker._tokenizers import get_tokenizer
    from tinker.admin_client import AdminClient
    from tinker.circuit_breaker import CircuitBreaker
    from tinker.custom_loss import LossHandle, PerDatumLossFn, with_gradients
    from tinker.errors import (
        APIConnectionError,
        APIError,
        APIResponseValidationError,
        APIStatusError,
        APITimeoutError,
        AuthenticationError,
        BadRequestError,
        BillingError,
        CircuitOpenError,
        ClientClosedError,
        ConflictError,
        ExperimentalWarning,
        InternalServerError,
        LossTermError,
        NotFoundError,
        PermissionDeniedError,
        PrecedingRequestFailed,
        RateLimitError,
        RefusedResultError,
        RequestFailedError,
        SampleStreamError,
        SessionLostError,
        TinkerError,
        UnknownIdentityError,
        UnprocessableEntityError,
    )
    from tinker.futures import APIFuture
    from tinker.lib.public_interfaces import BackcompatSamplingClientFuture, BackcompatTrainingClientFuture
    from tinker.lib.request_options import RequestOptions
    from tinker.observing.progress import progress as progress
    from tinker.rest_client import RestClient
    from tinker.sampling_client import SamplingClient
    from tinker.service_client import ServiceClient
    from tinker.streaming import SampleStream
    from tinker.training_client import TrainingClient
    from tinker.types import (
        AdamOptimizerConfig,
        AdamParams,
        Checkpoint,
        CheckpointType,
        Datum,
        DimuonOptimizerConfig,
        DimuonParams,
        DmelChunk,
        EncodedTextChunk,
        ForwardBackwardOutput,
        ImageAssetPointerChunk,
        ImageChunk,
        LoraConfig,
        LossFnType,
        ModelID,
        ModelInput,
        ModelInputChunk,
        OptimParams,
        OptimStepRequest,
        OptimStepResponse,
        ParsedCheckpointTinkerPath,
        PromptProvenanceSpan,
        SampledProvenanceSpan,
        SampledSequence,
        SampleRequest,
        SampleResponse,
        SamplingParams,
        StopReason,
        TensorData,
        TensorDtype,
        TrainingRun,
    )

_ERRORS = (
    "APIConnectionError APIError APIResponseValidationError APIStatusError APITimeoutError AuthenticationError "
    "BadRequestError BillingError CircuitOpenError ClientClosedError ConflictError ExperimentalWarning InternalServerError "
    "LossTermError NotFoundError PermissionDeniedError PrecedingRequestFailed RateLimitError RefusedResultError "
    "RequestFailedError SampleStreamError SessionLostError TinkerError UnknownIdentityError UnprocessableEntityError"
)
_TYPES = (
    "AdamOptimizerConfig AdamParams Checkpoint CheckpointType Datum DimuonOptimizerConfig DimuonParams DmelChunk "
    "EncodedTextChunk ForwardBackwardOutput ImageAssetPointerChunk ImageChunk LoraConfig LossFnType ModelID ModelInput "
    "ModelInputChunk OptimParams OptimStepRequest OptimStepResponse ParsedCheckpointTinkerPath PromptProvenanceSpan "
    "SampleRequest SampleResponse SampledProvenanceSpan SampledSequence SamplingParams StopReason TensorData TensorDtype "
    "TrainingRun"
)
_HOMES: dict[str, str] = {
    **dict.fromkeys(_ERRORS.split(), "tinker.errors"),
    **dict.fromkeys(_TYPES.split(), "tinker.types"),
    "APIFuture": "tinker.futures",
    "BackcompatSamplingClientFuture": "tinker.lib.public_interfaces",
    "BackcompatTrainingClientFuture": "tinker.lib.public_interfaces",
    "RequestOptions": "tinker.lib.request_options",
    "LossHandle": "tinker.custom_loss",
    "PerDatumLossFn": "tinker.custom_loss",
    "with_gradients": "tinker.custom_loss",
    "AdminClient": "tinker.admin_client",
    "CircuitBreaker": "tinker.circuit_breaker",
    "RestClient": "tinker.rest_client",
    "SamplingClient": "tinker.sampling_client",
    "ServiceClient": "tinker.service_client",
    "Config": "tinker._config",
    "SampleStream": "tinker.streaming",
    "Timeout": "httpx",
    "get_tokenizer": "tinker._tokenizers",
    "progress": "tinker.observing.progress",
    "TrainingClient": "tinker.training_client",
}
_MODULES = (
    "auth",
    "checkpoints",
    "circuit_breaker",
    "errors",
    "lib",
    "observing",
    "proto",
    "recovery",
    "regularizers",
    "types",
    "usage",
    "wire",
)

# Of an extra, so not listed by `dir`, behind which everything is imported.
_MODULES_OF_EXTRAS = ("local", "testing")

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]  (the names below are those of the imports above)
    "APIConnectionError",
    "APIError",
    "APIFuture",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AdamOptimizerConfig",
    "AdamParams",
    "AdminClient",
    "AuthenticationError",
    "BackcompatSamplingClientFuture",
    "BackcompatTrainingClientFuture",
    "BadRequestError",
    "BillingError",
    "Checkpoint",
    "CheckpointType",
    "CircuitBreaker",
    "CircuitOpenError",
    "ClientClosedError",
    "ConflictError",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
    "ExperimentalWarning",
    "ForwardBackwardOutput",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "InternalServerError",
    "LoraConfig",
    "LossFnType",
    "LossHandle",
    "LossTermError",
    "ModelID",
    "ModelInput",
    "ModelInputChunk",
    "NotFoundError",
    "OPEN_VERSION",
    "OptimParams",
    "OptimStepRequest",
    "OptimStepResponse",
    "ParsedCheckpointTinkerPath",
    "PerDatumLossFn",
    "PermissionDeniedError",
    "PrecedingRequestFailed",
    "PromptProvenanceSpan",
    "RateLimitError",
    "RefusedResultError",
    "RequestFailedError",
    "RequestOptions",
    "RestClient",
    "SampleRequest",
    "SampleResponse",
    "SampleStream",
    "SampleStreamError",
    "SampledProvenanceSpan",
    "SampledSequence",
    "SamplingClient",
    "SamplingParams",
    "ServiceClient",
    "SessionLostError",
    "StopReason",
    "TensorData",
    "TensorDtype",
    "Timeout",
    "TinkerError",
    "TrainingClient",
    "TrainingRun",
    "UnknownIdentityError",
    "UnprocessableEntityError",
    "__title__",
    "__version__",
    "auth",
    "get_tokenizer",
    "progress",
    "types",
    "with_gradients",
]


if not TYPE_CHECKING:  # type checkers know the names above; with this function they would believe in every name

    def __getattr__(name: str) -> Any:
        if name in _MODULES or name in _MODULES_OF_EXTRAS:
            return importlib.import_module(f"tinker.{name}")
        home = _HOMES.get(name)
        if home is None:
            hint = "; use tinker.ServiceClient" if name == "Client" else ""
            raise AttributeError(
                f"module 'tinker' has no attribute {name!r}{hint}", name=name, obj=importlib.import_module(__name__)
            )
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    # Whoever looks at every name would import `tinker.proto`, which needs Google's runtime.
    absent = set[str]() if _has_protobuf() else {"proto"}
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, *__all__, *_HOMES, *_MODULES} - absent)


def _has_protobuf() -> bool:
    from importlib.util import find_spec

    try:
        return find_spec("google.protobuf") is not None
    except ImportError:
        return False
