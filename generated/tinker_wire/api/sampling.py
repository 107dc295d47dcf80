# generated from openapi.yaml; do not edit
"""Sampling sessions and samples."""

from __future__ import annotations

from typing import TypeVar

from .. import models
from ..runtime import Request, header_values, path_value

T = TypeVar("T")


def create_sampling_session(body: models.CreateSamplingSessionRequest) -> Request[models.CreateSamplingSessionResponse]:
    """Open a sampling session on a base model or a checkpoint. The response is not a future.

    The body has exactly one of `base_model` and `model_path`. The returned id identifies the sampler everywhere,
    also as `sampler_id`.

    `POST /api/v1/create_sampling_session`.
    """
    return Request(
        operation="create_sampling_session",
        method="POST",
        path="/api/v1/create_sampling_session",
        reply=models.CreateSamplingSessionResponse,
        body=body,
    )


def join_sampling_session(body: models.JoinSamplingSessionRequest) -> Request[models.JoinSamplingSessionResponse]:
    """Get a number for another client of a sampling session.

    Used for copies of a sampling client in other processes, if the client configuration has
    `sample_join_sampling_session`. Client number k numbers its requests k·10⁹, k·10⁹+1, ..., so that copies never
    use the same `seq_id`. The first client has the number 0 and does not send this request.

    `POST /api/v1/join_sampling_session`; servers may lack it.
    """
    return Request(
        operation="join_sampling_session",
        method="POST",
        path="/api/v1/join_sampling_session",
        reply=models.JoinSamplingSessionResponse,
        body=body,
    )


def get_sampler(*, sampler_id: str) -> Request[models.GetSamplerResponse]:
    """Get the model that a sampling session samples from.

    Returns the base model, and the checkpoint if there is one. Clients use it to load the right tokenizer.

    `GET /api/v1/samplers/{sampler_id}`; servers may lack it.

    - `sampler_id`: The sampling session id; `:` in it stays itself.
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

    Has a `sampling_session_id`, or a `base_model` or `model_path` without a session. The prompt is JSON in every
    version. Clients since 0.25.0 require an entry in `sample_sequence_ids` of the response for each sample. After a
    429, a client slows down all of its sampling and repeats the request with the same `seq_id`. The official clients
    do not read `Retry-After` here.

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


def stream_sample(body: models.SampleRequest) -> Request[models.SampleStreamEvent]:
    """Sample continuations of a prompt, and stream the tokens as they are generated.

    Accepts the body of `asample`, except for log-probabilities of the prompt and tables of likely tokens. The
    response is a stream of server-sent events with JSON data. Tokens of several samples come in any order. The last
    event has the type `done` or `failed`; a stream that ends without one was interrupted. Comments keep the
    connection alive while no tokens are generated. If the client closes the connection, the server stops.

    `POST /api/v1/stream_sample`; servers may lack it.
    """
    return Request(
        operation="stream_sample",
        method="POST",
        path="/api/v1/stream_sample",
        reply=models.SampleStreamEvent,
        body=body,
        accepts=("text/event-stream",),
    )
