"""AdminClient: the audit log and the bills of an organization."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from tinker_wire import models
from tinker_wire.api import admin as admin_api

from tinker._clock import Clock
from tinker._rest import Rest, open_rest
from tinker._runtime import Runtime
from tinker.futures import APIFuture
from tinker.types.requests import GetBillingUsageRequest

if TYPE_CHECKING:
    import httpx

    from tinker._session import Telemetry


class AdminClient:
    """Reads for those who run an organization. Arguments, futures and errors as those of RestClient.

    >>> admin = AdminClient(base_url="local://toy")
    >>> admin.get_billing_usage("2026-01-02T00:00:00", "2026-01-03T00:00:00Z")
    Traceback (most recent call last):
    ...
    ValueError: 2026-01-02T00:00:00 needs a time zone, such as 2026-01-02T00:00:00Z
    """

    def __init__(
        self,
        _holder: Runtime | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._rest: Rest = open_rest(_holder, base_url=base_url, api_key=api_key, transport=transport, clock=clock)

    def get_audit_log(
        self, event_type: models.AuditEventType = "all", day: datetime.date | None = None
    ) -> APIFuture[models.AuditLogResponse]:
        """Who did what: events of one kind ("checkpoints", "projects", "teams", "organizations") or of all, on one day in UTC.

        ``day`` None leaves the choice to the server. The answer may come from another host; the credential does not go there.
        """
        return self._rest.ask(admin_api.get_audit_log(event_type=event_type, day=_day(day)))

    def get_billing_usage(
        self, starting_on: datetime.datetime | str, ending_before: datetime.datetime | str
    ) -> APIFuture[models.BillingUsageResponse]:
        """What was used from ``starting_on`` until before ``ending_before``, by the hour, and what it is estimated to cost.

        Both are datetimes or RFC 3339 text, full hours with a time zone; ValueError at once without one, or when they are not
        in order. Servers answer 14 days at most.
        """
        time = GetBillingUsageRequest(starting_on=starting_on, ending_before=ending_before)
        return self._rest.ask(admin_api.get_billing_usage(starting_on=time.starting_on, ending_before=time.ending_before))

    def get_current_checkpoint_storage_usage(
        self, project_id: str | None = None
    ) -> APIFuture[models.CurrentCheckpointStorageUsageResponse]:
        """How much checkpoints take now, by project and user; of one project only where ``project_id`` says which."""
        return self._rest.ask(admin_api.get_checkpoint_storage_usage(project_id=project_id))

    def get_telemetry(self) -> Telemetry | None:
        """As that of the ServiceClient whose connections these are; else None, as there is no session to report about."""
        return self._rest.runtime.telemetry

    async def get_audit_log_async(
        self, event_type: models.AuditEventType = "all", day: datetime.date | None = None
    ) -> models.AuditLogResponse:
        """:meth:`get_audit_log`, awaited to its result."""
        return await self.get_audit_log(event_type, day)

    async def get_billing_usage_async(
        self, starting_on: datetime.datetime | str, ending_before: datetime.datetime | str
    ) -> models.BillingUsageResponse:
        """:meth:`get_billing_usage`, awaited to its result."""
        return await self.get_billing_usage(starting_on, ending_before)

    async def get_current_checkpoint_storage_usage_async(
        self, project_id: str | None = None
    ) -> models.CurrentCheckpointStorageUsageResponse:
        """:meth:`get_current_checkpoint_storage_usage`, awaited to its result."""
        return await self.get_current_checkpoint_storage_usage(project_id)


def _day(day: datetime.date | None) -> str | None:
    if day is None:
        return None
    if not isinstance(day, datetime.date) or isinstance(day, datetime.datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"day must be a datetime.date, got {type(day).__name__}")
    return day.isoformat()
