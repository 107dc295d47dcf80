"""The judge of exchanges finds faults in requests and responses; `test_seeded_faults.py` has those in
the document.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.contract import Contract, Fault
from support.recordings import check_request, check_response, exchanges

RECORDED = {exchange.place: exchange for exchange in exchanges()}
CHECKS = {"request": check_request, "response": check_response}

Change = Callable[[Any], None]


def put(*path: str | int, value: object) -> Change:
    """Set one value of a body."""

    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = value

    return change


def drop(*path: str | int) -> Change:
    """Take one value out of a body."""

    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        del body[path[-1]]

    return change


def rename(old: str, new: str) -> Change:
    """Misspell one field of a body."""

    def change(body: Any) -> None:
        body[new] = body.pop(old)

    return change


# ------------------------------------------------------------------------------------------- bodies

SEARCH, SESSION, MODEL, SAMPLE = (
    "rest_client.jsonl:27",
    "session_edge_cases.jsonl:3",
    "create_model.jsonl:1",
    "sample.jsonl:2",
)
FINISH, SAVE, TELEMETRY = (
    "session_start_jwt.jsonl:13",
    "save_load_weights.jsonl:6",
    "telemetry.jsonl:1",
)

BAD_REQUESTS = [
    ("wrong type", MODEL, put("model_seq_id", value="0"), "model_seq_id"),
    ("missing field", MODEL, drop("base_model"), "base_model"),
    ("misspelt field", MODEL, rename("user_metadata", "user_metdata"), "user_metdata"),
    ("misspelt optional field", SAVE, rename("ttl_seconds", "ttl"), "ttl"),
    ("omitted default", SAVE, drop("overwrite"), "overwrite"),
    ("omitted default inside", MODEL, drop("lora_config", "train_mlp"), "train_mlp"),
    ("omitted constant", SAVE, drop("type"), "type"),
    ("wrong constant", SAVE, put("type", value="save"), "type"),
    ("needless null", SAVE, put("user_metadata", value=None), "user_metadata"),
    ("omitted null", FINISH, drop("detail"), "detail"),
    ("wrong enum value", FINISH, put("reason", "type", value=7), "type"),
    ("out of range", SAVE, put("ttl_seconds", value=60), "ttl_seconds"),
    ("too large", SEARCH, put("limit", value=201), "limit"),
    ("too few", SEARCH, put("statuses", value=[]), "statuses"),
    ("too short", SEARCH, put("display_name", value=""), "display_name"),
    ("unknown member", SEARCH, put("owner", value={"type": "team"}), "team"),
    ("member without its field", SEARCH, put("owner", value={"type": "user"}), "owner_urns"),
    ("chunk without a tag", SAMPLE, drop("prompt", "chunks", 0, "type"), "type"),
    ("token that is text", SAMPLE, put("prompt", "chunks", 0, "tokens", value=["a"]), "tokens"),
    ("time that is none", TELEMETRY, put("events", 0, "timestamp", value="noon"), "timestamp"),
    ("list in place of an object", MODEL, put("lora_config", value=[]), "lora_config"),
    (
        "known optimizer that does not fit",
        MODEL,
        put("optimizer_config", value={"type": "dimuon"}),
        "version",
    ),
]


BILLING, SESSIONS, RUN, POLL = (
    "rest_client.jsonl:31",
    "rest_client.jsonl:27",
    "rest_client.jsonl:4",
    "try_again.jsonl:3",
)
COMPLETIONS, FUTURE, CHECKPOINTS = (
    "sample_retrieve_futures.jsonl:5",
    "sample.jsonl:2",
    "rest_client.jsonl:11",
)

BAD_ANSWERS = [
    ("wrong type", RUN, put("is_lora", value="yes"), "is_lora"),
    ("missing field", RUN, drop("last_request_time"), "last_request_time"),
    ("misspelt field", RUN, rename("lora_rank", "rank"), "rank"),
    ("null that is not allowed", RUN, put("base_model", value=None), "base_model"),
    (
        "time without a zone",
        RUN,
        put("last_request_time", value="2026-01-02T03:04:05"),
        "last_request_time",
    ),
    (
        "unknown enum value",
        CHECKPOINTS,
        put("checkpoints", 0, "checkpoint_type", value="lora"),
        "lora",
    ),
    (
        "known member that does not fit",
        BILLING,
        drop("data", 0, "event_info", "token_count"),
        "token_count",
    ),
    (
        "unknown member of an open union",
        BILLING,
        put("data", 0, "event_info", value={"type": "gift"}),
        "gift",
    ),
    ("status without its reason", SESSIONS, drop("sessions", 0, "status", "reason"), "reason"),
    ("completion without its state", COMPLETIONS, drop("completions", 0, "state"), "state"),
    ("negative count", COMPLETIONS, put("cursor", value=-1), "cursor"),
    ("try again without a request id", POLL, drop("request_id"), "request_id"),
    ("misspelt queue state", POLL, put("queue_state", value="paused"), "paused"),
    ("future without its id", FUTURE, rename("request_id", "id"), "request_id"),
    (
        "sequence ids that are numbers",
        FUTURE,
        put("sample_sequence_ids", value=[1]),
        "sample_sequence_ids",
    ),
]


@pytest.mark.parametrize(
    ("side", "place", "change", "words"),
    [
        pytest.param(side, *case, id=f"{side}: {name}")
        for side, cases in {"request": BAD_REQUESTS, "response": BAD_ANSWERS}.items()
        for name, *case in cases
    ],
)
def test_a_fault_in_a_body_is_found(
    contract: Contract, side: str, place: str, change: Change, words: str
) -> None:
    """A recorded body fits, and with one fault it does not; the message names the place."""
    exchange, check = RECORDED[place], CHECKS[side]
    check(contract, exchange)
    body = copy.deepcopy(getattr(exchange, side).json)
    change(body)
    with pytest.raises(Fault, match=words):
        check(contract, exchange, content=json.dumps(body).encode())


# ---------------------------------------------------------------------------------- around the body


def test_an_unknown_path_and_an_unknown_method_are_found(contract: Contract) -> None:
    """Only paths and methods of the contract are operations."""
    for method, path in (
        ("GET", "/api/v1/session"),
        ("GET", "/api/v1/asample"),
        ("GET", "/create_session"),
        ("POST", "/api/v1/"),
    ):
        with pytest.raises(Fault, match="not in the contract"):
            contract.find(method, path)


@pytest.mark.parametrize("checkpoint", ["0001", "weight/0001", "weights/", "weights/a/b"])
def test_a_checkpoint_id_is_a_kind_and_a_name(contract: Contract, checkpoint: str) -> None:
    """Two segments, the first of three words."""
    with pytest.raises(Fault):
        check_request(
            contract,
            RECORDED["rest_client.jsonl:14"],
            path=f"/api/v1/training_runs/run-1/checkpoints/{checkpoint}",
        )


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=20&offset=0&access_scope=mine", "access_scope"),
        ("limit=many&offset=0&access_scope=owned", "limit"),
        ("limit=20&offset=-1&access_scope=owned", "offset"),
        ("limit=20&offset=0", "access_scope is missing"),
        ("limit=20&offset=0&access_scope=owned&page=1", "page"),
    ],
)
def test_a_fault_in_the_query_is_found(contract: Contract, query: str, words: str) -> None:
    """Unknown, missing, ill-typed and unlisted values."""
    check_request(contract, RECORDED["rest_client.jsonl:22"])
    with pytest.raises(Fault, match=words):
        check_request(contract, RECORDED["rest_client.jsonl:22"], query=query)


def test_a_required_query_parameter_is_missed(contract: Contract) -> None:
    """Usage has no default period."""
    with pytest.raises(Fault, match="starting_on is missing"):
        check_request(
            contract,
            RECORDED["rest_client.jsonl:31"],
            query="ending_before=2026-01-03T00%3A00%3A00Z",
        )


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"x-api-key": None}, "X-API-Key is missing"),
        ({"x-tinker-request-iteration": "first"}, "iteration"),
        ({"x-tinker-request-iteration": "-1"}, "iteration"),
        ({"content-type": "text/plain"}, "text/plain"),
        ({"content-type": None}, "as nothing"),
        ({"content-type": "application/x-protobuf"}, "x-protobuf"),
    ],
)
def test_a_fault_in_the_headers_is_found(
    contract: Contract, headers: dict[str, str | None], words: str
) -> None:
    """No credential, a number that is none, another media type."""
    exchange = RECORDED[POLL]
    changed = {**exchange.request.headers, **headers}
    with pytest.raises(Fault, match=words):
        check_request(
            contract,
            exchange,
            headers={name: value for name, value in changed.items() if value is not None},
        )


@pytest.mark.parametrize("status", [201, 202, 204, 302, 304])
def test_an_undocumented_status_is_found(contract: Contract, status: int) -> None:
    """Success and redirects are listed; only errors have a default."""
    with pytest.raises(Fault, match=f"status {status}"):
        check_response(contract, RECORDED[RUN], status=status)


def test_an_error_is_judged_by_its_body(contract: Contract) -> None:
    """An error may be empty, as from a proxy; with a body it has the form of the contract."""
    exchange = RECORDED["telemetry_rejected.jsonl:1"]
    headers = {"content-type": "application/json"}
    for status in (400, 418, 500):
        check_response(
            contract, exchange, status=status, headers=headers, content=b'{"detail": "no"}'
        )
        check_response(contract, exchange, status=status, headers={}, content=b"")
        with pytest.raises(Fault):
            check_response(
                contract, exchange, status=status, headers=headers, content=b'{"message": "no"}'
            )
        with pytest.raises(Fault, match="text/html"):
            check_response(
                contract,
                exchange,
                status=status,
                headers={"content-type": "text/html"},
                content=b"<h1>no</h1>",
            )


@pytest.mark.parametrize(
    "media_type", ["text/html", "application/x-protobuf", "application/msgpack", ""]
)
def test_an_undocumented_media_type_is_found(contract: Contract, media_type: str) -> None:
    """An answer is JSON, and protobuf only where the contract says so."""
    with pytest.raises(Fault, match="a body as"):
        check_response(contract, RECORDED[RUN], headers={"content-type": media_type})


def test_a_body_that_is_missing_or_too_much_is_found(contract: Contract) -> None:
    """A 200 with content has a body, a 204 has none, and neither has a GET."""
    with pytest.raises(Fault):
        check_response(contract, RECORDED[RUN], content=b"")
    with pytest.raises(Fault, match="none is expected"):
        check_response(contract, RECORDED["rest_client.jsonl:14"], content=b"{}")
    with pytest.raises(Fault, match="none is expected"):
        check_request(contract, RECORDED[RUN], content=b"{}")
    with pytest.raises(Fault, match="not JSON"):
        check_request(contract, RECORDED[POLL], content=b"{")


def test_a_redirect_without_a_target_is_found(contract: Contract) -> None:
    """302 needs `Location`."""
    exchange = RECORDED["redirect_audit.jsonl:1"]
    check_response(contract, exchange)
    with pytest.raises(Fault, match="Location is missing"):
        check_response(contract, exchange, headers={})


def test_a_wrong_header_of_an_answer_is_found(contract: Contract) -> None:
    """`x-should-retry` says true or false."""
    exchange = RECORDED["submit_503_should_not_retry.jsonl:2"]
    check_response(contract, exchange)
    with pytest.raises(Fault, match="x-should-retry"):
        check_response(
            contract, exchange, headers={**exchange.response.headers, "x-should-retry": "maybe"}
        )


def test_a_broken_protobuf_body_is_found(contract: Contract) -> None:
    """Bodies are parsed as the message that is due: not cut off, and not another message's."""
    exchange = RECORDED["forward_backward_cross_entropy.jsonl:2"]
    assert exchange.request.json is None
    check_request(contract, exchange)
    with pytest.raises(Fault, match="ForwardBackwardRequest"):
        check_request(contract, exchange, content=exchange.request.content[:-3])
    with pytest.raises(Fault, match="not a tinker_public"):
        check_response(
            contract, RECORDED["sample.jsonl:3"], result="SampleResponse", content=b"\xff"
        )
    with pytest.raises(Fault, match="protobuf where"):
        check_response(contract, RECORDED["sample.jsonl:3"], result="SaveWeightsResponse")
