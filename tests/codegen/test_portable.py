"""openapi.portable.yaml: the contract for generators that know no extensions."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from support.recordings import exchanges

from codegen.files import ROOT, load
from codegen.portable import OURS


@pytest.fixture(scope="module")
def portable() -> Any:
    return load(ROOT / "openapi.portable.yaml")


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from mappings(value)
    elif isinstance(node, list):
        for value in node:
            yield from mappings(value)


def validator(portable: Any, schema: str) -> Any:
    return jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{schema}", "components": portable["components"]}
    )


def test_it_has_no_extensions_that_change_a_meaning(portable: Any) -> None:
    """Nothing that only our generator understands is left, and no protobuf where there is JSON."""
    assert [
        key for node in mappings(portable["components"]["schemas"]) for key in node if key in OURS
    ] == []
    contents = [
        node["content"] for node in mappings(portable) if isinstance(node.get("content"), dict)
    ]
    assert [
        list(content) for content in contents if "application/json" in content and len(content) > 1
    ] == []


def test_every_recorded_answer_of_a_future_fits_its_record(portable: Any) -> None:
    """The record of all results has every field that real servers answer, in a form that fits."""
    check = validator(portable, "FutureAnswer")
    answers = [
        one.response.json
        for one in exchanges()
        if one.path.endswith("/retrieve_future") and one.status == 200
    ]
    found = [answer for answer in answers if answer is not None]
    assert len(found) > 30
    assert [answer for answer in found if not check.is_valid(answer)] == []
    fields = portable["components"]["schemas"]["FutureAnswer"]["properties"].keys()
    assert {name for answer in found for name in answer} <= fields


def test_unions_are_those_that_generators_can_make(portable: Any) -> None:
    """A union is of records told apart by a tag, or of one schema and null."""
    schemas = portable["components"]["schemas"]
    unions = [node for node in mappings(schemas) if "anyOf" in node or "oneOf" in node]
    assert len(unions) > 20
    plain = [node for node in unions if "discriminator" not in node]
    assert [
        node
        for node in plain
        if len(node.get("oneOf", ())) != 2 or {"type": "null"} not in node["oneOf"]
    ] == []


def test_numbers_have_64_bits(portable: Any) -> None:
    """No generator makes a float of 32 bits of a learning rate, or a class of a number."""
    schemas = [node for node in mappings(portable) if "number" in str(node.get("type"))]
    assert len(schemas) > 20
    assert [
        node
        for node in schemas
        if node["type"] != ["number", "string"] and node.get("format") != "double"
    ] == []


def test_the_page_has_the_versions_that_are_tried() -> None:
    """Every pin of the interop session is the one that the page on clients says was tried."""
    page = (ROOT / "docs" / "contract" / "clients.md").read_text(encoding="utf-8")
    sessions = tomllib.loads((ROOT / "tests" / "compat" / "sessions.toml").read_text())
    versions = [one.partition("==")[2] for one in sessions["interop"]["packages"] if "==" in one]
    packages = json.loads(
        (ROOT / "examples" / "interop" / "package.json").read_text(encoding="utf-8")
    )["dependencies"]
    versions += [packages[name] for name in ("openapi-typescript", "openapi-fetch", "typescript")]
    assert len(versions) == 7
    assert [version for version in versions if f" {version}" not in page] == []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("StopReason", "content_filter"),
        ("SessionStatus", {"type": "of tomorrow", "since": 1}),
        ("GetInfoResponse", {"type": None, "model_id": "m", "model_data": {}}),
    ],
)
def test_what_is_open_takes_other_values(portable: Any, schema: str, value: object) -> None:
    """Values of later versions fit, and null where servers are known to send it."""
    assert validator(portable, schema).is_valid(value)


def test_integers_are_long(portable: Any) -> None:
    """No generator makes 32 bits of a number that may be larger."""
    schemas = [
        node for node in mappings(portable) if node.get("type") in ("integer", ["integer", "null"])
    ]
    assert len(schemas) > 50
    assert [node for node in schemas if node.get("format") != "int64"] == []


def test_every_call_may_carry_its_idempotency_key(portable: Any) -> None:
    """The header that clients send with every body is declared where it may stand."""
    operations = [
        node
        for node in mappings(portable["paths"])
        if "requestBody" in node and "responses" in node
    ]
    key = {"$ref": "#/components/parameters/IdempotencyKey"}
    assert [one["operationId"] for one in operations if key not in one["parameters"]] == []
