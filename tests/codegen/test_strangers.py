"""Documents of others: what tools write into them is understood or passed over."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")

from support.pet_contract import FIELD, PET, POST, SCHEMA, put

from codegen.bindings import generate
from codegen.document import EXTENSIONS
from codegen.schemas import METHODS_OF_RECORDS
from tests.codegen.conftest import generated
from tinker_records import Record

NULL = {"type": "null"}
BINARY = {"schema": {"type": "string", "format": "binary"}}
BODY = "components/requestBodies/Pet"
ANSWER = "paths/~1api~1v1~1pets~1{pet_id}~1photos~1{photo_id}/delete/responses"
BALL = {"$ref": "#/components/schemas/Ball"}
DATA = {"type": "string", "contentMediaType": "application/json", "contentSchema": BALL}
EVENT = {"type": "object", "required": ["data"], "properties": {"data": DATA}}
STREAM = {
    "description": "x",
    "content": {"text/event-stream": {"schema": EVENT}, "application/json": {"schema": BALL}},
}
BEARER = {"Token": {"type": "http", "scheme": "bearer"}}
KEY = {"Key": {"type": "apiKey", "in": "header", "name": "X-Key"}}


def source_of(document: Any, folder: Path, name: str) -> str:
    assert generate(document, folder / "wire") == []
    return (folder / "wire" / name).read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------- understood


@pytest.mark.parametrize(
    ("schema", "annotation"),
    [
        ({"anyOf": [{"type": "string"}, NULL]}, "str | None"),
        (
            {
                "anyOf": [NULL, {"type": "integer", "minimum": 0}],
                "title": "Number",
                "description": "x",
            },
            "int | None",
        ),
        ({"anyOf": [{"type": "array", "items": {"type": "string"}}, NULL]}, "Sequence[str] | None"),
        ({"anyOf": [{"$ref": "#/components/schemas/Ball"}, NULL]}, "Ball | None"),
        (
            {"anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, NULL]},
            "dict[str, int] | None",
        ),
    ],
)
def test_any_of_with_null_may_be_null(
    document: Any, tmp_path: Path, schema: Any, annotation: str
) -> None:
    """What pydantic writes for `X | None` gives `X | None`, with its default None."""
    put(document, f"{FIELD}/strange", {"default": None, **schema})
    assert f"    strange: {annotation} = None\n" in source_of(document, tmp_path, "models.py")


def test_titles_and_foreign_extensions_change_nothing(document: Any, tmp_path: Path) -> None:
    """Titles and extensions of a vendor change no byte of what is made."""
    plain = copy.deepcopy(document)
    for place in (PET, f"{FIELD}/name", f"{SCHEMA}/Kind"):
        put(document, f"{place}/title", "A title")
    for place in (
        PET,
        f"{FIELD}/name",
        POST,
        f"{POST}/parameters/0",
        "components",
        "paths/~1api~1v1~1pets",
    ):
        put(document, f"{place}/x-vendor", {"any": 1})
    for name in ("one", "two"):
        assert generate(document if name == "one" else plain, tmp_path / name) == []
    for path in (tmp_path / "one").rglob("*.py"):
        assert (
            path.read_text() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_text()
        )


def test_a_body_may_be_bytes(document: Any, tmp_path: Path) -> None:
    """A body that has no JSON form is given as it is, with its media type."""
    put(document, f"{BODY}/content", {"application/octet-stream": BINARY})
    with generated(document, tmp_path, "wire", "api.pets", "operations", "runtime") as package:
        operation = package.operations.OPERATIONS["create_pet"]
        body = package.runtime.Binary("application/octet-stream", [b"\x00\xff"])
        assert package.api.pets.create_pet(body).body is body
    assert (operation.body, operation.request_media_types) == (None, ("application/octet-stream",))


def test_an_answer_may_be_bytes(document: Any, tmp_path: Path) -> None:
    """An answer that has no JSON form is bytes, and its media type is asked for."""
    put(document, ANSWER, {"200": {"description": "x", "content": {"image/png": BINARY}}})
    with generated(document, tmp_path, "wire", "api.pets") as package:
        request = package.api.pets.delete_photo(pet_id="p", photo_id=1)
    assert (request.reply, request.accepts) == (bytes, ("image/png",))


@pytest.mark.parametrize("demanded", [[{"Key": []}], []])
def test_one_key_in_a_header_is_sent(document: Any, tmp_path: Path, demanded: Any) -> None:
    """The one scheme that clients send may be demanded, also by an operation, or not."""
    put(document, "components/securitySchemes", KEY)
    put(document, "security", [{"Key": []}])
    put(document, f"{POST}/security", demanded)
    assert generate(document, tmp_path / "wire") == []


# ------------------------------------------------------------------------------------------ refused


def test_the_methods_of_records_are_known() -> None:
    """The list of names that a field must not have is what every record can do."""
    assert {name for name in dir(Record) if not name.startswith("_")} == METHODS_OF_RECORDS
    assert issubclass(Record, msgspec.Struct)


def test_every_extension_is_explained() -> None:
    """Every extension that the generator knows is in its README."""
    page = (Path(__file__).resolve().parents[2] / "codegen" / "README.md").read_text(
        encoding="utf-8"
    )
    assert {name for name in EXTENSIONS if name not in page} == set()
