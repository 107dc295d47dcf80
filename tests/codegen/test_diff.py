"""Compatibility of changes: one can break clients, servers, Python code, several or none."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")

from support.pet_contract import FIXTURE, GET, HEADER, PET, QUERY, REMOVED, SCHEMA, TOY, put

from codegen.diff import (
    CLIENTS,
    COMPATIBLE,
    PYTHON,
    SERVERS,
    ContractSource,
    DiffFinding,
    compare,
    main,
)

SENT = f"{PET}/properties"
RECEIVED = f"{SCHEMA}/PetResponse/properties"
BOTH = f"{SCHEMA}/Ball/properties"
STRING = {"type": "string"}
BODY = "components/requestBodies/Pet"
RESULT = "paths/~1api~1v1~1results/post"


def case(name: str, pointer: str, value: object, level: str, words: str) -> Any:
    return pytest.param(pointer, value, level, words, id=name.replace(" ", "-"))


CALLERS = f"{CLIENTS}, {PYTHON}"
EVERYBODY = f"{CLIENTS}, {SERVERS}, {PYTHON}"

CHANGES = [
    case(
        "client method",
        f"{GET}/x-client",
        [{"client": "petshop", "name": "all"}],
        COMPATIBLE,
        "clients have the method petshop.all",
    ),
    case("operation gone", GET, REMOVED, CALLERS, "the operation list_pets is gone"),
    case(
        "operation renamed",
        f"{GET}/operationId",
        "all_pets",
        PYTHON,
        "the function list_pets is called all_pets",
    ),
    case(
        "tag", f"{GET}/tags", ["results"], PYTHON, "list_pets is in the module results, was in pets"
    ),
    case("optional", f"{GET}/x-optional", True, CLIENTS, "list_pets: servers may lack it now"),
    case("deprecated", f"{GET}/deprecated", True, COMPATIBLE, "list_pets: deprecated"),
    case(
        "media type gone",
        f"{BODY}/content/application~1x-protobuf",
        REMOVED,
        CALLERS,
        "application/x-protobuf is gone",
    ),
    case(
        "new parameter",
        f"{HEADER}/name",
        "X-Other",
        COMPATIBLE,
        "header x-other is a new optional parameter",
    ),
    case(
        "parameter gone",
        f"{HEADER}/name",
        "X-Other",
        CALLERS,
        "the parameter header x-request-token is gone",
    ),
    case(
        "parameter required",
        f"{HEADER}/required",
        True,
        CALLERS,
        "header x-request-token is required now",
    ),
    case(
        "parameter optional",
        f"{QUERY}/3/required",
        False,
        SERVERS,
        "query since is no longer required",
    ),
    case("new schema", f"{SCHEMA}/New", STRING, COMPATIBLE, "the class New is new"),
    case("schema gone", f"{SCHEMA}/Text", REMOVED, PYTHON, "the class Text is gone"),
    case("kind of schema", f"{SCHEMA}/Text", {"x-any": True}, PYTHON, "Text is opaque, was a type"),
    case(
        "any value",
        f"{SCHEMA}/Text",
        {"x-any": True},
        CALLERS,
        "the type was string, is any (answers)",
    ),
    case(
        "new optional received",
        f"{RECEIVED}/colour",
        STRING,
        COMPATIBLE,
        "colour is a new optional property (answers)",
    ),
    case(
        "property gone received",
        f"{RECEIVED}/seen",
        REMOVED,
        PYTHON,
        "the optional property seen is gone (answers)",
    ),
    case(
        "required gone received",
        f"{RECEIVED}/pet_id",
        REMOVED,
        CALLERS,
        "the required property pet_id is gone (answers)",
    ),
    case(
        "no longer required sent",
        f"{PET}/required/0",
        "weight",
        SERVERS,
        "name is no longer required (requests)",
    ),
    case(
        "now required received",
        f"{SCHEMA}/PetResponse/required/0",
        "seen",
        SERVERS,
        "seen is required now (answers)",
    ),
    case(
        "no longer required either way",
        f"{SCHEMA}/Ball/required",
        [],
        EVERYBODY,
        "size is no longer required (requests and answers)",
    ),
    case(
        "wider sent",
        f"{SENT}/age/type",
        "number",
        SERVERS,
        "the type was integer, is number (requests)",
    ),
    case(
        "wider received",
        f"{RECEIVED}/pet_id/type",
        ["string", "integer"],
        CALLERS,
        "integer is a new alternative (answers)",
    ),
    case(
        "nullable sent",
        f"{SENT}/name/type",
        ["string", "null"],
        SERVERS,
        "null is a new alternative (requests)",
    ),
    case(
        "wider either way",
        f"{BOTH}/size/type",
        "number",
        EVERYBODY,
        "the type was integer, is number (requests and answers)",
    ),
    case(
        "other type",
        f"{RECEIVED}/seen",
        {"type": "integer"},
        EVERYBODY,
        "the type was string, is integer",
    ),
    case("default", f"{SENT}/age/default", 1, CALLERS, "the default was 0, is 1"),
    case("new default", f"{SENT}/weight/default", 1.0, PYTHON, "the default was none, is 1.0"),
    case(
        "constant", f"{SENT}/type/const", "animal", EVERYBODY, 'the constant was "pet", is "animal"'
    ),
    case(
        "open constant",
        f"{SENT}/type/x-open",
        True,
        SERVERS,
        "values beyond the listed ones may appear now",
    ),
    case(
        "constant without null",
        f"{RECEIVED}/type/type",
        "string",
        SERVERS,
        "null is no longer one of the alternatives",
    ),
    case("limits", f"{SENT}/age/minimum", 1, CALLERS, "minimum was 0, is 1"),
    case(
        "open enum wider received",
        f"{SCHEMA}/Mood/enum",
        ["calm", "wild", "shy"],
        COMPATIBLE,
        'the value "shy" is new',
    ),
    case(
        "open enum narrower received",
        f"{SCHEMA}/Mood/enum",
        ["calm"],
        COMPATIBLE,
        'the value "wild" is gone',
    ),
    case(
        "enum closed",
        f"{SCHEMA}/Mood/x-open-enum",
        False,
        SERVERS,
        "values beyond the listed ones are refused now",
    ),
    case(
        "union opened",
        f"{TOY}/x-open-union",
        True,
        EVERYBODY,
        "members that are not listed may appear now",
    ),
    case(
        "result",
        f"{RESULT}/x-result",
        {"$ref": "#/components/schemas/PetList"},
        EVERYBODY,
        "was Diary, is PetList",
    ),
]


def compare_documents(old: Any, new: Any) -> list[DiffFinding]:
    return compare(ContractSource(document=old), ContractSource(document=new))


@pytest.mark.parametrize(("pointer", "value", "level", "words"), CHANGES)
def test_a_change_is_judged_by_where_the_value_travels(
    document: Any, pointer: str, value: object, level: str, words: str
) -> None:
    """Each change has one sentence that describes it, and the levels of the sides it breaks."""
    changed = copy.deepcopy(document)
    put(changed, pointer, value)
    found = compare_documents(document, changed)
    assert any(finding.level == level and words in finding.sentence for finding in found), list(
        map(str, found)
    )


def with_member(document: Any, union: str, name: str, tag: str) -> Any:
    """Return the document with one more record in a union."""
    changed = copy.deepcopy(document)
    schemas = changed["components"]["schemas"]
    key = schemas[union]["discriminator"]["propertyName"]
    schemas[name] = {"type": "object", "properties": {key: {"const": tag}}}
    schemas[union]["oneOf"].append({"$ref": f"#/components/schemas/{name}"})
    schemas[union]["discriminator"]["mapping"][tag] = f"#/components/schemas/{name}"
    return changed


def judge(old: Any, new: Any, union: str) -> tuple[str, str]:
    """Return the sentence and the level of what is found of a union."""
    found = {finding.pointer: finding for finding in compare_documents(old, new)}
    return found[f"#/{SCHEMA}/{union}"].sentence, found[f"#/{SCHEMA}/{union}"].level


def test_a_new_member_of_a_union_breaks_those_who_read_it(document: Any) -> None:
    """A reader refuses a tag that it does not know, unless the contract calls the union open."""
    changed = with_member(document, "Toy", "Kite", "kite")
    said = "Kite is a new alternative (requests and answers)."
    assert judge(document, changed, "Toy") == (said, EVERYBODY)
    for contract in (document, changed):
        del contract["components"]["schemas"]["PetList"]["properties"]["toys"]
        del contract["components"]["schemas"]["Toys"]
    said = "Kite is a new alternative (requests)."
    assert judge(document, changed, "Toy") == (said, SERVERS)
    said = "Swim is a new alternative (answers)."
    opened = with_member(document, "Outing", "Swim", "swim")
    assert judge(document, opened, "Outing") == (said, COMPATIBLE)


def test_a_moved_path_breaks_both_sides_of_the_wire(document: Any) -> None:
    """Method and path are the operation's address; the function of the bindings stays."""
    changed = copy.deepcopy(document)
    changed["paths"]["/api/v2/pets"] = changed["paths"].pop("/api/v1/pets")
    found = {finding.sentence: finding.level for finding in compare_documents(document, changed)}
    assert (
        found["create_pet was POST /api/v1/pets, is POST /api/v2/pets."] == f"{CLIENTS}, {SERVERS}"
    )


def test_another_spelling_of_the_same_values_is_no_change(document: Any) -> None:
    """Open enums and nullable values have two spellings, and words are no contract."""
    changed = copy.deepcopy(document)
    put(changed, f"{SCHEMA}/Mood", {"anyOf": [{"enum": ["calm", "wild"]}, STRING]})
    put(changed, f"{SENT}/note", {"anyOf": [STRING, {"type": "null"}]})
    put(changed, f"{SENT}/name/description", "Something else.")
    assert compare_documents(document, changed) == []


def test_the_exit_status_says_whom_it_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is the sum of 4, 8 and 16 for those that break, and 2 for unreadable input."""
    changed = tmp_path / "changed.yaml"
    changed.write_text(FIXTURE.read_text().replace("limit, in: query", "most, in: query"))
    assert main([str(FIXTURE), str(FIXTURE)]) == 0
    assert capsys.readouterr().out == "no change\n"
    assert main([str(FIXTURE), str(changed)]) == 4 + 16
    assert capsys.readouterr().out.splitlines() == [
        (
            f"clients, python          #/{GET}/parameters/0: the parameter query "
            "limit is gone (requests)."
        ),
        (
            f"compatible               #/{GET}/parameters/0: query most is a new optional "
            "parameter (requests)."
        ),
        "clients: 1, servers: 0, python: 1, compatible: 1",
    ]
    assert main([str(changed), str(FIXTURE), "--fail-on", "servers"]) == 0
    assert main([str(changed), str(FIXTURE), "--fail-on", "servers,clients"]) == 4
    assert main([str(changed), str(FIXTURE), "--fail-on", "none"]) == 0
    assert main([str(changed), str(FIXTURE), "--fail-on", "nobody"]) == 2
    assert main([str(FIXTURE), str(tmp_path / "missing.yaml")]) == 2
    assert main([]) == 2
