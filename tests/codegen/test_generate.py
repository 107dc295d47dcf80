"""The generator's output, byte for byte on the wire, and the documents that it refuses."""

from __future__ import annotations

import copy
import datetime
import json
import os
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cases import for_each

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")

import tinker_wire
from support.pet_contract import (
    FIELD,
    FIXTURE,
    GET,
    HEADER,
    NAME,
    PET,
    POST,
    QUERY,
    REMOVED,
    SCHEMA,
    TOY,
    put,
)
from tinker_wire import models, runs
from tinker_wire.operations import OPERATIONS

import tinker
from codegen import older_paths
from codegen.bindings import generate
from codegen.document import is_mapping
from codegen.files import files_below, find_stale, load
from codegen.generate import main
from codegen.schemas import METHODS_OF_RECORDS
from codegen.served_document import make_document

ROOT = Path(__file__).resolve().parents[2]
NEW_PATH = "/api/v1/toys"
SERVED = [{"url": "./", "description": "This server."}]

NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)


# ------------------------------------------------------------------------------------------- bodies


def test_defaults_are_sent_and_absent_values_are_not(pets: Any) -> None:
    """A body holds every default of the contract, and no None that is not required."""
    body = pets.models.PetRequest(name="Io", note=None, toys=[])
    assert encode(body) == (
        b'{"name":"Io","note":null,"toys":[],"kind":"cat","favourite":{"type":"rope","length":3.0},"labels":{},'
        b'"marks":[],"age":0,"tame":false,"type":"pet"}'
    )


def test_given_values_are_sent_in_their_wire_form(pets: Any) -> None:
    """Times are RFC 3339, bytes base64, members carry their tag, fields keep their order."""
    models = pets.models
    body = models.PetRequest(
        name="Io",
        note="x",
        toys=(models.Ball(size=1), models.Rope()),
        spare=models.Ball(size=2),
        labels={"a": 1.5, "b": "c"},
        marks=(1, 2),
        weight=2.0,
        born=NOON,
        picture=b"\x00\xff",
        extra={"any": [None]},
    )
    assert encode(body) == (
        b'{"name":"Io","note":"x","toys":[{"type":"ball","size":1},{"type":"rope","length":2.0}],"kind":"cat",'
        b'"favourite":{"type":"rope","length":3.0},"spare":{"type":"ball","size":2},"labels":{"a":1.5,"b":"c"},'
        b'"marks":[1,2],"age":0,"tame":false,"weight":2.0,"born":"2026-01-02T12:00:00Z","picture":"AP8=",'
        b'"extra":{"any":[null]},"type":"pet"}'
    )


def test_a_body_survives_the_round_trip(pets: Any) -> None:
    """An encoded body decodes to an equal value, so a server can use the same types."""
    models = pets.models
    body = models.PetRequest(
        name="Io", note=None, toys=[models.Ball(size=1)], born=NOON, picture=b"\x00"
    )
    assert msgspec.json.decode(encode(body), type=models.PetRequest) == body


def test_a_closed_constant_may_be_missing_and_nothing_else(pets: Any) -> None:
    """Old clients leave `type` out; another `type`, or null, is another request."""
    decoder = msgspec.json.Decoder(pets.models.PetRequest)
    assert decoder.decode(b'{"name":"Io","note":null,"toys":[]}').type == "pet"
    for wrong in (b'"car"', b"null"):
        with pytest.raises(msgspec.ValidationError, match=r"\$\.type"):
            decoder.decode(b'{"name":"Io","note":null,"toys":[],"type":' + wrong + b"}")


def test_answers_may_hold_values_that_the_contract_does_not_know(pets: Any) -> None:
    """Open enums and constants keep what they do not list, and unknown fields are ignored."""
    decoder = msgspec.json.Decoder(pets.models.PetResponse)
    answer = decoder.decode(
        b'{"pet_id":"p","mood":"sleepy","type":"cat","new":1,"pairs":[[1,0.5]],"seen":"2026-01-02T12:00:00Z"}'
    )
    assert (answer.mood, answer.type) == ("sleepy", "cat")
    assert (answer.pairs, answer.seen) == ([(1, 0.5)], NOON)
    assert decoder.decode(b'{"pet_id":"p","mood":"calm","type":null}').type is None


def test_a_union_is_told_apart_by_its_tag(pets: Any) -> None:
    """The tag selects the member and is an attribute; an unknown one is named with its place."""
    decoder = msgspec.json.Decoder(pets.models.PetList)
    answer = decoder.decode(b'{"pets":[],"toys":{"a":{"type":"ball","size":1}},"scores":[null,1]}')
    assert answer.toys == {"a": pets.models.Ball(size=1)}
    assert answer.toys["a"].type == "ball"
    assert answer.scores == [None, 1.0]
    with pytest.raises(msgspec.ValidationError, match=r"\$\.toys"):
        decoder.decode(b'{"pets":[],"toys":{"a":{"type":"kite"}}}')


def test_members_of_an_open_union_go_out_as_they_came_in(pets: Any) -> None:
    """A known tag gives the record, another one the dictionary with all that it holds."""
    models = pets.models
    sent = (
        b'{"first":{"kind":"walk","seen":"2026-01-02T12:00:00Z"},"last":{"kind":"swim","depth":[1,2]},'
        b'"usual":{"kind":"vet","cost":5.0},"outings":[{"kind":"vet","cost":2.0},{"kind":"nap"}]}'
    )
    diary = msgspec.json.decode(sent, type=models.Diary)
    assert (diary.first, diary.last) == (models.Walk(seen=NOON), {"kind": "swim", "depth": [1, 2]})
    assert diary.outings == [models.Vet(cost=2.0), {"kind": "nap"}]
    assert encode(diary) == sent
    assert msgspec.json.decode(b'{"first":{"kind":"swim"}}', type=models.Diary).last is None


@pytest.mark.parametrize(
    "first",
    [b'{"kind":"walk"}', b'{"kind":"vet","cost":"x"}', b'{"kind":{}}', b"null", b'"walk"', b"[]"],
)
def test_a_known_member_must_fit(pets: Any, first: bytes) -> None:
    """A known tag promises its record, so what does not fit it is refused with its place."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"first":' + first + b"}", type=pets.models.Diary)


def test_records_take_members_of_an_open_union_as_they_are(pets: Any) -> None:
    """A server builds an answer from records, and the default is a record too."""
    diary = pets.models.Diary(first=pets.models.Vet())
    assert (
        encode(diary)
        == b'{"first":{"kind":"vet","cost":5.0},"usual":{"kind":"vet","cost":5.0},"outings":[]}'
    )


def test_limits_are_checked_only_where_the_contract_asks(pets: Any) -> None:
    """`x-validate` makes decoding refuse a value out of range."""
    with pytest.raises(msgspec.ValidationError, match="Expected `int` >= 0"):
        msgspec.json.decode(
            b'{"name":"Io","note":null,"toys":[],"age":-1}', type=pets.models.PetRequest
        )


def test_records_are_frozen_and_refuse_unknown_arguments(pets: Any) -> None:
    """A record cannot be changed after construction, and a misspelt argument is an error."""
    ball = pets.models.Ball(size=1)
    with pytest.raises(AttributeError):
        ball.size = 2
    with pytest.raises(TypeError):
        pets.models.Ball(sise=1)


def test_limits_are_constants(pets: Any, document: Any, tmp_path: Path) -> None:
    """A limit of a property and a constant of a schema can be read without spelling them again."""
    assert pets.limits.PET_REQUEST_AGE_MINIMUM == 0
    put(document, f"{SCHEMA}/Kind/x-constants", {"sounds": {"cat": ["meow"]}})
    assert generate(document, tmp_path / "wire") == []
    assert 'KIND_SOUNDS: Final = {"cat": ["meow"]}' in (tmp_path / "wire" / "limits.py").read_text()


# ----------------------------------------------------------------------------------------- requests


def test_a_function_returns_the_whole_exchange_and_sends_nothing(pets: Any) -> None:
    """The function of an operation gives all of a request, and what its reply is."""
    body = pets.models.PetRequest(name="Io", note=None, toys=[])
    request = pets.api.pets.create_pet(body, x_request_token="secret", x_round_trip=0.25)
    assert (request.operation, request.method, request.path) == (
        "create_pet",
        "POST",
        "/api/v1/pets",
    )
    assert request.headers == {"X-Request-Token": "secret", "X-Round-Trip": "0.25"}
    assert request.body is body
    assert request.reply is pets.models.PetResponse
    assert request.accepts == ("application/json",)
    assert request.query == ""
    assert "secret" not in repr(request)


def test_a_query_is_form_encoded(pets: Any) -> None:
    """None is left out, defaults are sent, lists are joined, and a time needs its zone."""
    request = pets.api.pets.list_pets(since=NOON, tame=True, kinds=["cat", "dog"], filter_="a b/é")
    assert request.query == (
        "limit=20&tame=true&kinds=cat%2Cdog&since=2026-01-02T12%3A00%3A00Z&filter=a+b%2F%C3%A9"
    )
    assert (
        pets.api.pets.list_pets(since=NOON, limit=5).query
        == "limit=5&since=2026-01-02T12%3A00%3A00Z"
    )
    with pytest.raises(ValueError, match="since needs a time zone"):
        pets.api.pets.list_pets(since=datetime.datetime(2026, 1, 2))


@pytest.mark.parametrize(
    "value", ["a:sample:1", "weights/0001", "a.b", "...", "-", "!$&'()*+,;=:@~_"]
)
def test_what_may_stand_in_a_path_stays_itself(pets: Any, value: str) -> None:
    """Ids keep `:`, `/` and everything else that a path segment may hold."""
    request = pets.api.pets.delete_photo(pet_id=value, photo_id=7)
    assert request.path == f"/api/v1/pets/{value}/photos/7"
    assert (request.reply, request.body) == (None, None)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ("a%61", "a%2561"),
        ("%2e%2E", "%252e%252E"),
        ("é", "%C3%A9"),
        ("a?x=1", "a%3Fx=1"),
        ("a#b c", "a%23b%20c"),
        ("a\nb\x00", "a%0Ab%00"),
        ("a\\..\\b", "a%5C..%5Cb"),
        ('"<>[]^`{|}', "%22%3C%3E%5B%5D%5E%60%7B%7C%7D"),
    ],
)
def test_everything_else_in_a_path_is_percent_encoded(pets: Any, value: str, encoded: str) -> None:
    """A path value of any characters reaches the server unchanged."""
    assert (
        pets.api.pets.delete_photo(pet_id=value, photo_id=7).path
        == f"/api/v1/pets/{encoded}/photos/7"
    )


@pytest.mark.parametrize(
    "value", ["", ".", "..", "a/..", "../b", "a/./b", "a//b", "a/", "/a", "a\ud800"]
)
def test_hostile_path_values_are_refused(pets: Any, value: str) -> None:
    """A value that would ask for another path raises, and the error names the argument."""
    with pytest.raises(ValueError, match="pet_id cannot be part of a path"):
        pets.api.pets.delete_photo(pet_id=value, photo_id=7)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\n", "\x00"])
def test_header_values_cannot_end_their_header(pets: Any, value: str) -> None:
    """A line break in a header value raises, and the error does not repeat the value."""
    body = pets.models.PetRequest(name="Io", note=None, toys=[])
    with pytest.raises(ValueError, match="X-Request-Token") as caught:
        pets.api.pets.create_pet(body, x_request_token=value)
    assert value not in str(caught.value)


def test_an_expected_reply_is_the_callers(pets: Any) -> None:
    """`x-reply: expected` takes the type from the caller, and media types in order."""
    request = pets.api.results.fetch_result(pets.models.Empty(), expected=pets.models.PetResponse)
    assert request.reply is pets.models.PetResponse
    assert request.accepts == ("application/x-protobuf", "application/json")


def test_a_binary_body_is_kept_in_pieces(pets: Any) -> None:
    """Pieces of any buffer type are counted in bytes, not joined, and kept out of the repr."""
    pieces = [b"abc", bytearray(2), memoryview(bytes(16)).cast("d")]
    body = pets.runtime.Binary(media_type="application/x-protobuf", content=pieces)
    assert body.nbytes == 3 + 2 + 16
    assert pets.api.pets.create_pet(body).body.content is pieces
    assert "abc" not in repr(body)


def test_the_operation_table_lists_every_operation(pets: Any) -> None:
    """A server finds all of an operation by its id, and cannot change it."""
    table = pets.operations.OPERATIONS
    assert list(table) == ["create_pet", "list_pets", "delete_photo", "fetch_result"]
    create, delete = table["create_pet"], table["delete_photo"]
    assert (create.method, create.path, create.tag) == ("POST", "/api/v1/pets", "pets")
    assert (create.body, create.reply) == (pets.models.PetRequest, pets.models.PetResponse)
    assert create.request_media_types == ("application/json", "application/x-protobuf")
    assert (create.optional, create.deprecated) == (False, False)
    assert delete.path == "/api/v1/pets/{pet_id}/photos/{photo_id}"
    assert (delete.optional, delete.deprecated, delete.body, delete.reply) == (
        True,
        True,
        None,
        None,
    )
    assert table["fetch_result"].reply is None
    assert (table["fetch_result"].result, create.result) == (pets.models.Diary, None)
    with pytest.raises(TypeError):
        table["create_pet"] = delete


def test_documentation_survives_as_docstrings(pets: Any) -> None:
    """Quotes and backslashes in a description reach the docstring unchanged."""
    doc = pets.api.pets.create_pet.__doc__
    assert 'The answer names it, "as it were".' in doc
    assert 'A backslash \\ and three quotes """ survive.' in doc
    assert pets.CONTRACT_VERSION == "1.2.3"


# ----------------------------------------------------------------------------------------- refusals

PATH = "components/parameters/PetId"
CONTENT = "components/requestBodies/Pet/content"
BODY = "components/requestBodies/Pet"
ERROR = "components/responses/Error"
SCHEMES = "components/securitySchemes"
RESULT = "paths/~1api~1v1~1results/post/x-result"
ANSWER = f"{GET}/responses/200"
METHODS = f"{GET}/x-client"
DIARY = f"{SCHEMA}/Diary/properties"
OUTINGS = f"{DIARY}/outings/items"
INLINE = {"type": "object", "properties": {}}
STRING = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}
LIST = {"type": "array"}
NULL = {"type": "null"}
METHOD = {"client": "petshop", "name": "list"}
BEARER = {"Token": {"type": "http", "scheme": "bearer"}}
KEY = {"Key": {"type": "apiKey", "in": "header", "name": "X-Key"}}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


DATA = {**STRING, "contentMediaType": "application/json", "contentSchema": ref("Ball")}
EVENT = {"type": "object", "required": ["data"], "properties": {"data": DATA}}


def stream(schema: object, **others: object) -> dict[str, object]:
    """Return an answer that is a stream of such events."""
    return {"description": "x", "content": {"text/event-stream": {"schema": schema}, **others}}


def case(
    name: str,
    pointer: str,
    value: object,
    reason: str,
    *,
    up: int = 0,
    below: str = "",
    at: str | None = None,
) -> tuple[str, str, object, str, str]:
    """Put a value at a pointer. It is refused there, some keys up, at a place below, or elsewhere."""
    keys = pointer.split("/")
    place = "/".join([*keys[: len(keys) - up], *filter(None, [below])]) if at is None else at
    return name, pointer, value, place, reason


REFUSALS = [
    # schemas
    case("inline object", NAME, INLINE, "unnamed schema with properties"),
    case("inline enum", NAME, {"type": "string", "enum": ["a"]}, "unnamed schema with enum"),
    case("inline union", NAME, {"oneOf": [ref("Toy"), STRING]}, "unnamed schema with oneOf"),
    case("inline allOf", NAME, {"allOf": [ref("Toy")]}, "unnamed schema with allOf"),
    case("inline any", NAME, {"x-any": True}, "unnamed schema with x-any"),
    case("inline object in a list", NAME, {**LIST, "items": INLINE}, "unnamed", below="items"),
    case(
        "object of nothing", NAME, {"type": "object"}, "without properties or additionalProperties"
    ),
    case(
        "record that is a map",
        f"{PET}/additionalProperties",
        True,
        "does not understand additionalProperties",
        up=1,
    ),
    case("record without type", f"{PET}/type", REMOVED, "needs `type: object`", up=1),
    case("required without property", f"{PET}/required", ["nmae"], "not a property", below="0"),
    case("no type", NAME, {}, "type is missing"),
    case("unknown type", NAME, {"type": "text"}, "type text"),
    case("unknown format", NAME, {"type": "string", "format": "uuid"}, "'uuid'", below="format"),
    case(
        "format on several types",
        NAME,
        {"type": ["string", "integer"], "format": "int64"},
        "several types",
    ),
    case(
        "unknown encoding",
        NAME,
        {"type": "string", "contentEncoding": "base32"},
        "base64",
        below="contentEncoding",
    ),
    case("unknown keyword", NAME, {"type": "string", "readOnly": True}, "readOnly"),
    case(
        "keyword beside $ref",
        NAME,
        {"$ref": "#/components/schemas/Kind", "minLength": 1},
        "minLength",
    ),
    case(
        "nothing to validate",
        NAME,
        {"type": "string", "x-validate": True},
        "nothing to validate",
        below="x-validate",
    ),
    case(
        "flag that is no flag",
        NAME,
        {"type": "string", "x-validate": "yes"},
        "true or false",
        below="x-validate",
    ),
    case("array without items", NAME, {"type": "array"}, "items or prefixItems"),
    case("tuple and list", NAME, {**LIST, "items": {}, "prefixItems": []}, "items or prefixItems"),
    case("dangling reference", NAME, ref("Nobody"), "points to nothing"),
    case("reference elsewhere", NAME, {"$ref": "other.yaml#/Pet"}, "does not point into"),
    case("integer constant", NAME, {"const": 1}, "only a string constant", below="const"),
    case(
        "closed constant that may be null",
        NAME,
        {"const": "a", "type": ["string", "null"]},
        "needs x-open",
        below="type",
    ),
    case("keyword as a field", f"{FIELD}/class", STRING, "Python keyword"),
    case("field that is no name", f"{FIELD}/a-b", STRING, "cannot be an attribute"),
    case("field that shadows", f"{FIELD}/int", STRING, "cannot be an attribute"),
    case("schema that is no class name", f"{SCHEMA}/pet", STRING, "class name"),
    case("schema that shadows", f"{SCHEMA}/Any", {"x-any": True}, "class name"),
    case("second name", f"{SCHEMA}/Cat", ref("Toy"), "second name"),
    case("nullable schema", f"{SCHEMA}/Cat", TEXT_OR_NULL, "not nullable"),
    case("default of a schema", f"{SCHEMA}/Text/default", "a", "belongs to the property"),
    case(
        "constant that is not a name",
        f"{SCHEMA}/Kind/x-constants",
        {"A-b": 1},
        "snake_case",
        below="A-b",
    ),
    case("empty enum", f"{SCHEMA}/Kind/enum", [], "non-empty enum", up=1),
    case("integer enum", f"{SCHEMA}/Kind", {"type": "integer", "enum": [1]}, "`type: string`"),
    case("circle", f"{SCHEMA}/Pair", {**LIST, "items": ref("Pairs")}, "circle", up=1),
    case(
        "record that contains itself",
        f"{SCHEMA}/Ball/properties/inner",
        ref("Ball"),
        "in a circle: Ball",
        up=3,
    ),
    # unions
    case("no discriminator", f"{TOY}/discriminator", REMOVED, "without a discriminator", up=1),
    case("no mapping", f"{TOY}/discriminator/mapping", REMOVED, "mapping", up=1),
    case(
        "member outside the mapping",
        f"{TOY}/discriminator/mapping/rope",
        REMOVED,
        "oneOf lists",
        up=3,
    ),
    case(
        "mapping against constant",
        f"{TOY}/discriminator/mapping/ball",
        "#/components/schemas/Rope",
        "has const 'rope'",
    ),
    case(
        "member without constant",
        f"{SCHEMA}/Ball/properties/type",
        STRING,
        "has const None",
        at=f"{TOY}/discriminator/mapping/ball",
    ),
    case("open constant in a union", f"{SCHEMA}/Ball/properties/type/x-open", True, "x-open", up=1),
    case("inline member", f"{TOY}/oneOf/0", INLINE, "unnamed member"),
    case("anyOf", TOY, {"anyOf": [ref("Toy")]}, "anyOf"),
    case(
        "open union in a map",
        f"{TOY}/x-open-union",
        True,
        "property of a record",
        at=f"{SCHEMA}/Toys",
    ),
    case(
        "open union in a list of lists",
        OUTINGS,
        {**LIST, "items": ref("Outing")},
        "property of a record",
    ),
    case(
        "null in a list of an open union",
        OUTINGS,
        {"oneOf": [ref("Outing"), {"type": "null"}]},
        "no null",
    ),
    case("unknown member as a default", f"{DIARY}/usual/default", {"kind": "swim"}, "no member"),
    case(
        "flag of a union that is no flag", f"{SCHEMA}/Outing/x-open-union", "yes", "true or false"
    ),
    # defaults
    case("default of another type", f"{FIELD}/age/default", "0", "string"),
    case("default outside the enum", f"{FIELD}/kind/default", "cow", "'cow'"),
    case("null default", f"{FIELD}/age/default", None, "null"),
    case("default without a member", f"{FIELD}/favourite/default", {"type": "kite"}, "no member"),
    case(
        "default with an unknown field", f"{FIELD}/favourite/default/colour", "red", "no property"
    ),
    case(
        "default without a required field",
        f"{FIELD}/favourite/default",
        {"type": "ball"},
        "also needs size",
    ),
    case("default time", f"{FIELD}/born/default", "2026-01-02T12:00:00Z", "default"),
    # operations
    case("unnamed result", RESULT, INLINE, "does not understand"),
    case("result that is no record", RESULT, ref("Pairs"), "not a record"),
    case("no operation id", f"{POST}/operationId", REMOVED, "operationId is missing", up=1),
    case("operation id that is no name", f"{POST}/operationId", "createPet", "snake_case"),
    case("operation id that is a keyword", f"{POST}/operationId", "import", "snake_case"),
    case("doubled operation id", f"{GET}/operationId", "create_pet", "already"),
    case("no tag", f"{POST}/tags", REMOVED, "exactly one tag", up=1),
    case("two tags", f"{POST}/tags", ["pets", "results"], "exactly one tag", up=1),
    case("undeclared tag", f"{POST}/tags", ["cats"], "not declared"),
    case("unknown operation keyword", f"{POST}/callbacks", {}, "callbacks", up=1),
    case("unknown reply", f"{POST}/x-reply", "guess", "expected"),
    case("unknown method", "paths/~1api~1v1~1pets/trace", {}, "trace", up=1),
    case("path with half a segment", "paths/~1pets~1{a}.json", {}, "whole-segment"),
    case(
        "undeclared path parameter",
        "paths/~1pets~1{a}",
        {"get": {"operationId": "a", "tags": ["pets"], "responses": {"204": {"description": "x"}}}},
        "declares []",
        below="get",
    ),
    # parameters
    case("constant header", f"{HEADER}/schema", {"const": "1"}, "constant parameter"),
    case("inline enum parameter", f"{HEADER}/schema", {"type": "string", "enum": ["a"]}, "unnamed"),
    case("record parameter", f"{HEADER}/schema", ref("Ball"), "only an enum"),
    case("nullable parameter", f"{HEADER}/schema", TEXT_OR_NULL, "can carry"),
    case("list in a header", f"{HEADER}/schema", {**LIST, "items": STRING}, "explode: false", up=1),
    case("repeated list", f"{QUERY}/2/explode", REMOVED, "explode: false", up=1),
    case("unknown style", f"{QUERY}/2/style", "pipeDelimited", "'form'"),
    case("cookie", f"{HEADER}/in", "cookie", "path, query or header", up=1),
    case("parameter named body", f"{HEADER}/name", "body", "'body'"),
    case(
        "two parameters of one name",
        f"{POST}/parameters/1/name",
        "x-request-token",
        "x_request_token",
        up=3,
    ),
    case("optional path parameter", f"{PATH}/required", False, "required: true", up=1),
    case("number in a path", f"{PATH}/schema", {"type": "number"}, "path parameter"),
    case(
        "required with a default",
        f"{QUERY}/0/required",
        True,
        "no default",
        at=f"{QUERY}/0/schema/default",
    ),
    case("no parameter schema", f"{HEADER}/schema", REMOVED, "needs a schema", up=1),
    # bodies and answers
    case("optional body", f"{BODY}/required", False, "required: true", up=1),
    case("inline body", f"{CONTENT}/application~1json/schema", INLINE, "unnamed body"),
    case(
        "events as a body",
        CONTENT,
        {"text/event-stream": {"schema": EVENT}},
        "not a form of a request body",
    ),
    case("body without schema", f"{CONTENT}/application~1x-protobuf", {}, "schema is missing"),
    case(
        "body of another media type",
        f"{CONTENT}/application~1xml",
        {"schema": STRING},
        "format: binary",
        below="schema",
    ),
    case(
        "list as a body", f"{CONTENT}/application~1json/schema", ref("Pairs"), "not a record", up=3
    ),
    case(
        "map as a reply",
        f"{ANSWER}/content/application~1json/schema",
        ref("Labels"),
        "not a record",
        up=5,
    ),
    case(
        "events without data",
        ANSWER,
        stream({**EVENT, "required": []}),
        "has `data`, which is required",
        below="content/text~1event-stream/schema",
    ),
    case(
        "events of plain text",
        ANSWER,
        stream({**EVENT, "properties": {"data": {**DATA, "contentMediaType": "text/plain"}}}),
        "a string of application/json",
        below="content/text~1event-stream/schema/properties/data",
    ),
    case("two 2xx answers", f"{POST}/responses/202", {"description": "x"}, "exactly one 2xx", up=1),
    case("no 2xx answer", f"{POST}/responses/201", REMOVED, "exactly one 2xx", up=1),
    case("status range", f"{POST}/responses/2XX", {"description": "x"}, "neither a status"),
    case("unquoted status", f"{POST}/responses", {200: {"description": "x"}}, "quote it"),
    case("inline error", f"{ERROR}/content/application~1json/schema", INLINE, "unnamed body"),
    # the document
    case("unknown section", "webhooks", {}, "webhooks", up=1),
    case("no schemas", "components/schemas", REMOVED, "schemas is missing", up=1),
    # methods of clients
    case(
        "method that is no name",
        METHODS,
        [{**METHOD, "name": "a-b"}],
        "name must be a snake_case name",
        below="0",
    ),
    case(
        "unknown key of a method",
        METHODS,
        [{**METHOD, "colour": "red"}],
        "does not understand colour",
        below="0",
    ),
    case(
        "date that is no text",
        METHODS,
        [{**METHOD, "dates": ["limit"]}],
        "limit must be text parameters",
        below="0/dates",
    ),
    case(
        "path of a method without one",
        METHODS,
        [{**METHOD, "path": {"name": "place"}}],
        "has no path parameters",
        below="0/path",
    ),
    # what other tools write
    *[
        case(f"field {name}", f"{FIELD}/{name}", STRING, "would shadow")
        for name in sorted(METHODS_OF_RECORDS)
    ],
    case("function models", f"{POST}/operationId", "models", "uses itself"),
    case("function form_body", f"{POST}/operationId", "form_body", "uses itself"),
    case("misspelt extension", f"{SCHEMA}/Kind/x-open-enums", True, "x-open-enum is", up=1),
    case(
        "extension in another place",
        f"{NAME}/x-open-union",
        True,
        "does not understand x-open-union",
        up=1,
    ),
    case("bearer", SCHEMES, BEARER, "Token is not sent", below="Token"),
    case(
        "key in a query",
        SCHEMES,
        {"Key": {**KEY["Key"], "in": "query"}},
        "Key is not sent",
        below="Key",
    ),
    case(
        "two keys", SCHEMES, {**KEY, "Other": {**KEY["Key"], "name": "X-Other"}}, "several schemes"
    ),
    case("security without a scheme", "security", [{"Key": []}], "only nothing is sent"),
    case(
        "security of an operation",
        f"{POST}/security",
        [{"OAuth": ["read"]}],
        "only nothing is sent",
    ),
    case(
        "stream or JSON",
        ANSWER,
        stream(EVENT, **{"application/json": {"schema": ref("Ball")}}),
        "stands alone",
        below="content",
    ),
    case(
        "anyOf of three",
        NAME,
        {"anyOf": [STRING, {"type": "integer"}, NULL]},
        "unnamed schema with anyOf",
    ),
    case(
        "inline enum or null",
        NAME,
        {"anyOf": [{"type": "string", "enum": ["a"]}, NULL]},
        "unnamed schema with anyOf",
    ),
]


@for_each("name, pointer, value, refused_at, reason", REFUSALS)
def test_what_would_have_to_be_guessed_is_refused(
    document: Any,
    tmp_path: Path,
    name: str,
    pointer: str,
    value: object,
    refused_at: str,
    reason: str,
) -> None:
    """The generator names the place and the reason, each in one line, and writes nothing."""
    broken = copy.deepcopy(document)
    put(broken, pointer, value)
    refusals = generate(broken, tmp_path / "wire")
    assert f"#/{refused_at}".removesuffix("/") in [refusal.pointer for refusal in refusals], name
    assert any(reason in refusal.reason for refusal in refusals), refusals
    assert not any("\n" in refusal.reason for refusal in refusals), refusals
    assert not (tmp_path / "wire").exists()


def test_a_stream_of_events_is_of_what_their_data_is(document: Any, tmp_path: Path) -> None:
    """A stream of events is accepted alone, and its reply is the record in their data."""
    put(document, f"{GET}/responses/200", stream(EVENT))
    assert generate(document, tmp_path / "wire") == []
    source = "".join(path.read_text() for path in (tmp_path / "wire" / "api").glob("*.py"))
    assert "Request[Ball]" in source.replace("models.", "")
    assert '("text/event-stream",)' in source


def test_a_record_says_from_where_users_import_it(document: Any, tmp_path: Path) -> None:
    """A record that a public package exports names that package as its module."""
    assert generate(document, tmp_path / "wire", {"Ball": "petshop.types"}) == []
    source = (tmp_path / "wire" / "models.py").read_text()
    assert source.count("__module__") == 1
    assert (
        "class Ball(_Record, frozen=True, "
        'kw_only=True, omit_defaults=True, tag_field="type", tag="ball"):\n'
    ) in source
    assert '    __module__ = "petshop.types"\n' in source


def test_one_record_cannot_have_two_tags(document: Any, tmp_path: Path) -> None:
    """A record in two unions must have the same tag in both, because it is sent with one."""
    ball = {"$ref": "#/components/schemas/Ball"}
    document["components"]["schemas"]["Ball"]["properties"]["kind"] = {"const": "round"}
    document["components"]["schemas"]["Shape"] = {
        "oneOf": [ball],
        "discriminator": {"propertyName": "kind", "mapping": {"round": ball["$ref"]}},
    }
    assert "a record has one tag" in str(generate(document, tmp_path / "wire")[0])


def test_a_warning_of_the_parser_is_an_error(document: Any, tmp_path: Path) -> None:
    """What openapi-python-client would drop with a warning stops the generator."""
    put(document, f"{POST}/parameters/0/schema/format", "date-time")
    refusals = generate(document, tmp_path / "wire")
    assert any(refusal.pointer == "openapi-python-client" for refusal in refusals)
    assert "POST /api/v1/pets" in " ".join(map(str, refusals))


def test_every_refusal_is_named_at_once(document: Any, tmp_path: Path) -> None:
    """Several faults in one document are reported in one run."""
    put(document, NAME, {"type": "text"})
    put(document, f"{POST}/tags", [])
    assert {refusal.pointer for refusal in generate(document, tmp_path / "wire")} == {
        f"#/{NAME}",
        f"#/{POST}",
    }


# ------------------------------------------------------------------------------------- command line


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project whose contract is the small one."""
    shutil.copy(FIXTURE, tmp_path / "openapi.yaml")
    return tmp_path


def run_on(project: Path, *arguments: str) -> int:
    return main(["--root", str(project), *arguments])


def test_check_fails_on_an_edited_tree(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An edited, a missing and an extra file are each named, and nothing is repaired."""
    assert run_on(project, "bindings") == 0
    tree = project / "generated" / "tinker_wire"
    runtime = tree / "runtime.py"
    runtime.write_text(runtime.read_text().replace("Nothing", "Something") + "EDITED = 1\n")
    (tree / "py.typed").unlink()
    (tree / "mine.py").write_text("")
    before = files_below(tree)
    assert run_on(project, "bindings", "--check") == 1
    errors = capsys.readouterr().err
    assert "runtime.py: differs" in errors
    assert "-EDITED = 1" in errors
    assert "py.typed: missing" in errors
    assert "mine.py: not generated" in errors
    assert files_below(tree) == before


def test_writing_makes_the_tree_exact(project: Path) -> None:
    """Files that the contract no longer has are removed, and a second run changes nothing."""
    stale = project / "generated" / "tinker_wire" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    assert run_on(project, "bindings") == 0
    assert not stale.exists()
    assert run_on(project, "bindings", "--check") == 0


def test_a_refused_document_leaves_the_tree_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is not zero, the message holds the JSON pointer, and nothing is written."""
    document = project / "openapi.yaml"
    text = document.read_text().replace("operationId: create_pet", "summary: x")
    document.write_text(text.replace("      summary: Create a pet.\n", ""))
    assert run_on(project) == 1
    assert (
        "openapi.yaml #/paths/~1api~1v1~1pets/post: operationId is missing"
        in capsys.readouterr().err
    )
    assert list(files_below(project)) == ["openapi.yaml"]


def test_a_broken_file_is_reported_without_a_traceback(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Doubled keys and bad YAML are errors of the document."""
    (project / "openapi.yaml").write_text("openapi: 3.1.0\nopenapi: 3.1.0\n")
    assert run_on(project) == 1
    assert "not YAML" in capsys.readouterr().err


def test_a_step_that_does_not_exist_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown step is refused with its name, and the help lists the steps."""
    with pytest.raises(SystemExit):
        run_on(project, "bindigns")
    assert "there is no step bindigns" in capsys.readouterr().err


def test_the_output_does_not_depend_on_the_hash_seed(project: Path) -> None:
    """Processes with other hash seeds find nothing to change in the bytes that this one wrote."""
    steps = ("bindings", "portable", "document", "methods")
    assert run_on(project, *steps) == 0
    runs = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "codegen",
                "generate",
                "--check",
                "--root",
                str(project),
                *steps,
            ],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
        )
        for seed in ("0", "4242")
    ]
    assert [run.wait() for run in runs] == [0, 0]


def test_the_served_document_has_a_line_for_each_operation_and_component(
    document: Any, tmp_path: Path
) -> None:
    """It is the document with another address, and one line for each operation or schema."""

    def lines() -> list[str]:
        (text,) = make_document(tmp_path, document).values()
        return str(text).splitlines()

    before = lines()
    assert json.loads("".join(before)) == json.loads(
        json.dumps({**document, "servers": SERVED}, default=str)
    )
    document["paths"][NEW_PATH] = {"get": {"operationId": "list_toys"}}
    new = [
        line
        for line in lines()
        if line.removesuffix(",") not in {old.removesuffix(",") for old in before}
    ]
    assert new == [f'"{NEW_PATH}":{{', '"get":{"operationId":"list_toys"}']


def test_older_modules_that_are_not_wanted_are_found(tmp_path: Path) -> None:
    """Older modules that are not wanted, differ or are missing are stale; those by hand stay."""
    home = tmp_path / "tinker" / "types"
    made = tmp_path / older_paths.MADE / "tinker" / "types"
    home.mkdir(parents=True)
    made.mkdir(parents=True)
    (home / "__init__.py").write_text(
        "if TYPE_CHECKING:\n    from x import Datum as Datum\n    ModelID = str\n"
    )
    (made / "old.py").write_text(older_paths.FIRST_LINE + "\n")
    (home / "datum.py").write_text("class Datum: ...\n")
    (made / "model_id.py").write_text(older_paths.FIRST_LINE + "\nfrom tinker.types import Datum\n")
    data = tmp_path / older_paths.OFFICIAL
    data.parent.mkdir(parents=True)
    data.write_text(
        '{"paths": {"tinker.types": {}, "tinker.types.datum": {"Datum": "own"}, '
        '"tinker.types.model_id": {"ModelID": "own"},'
        ' "tinker.types.shared.one": {"Datum": "own", "BaseModel": "own"}, "tinker._models": '
        '{"BaseModel": "own"}}}'
    )
    wanted = find_stale(older_paths.make_modules(tmp_path, {})).items()
    stale = {
        file.relative_to(made).as_posix(): text
        for file, text in wanted
        if file.is_relative_to(made)
    }
    listed = {name for name in older_paths.TABLE["modules"] if name.startswith("tinker.types.")}
    assert set(stale) - {f"{name.removeprefix('tinker.types.')}.py" for name in listed} == {
        *("old.py", "model_id.py", "shared/__init__.py", "shared/one.py"),
    }
    assert stale["old.py"] is None
    assert "from tinker.types import Datum\n" in str(stale["shared/one.py"])


def test_methods_of_the_contract_are_there() -> None:
    """Each method that the document says calls an operation is a method of that client."""
    operations = [
        item
        for path in load(ROOT / "openapi.yaml")["paths"].values()
        for item in path.values()
        if is_mapping(item)
    ]
    named = [name for operation in operations for name in operation.get("x-methods", ())]
    assert len(named) > 20
    assert [name for name in named if not callable(attrgetter(name)(tinker))] == []


def test_a_request_of_a_run_is_filled_when_its_turn_has_come() -> None:
    """Each operation with a future has its result; a run's request takes model and number later."""
    promised = {name: one.result for name, one in OPERATIONS.items() if one.result}
    assert {name: getattr(runs, name.upper()).record for name in promised} == promised
    assert (runs.ASAMPLE.request_type, runs.FORWARD.request_type) == ("Sample", "Forward")
    saved = runs.save_weights(path="a", ttl_seconds=5)
    assert (saved.result, saved.is_numbered) == (runs.SAVE_WEIGHTS, True)
    filled = saved.fill("m", 3, 2)
    assert (filled.body, filled.headers) == (
        models.SaveWeightsRequest(model_id="m", seq_id=3, path="a", ttl_seconds=5),
        {"X-Tinker-Known-Failure": "2"},
    )
    assert not runs.unload_model().is_numbered


def test_every_type_of_the_contract_can_be_decoded() -> None:
    """msgspec accepts every name of the models as fields have it, so no decoder fails."""
    for name in models.__all__:
        # of an open union, fields have another name
        kind = getattr(models, f"_{name}", getattr(models, name))
        assert msgspec.json.Decoder(kind).type == kind


def test_the_package_itself_imports_nothing() -> None:
    """`import tinker_wire` loads neither models nor requests."""
    code = (
        "import sys, tinker_wire; print([name for name in sys.modules if "
        "name.startswith('tinker_wire.')])"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "generated")}
    shown = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_the_contract_version_is_that_of_the_document() -> None:
    """`CONTRACT_VERSION` is `info.version` of openapi.yaml."""
    assert load(ROOT / "openapi.yaml")["info"]["version"] == tinker_wire.CONTRACT_VERSION
