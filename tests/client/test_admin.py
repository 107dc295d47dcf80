"""AdminClient: audit log and billing, compared with recordings of the official client."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
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

CALLS: list[tuple[int, Callable[[Admin], tinker.APIFuture[Any]], Any]] = [
    (29, lambda admin: admin.get_audit_log(), types.AuditLogResponse),
    (30, lambda admin: admin.get_audit_log("checkpoints", DAY), types.AuditLogResponse),
    (31, lambda admin: admin.get_billing_usage(START, END), types.BillingUsageResponse),
    (
        32,
        lambda admin: admin.get_current_checkpoint_storage_usage(),
        types.CurrentCheckpointStorageUsageResponse,
    ),
    (
        33,
        lambda admin: admin.get_current_checkpoint_storage_usage("proj-1"),
        types.CurrentCheckpointStorageUsageResponse,
    ),
]


@pytest.fixture(params=[tinker.AdminClient, tinker.RestClient], ids=["AdminClient", "RestClient"])
def admin(request: pytest.FixtureRequest, wire: Any, clock: Any) -> Admin:
    """Either client that has these methods, on the transport."""
    made: Admin = request.param(
        base_url="http://server", api_key="tml-secret", transport=wire, clock=clock.clock()
    )
    return made


@pytest.mark.parametrize(
    ("number", "call", "expected"), CALLS, ids=lambda value: value if isinstance(value, int) else ""
)
def test_requests_and_answers_are_those_recorded(
    admin: Admin,
    wire: Any,
    number: int,
    call: Callable[[Admin], tinker.APIFuture[Any]],
    expected: Any,
) -> None:
    """Each call sends what the official client sends, and returns the response as the declared
    type.
    """
    exchange = RECORDED[number]
    operation = exchange["request"]["path"].rpartition("/api/v1/")[2]
    answer = exchange["response"]["body"]["json"]
    wire.fail(operation, 200, body=answer)
    result = call(admin).result(10)
    (sent,) = wire.requests(operation)
    assert sent.request.method == "GET"
    assert parse_qsl(sent.request.url.query.decode()) == parse_qsl(
        exchange["request"].get("query") or ""
    )
    assert result == expected.model_validate(answer)


def test_events_have_the_type_of_their_kind(admin: Admin, wire: Any) -> None:
    """An event has the type named by its kind; an event of unknown kind stays a dictionary."""
    answer = RECORDED[31]["response"]["body"]["json"]
    strange = {**answer["data"][0], "event_info": {"type": "moonlight", "hours": 3}}
    data = [*answer["data"], strange]
    wire.fail(
        "billing/usage/events",
        200,
        body={**answer, "data": data},
        outside="a kind of event of tomorrow",
    )
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
    """A time without a time zone, text that is not a time, and an end before its start raise
    ValueError; nothing is sent.
    """
    with pytest.raises(ValueError, match=message):
        admin.get_billing_usage(start, end)
    with pytest.raises(ValueError, match=r"datetime\.date"):
        admin.get_audit_log("all", START)
    assert wire.exchanges == []


@pytest.mark.parametrize(
    ("location", "keeps"), [("/signed?x=1", True), ("https://storage.example/signed?x=1", False)]
)
def test_redirected_audit_log(admin: Admin, wire: Any, location: str, keeps: bool) -> None:
    """A redirect of the audit log is followed, and the credential is sent to the same host only."""
    entries = RECORDED[29]["response"]["body"]["json"]
    wire.fail("audit", 302, headers={"location": location}, body=b"")
    wire.fail("/signed", 200, body=entries)
    assert admin.get_audit_log().result(10) == types.AuditLogResponse.model_validate(entries)
    request: httpx.Request = wire.exchanges[-1].request
    assert request.url.path == "/signed"
    assert ("x-api-key" in request.headers) is keeps


def test_twins_give_the_result(admin: Admin, wire: Any) -> None:
    """Each async twin returns the result when awaited once."""

    async def scenario() -> None:
        storage = admin.get_current_checkpoint_storage_usage_async()
        for number, field, twin in (
            (29, "entries", admin.get_audit_log_async()),
            (32, "data", storage),
        ):
            wire.fail(
                RECORDED[number]["request"]["path"].rpartition("/api/v1/")[2], 200, body={field: []}
            )
            assert (await twin).model_dump() is not None
        wire.fail("billing/usage/events", 200, body={"data": []})
        assert (await admin.get_billing_usage_async(START, END)).sessions == {}

    asyncio.run(scenario())


def test_servers_without_audit_log(admin: Admin, wire: Any) -> None:
    """A server without audit log and billing raises an error at once."""
    wire.fail("audit", 404)
    with pytest.raises(tinker.NotFoundError):
        admin.get_audit_log().result(10)
    assert admin.get_telemetry() is None
