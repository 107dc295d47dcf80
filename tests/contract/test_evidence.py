"""The contract fits the exchanges of real clients, and everything marked as
recorded was recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema_rs
import msgspec
from support.cases import for_each
from support.contract import Contract, Fault, Operation, schema_name
from support.recordings import Exchange, check_request, check_response, exchanges, restored
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker.local.call import read_body

#: Recordings that do not fit, each with the reason. Nothing is here that fits.
EXCEPTIONS = {
    (
        "redirect_audit.jsonl:2",
        "request",
    ): "the target of a redirect, a storage URL outside the API",
    (
        "session_edge_cases.jsonl:3",
        "response",
    ): "holds `unknown_field`, to show that clients ignore what they do not know",
    (
        "user_error.jsonl:9",
        "response",
    ): "has the category `User`, to show that clients read it as unknown",
}
#: Components that openapi.yaml names in words, as they are part of every call;
#: openapi.portable.yaml has them at each.
EVERYWHERE = {"#/components/parameters/IdempotencyKey"}
FILES = sorted({exchange.file for exchange in exchanges()})
TAGS = r"recorded|executed|read|assumed|skyrl|tuft|twinkle|open-rl"
EVIDENCE = re.compile(rf"({TAGS})(: .+|; .+)?")


@cache
def promises() -> dict[tuple[str, str], str]:
    """(file, request id) -> operation that was submitted."""
    return {
        (exchange.file, exchange.response.json["request_id"]): exchange.path.rpartition("/")[2]
        for exchange in exchanges()
        if exchange.status == 200 and exchange.path.rpartition("/")[2] in SUBMITS
    }


SUBMITS = frozenset(
    name for name, row in OPERATIONS.items() if row.reply is models.UntypedAPIFuture
)


def promised(exchange: Exchange, contract: Contract) -> str | None:
    """Return the type of the result that an exchange fetches, if its submission is recorded."""
    request_id = (exchange.request.json or {}).get("request_id", "")
    submitted = promises().get((exchange.file, request_id))
    if submitted is None or not exchange.path.endswith("/retrieve_future"):
        return None
    return contract.operations[submitted].result


def check(exchange: Exchange, side: str, contract: Contract) -> None:
    """Fault when one side of a recorded exchange does not fit."""
    if side == "request":
        check_request(contract, exchange)
    else:
        check_response(contract, exchange, result=promised(exchange, contract))


# --------------------------------------------------------------------------------------- recordings


@for_each("file", FILES)
def test_every_recorded_exchange_fits(contract: Contract, file: str) -> None:
    """Each part of every request and answer fits: path, query, status, headers, body."""
    faults: list[str] = []
    for exchange in exchanges():
        for side in ("request", "response"):
            known = (exchange.place, side) in EXCEPTIONS or (
                exchange.place,
                "request",
            ) in EXCEPTIONS
            if exchange.file == file and not known:
                faults += fault(exchange, side, contract)
    assert faults == []


def fault(exchange: Exchange, side: str, contract: Contract) -> list[str]:
    try:
        check(exchange, side, contract)
    except Fault as error:
        return [f"{exchange.place}: {error}"]
    return []


@for_each("place, side", EXCEPTIONS)
def test_every_exception_is_one(contract: Contract, place: str, side: str) -> None:
    """An excused exchange does not fit, and only on the side that is named."""
    (exchange,) = [exchange for exchange in exchanges() if exchange.place == place]
    assert fault(exchange, side, contract)
    if side == "response":
        check(exchange, "request", contract)


def test_most_results_are_checked_against_their_promise(contract: Contract) -> None:
    """A fetched result is known by the request that was submitted, in nearly all recordings."""
    fetched = [
        exchange
        for exchange in exchanges()
        if exchange.path.endswith("/retrieve_future") and exchange.status == 200
    ]
    known = [exchange for exchange in fetched if promised(exchange, contract)]
    assert len(known) > 0.7 * len(fetched)


# ----------------------------------------------------------------------------------------- decoders


@for_each("file", FILES)
def test_every_recorded_request_survives_the_round_trip(contract: Contract, file: str) -> None:
    """A decoded body encodes to equal JSON; those of 2025 to the same with today's defaults."""
    for exchange in exchanges():
        kind = body_type(exchange, contract)
        if exchange.file != file or kind is None:
            continue
        if exchange.reading == "sent":
            decoded = msgspec.json.decode(exchange.request.content, type=kind)
            assert text(msgspec.json.decode(msgspec.json.encode(decoded))) == text(
                exchange.request.json
            ), exchange.place
        else:
            encoded = msgspec.json.decode(
                msgspec.json.encode(read_body(exchange.request.content, kind))
            )
            contract.check_value(kind.__name__, encoded, "sent", exchange.place)
            assert holds(encoded, exchange.request.json), exchange.place


def body_type(exchange: Exchange, contract: Contract) -> type[msgspec.Struct] | None:
    if exchange.request.json is None:
        return None
    return OPERATIONS[contract.find(exchange.method, exchange.path).id].body


def text(value: object) -> str:
    """JSON in which 1 and 1.0 differ and the order of fields does not."""
    return json.dumps(value, sort_keys=True)


def holds(value: Any, part: Any) -> bool:
    """Whether a value has all of another that is not null; integers may be floats."""
    if isinstance(part, dict):
        return all(
            item is None or (key in value and holds(value[key], item)) for key, item in part.items()
        )
    if isinstance(part, list):
        return len(value) == len(part) and all(map(holds, value, part))
    return bool(value == part)


@for_each("file", FILES)
def test_every_recorded_answer_is_decoded(contract: Contract, file: str) -> None:
    """Answers are records of the generated models, results of the type that was promised."""
    for exchange in exchanges():
        if (
            exchange.file == file
            and 200 <= exchange.status < 300
            and exchange.response.json is not None
        ):
            kind = answer_type(exchange, contract)
            if kind is not None:
                assert isinstance(msgspec.json.decode(exchange.response.content, type=kind), kind)


def answer_type(exchange: Exchange, contract: Contract) -> type[msgspec.Struct] | None:
    if (exchange.place, "request") in EXCEPTIONS:
        return None
    row = OPERATIONS[contract.find(exchange.method, exchange.path).id]
    if row.reply is not None:
        return row.reply
    body = exchange.response.json
    if body.get("type") == "try_again":
        return models.TryAgainResponse
    if body.get("status") == "complete_metadata":
        return models.FutureMetadataResponse
    if "error" in body:
        return models.RequestFailedResponse
    name = promised(exchange, contract)
    return getattr(models, name) if name else models.FutureStatus


# ------------------------------------------------------------------------------------- the document


def test_every_operation_is_described(contract: Contract) -> None:
    """Each has an id, a summary of one sentence, one declared tag, and evidence."""
    tags = {tag["name"] for tag in contract.document["tags"]}
    for operation in contract.operations.values():
        node = operation.node
        assert re.fullmatch(r"[a-z][a-z_]*", operation.id)
        assert node["summary"][-1] in ".?", operation
        assert len(node["tags"]) == 1, operation
        assert set(node["tags"]) <= tags, operation
        assert EVIDENCE.fullmatch(node["x-evidence"]), operation


def test_evidence_uses_the_words_of_the_document(document: dict[str, Any]) -> None:
    """Every `x-evidence` starts with a word that the document explains."""
    found = [node["x-evidence"] for node in nodes(document) if "x-evidence" in node]
    assert len(found) > 100
    assert [evidence for evidence in found if not EVIDENCE.fullmatch(evidence)] == []


def test_recorded_operations_are_recorded_and_others_are_not(contract: Contract) -> None:
    """The tag `recorded` stands exactly where a recording is."""
    seen = {
        contract.find(exchange.method, exchange.path).id
        for exchange in exchanges()
        if (exchange.place, "request") not in EXCEPTIONS
    }
    claimed = {
        name
        for name, operation in contract.operations.items()
        if operation.node["x-evidence"].startswith("recorded")
    }
    assert claimed == seen


def test_every_status_that_was_recorded_is_spelled_out(contract: Contract) -> None:
    """Each recorded status has an entry; `default` is for statuses never seen."""
    missing = {
        (operation.id, exchange.status)
        for exchange in exchanges()
        if (exchange.place, "request") not in EXCEPTIONS
        and (operation := contract.find(exchange.method, exchange.path))
        and str(exchange.status) not in operation.node["responses"]
    }
    assert missing == set()


def test_every_component_is_used(document: dict[str, Any]) -> None:
    """Each schema, parameter, answer, header and example is reached from an operation."""
    reached: set[str] = set()
    pending = references(document["paths"])
    while pending:
        pointer = pending.pop()
        if pointer not in reached:
            reached.add(pointer)
            _, _, section, name = pointer.split("/")
            pending |= references(document["components"][section][name])
    declared = {
        f"#/components/{section}/{name}"
        for section, named in document["components"].items()
        for name in named
        if section != "securitySchemes"
    }
    assert declared - reached == EVERYWHERE


def references(value: Any) -> set[str]:
    """Return every `$ref` inside a value, and the targets of its discriminators."""
    found = {node["$ref"] for node in nodes(value) if isinstance(node.get("$ref"), str)}
    return found | {
        target for node in nodes(value) if "mapping" in node for target in node["mapping"].values()
    }


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping inside a value."""
    if isinstance(value, dict):
        yield value
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from nodes(item)


def test_every_schema_is_json_schema(document: dict[str, Any]) -> None:
    """The schemas are valid in the dialect of OpenAPI 3.1, so that any validator reads them."""
    for schema in document["components"]["schemas"].values():
        assert jsonschema_rs.meta.is_valid(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        )


def test_every_link_leads_somewhere(contract: Contract) -> None:
    """A link names an operation and gives it parameters or body fields that it has."""
    links = [link for node in nodes(contract.document) for link in node.get("links", {}).values()]
    assert len(links) > 10
    for link in links:
        target = contract.operations[link["operationId"]]
        names = {item["name"] for item in target.parameters}
        assert set(link.get("parameters", {})) <= names, link
        assert set(link.get("requestBody", {})) <= set(body_properties(target, contract)), link


def body_properties(operation: Operation, contract: Contract) -> dict[str, Any]:
    if "requestBody" not in operation.node:
        return {}
    name = schema_name(operation.node["requestBody"]["content"]["application/json"]["schema"])
    return dict(contract.document["components"]["schemas"][name]["properties"])


# ----------------------------------------------------------------------------------------- examples


def examples(contract: Contract) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield side, name and example of every example of a body."""
    for operation in contract.operations.values():
        parts = [("request", operation.node.get("requestBody", {}))]
        parts += [
            ("response", contract.resolved(one)) for one in operation.node["responses"].values()
        ]
        for side, part in parts:
            for media in part.get("content", {}).values():
                for one in media.get("examples", {}).values():
                    yield side, schema_name(one), contract.resolved(one)


def test_every_example_is_recorded(contract: Contract) -> None:
    """An example is the body of the recording that it names, which fits, with long lists cut off."""
    assert len(list(examples(contract))) > 80
    recorded = {exchange.place: exchange for exchange in exchanges()}
    for side, name, example in examples(contract):
        exchange = recorded[example["x-recording"]]
        body = exchange.request.json if side == "request" else exchange.response.json
        assert is_start(example["value"], restored(body)), name


def is_start(example: Any, recorded: Any) -> bool:
    """Equal, but for lists that are shorter than the recorded ones."""
    if isinstance(example, dict) and isinstance(recorded, dict):
        return example.keys() == recorded.keys() and all(
            is_start(example[key], recorded[key]) for key in example
        )
    if isinstance(example, list) and isinstance(recorded, list):
        return len(example) <= len(recorded) and all(map(is_start, example, recorded))
    return type(example) is type(recorded) and bool(example == recorded)
