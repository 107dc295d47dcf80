"""AdminClient: the audit log and the bills of an organization, and the methods that it shares with
RestClient.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tinker_wire import models
from tinker_wire.api import admin as admin_api
from tinker_wire.clients import AdminOperations
from tinker_wire.runtime import Request

from tinker._basics.config import show_url
from tinker._loop import Clock
from tinker._runtime import ReadyClient, Rest, Runtime, SessionHolder, awaiting_twin, open_rest
from tinker._validate import check_access_scope, check_page, read_ttl
from tinker.futures import APIFuture
from tinker.types._values import SuggestsNames
from tinker.types.params import GetBillingUsageRequest, ParsedCheckpointTinkerPath
from tinker_records import Described, suggest_arguments

if TYPE_CHECKING:
    import httpx

    from tinker._session.telemetry import Telemetry

T = TypeVar("T")


class AdminMethods(SuggestsNames, Described, AdminOperations):
    """The methods that AdminClient and RestClient share, including those generated from the
    contract.
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
        self._rest: Rest = open_rest(
            _holder, base_url=base_url, api_key=api_key, transport=transport, clock=clock
        )

    def _facts(self) -> dict[str, object]:
        rest = getattr(self, "_rest", None)  # absent in a subclass that does not call __init__
        return {"server": rest and show_url(rest.runtime.config.base_url)}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._facts()['server']}>"

    @property
    def holder(self) -> SessionHolder:
        """Return an object with the attributes that older code uses, as ``ServiceClient.holder``
        does.
        """
        return SessionHolder(self._rest.runtime)

    def get_billing_usage(
        self,
        starting_on: datetime.datetime | str,
        ending_before: datetime.datetime | str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.BillingUsageResponse]:
        """Get the usage of each hour of a period, and its estimated cost.

        Servers allow at most 14 days.

        Args:
            starting_on: The first hour, a datetime or RFC 3339 text. It must be a full hour with a
                time zone.
            ending_before: The hour after the last one, in the same form.
            extra_headers: Headers of this call only. They replace the client's of the same name, in
                any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError
                after it.

        Returns:
            A future of the usage.

        Raises:
            ValueError: At once, if a time zone is missing or the hours are not in order.
        """
        time = GetBillingUsageRequest(starting_on=starting_on, ending_before=ending_before)
        request = admin_api.get_billing_usage(
            starting_on=time.starting_on, ending_before=time.ending_before
        )
        return self._ask(request.with_options(extra_headers, timeout))

    get_billing_usage_async: Final = awaiting_twin(get_billing_usage)

    def get_telemetry(self) -> Telemetry | None:
        """Return the reporter of the ServiceClient that owns the connections; None for a client
        without a session.
        """
        return self._rest.runtime.telemetry

    # ------------------------------------------------------------- what the contract's methods need

    def _ask(self, request: Request[T]) -> APIFuture[T]:
        return self._rest.ask(request)

    def _check(self, **arguments: Any) -> None:
        if "limit" in arguments:
            check_page(arguments["limit"], arguments.get("offset", 0))
        value: object
        for name, value in arguments.items():
            if name.endswith("_id") and not isinstance(value, str | None):
                advice = ": pass its model_id" if isinstance(value, ReadyClient) else ""
                raise TypeError(f"{name} must be a string, got {type(value).__name__}{advice}")
        for name, check in _CHECKS.items():
            if name in arguments:
                check(arguments[name])

    def _split_path(self, path: str, kind: str | None = None) -> Mapping[str, str]:
        parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
        if kind is not None and parsed.checkpoint_type != kind:
            raise ValueError(
                f"{path} does not contain {kind}_weights; use save_weights_{kind} to save them"
            )
        return {"training_run_id": parsed.training_run_id, "checkpoint_id": parsed.checkpoint_id}


@suggest_arguments
class AdminClient(AdminMethods):
    """Client for administrators: the audit log, usage and storage of an organization.

    Arguments, futures and errors are those of RestClient.

    Args:
        base_url: The address of the server, as for ServiceClient.
        api_key: The credential, as for ServiceClient.
        transport: An httpx transport to use instead of real connections. Optional.
        clock: The source of time, which tests replace. None means the system clock.

    >>> admin = AdminClient(base_url="local://toy")
    >>> admin.get_billing_usage("2026-01-02T00:00:00", "2026-01-03T00:00:00Z")
    Traceback (most recent call last):
    ...
    ValueError: 2026-01-02T00:00:00 needs a time zone, such as 2026-01-02T00:00:00Z
    """


def _check_day(day: datetime.date | None) -> None:
    if day is None:
        return
    if not isinstance(day, datetime.date) or isinstance(day, datetime.datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"day must be a datetime.date, got {type(day).__name__}")


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "access_scope": check_access_scope,
    "ttl_seconds": read_ttl,
    "day": _check_day,
}
