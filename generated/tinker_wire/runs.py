# generated from openapi.yaml; do not edit
"""What submitted operations result in, and the requests of a training run, which get their number when they are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from . import models
from .api import training as training_api
from .api import weights as weights_api
from .runtime import Request

T = TypeVar("T")


class Result(msgspec.Struct, Generic[T], frozen=True):
    """What the future of a submitted operation promises: the name that polls ask for, and the record of its JSON form."""

    request_type: str
    record: type[T]


CREATE_MODEL: Final = Result("CreateModel", models.CreateModelResponse)
FORWARD_BACKWARD: Final = Result("ForwardBackward", models.ForwardBackwardOutput)
FORWARD: Final = Result("Forward", models.ForwardBackwardOutput)
OPTIM_STEP: Final = Result("OptimStep", models.OptimStepResponse)
CREATE_CUSTOM_LOSS: Final = Result("CreateCustomLoss", models.CreateCustomLossResponse)
UNLOAD_MODEL: Final = Result("UnloadModel", models.UnloadModelResponse)
SAVE_WEIGHTS: Final = Result("SaveWeights", models.SaveWeightsResponse)
SAVE_WEIGHTS_FOR_SAMPLER: Final = Result("SaveWeightsForSampler", models.SaveWeightsForSamplerResponseInternal)
SAVE_WEIGHTS_EXTERNAL: Final = Result("SaveWeightsExternal", models.SaveWeightsExternalResponseInternal)
LOAD_WEIGHTS: Final = Result("LoadWeights", models.LoadWeightsResponse)
ASAMPLE: Final = Result("Sample", models.SampleResponse)

Fill: TypeAlias = Callable[[str, int, int | None], Request[models.UntypedAPIFuture]]
"""Make the request of a model's id, the number of the request, and the last number whose failure the caller knows."""


class RunRequest(msgspec.Struct, Generic[T], frozen=True):
    """A request of a training run without model and number. One that is not numbered has its place in no order."""

    result: Result[T]
    fill: Fill
    is_numbered: bool = True


def forward_backward(
    *, forward_backward_input: models.ForwardBackwardInput, content_encoding: str | None = None
) -> RunRequest[models.ForwardBackwardOutput]:
    """Compute a loss and add its gradient to the model's accumulated gradient."""

    def fill(model_id: str, number: int, known_failure: int | None) -> Request[models.UntypedAPIFuture]:
        body = models.ForwardBackwardRequest(
            model_id=model_id,
            seq_id=number,
            forward_backward_input=forward_backward_input,
        )
        return training_api.forward_backward(
            body,
            content_encoding=content_encoding,
            x_tinker_known_failure=known_failure,
        )

    return RunRequest(FORWARD_BACKWARD, fill)


def forward(*, forward_input: models.ForwardBackwardInput) -> RunRequest[models.ForwardBackwardOutput]:
    """Compute a loss without a gradient; JSON only."""

    def fill(model_id: str, number: int, known_failure: int | None) -> Request[models.UntypedAPIFuture]:
        body = models.ForwardRequest(
            model_id=model_id,
            seq_id=number,
            forward_input=forward_input,
        )
        return training_api.forward(
            body,
            x_tinker_known_failure=known_failure,
        )

    return RunRequest(FORWARD, fill)


def optim_step(
    *, adam_params: models.AdamParams | None = None, optimizer_params: models.OptimizerParams | None = None
) -> RunRequest[models.OptimStepResponse]:
    """Apply the accumulated gradient and clear it."""

    def fill(model_id: str, number: int, known_failure: int | None) -> Request[models.UntypedAPIFuture]:
        body = models.OptimStepRequest(
            model_id=model_id,
            seq_id=number,
            adam_params=adam_params,
            optimizer_params=optimizer_params,
        )
        return training_api.optim_step(
            body,
            x_tinker_known_failure=known_failure,
        )

    return RunRequest(OPTIM_STEP, fill)


def unload_model() -> RunRequest[models.UnloadModelResponse]:
    """Unload a model that is no longer needed."""

    def fill(model_id: str, number: int, known_failure: int | None) -> Request[models.UntypedAPIFuture]:
        body = models.UnloadModelRequest(
            model_id=model_id,
        )
        return training_api.unload_model(
            body,
        )

    return RunRequest(UNLOAD_MODEL, fill, is_numbered=False)


def save_weights(
    *,
    path: str | None = None,
    ttl_seconds: int | None = None,
    overwrite: bool = False,
    user_metadata: models.StringMap | None = None,
    keep_last: int | None = None,
) -> RunRequest[models.SaveWeightsResponse]:
    """Save the weights and the optimizer state, to resume training later."""

    def fill(model_id: str, number: int, known_failure: int | None) -> Request[models.UntypedAPIFuture]:
        body = models.SaveWeightsRequest(
            model_id=model_id,
            seq_id=number,
            path=path,
            ttl_seconds=ttl_seconds,
            overwrite=overwrite,
            user_metadata=user_metadata,
            keep_last=keep_last,
        )
        return weights_api.save_weights(
            body,
            x_tinker_known_failure=known_failure,
        )

    return RunRequest(SAVE_WEIGHTS, fill)


def save_weights_for_sampler(
    *,
    path: str | None = None,
    sampling_session_seq_id: int | None = None,
    kind: models.SamplingClientKind = "snapshot",
    ttl_seconds: int | None = None,
    user_metadata: models.StringMap | None = None,
    keep_last: int | None = None,
) -> RunRequest[models.SaveWeightsForSamplerResponseInternal]:
    """Save weights for sampling, under a name or directly into a sampling session."""

    def fill(model_id: str, number: int, known_failure: int | None) -> Request[models.UntypedAPIFuture]:
        body = models.SaveWeightsForSamplerRequest(
            model_id=model_id,
            seq_id=number,
            path=path,
            sampling_session_seq_id=sampling_session_seq_id,
            kind=kind,
            ttl_seconds=ttl_seconds,
            user_metadata=user_metadata,
            keep_last=keep_last,
        )
        return weights_api.save_weights_for_sampler(
            body,
            x_tinker_known_failure=known_failure,
        )

    return RunRequest(SAVE_WEIGHTS_FOR_SAMPLER, fill)


def save_weights_external(
    *, path: str, ttl_seconds: int | None = None, age_encryption_recipients: Sequence[str] | None = None
) -> RunRequest[models.SaveWeightsExternalResponseInternal]:
    """Save weights as downloadable files, encrypted if recipients are given."""

    def fill(model_id: str, number: int, known_failure: int | None) -> Request[models.UntypedAPIFuture]:
        body = models.SaveWeightsExternalRequest(
            model_id=model_id,
            seq_id=number,
            path=path,
            ttl_seconds=ttl_seconds,
            age_encryption_recipients=age_encryption_recipients,
        )
        return weights_api.save_weights_external(
            body,
            x_tinker_known_failure=known_failure,
        )

    return RunRequest(SAVE_WEIGHTS_EXTERNAL, fill)


def load_weights(
    *,
    session_id: str | None = None,
    model_seq_id: int | None = None,
    base_model: str | None = None,
    user_metadata: models.Metadata | None = None,
    path: str,
    optimizer: bool = False,
    optimizer_config: models.OptimizerConfig | None = None,
    weights_access_token: str | None = None,
) -> RunRequest[models.LoadWeightsResponse]:
    """Load a checkpoint into a model."""

    def fill(model_id: str, number: int, known_failure: int | None) -> Request[models.UntypedAPIFuture]:
        body = models.LoadWeightsRequest(
            model_id=model_id,
            seq_id=number,
            session_id=session_id,
            model_seq_id=model_seq_id,
            base_model=base_model,
            user_metadata=user_metadata,
            path=path,
            optimizer=optimizer,
            optimizer_config=optimizer_config,
            weights_access_token=weights_access_token,
        )
        return weights_api.load_weights(
            body,
            x_tinker_known_failure=known_failure,
        )

    return RunRequest(LOAD_WEIGHTS, fill)
