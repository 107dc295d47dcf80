# generated from openapi.yaml; do not edit
"""Sampling sessions and samples."""

from __future__ import annotations

from typing import TypeVar

from .. import models
from ..runtime import Request, header_values, path_value

T = TypeVar("T")


def create_sampling_session(body: models.CreateSamplingSessionRequest) -> Request[models.CreateSamplingSessionResponse]:
    """Open a sampling session on a base model or a checkpoint; answered at once.

    `POST /api/v1/create_sampling_session`.
    """
    return Request(
        operation="create_sampling_session",
        method="POST",
        path="/api/v1/create_sampling_session",
        reply=models.CreateSamplingSessionResponse,
        body=body,
    )


def get_sampler(*, sampler_id: str) -> Request[models.GetSamplerResponse]:
    """What a sampling session samples from.

    `GET /api/v1/samplers/{sampler_id}`; servers may lack it.

    - `sampler_id`: The sampling session id; `:` in it is not percent-encoded.
    """
    return Request(
        operation="get_sampler",
        method="GET",
        path=f"/api/v1/samplers/{path_value('sampler_id', sampler_id)}",
        reply=models.GetSamplerResponse,
    )


def asample(
    body: models.SampleRequest, *, x_tinker_sampling_backpressure: str | None = None
) -> Request[models.UntypedAPIFuture]:
    """Sample continuations of a prompt, or score the prompt.

    The result of the future is a SampleResponse (JSON) or the message `tinker_public.SampleResponse`. Clients since
    0.25.0 require one `sample_sequence_ids` entry for each sample in the submit answer; ours does without.

    `POST /api/v1/asample`.

    - `x_tinker_sampling_backpressure`: `1` says that the client slows down on 429.
    """
    return Request(
        operation="asample",
        method="POST",
        path="/api/v1/asample",
        reply=models.UntypedAPIFuture,
        headers=header_values(("X-Tinker-Sampling-Backpressure", x_tinker_sampling_backpressure)),
        body=body,
    )
