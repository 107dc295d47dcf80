"""What a change of the contract is called: the same change can break callers, readers, both or nobody."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")

from support.pet_contract import FIXTURE, GET, HEADER, PET, POST, QUERY, REMOVED, SCHEMA, TOY, put

from codegen.diff import BREAKING, OK, RISKY, compare, main
from codegen.document import DocumentNode

SENT = f"{PET}/properties"
RECEIVED = f"{SCHEMA}/PetResponse/properties"
BOTH = f"{SCHEMA}/Ball/properties"
STRING = {"type": "string"}


def case(name: str, pointer: str, value: object, level: str, words: str) -> Any:
    return pytest.param(pointer, value, level, words, id=name.replace(" ", "-"))


CHANGES = [
    case("client method", f"{GET}/x-client", [{"client": "petshop", "name": "all"}], OK, "clients have the method petshop.all"),
    case("operation gone", GET, REMOVED, BREAKING, "list_pets: the operation is gone"),
    case("operation renamed", f"{GET}/operationId", "all_pets", BREAKING, "list_pets: the operation is gone"),
    case("tag", f"{GET}/tags", ["results"], BREAKING, "list_pets: tag was pets, is results"),
    case("optional", f"{GET}/x-optional", True, RISKY, "list_pets: servers may lack it now"),
    case("deprecated", f"{GET}/deprecated", True, OK, "list_pets: deprecated"),
    case(
        "media type gone",
        "components/requestBodies/Pet/content/application~1x-protobuf",
        REMOVED,
        BREAKING,
        "create_pet: no requests as application/x-protobuf",
    ),
    case("new parameter", f"{HEADER}/name", "X-Other", OK, "X-Other: a new optional parameter"),
    case("parameter gone", f"{HEADER}/name", "X-Other", BREAKING, "X-Request-Token: the parameter is gone"),
    case("parameter required", f"{HEADER}/required", True, BREAKING, "X-Request-Token: now required"),
    case("parameter optional", f"{QUERY}/3/required", False, OK, "since: now optional"),
    case("parameter type", f"{QUERY}/1/schema", STRING, BREAKING, "tame: the type was bool, is str"),
    case("parameter wider", f"{QUERY}/1/schema/type", ["boolean", "string"], OK, "tame: the type was bool"),
    case("parameter default", f"{QUERY}/0/schema/default", 10, RISKY, "limit: the default was 20, is 10"),
    case("new schema", f"{SCHEMA}/New", STRING, OK, "New: a new schema"),
    case("schema gone", f"{SCHEMA}/Text", REMOVED, BREAKING, "Text: the schema is gone"),
    case("kind of schema", f"{SCHEMA}/Text", {"x-any": True}, BREAKING, "Text: was plain, is opaque"),
    case("new optional sent", f"{SENT}/colour", STRING, OK, "PetRequest.colour: a new optional"),
    case("new optional received", f"{RECEIVED}/colour", STRING, OK, "PetResponse.colour: a new optional"),
    case("property gone sent", f"{SENT}/weight", REMOVED, BREAKING, "PetRequest.weight: the property is gone"),
    case("property gone received", f"{RECEIVED}/seen", REMOVED, BREAKING, "PetResponse.seen: the property is gone"),
    case("now required sent", f"{PET}/required/0", "weight", BREAKING, "PetRequest.weight: now required"),
    case("no longer required sent", f"{PET}/required/0", "weight", OK, "PetRequest.name: no longer required"),
    case("now required received", f"{SCHEMA}/PetResponse/required/0", "seen", RISKY, "PetResponse.seen: now required"),
    case("no longer required", f"{SCHEMA}/PetResponse/required/0", "seen", BREAKING, "PetResponse.pet_id: no longer"),
    case("no longer required either way", f"{SCHEMA}/Ball/required", [], BREAKING, "Ball.size: no longer required"),
    case("wider sent", f"{SENT}/age/type", "number", OK, "PetRequest.age: the type was int, is float"),
    case("narrower sent", f"{SENT}/weight/type", "integer", BREAKING, "PetRequest.weight: the type was float"),
    case("wider received", f"{RECEIVED}/pet_id/type", ["string", "integer"], BREAKING, "PetResponse.pet_id: the type"),
    case("nullable received", f"{RECEIVED}/pet_id/type", ["string", "null"], BREAKING, "is str | None"),
    case("nullable sent", f"{SENT}/name/type", ["string", "null"], OK, "is str | None"),
    case("not nullable sent", f"{SENT}/note/type", "string", BREAKING, "was str | None, is str"),
    case("wider either way", f"{BOTH}/size/type", "number", BREAKING, "Ball.size: the type was int, is float"),
    case("other type", f"{RECEIVED}/seen", {"type": "integer"}, BREAKING, "was datetime.datetime, is int"),
    case("default", f"{SENT}/age/default", 1, RISKY, "PetRequest.age: the default was 0, is 1"),
    case("new default", f"{SENT}/weight/default", 1.0, RISKY, "PetRequest.weight: the default was None"),
    case("constant", f"{SENT}/type/const", "animal", BREAKING, "the constant was 'pet', is 'animal'"),
    case("open constant", f"{SENT}/type/x-open", True, RISKY, "the constant is now open"),
    case("constant without null", f"{RECEIVED}/type/type", "string", RISKY, "the constant may not be null any more"),
    case("limits", f"{SENT}/age/minimum", 1, RISKY, "other limits: minimum"),
    case("enum wider sent", f"{SCHEMA}/Kind/enum", ["cat", "dog", "cow"], OK, "Kind: the value 'cow' is new"),
    case("enum narrower sent", f"{SCHEMA}/Kind/enum", ["cat"], BREAKING, "Kind: 'dog' is gone"),
    case("open enum wider received", f"{SCHEMA}/Mood/enum", ["calm", "wild", "shy"], RISKY, "Mood: the value 'shy'"),
    case("open enum narrower received", f"{SCHEMA}/Mood/enum", ["calm"], OK, "Mood: 'wild' is gone"),
    case("enum closed", f"{SCHEMA}/Mood/x-open-enum", False, RISKY, "Mood: now closed"),
    case("enum opened", f"{SCHEMA}/Kind/x-open-enum", True, OK, "Kind: now open"),
    case("union opened", f"{TOY}/x-open-union", True, BREAKING, "Toy: now open"),
    case("result", "paths/~1api~1v1~1results/post/x-result", {"$ref": "#/components/schemas/PetList"}, BREAKING, "is PetList"),
    case("map", f"{SCHEMA}/Labels/additionalProperties/type", "number", BREAKING, "Labels: the type was dict[str, float"),
]


@pytest.mark.parametrize(("pointer", "value", "level", "words"), CHANGES)
def test_a_change_is_called_by_its_direction(document: Any, pointer: str, value: object, level: str, words: str) -> None:
    """Each change has one line that says what it is and what it means for callers and readers."""
    changed = copy.deepcopy(document)
    put(changed, pointer, value)
    lines = [str(change) for change in compare(DocumentNode.of_document(document), DocumentNode.of_document(changed))]
    assert any(line.startswith(level) and words in line for line in lines), lines


def test_a_new_required_property_breaks_senders_and_not_readers(document: Any) -> None:
    """A caller cannot know the new field; a reader meets servers that do not send it yet."""
    changed = copy.deepcopy(document)
    for name in ("PetRequest", "PetResponse"):
        changed["components"]["schemas"][name]["properties"]["colour"] = STRING
        changed["components"]["schemas"][name]["required"].append("colour")
    found = compare(DocumentNode.of_document(document), DocumentNode.of_document(changed))
    assert [(change.level, change.where) for change in found] == [
        (BREAKING, "PetRequest.colour"),
        (RISKY, "PetResponse.colour"),
    ]


def test_a_new_member_of_a_union_breaks_old_readers(document: Any) -> None:
    """A reader of the old contract refuses a tag that it does not know; a union that is only sent may grow."""
    changed = copy.deepcopy(document)
    put(changed, f"{SCHEMA}/Kite", {"type": "object", "properties": {"type": {"const": "kite"}}})
    put(changed, f"{TOY}/discriminator/mapping/kite", "#/components/schemas/Kite")
    changed["components"]["schemas"]["Toy"]["oneOf"].append({"$ref": "#/components/schemas/Kite"})
    assert "BREAKING Toy: Kite joined; old readers refuse it" in map(
        str, compare(DocumentNode.of_document(document), DocumentNode.of_document(changed))
    )
    for contract in (document, changed):
        del contract["components"]["schemas"]["PetList"]["properties"]["toys"]
        del contract["components"]["schemas"]["Toys"]
    found = map(str, compare(DocumentNode.of_document(document), DocumentNode.of_document(changed)))
    assert "OK       Toy: Kite joined" in found


def test_a_new_member_of_an_open_union_is_a_dictionary_to_old_readers(document: Any) -> None:
    """Nothing fails, but who looks at the members has a new case."""
    changed = copy.deepcopy(document)
    put(changed, f"{SCHEMA}/Swim", {"type": "object", "properties": {"kind": {"const": "swim"}}})
    put(changed, f"{SCHEMA}/Outing/discriminator/mapping/swim", "#/components/schemas/Swim")
    changed["components"]["schemas"]["Outing"]["oneOf"].append({"$ref": "#/components/schemas/Swim"})
    found = map(str, compare(DocumentNode.of_document(document), DocumentNode.of_document(changed)))
    assert "RISKY    Outing: Swim joined; old readers have a dictionary" in found


def test_a_moved_path_breaks(document: Any) -> None:
    """Method and path are the operation's address."""
    changed = copy.deepcopy(document)
    changed["paths"]["/api/v2/pets"] = changed["paths"].pop("/api/v1/pets")
    found = [str(change) for change in compare(DocumentNode.of_document(document), DocumentNode.of_document(changed))]
    assert "BREAKING create_pet: path was /api/v1/pets, is /api/v2/pets" in found


def test_descriptions_are_no_change(document: Any) -> None:
    """Documentation and the order of properties are not part of the contract."""
    changed = copy.deepcopy(document)
    put(changed, f"{POST}/summary", "Something else.")
    put(changed, f"{SENT}/name/description", "Something else.")
    assert compare(DocumentNode.of_document(document), DocumentNode.of_document(changed)) == []


def test_the_exit_status_says_whether_anything_breaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 without a breaking change, 1 with one, 2 for a document that cannot be read; the worst line comes first."""
    changed = tmp_path / "changed.yaml"
    changed.write_text(FIXTURE.read_text().replace("limit, in: query", "most, in: query"))
    assert main([str(FIXTURE), str(FIXTURE)]) == 0
    assert capsys.readouterr().out == "no change\n"
    assert main([str(FIXTURE), str(changed)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "BREAKING list_pets query limit: the parameter is gone",
        "OK       list_pets query most: a new optional parameter",
    ]
    assert main([str(FIXTURE), str(tmp_path / "missing.yaml")]) == 2
    assert main([]) == 2
