"""AdminClient: audit log and billing, compared with recordings of the official client."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

import tinker
from tinker import types

GOLDEN = Path(__file__).parents[1] / "golden" / "rest_client.jsonl"
RECORDED = {
    exchange["n"]: exchange for exchange in map(json.loads, GOLDEN.read_text().splitlines())
}
DAY = datetime.date(2026, 1, 2)
START = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
END = "2026-01-03T02:00:00+02:00"
Admin = tinker.AdminClient | tinker.RestClient


STORAGE = types.CurrentCheckpointStorageUsageResponse
CALLS: list[tuple[int, Callable[[Admin], tinker.APIFuture[Any]], Any]] = [
    (29, lambda admin: admin.get_audit_log(), types.AuditLogResponse),
    (30, lambda admin: admin.get_audit_log("checkpoints", DAY), types.AuditLogResponse),
    (31, lambda admin: admin.get_billing_usage(START, END), types.BillingUsageResponse),
    (32, lambda admin: admin.get_current_checkpoint_storage_usage(), STORAGE),
    (33, lambda admin: admin.get_current_checkpoint_storage_usage("proj-1"), STORAGE),
]


@pytest.fixture(params=[tinker.AdminClient, tinker.RestClient], ids=["AdminClient", "RestClient"])
def admin(request: pytest.FixtureRequest, wire: Any, clock: Any) -> Admin:
    """Either client that has these methods, on the transport."""
    made: Admin = request.param(
        base_url="http://server", api_key="tml-secret", transport=wire, clock=clock.clock()
    )
    return made


@pytest.mark.parametrize(("number", "call", "expected"), CALLS, ids=[str(n) for n, *_ in CALLS])
def test_requests_and_answers_are_those_recorded(
    admin: Admin,
    wire: Any,
    number: int,
    call: Callable[[Admin], tinker.APIFuture[Any]],
    expected: Any,
) -> None:
    """Each call sends what the official client sends, and returns its declared type."""
    asked, answer = RECORDED[number]["request"], RECORDED[number]["response"]["body"]["json"]
    operation = asked["path"].rpartition("/api/v1/")[2]
    wire.fail(operation, 200, body=answer)
    result = call(admin).result(10)
    (sent,) = wire.requests(operation)
    assert sent.request.method == "GET"
    assert parse_qsl(sent.request.url.query.decode()) == parse_qsl(asked.get("query") or "")
    assert result == expected.model_validate(answer)


def test_events_have_the_type_of_their_kind(admin: Admin, wire: Any) -> None:
    """An event has the type named by its kind; an event of unknown kind stays a dictionary."""
    answer = RECORDED[31]["response"]["body"]["json"]
    strange = {**answer["data"][0], "event_info": {"type": "moonlight", "hours": 3}}
    body = {**answer, "data": [*answer["data"], strange]}
    wire.fail("billing/usage/events", 200, body=body, outside="a kind of event of tomorrow")
    data = admin.get_billing_usage(START, END).result(10).data
    assert [type(event.event_info) for event in data] == [
        types.TrainingBillingEvent,
        types.SamplingPrefillBillingEvent,
        types.StorageBillingEvent,
        dict,
    ]


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (START.replace(tzinfo=None), END, "needs a time zone"),
        ("2026-01-02", END, "needs a time zone"),
        (START, "2026-01-02T00:00:00Z", "must be before"),
        (START, "tomorrow", "tomorrow"),
        (5, END, "expected a datetime"),
    ],
)
def test_times_are_checked_on_the_users_line(
    admin: Admin, wire: Any, start: Any, end: Any, message: str
) -> None:
    """Times without a zone, in no order or that are none raise ValueError; nothing is sent."""
    with pytest.raises(ValueError, match=message):
        admin.get_billing_usage(start, end)
    with pytest.raises(ValueError, match=r"datetime\.date"):
        admin.get_audit_log("all", START)
    assert wire.exchanges == []


def test_twins_give_the_result(admin: Admin) -> None:
    """Each async twin returns the result when awaited once."""

    async def scenario() -> None:
        assert isinstance(await admin.get_audit_log_async(), types.AuditLogResponse)
        assert isinstance(await admin.get_current_checkpoint_storage_usage_async(), STORAGE)
        assert (await admin.get_billing_usage_async(START, END)).sessions == {}

    asyncio.run(scenario())


def test_a_client_without_a_session_reports_nothing(admin: Admin) -> None:
    """It has no reporter."""
    assert admin.get_telemetry() is None
