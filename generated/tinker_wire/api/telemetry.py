# generated from openapi.yaml; do not edit
"""What a client reports about itself, where the user allows it."""

from __future__ import annotations

from typing import TypeVar

from .. import models
from ..runtime import Request

T = TypeVar("T")


def telemetry(body: models.TelemetrySendRequest) -> Request[models.TelemetryResponse]:
    """Report client events, if the user allows it.

    At most 100 events per request. Clients drop a batch that is refused, so an error here loses telemetry only.

    `POST /api/v1/telemetry`; servers may lack it.
    """
    return Request(
        operation="telemetry",
        method="POST",
        path="/api/v1/telemetry",
        reply=models.TelemetryResponse,
        body=body,
    )
