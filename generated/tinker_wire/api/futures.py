# generated from openapi.yaml; do not edit
"""Results of submitted work."""

from __future__ import annotations

from typing import TypeVar

from .. import models
from ..runtime import Request, header_values

T = TypeVar("T")


def retrieve_future(
    body: models.FutureRetrieveRequest,
    *,
    expected: type[T],
    x_tinker_request_iteration: int | None = None,
    x_tinker_request_type: str | None = None,
    x_tinker_create_promise_roundtrip_time: float | None = None,
) -> Request[T]:
    """Fetch the result of a submitted request, waiting for it a while.

    The answer is told apart in this order. A protobuf body is the result. `{"type": "try_again"}`, and status 408,
    say that the work is still queued or running. `{"status": "complete_metadata"}` says that the result is large:
    ask again with `allow_metadata_only` false. An object with `error` is a failed request. Any other object is the
    result, of the type that the submitted operation promises. Status 410 says that the result is gone. A server
    should hold the request for about 30 s (at most 40) before it answers "try again".

    `POST /api/v1/retrieve_future`.

    - `expected`: The type of the result that the request promises.
    - `x_tinker_request_iteration`: How often this future was asked before.
    - `x_tinker_request_type`: The kind of result awaited, such as `ForwardBackward` or `Sample`.
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
