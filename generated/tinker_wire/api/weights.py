# generated from openapi.yaml; do not edit
"""Checkpoints."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from .. import models
from ..runtime import Request, header_values, path_value, query_string

T = TypeVar("T")


def save_weights(
    body: models.SaveWeightsRequest, *, x_tinker_known_failure: Annotated[int, msgspec.Meta(ge=0)] | None = None
) -> Request[models.UntypedAPIFuture]:
    """Save the weights and the optimizer state, to resume training later.

    Runs in the order of `seq_id` with the other requests of the model. If the name exists, the response is 409,
    unless `overwrite` is true.

    `POST /api/v1/save_weights`.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`. A failure counts once
      everything before it has an outcome.
    """
    return Request(
        operation="save_weights",
        method="POST",
        path="/api/v1/save_weights",
        reply=models.UntypedAPIFuture,
        headers=header_values(("X-Tinker-Known-Failure", x_tinker_known_failure)),
        body=body,
    )


def save_weights_for_sampler(
    body: models.SaveWeightsForSamplerRequest,
    *,
    x_tinker_known_failure: Annotated[int, msgspec.Meta(ge=0)] | None = None,
) -> Request[models.UntypedAPIFuture]:
    """Save weights for sampling, under a name or directly into a sampling session.

    With `path`, the server stores a named checkpoint, and the result has its `path`. With `sampling_session_seq_id`,
    nothing is listed: the result has the `sampling_session_id` to sample from, and a null `path`. With the `kind`
    "inflight", later inflight saves of the model replace the weights of the sampling session while it runs.

    `POST /api/v1/save_weights_for_sampler`.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`. A failure counts once
      everything before it has an outcome.
    """
    return Request(
        operation="save_weights_for_sampler",
        method="POST",
        path="/api/v1/save_weights_for_sampler",
        reply=models.UntypedAPIFuture,
        headers=header_values(("X-Tinker-Known-Failure", x_tinker_known_failure)),
        body=body,
    )


def save_weights_external(
    body: models.SaveWeightsExternalRequest, *, x_tinker_known_failure: Annotated[int, msgspec.Meta(ge=0)] | None = None
) -> Request[models.UntypedAPIFuture]:
    """Save weights as downloadable files, encrypted if recipients are given.

    Use `get_external_weights_urls` to list the files.

    `POST /api/v1/save_weights_external`; servers may lack it.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`. A failure counts once
      everything before it has an outcome.
    """
    return Request(
        operation="save_weights_external",
        method="POST",
        path="/api/v1/save_weights_external",
        reply=models.UntypedAPIFuture,
        headers=header_values(("X-Tinker-Known-Failure", x_tinker_known_failure)),
        body=body,
    )


def load_weights(
    body: models.LoadWeightsRequest, *, x_tinker_known_failure: Annotated[int, msgspec.Meta(ge=0)] | None = None
) -> Request[models.UntypedAPIFuture]:
    """Load a checkpoint into a model.

    There are two forms. With `model_id` and `seq_id`, it loads into a model that was just created. With `session_id`
    and `model_seq_id`, it creates the model too, and accepts `base_model`, `user_metadata` and `optimizer_config`.
    The client computes the id of that model itself: `<session_id>:train:<model_seq_id>`. The next request of that
    model has `seq_id` 1.

    `POST /api/v1/load_weights`.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`. A failure counts once
      everything before it has an outcome.
    """
    return Request(
        operation="load_weights",
        method="POST",
        path="/api/v1/load_weights",
        reply=models.UntypedAPIFuture,
        headers=header_values(("X-Tinker-Known-Failure", x_tinker_known_failure)),
        body=body,
    )


def weights_info(body: models.WeightsInfoRequest) -> Request[models.WeightsInfoResponse]:
    """Get the base model and the adapter settings of a checkpoint.

    Before clients create a model from a checkpoint, they read its base model and rank here.

    `POST /api/v1/weights_info`.
    """
    return Request(
        operation="weights_info",
        method="POST",
        path="/api/v1/weights_info",
        reply=models.WeightsInfoResponse,
        body=body,
    )


def copy_weights(
    body: models.CopyWeightsRequest, *, x_tinker_weights_access_token: str | None = None
) -> Request[models.CopyWeightsResponse]:
    """Copy a checkpoint into a project, as a new run.

    The copy keeps the kind and shares the storage. Its run cannot be trained. A token for somebody else's checkpoint
    is sent in the header, so that it does not reach logs.

    `POST /api/v1/copy_weights`; servers may lack it.

    - `x_tinker_weights_access_token`: Grants access to somebody else's checkpoint. A secret.
    """
    return Request(
        operation="copy_weights",
        method="POST",
        path="/api/v1/copy_weights",
        reply=models.CopyWeightsResponse,
        headers=header_values(("X-Tinker-Weights-Access-Token", x_tinker_weights_access_token)),
        body=body,
    )


def list_checkpoints(*, training_run_id: str) -> Request[models.CheckpointsListResponse]:
    """List the checkpoints of a run.

    Returns checkpoints for training, for sampling and of external files in one list, without pages.

    `GET /api/v1/training_runs/{training_run_id}/checkpoints`.

    - `training_run_id`: The model id of the run; `:` in it stays itself.
    """
    return Request(
        operation="list_checkpoints",
        method="GET",
        path=f"/api/v1/training_runs/{path_value('training_run_id', training_run_id)}/checkpoints",
        reply=models.CheckpointsListResponse,
    )


def list_user_checkpoints(*, limit: int = 100, offset: int = 0) -> Request[models.CheckpointsListResponse]:
    """List the checkpoints of all runs of the user, newest first.

    Returns a page of the checkpoints of all runs of the user. The cursor has their total number.

    `GET /api/v1/checkpoints`; servers may lack it.

    - `limit`: The largest number of entries in the answer.
    - `offset`: The number of entries to skip.
    """
    return Request(
        operation="list_user_checkpoints",
        method="GET",
        path="/api/v1/checkpoints",
        reply=models.CheckpointsListResponse,
        query=query_string(("limit", limit), ("offset", offset)),
    )


def delete_checkpoint(*, training_run_id: str, checkpoint_id: str) -> Request[None]:
    """Permanently delete a checkpoint.

    Sampling sessions of this checkpoint may end. If it does not exist, the response is 404.

    `DELETE /api/v1/training_runs/{training_run_id}/checkpoints/{checkpoint_id}`.

    - `training_run_id`: The model id of the run; `:` in it stays itself.
    - `checkpoint_id`: `<kind>/<name>`: two segments, inserted as they are.
    """
    return Request(
        operation="delete_checkpoint",
        method="DELETE",
        path=f"/api/v1/training_runs/{path_value('training_run_id', training_run_id)}/checkpoints/{path_value('checkpoint_id', checkpoint_id)}",
        reply=None,
    )


def publish_checkpoint(*, training_run_id: str, checkpoint_id: str) -> Request[None]:
    """Publish a checkpoint: everybody may load it and sample from it.

    The request has no body, but has `Content-Type: application/json`.

    `POST /api/v1/training_runs/{training_run_id}/checkpoints/{checkpoint_id}/publish`; servers may lack it.

    - `training_run_id`: The model id of the run; `:` in it stays itself.
    - `checkpoint_id`: `<kind>/<name>`: two segments, inserted as they are.
    """
    return Request(
        operation="publish_checkpoint",
        method="POST",
        path=f"/api/v1/training_runs/{path_value('training_run_id', training_run_id)}/checkpoints/{path_value('checkpoint_id', checkpoint_id)}/publish",
        reply=None,
    )


def unpublish_checkpoint(*, training_run_id: str, checkpoint_id: str) -> Request[None]:
    """Make a public checkpoint private again.

    Sampling sessions that others have opened on it may end. If it is already private, the response is 409.

    `DELETE /api/v1/training_runs/{training_run_id}/checkpoints/{checkpoint_id}/publish`; servers may lack it.

    - `training_run_id`: The model id of the run; `:` in it stays itself.
    - `checkpoint_id`: `<kind>/<name>`: two segments, inserted as they are.
    """
    return Request(
        operation="unpublish_checkpoint",
        method="DELETE",
        path=f"/api/v1/training_runs/{path_value('training_run_id', training_run_id)}/checkpoints/{path_value('checkpoint_id', checkpoint_id)}/publish",
        reply=None,
    )


def set_checkpoint_ttl(
    body: models.SetCheckpointTtlRequest, *, training_run_id: str, checkpoint_id: str
) -> Request[None]:
    """Set the expiry of a checkpoint, or remove it.

    The time starts now. Null removes an earlier expiry.

    `PUT /api/v1/training_runs/{training_run_id}/checkpoints/{checkpoint_id}/ttl`; servers may lack it.

    - `training_run_id`: The model id of the run; `:` in it stays itself.
    - `checkpoint_id`: `<kind>/<name>`: two segments, inserted as they are.
    """
    return Request(
        operation="set_checkpoint_ttl",
        method="PUT",
        path=f"/api/v1/training_runs/{path_value('training_run_id', training_run_id)}/checkpoints/{path_value('checkpoint_id', checkpoint_id)}/ttl",
        reply=None,
        body=body,
    )


def get_external_weights_urls(
    *, training_run_id: str, checkpoint_id: str
) -> Request[models.ExternalWeightsUrlsResponse]:
    """Get signed download URLs for the files of an external checkpoint.

    The files are downloaded without credentials. Clients request new URLs when these are valid for less than five
    minutes.

    `GET /api/v1/training_runs/{training_run_id}/checkpoints/{checkpoint_id}/external_weights_urls`; servers may lack
    it.

    - `training_run_id`: The model id of the run; `:` in it stays itself.
    - `checkpoint_id`: `<kind>/<name>`: two segments, inserted as they are.
    """
    return Request(
        operation="get_external_weights_urls",
        method="GET",
        path=f"/api/v1/training_runs/{path_value('training_run_id', training_run_id)}/checkpoints/{path_value('checkpoint_id', checkpoint_id)}/external_weights_urls",
        reply=models.ExternalWeightsUrlsResponse,
    )


def get_checkpoint_archive(*, training_run_id: str, checkpoint_id: str) -> Request[models.CheckpointArchiveUrlResponse]:
    """Get a URL to download a checkpoint as an archive.

    Deprecated.

    The clients 0.4.1 and 0.7.0 send `Accept: application/gzip` and read the redirect without following it. 0.25.0
    also accepts a JSON response, and repeats the request every 30 s after a 503. Clients since 0.36.0 do not use it.

    `GET /api/v1/training_runs/{training_run_id}/checkpoints/{checkpoint_id}/archive`; servers may lack it.

    - `training_run_id`: The model id of the run; `:` in it stays itself.
    - `checkpoint_id`: `<kind>/<name>`: two segments, inserted as they are.
    """
    return Request(
        operation="get_checkpoint_archive",
        method="GET",
        path=f"/api/v1/training_runs/{path_value('training_run_id', training_run_id)}/checkpoints/{path_value('checkpoint_id', checkpoint_id)}/archive",
        reply=models.CheckpointArchiveUrlResponse,
    )


def search_checkpoints(body: models.CheckpointSearchRequest) -> Request[models.CheckpointSearchResponse]:
    """Find checkpoints by metadata, owner, project, kind or base model.

    Checkpoints must match all conditions. They are ordered by creation time, newest first. Pass `next_cursor` as
    `cursor` to get the next page; the last page has none.

    `POST /api/v1/checkpoints/search`; servers may lack it.
    """
    return Request(
        operation="search_checkpoints",
        method="POST",
        path="/api/v1/checkpoints/search",
        reply=models.CheckpointSearchResponse,
        body=body,
    )


def external_weights_upload_start(
    body: models.ExternalWeightsUploadStartRequest,
) -> Request[models.ExternalWeightsUploadStartResult]:
    """Get signed URLs to upload the files of an adapter.

    Clients send the files by HTTP PUT, without credentials. The server discards uploads that are not finished when
    the URLs expire.

    `POST /api/v1/external_weights_upload_start`; servers may lack it.
    """
    return Request(
        operation="external_weights_upload_start",
        method="POST",
        path="/api/v1/external_weights_upload_start",
        reply=models.ExternalWeightsUploadStartResult,
        body=body,
    )


def external_weights_upload_finish(
    body: models.ExternalWeightsUploadFinishRequest,
) -> Request[models.ExternalWeightsUploadFinishResult]:
    """Create a checkpoint from uploaded files.

    The server checks that all files exist and match the adapter. Repeating the request returns the same checkpoint.

    `POST /api/v1/external_weights_upload_finish`; servers may lack it.
    """
    return Request(
        operation="external_weights_upload_finish",
        method="POST",
        path="/api/v1/external_weights_upload_finish",
        reply=models.ExternalWeightsUploadFinishResult,
        body=body,
    )
