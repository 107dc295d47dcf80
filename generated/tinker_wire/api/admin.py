# generated from openapi.yaml; do not edit
"""Audit log and billing of an organization."""

from __future__ import annotations

import datetime
from typing import TypeVar

from .. import models
from ..runtime import Request, query_string

T = TypeVar("T")


def get_audit_log(
    *, event_type: models.AuditEventType = "all", day: str | None = None
) -> Request[models.AuditLogResponse]:
    """Get the audit log of the organization.

    The response may redirect to a signed URL with the same content. Clients must not send credentials there: they
    drop `X-API-Key` when the origin changes.

    `GET /api/v1/audit`; servers may lack it.

    - `event_type`: The kind of events, or all of them.
    - `day`: One day in UTC; the server chooses where it is missing.
    """
    return Request(
        operation="get_audit_log",
        method="GET",
        path="/api/v1/audit",
        reply=models.AuditLogResponse,
        query=query_string(("event_type", event_type), ("day", day)),
    )


def get_billing_usage(
    *, starting_on: datetime.datetime, ending_before: datetime.datetime
) -> Request[models.BillingUsageResponse]:
    """Get usage and estimated cost by the hour.

    Both ends are full hours in UTC, at most 14 days apart.

    `GET /api/v1/billing/usage/events`; servers may lack it.

    - `starting_on`: The first hour.
    - `ending_before`: The hour after the last one.
    """
    return Request(
        operation="get_billing_usage",
        method="GET",
        path="/api/v1/billing/usage/events",
        reply=models.BillingUsageResponse,
        query=query_string(("starting_on", starting_on), ("ending_before", ending_before)),
    )


def get_checkpoint_storage_usage(
    *, project_id: str | None = None
) -> Request[models.CurrentCheckpointStorageUsageResponse]:
    """Get the current storage of checkpoints by project and user.

    Describes the present, not a period, with an estimate of the cost per month.

    `GET /api/v1/billing/usage/checkpoints/current`; servers may lack it.

    - `project_id`: Only entries of this project; of every project where it is missing.
    """
    return Request(
        operation="get_checkpoint_storage_usage",
        method="GET",
        path="/api/v1/billing/usage/checkpoints/current",
        reply=models.CurrentCheckpointStorageUsageResponse,
        query=query_string(("project_id", project_id)),
    )
