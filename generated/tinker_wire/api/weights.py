# generated from openapi.yaml; do not edit
"""Checkpoints."""

from __future__ import annotations

from typing import TypeVar

from .. import models
from ..runtime import Request

T = TypeVar("T")


def save_weights(body: models.SaveWeightsRequest) -> Request[models.UntypedAPIFuture]:
    """Save weights and optimizer state, to train on later.

    The result of the future is a SaveWeightsResponse. A name that exists is 409 unless `overwrite`.

    `POST /api/v1/save_weights`.
    """
    return Request(
        operation="save_weights",
        method="POST",
        path="/api/v1/save_weights",
        reply=models.UntypedAPIFuture,
        body=body,
    )


def save_weights_for_sampler(body: models.SaveWeightsForSamplerRequest) -> Request[models.UntypedAPIFuture]:
    """Save weights to sample from, under a name or straight into a sampling session.

    The result of the future is a SaveWeightsForSamplerResponseInternal: with `path` sent, its `path` is the
    checkpoint; with `sampling_session_seq_id` sent instead, its `sampling_session_id` is the session and nothing is
    stored.

    `POST /api/v1/save_weights_for_sampler`.
    """
    return Request(
        operation="save_weights_for_sampler",
        method="POST",
        path="/api/v1/save_weights_for_sampler",
        reply=models.UntypedAPIFuture,
        body=body,
    )


def load_weights(body: models.LoadWeightsRequest) -> Request[models.UntypedAPIFuture]:
    """Load a checkpoint into a model.

    Two addressings. `model_id` with `seq_id` loads into a model just created. `session_id` with `model_seq_id`
    creates the model too; its id is then `<session_id>:train:<model_seq_id>` and its next request has `seq_id` 1.
    The result of the future is a LoadWeightsResponse. Servers without the second form refuse it with 422 (skyrl).

    `POST /api/v1/load_weights`.
    """
    return Request(
        operation="load_weights",
        method="POST",
        path="/api/v1/load_weights",
        reply=models.UntypedAPIFuture,
        body=body,
    )
