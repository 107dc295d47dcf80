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

    Runs in the order of `seq_id` with the other requests of the model. A name that exists is 409 unless `overwrite`
    is true.

    `POST /api/v1/save_weights`.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`.
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

    With `path` a named checkpoint is stored, and the result holds its `path`. With `sampling_session_seq_id` instead
    nothing is listed, and the result holds the `sampling_session_id` to sample from, with `path` null. `kind`
    "inflight" makes a sampling session whose weights later inflight saves of the model replace while it runs.

    `POST /api/v1/save_weights_for_sampler`.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`.
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

    The files are listed by `get_external_weights_urls`.

    `POST /api/v1/save_weights_external`; servers may lack it.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`.
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

    Two addressings. `model_id` with `seq_id` loads into a model just created. `session_id` with `model_seq_id`
    creates the model too, and takes `base_model`, `user_metadata` and `optimizer_config`; the model id is then
    `<session_id>:train:<model_seq_id>`, which the client computes by itself, and the next request of that model has
    `seq_id` 1.

    `POST /api/v1/load_weights`.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`.
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

    Clients ask it before they make a model for a checkpoint, and take the base model and the rank from the answer.

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

    The copy keeps the kind and shares the storage; its run cannot be trained on. A token that grants access to
    somebody else's checkpoint travels in the header, out of logs.

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

    Checkpoints to train on, to sample from, and of files, in one list without pages.

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

    A page of the checkpoints of every run of the user, with a cursor that counts all of them.

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

    Sampling sessions that are open on it may end. A checkpoint that is not there is 404.

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

    No body is sent, yet `Content-Type: application/json` is.

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

    Sampling sessions of others that are open on it may end. One that is private already is 409.

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

    The time counts from now on. Null takes an earlier time to live back.

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

    The files are fetched without credentials. Clients ask again when fewer than five minutes are left.

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

    0.4.1 and 0.7.0 send `Accept: application/gzip` and read the redirect without following it; 0.25.0 also took a
    JSON answer and repeated a 503 every 30 s. Gone since 0.36.0.

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

    Every condition given must hold. Results are ordered by creation, newest first; `next_cursor` goes into `cursor`
    for the next page and is absent on the last one.

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

    The files are sent by HTTP PUT without credentials. What is not finished when the URLs expire is forgotten.

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

    The server checks that all files are there and fit the adapter. Finishing again answers the same checkpoint.

    `POST /api/v1/external_weights_upload_finish`; servers may lack it.
    """
    return Request(
        operation="external_weights_upload_finish",
        method="POST",
        path="/api/v1/external_weights_upload_finish",
        reply=models.ExternalWeightsUploadFinishResult,
        body=body,
    )
