# generated from openapi.yaml; do not edit
"""Models and the ordered requests of one training run."""

from __future__ import annotations

from typing import TypeVar

from .. import models
from ..runtime import Binary, Request

T = TypeVar("T")


def create_model(body: models.CreateModelRequest) -> Request[models.UntypedAPIFuture]:
    """Create a training run, a fresh LoRA adapter over a base model.

    The result of the future is a CreateModelResponse.

    `POST /api/v1/create_model`.
    """
    return Request(
        operation="create_model",
        method="POST",
        path="/api/v1/create_model",
        reply=models.UntypedAPIFuture,
        body=body,
    )


def get_info(body: models.GetInfoRequest) -> Request[models.GetInfoResponse]:
    """What a model is; answered at once, not a future.

    `POST /api/v1/get_info`.
    """
    return Request(
        operation="get_info",
        method="POST",
        path="/api/v1/get_info",
        reply=models.GetInfoResponse,
        body=body,
    )


def forward_backward(body: models.ForwardBackwardRequest | Binary) -> Request[models.UntypedAPIFuture]:
    """Compute a loss and add its gradient to the model's accumulated gradient.

    The result of the future is a ForwardBackwardOutput (JSON) or the message `tinker_public.ForwardBackwardOutput`.
    Requests of one model run in the order of `seq_id`. The same body again under the same `seq_id` answers the same
    future; another body under a used `seq_id` is 409. As protobuf the message carries `forward_only`, which computes
    the loss without a gradient; in JSON that is the operation `forward`.

    `POST /api/v1/forward_backward`.
    """
    return Request(
        operation="forward_backward",
        method="POST",
        path="/api/v1/forward_backward",
        reply=models.UntypedAPIFuture,
        body=body,
    )


def forward(body: models.ForwardRequest) -> Request[models.UntypedAPIFuture]:
    """Compute a loss without a gradient (JSON servers).

    Clients since 0.25.0 send a protobuf `forward_backward` with `forward_only` instead.

    `POST /api/v1/forward`; servers may lack it.
    """
    return Request(
        operation="forward",
        method="POST",
        path="/api/v1/forward",
        reply=models.UntypedAPIFuture,
        body=body,
    )


def optim_step(body: models.OptimStepRequest) -> Request[models.UntypedAPIFuture]:
    """Apply the accumulated gradient and clear it.

    The result of the future is an OptimStepResponse.

    `POST /api/v1/optim_step`.
    """
    return Request(
        operation="optim_step",
        method="POST",
        path="/api/v1/optim_step",
        reply=models.UntypedAPIFuture,
        body=body,
    )
