"""Servers that are right in every way that the contract allows: the kit blames none of them."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import httpx
import pytest
from support.tampering import (
    Answer,
    Stepped,
    Tampering,
    edited,
    is_of,
    media_type,
    operation_of,
    read,
)
from support.tls import client_context, server_context
from tinker_wire.operations import OPERATIONS

from tinker._wire import proto
from tinker.local import Settings, running_server
from tinker.local.call import APIProblem, IdScheme, Profile
from tinker.local.engines.toy import ToyEngine
from tinker.testing import Outcome, run
from tinker.testing.conformance.report import findings

Serve = Callable[..., str]
Plant: TypeAlias = Callable[[Stepped], httpx.BaseTransport]
MANY: dict[str, Any] = {"gap_seconds": 60.0, "max_uploads": 10**6}
HOLDING: dict[str, Any] = {"hold_seconds": 2.0, "inline_result_bytes": 10**9, **MANY}
QUICK: dict[str, Any] = {**HOLDING, "hold_seconds": 0.0}
OPTIONAL = sorted(name for name, operation in OPERATIONS.items() if operation.optional)
_TRY_AGAIN = b'"try_again"'


@attrs.frozen
class Form:
    """A right server: what it answers instead, and titles of what is only advised against."""

    plant: Plant = lambda time: Tampering()
    settings: dict[str, Any] = HOLDING
    differs: frozenset[str] = frozenset()


def answering(change: Answer) -> Plant:
    """Return a server whose responses are changed."""
    return lambda time: Tampering(change)


def pending_as(status: int, value: Callable[[dict[str, Any]], bytes]) -> Plant:
    """Return a server that says in this way that there is no result yet."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not is_of(request, "retrieve_future") or _TRY_AGAIN not in response.content:
            return response
        return edited(response, value(response.json()), status)

    return answering(answer)


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


class Refusing(Tampering):
    """Refuses each request of an operation once, and says when to come again."""

    def __init__(self, status: int, operation: str, **headers: str) -> None:
        super().__init__()
        self._refusal = partial(httpx.Response, status, json={"detail": "later"}, headers=headers)
        self._operation = operation
        self._seen: Counter[bytes] = Counter()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        key = request.url.raw_path + request.read()
        self._seen[key] += 1
        if is_of(request, self._operation) and self._seen[key] % 2 == 1:
            return self._refusal()
        return super().handle_request(request)


def refusing_first(status: int, operation: str, **headers: str) -> Plant:
    return lambda time: Refusing(status, operation, **headers)


class Slow(Tampering):
    """Every response takes this long, and results come after so many polls."""

    def __init__(
        self, time: Stepped, seconds: float, polls: int = 0, poll_seconds: float = 30.0
    ) -> None:
        super().__init__()
        self._time, self._seconds, self._polls, self._poll_seconds = (
            time,
            seconds,
            polls,
            poll_seconds,
        )
        self._asked: Counter[str] = Counter()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        content = read(request.read())
        if is_of(request, "session_heartbeat"):
            return super().handle_request(request)
        if (
            is_of(request, "retrieve_future")
            and isinstance(content, dict)
            and isinstance(content.get("request_id"), str)
        ):
            wanted = content["request_id"]
            self._asked[wanted] += 1
            if "no-such" not in wanted and self._asked[wanted] <= self._polls:
                longest = request.extensions["timeout"]["read"]
                self._time.sleep(min(self._poll_seconds, longest))
                if longest < self._poll_seconds:
                    raise httpx.ReadTimeout("held", request=request)
                return httpx.Response(
                    200,
                    json={
                        "type": "try_again",
                        "request_id": wanted,
                        "queue_state": "paused_capacity",
                    },
                )
        self._time.sleep(self._seconds)
        return super().handle_request(request)


def compress(coding: str, squeeze: Callable[[bytes], bytes]) -> Plant:
    """Return a server that compresses what it answers."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        assert coding in request.headers["accept-encoding"]
        if not response.content:
            return response
        changed = edited(response, response.content)
        headers = {
            **changed.headers,
            "content-encoding": coding,
            "content-length": str(len(squeeze(response.content))),
        }
        return httpx.Response(
            response.status_code, headers=headers, content=squeeze(response.content)
        )

    return answering(answer)


class Pieces(httpx.SyncByteStream):
    """A body that comes byte by byte, without its length."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        yield from (self._content[at : at + 7] for at in range(0, len(self._content), 7))


def in_pieces(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return httpx.Response(response.status_code, headers=headers, stream=Pieces(response.content))


_MAPS = frozenset(
    {
        "loss_fns",
        "user_metadata",
        "metrics",
        "urls",
        "event_data",
        "event_details",
        "loss_fn_outputs",
    }
)


def extended(value: Any) -> Any:
    """Return the JSON with a field of tomorrow in each object that is a record."""
    if isinstance(value, list):
        return [extended(one) for one in value]
    if isinstance(value, dict):
        known = {name: one if name in _MAPS else extended(one) for name, one in value.items()}
        return {**known, "field_of_tomorrow": {"a": [1, None]}}
    return value


def more_fields(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    response.headers["x-header-of-tomorrow"] = "1"
    if "json" in media_type(response) and isinstance(value := read(response.content), dict):
        return edited(response, encoded(extended(value)))
    if media_type(response) == proto.MEDIA_TYPE:
        return edited(response, response.content + b"\xfa\x3f\x02hi")  # field 127, a text
    return response


def with_charset(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if "json" in media_type(response):
        response.headers["content-type"] = "Application/JSON; charset=utf-8"
    return response


def without_types(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    """Leave out every `type` that the contract does not require."""
    value = read(response.content) if "json" in media_type(response) else None
    if not isinstance(value, dict) or value.get("type") == "try_again":
        return response
    left = {name: one for name, one in value.items() if name != "type"}
    # an empty object is what the kit notes
    return edited(response, encoded(left)) if left else response


def with_nulls(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    """Write null for what a server has nothing to say of."""
    value = read(response.content) if "json" in media_type(response) else None
    if not (isinstance(value, dict) and is_of(request, "retrieve_future")) or "type" not in value:
        return response
    empty = {"queue_state_reason": None} if value["type"] == "try_again" else {}
    return edited(response, encoded({**value, **empty}))


def of_others(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    """Leave the date and the server's name to a proxy, which adds its own."""
    response.headers.update(
        {"via": "1.1 proxy", "cf-ray": "1", "set-cookie": "a=b", "x-deprecation-note": "soon"}
    )
    return response


def session_ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"{'s' * 180}.{next(numbers)}"


LONG_IDS = Profile(name="long ids", ids=IdScheme(session=session_ids()))
JSON_ONLY = Profile(name="json only", protobuf=False)
PROTOBUF_REFUSED_WITH_400 = Profile(
    name="json only, 400", protobuf=False, protobuf_problem=APIProblem(400, "JSON, please")
)
BY_STATUS = Profile(name="408", pending_status=408)
ACCOUNTS = (
    "get_api_key",
    "auth_token",
    "delete_api_key",
    "get_audit_log",
    "get_billing_usage",
    "get_checkpoint_storage_usage",
)


def without(status: int, value: object, *operations: str) -> Plant:
    """Return a server that does not have these operations, and answers so to them."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        return (
            httpx.Response(status, json=value) if operation_of(request) in operations else response
        )

    return answering(answer)


NOT_FOUND, NO_METHOD, LATER = (
    (404, {"detail": "Not Found"}),
    (405, {"detail": "Method Not Allowed"}),
    (501, {"detail": "not yet"}),
)
UNHELD = frozenset({"Polls are not held."})
FORMS: dict[str, Form] = {
    "usual": Form(),
    "pending: 408 with the body of try_again": Form(pending_as(408, encoded)),
    "pending: 408 with the body of try_again, at once": Form(
        pending_as(408, encoded), QUICK, UNHELD
    ),
    "pending: 408 with a state alone": Form(
        pending_as(408, lambda v: encoded({"queue_state": v["queue_state"]})), QUICK, UNHELD
    ),
    "pending: 408 with detail": Form(
        pending_as(408, lambda v: encoded({"detail": "later"})), QUICK, UNHELD
    ),
    "pending: 408 without a body": Form(pending_as(408, lambda v: b""), QUICK, UNHELD),
    "pending: 408 as the profile has it": Form(settings={**HOLDING, "profile": BY_STATUS}),
    "pending: try_again at once": Form(settings=QUICK, differs=UNHELD),
    "pending: try_again with a reason": Form(
        pending_as(
            200,
            lambda v: encoded(
                {**v, "queue_state": "paused_rate_limit", "queue_state_reason": "many clients"}
            ),
        )
    ),
    **{
        f"busy: {status} with {name} at {operation}": Form(
            refusing_first(status, operation, **{name: value})
        )
        for operation in (
            "create_session",
            "create_model",
            "forward_backward",
            "optim_step",
            "asample",
            "retrieve_future",
            "save_weights",
            "create_sampling_session",
        )
        for status, name, value in (
            (429, "retry-after", "3"),
            (429, "retry-after-ms", "250"),
            (503, "retry-after", "1"),
        )
    },
    "busy: 429 with a date": Form(
        refusing_first(429, "create_model", **{"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})
    ),
    **{
        f"{name}: none, {answer[0]}": Form(without(*answer, *operations))
        for name, operations in (("accounts", ACCOUNTS), ("optional", OPTIONAL))
        for answer in (NOT_FOUND, NO_METHOD, LATER)
    },
    **{f"optional: all but {name}": Form(without(*NOT_FOUND, name)) for name in OPTIONAL},
    "optional: all but heartbeats, 501": Form(without(*LATER, "session_heartbeat")),
    "form: JSON only": Form(settings={**HOLDING, "profile": JSON_ONLY}),
    "form: JSON only, 400 for protobuf": Form(
        settings={**HOLDING, "profile": PROTOBUF_REFUSED_WITH_400}
    ),
    "results: announced": Form(settings={**HOLDING, "inline_result_bytes": 1}),
    "results: announced, polls at once": Form(
        settings={**QUICK, "inline_result_bytes": 1}, differs=UNHELD
    ),
    "slow: 5 s for each response": Form(lambda time: Slow(time, 5.0)),
    "slow: 20 s for each response": Form(lambda time: Slow(time, 20.0)),
    "slow: a queue of three polls": Form(lambda time: Slow(time, 0.1, polls=3)),
    "slow: a queue, polls held for 40 s": Form(
        lambda time: Slow(time, 0.1, polls=2, poll_seconds=40.0)
    ),
    "slow: a queue of 100 short polls": Form(
        lambda time: Slow(time, 0.0, polls=100, poll_seconds=0.5), differs=UNHELD
    ),
    "http: gzip": Form(compress("gzip", gzip.compress)),
    "http: deflate": Form(compress("deflate", zlib.compress)),
    "http: in pieces": Form(answering(in_pieces)),
    "http: headers of a proxy": Form(answering(of_others)),
    "http: a charset": Form(answering(with_charset)),
    "records: fields and headers of tomorrow": Form(answering(more_fields)),
    "records: no types": Form(answering(without_types)),
    "records: nulls": Form(answering(with_nulls)),
    "ids: long": Form(settings={**HOLDING, "profile": LONG_IDS}),
    "ids: requests by number": Form(
        settings={**HOLDING, "profile": Profile(name="numbers", numbered_requests=True)}
    ),
}


#: Each form costs a whole run of the kit: the usual tests have a few, `nox -s chaos` and `contract`
#: have all.
CASES = [
    pytest.param(name, marks=[] if index % 30 == 2 else pytest.mark.soak)
    for index, name in enumerate(FORMS)
]


@pytest.mark.parametrize("name", CASES)
def test_a_right_server_is_not_blamed(name: str, serve: Serve) -> None:
    """Nothing contradicts, nothing differs but what is advised against, and no check is blocked."""
    form, time = FORMS[name], Stepped()
    # which steps over what a server needs to compute
    clock = None if form.settings["hold_seconds"] == 0.0 else time.clock
    # of that clock: a busy machine takes seconds of ours for an export
    deadline = None if name.startswith("slow") else 3600.0
    report = run(
        serve(**form.settings),
        transport=form.plant(time),
        clock=clock,
        skip=["*.custom_loss"],
        deadline_seconds=deadline,
    )
    told = {one.title: (one.outcome, one.observed, one.checks) for one in findings(report)}
    assert told.keys() == form.differs, told
    assert {outcome for outcome, _, _ in told.values()} <= {Outcome.DIFFERS}
    assert [row.how for row in report.checks if row.outcome is Outcome.BLOCKED] == []


def test_a_server_of_http2_is_not_blamed(tmp_path: Path) -> None:
    """A server that offers HTTP/2 by ALPN, and HTTP/1.1 beside it, is checked as any other."""
    settings = Settings(**{**HOLDING, "data_dir": tmp_path})
    with running_server(
        settings, ToyEngine(vocabulary=512), ssl_context=server_context("h2", "http/1.1")
    ) as url:
        transport = httpx.HTTPTransport(verify=client_context())
        report = run(
            url,
            transport=transport,
            clock=Stepped().clock,
            skip=["*.custom_loss"],
            deadline_seconds=3600.0,
        )
    assert findings(report) == ()
    assert {row.outcome for row in report.checks} <= {Outcome.SUPPORTED, Outcome.ABSENT}
