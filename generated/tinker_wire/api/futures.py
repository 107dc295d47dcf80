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

    To interpret a 200 response, check in this order. A protobuf body is the result. `{"type": "try_again"}`, like
    the status 408, means that the request is still queued or running. `{"status": "complete_metadata"}` means that
    the result is large: the client repeats the request with `allow_metadata_only` false when it has room. The server
    may send it only if the request has `allow_metadata_only`. An object with `error` is a failed request. Any other
    object is the result; its type is the `x-result` of the operation that was submitted.

    Hold the request for about 30 s, and at most 40 s, before you respond that there is no result yet: clients repeat
    it at once, and may do so thousands of times a second. Only `try_again` and 408 say that there is no result yet:
    clients take any other success for the result, and raise on 404. Send results of `forward_backward`, `forward`
    and `asample` as protobuf if `Accept` contains it; current official clients refuse JSON for them. A result may be
    fetched more than once: keep it for some minutes.

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

    Polls all requests of a client at once. Used if the client configuration has `sample_use_retrieve_futures`. Hold
    the request for about 30 s while there is nothing new, unless `timeout` is 0. The server may discard events up to
    `prev_cursor`. Clients fetch each result with `retrieve_future`. `retrieved_request_ids` lists the results that
    were fetched, so that the server can delete them.

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

    Sent for samples only, if the dynamic configuration has `sample_cancel_enabled`. Cancelling a finished or unknown
    request is not an error.

    `POST /api/v1/cancel_future`; servers may lack it.
    """
    return Request(
        operation="cancel_future",
        method="POST",
        path="/api/v1/cancel_future",
        reply=None,
        body=body,
    )
