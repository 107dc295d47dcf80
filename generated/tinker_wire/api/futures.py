# generated from openapi.yaml; do not edit
"""Results of submitted work."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from .. import models
from ..runtime import Request, header_values

T = TypeVar("T")


def retrieve_future(
    body: models.FutureRetrieveRequest,
    *,
    expected: type[T],
    x_tinker_request_iteration: Annotated[int, msgspec.Meta(ge=0)] | None = None,
    x_tinker_request_type: models.RequestType | None = None,
    x_tinker_create_promise_roundtrip_time: Annotated[float, msgspec.Meta(ge=0)] | None = None,
) -> Request[T]:
    """Get the result of a submitted request, waiting for a limited time.

    A 200 answer is told apart in this order. A protobuf body is the result. `{"type": "try_again"}`, as well as
    status 408, says that the work is still queued or running. `{"status": "complete_metadata"}`, allowed only where
    the request says `allow_metadata_only`, says that the result is large: the client asks again with
    `allow_metadata_only` false once it has room. An object with `error` is a failed request. Any other object is the
    result, of the type in `x-result` of the operation that was submitted.

    Hold the request for about 30 s, and at most 40, before answering that there is no result yet: clients ask again
    at once and may do so thousands of times a second. Results of `forward_backward`, `forward` and `asample` are
    sent as protobuf where `Accept` mentions it; current official clients refuse JSON for them. A result may be
    fetched more than once.

    `POST /api/v1/retrieve_future`.

    - `expected`: The type of the result that the request promises.
    - `x_tinker_request_iteration`: How often this future was asked before.
    - `x_tinker_request_type`: The kind of result awaited.
    - `x_tinker_create_promise_roundtrip_time`: Seconds that the submission took; sent with the first poll only.
    """
    return Request(
        operation="retrieve_future",
        method="POST",
        path="/api/v1/retrieve_future",
        reply=expected,
        headers=header_values(
            ("X-Tinker-Request-Iteration", x_tinker_request_iteration),
            ("X-Tinker-Request-Type", x_tinker_request_type),
            ("X-Tinker-Create-Promise-Roundtrip-Time", x_tinker_create_promise_roundtrip_time),
        ),
        body=body,
        accepts=("application/x-protobuf", "application/json"),
    )


def retrieve_futures(body: models.FuturesRetrieveRequest) -> Request[models.FuturesRetrieveResponse]:
    """List the requests of a sampling session that have completed since a cursor.

    One poller for all requests of a client, used where the client configuration says `sample_use_retrieve_futures`.
    Hold the request for about 30 s while there is nothing new, unless `timeout` is 0. Events up to `prev_cursor` may
    be forgotten. The results themselves are fetched one by one with `retrieve_future`; `retrieved_request_ids` tells
    which were, so that they can be deleted.

    `POST /api/v1/retrieve_futures`; servers may lack it.
    """
    return Request(
        operation="retrieve_futures",
        method="POST",
        path="/api/v1/retrieve_futures",
        reply=models.FuturesRetrieveResponse,
        body=body,
    )


def cancel_future(body: models.CancelFutureRequest) -> Request[None]:
    """Cancel a request whose result is no longer needed.

    Sent for samples only, where the dynamic configuration says `sample_cancel_enabled`. Cancelling what is finished
    or unknown is not an error.

    `POST /api/v1/cancel_future`; servers may lack it.
    """
    return Request(
        operation="cancel_future",
        method="POST",
        path="/api/v1/cancel_future",
        reply=None,
        body=body,
    )
