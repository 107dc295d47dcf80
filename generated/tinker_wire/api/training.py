# generated from openapi.yaml; do not edit
"""Models and the ordered requests of one training run."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from .. import models
from ..runtime import Binary, Request, header_values, path_value, query_string

T = TypeVar("T")


def create_model(body: models.CreateModelRequest) -> Request[models.UntypedAPIFuture]:
    """Create a training run: a fresh LoRA adapter over a base model.

    The client numbers its models with `model_seq_id`. The same number with the same body must return the same
    future. The creation is request 0 of the model, so the first request after it has `seq_id` 1.

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
    """Describe a model. The response is not a future.

    Clients use it to find the tokenizer of a model, and the rank of a model that they did not create.

    `POST /api/v1/get_info`.
    """
    return Request(
        operation="get_info",
        method="POST",
        path="/api/v1/get_info",
        reply=models.GetInfoResponse,
        body=body,
    )


def forward_backward(
    body: models.ForwardBackwardRequest | Binary,
    *,
    content_encoding: str | None = None,
    x_tinker_known_failure: Annotated[int, msgspec.Meta(ge=0)] | None = None,
) -> Request[models.UntypedAPIFuture]:
    """Compute a loss and add its gradient to the model's accumulated gradient.

    Requests of a model take effect in the order of `seq_id`, even if they arrive in another order: clients submit
    the chunks of a call concurrently, the first chunk last. Do not wait forever for a missing number, because a
    submission that fails on the client leaves a gap. The same body with the same `seq_id` returns the same future.
    Another body with a used `seq_id` is a 409.

    In protobuf, `forward_only` computes the loss without a gradient; in JSON that is the operation `forward`.
    Numbers of `loss_fn_config` are written to both maps of the message, strings to `loss_fn_config_v2` only; servers
    use the second map. The metrics of the result are named `name:reduction`. Custom losses of clients need
    `loss:sum`.

    `POST /api/v1/forward_backward`.

    - `content_encoding`: `zstd` where the client configuration says `proto_compress_fwdbwd`; one frame that states
      its content size.
    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`. A failure counts once
      everything before it has an outcome.
    """
    return Request(
        operation="forward_backward",
        method="POST",
        path="/api/v1/forward_backward",
        reply=models.UntypedAPIFuture,
        headers=header_values(
            ("Content-Encoding", content_encoding), ("X-Tinker-Known-Failure", x_tinker_known_failure)
        ),
        body=body,
    )


def forward(
    body: models.ForwardRequest, *, x_tinker_known_failure: Annotated[int, msgspec.Meta(ge=0)] | None = None
) -> Request[models.UntypedAPIFuture]:
    """Compute a loss without a gradient; JSON only.

    Deprecated.

    Clients since 0.25.0 send a protobuf `forward_backward` with `forward_only` instead. `forward` shares the
    numbering of `seq_id` with the other requests of the model.

    `POST /api/v1/forward`; servers may lack it.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`. A failure counts once
      everything before it has an outcome.
    """
    return Request(
        operation="forward",
        method="POST",
        path="/api/v1/forward",
        reply=models.UntypedAPIFuture,
        headers=header_values(("X-Tinker-Known-Failure", x_tinker_known_failure)),
        body=body,
    )


def optim_step(
    body: models.OptimStepRequest, *, x_tinker_known_failure: Annotated[int, msgspec.Meta(ge=0)] | None = None
) -> Request[models.UntypedAPIFuture]:
    """Apply the accumulated gradient and clear it.

    The body has exactly one of `adam_params` and `optimizer_params`.

    `POST /api/v1/optim_step`.

    - `x_tinker_known_failure`: The last `seq_id` under which a request of the run failed and the caller has received
      the error; 0 for none. A server that reads it does not run the request where a gradient, an optimizer step or a
      load with a later number failed before it: the request fails, with `failed_operation`. A failure counts once
      everything before it has an outcome.
    """
    return Request(
        operation="optim_step",
        method="POST",
        path="/api/v1/optim_step",
        reply=models.UntypedAPIFuture,
        headers=header_values(("X-Tinker-Known-Failure", x_tinker_known_failure)),
        body=body,
    )


def create_custom_loss(body: models.CreateCustomLossRequest) -> Request[models.UntypedAPIFuture]:
    """Upload a loss function that the client traced to a graph.

    Used if the client configuration has `custom_loss_server_side`. To use the loss, `forward_backward` has the
    `loss_fn` "custom" and the `loss_fn_config` `{"loss_id": ...}` with the id from this result. Clients upload each
    distinct graph once per session.

    `POST /api/v1/create_custom_loss`; servers may lack it.
    """
    return Request(
        operation="create_custom_loss",
        method="POST",
        path="/api/v1/create_custom_loss",
        reply=models.UntypedAPIFuture,
        body=body,
    )


def unload_model(body: models.UnloadModelRequest) -> Request[models.UntypedAPIFuture]:
    """Unload a model that is no longer needed.

    Deprecated.

    Part of the clients 0.4.1 and 0.7.0, where no public method called it. Later clients do not have it.

    `POST /api/v1/unload_model`; servers may lack it.
    """
    return Request(
        operation="unload_model",
        method="POST",
        path="/api/v1/unload_model",
        reply=models.UntypedAPIFuture,
        body=body,
    )


def list_training_runs(
    *, limit: int = 20, offset: int = 0, access_scope: models.AccessScope = "owned", project_id: str | None = None
) -> Request[models.TrainingRunsResponse]:
    """List the training runs of the user, the most recently used first.

    A run stays in the list when its session is over. `access_scope` extends the list from the user's runs to those
    that the user can read.

    `GET /api/v1/training_runs`.

    - `limit`: The largest number of entries in the answer.
    - `offset`: The number of entries to skip.
    - `access_scope`: `owned` is what belongs to the user, `accessible` everything that the user may see.
    - `project_id`: Only entries of this project; of every project where it is missing.
    """
    return Request(
        operation="list_training_runs",
        method="GET",
        path="/api/v1/training_runs",
        reply=models.TrainingRunsResponse,
        query=query_string(
            ("limit", limit), ("offset", offset), ("access_scope", access_scope), ("project_id", project_id)
        ),
    )


def get_training_run(
    *, training_run_id: str, access_scope: models.AccessScope = "owned"
) -> Request[models.TrainingRun]:
    """Get a training run.

    The id of a run is the model id of `create_model`.

    `GET /api/v1/training_runs/{training_run_id}`.

    - `training_run_id`: The model id of the run; `:` in it stays itself.
    - `access_scope`: `owned` is what belongs to the user, `accessible` everything that the user may see.
    """
    return Request(
        operation="get_training_run",
        method="GET",
        path=f"/api/v1/training_runs/{path_value('training_run_id', training_run_id)}",
        reply=models.TrainingRun,
        query=query_string(("access_scope", access_scope)),
    )
