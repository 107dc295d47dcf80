"""The table of recorded, called, served and tested operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")

from codegen import coverage

SOURCES = {
    "tinker/pet_client.py": """
from tinker_wire.api import pets as api
from tinker_wire.api import results

class PetClient:
    def add(self):
        def post():
            return api.create_pet(None)
        return post

def find():
    return results.fetch_result, other.list_pets
""",
    "tinker/local/handlers/pets.py": """
async def list_pets(state, call):
    return _find(state)

def _find(state):
    return []
""",
    "tests/client/test_pets.py": "call('create_pet')",
    "tests/client/test_more_pets.py": "create_pets, 'list_pets_of'; post('/api/v1/list_pets')",
    "tests/codegen/test_all.py": "'delete_photo'",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a small client, server and tests of the small contract."""
    for name, source in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


def found(document: Any, project: Path) -> dict[str, tuple[list[str], bool, list[str]]]:
    for item in document["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict):
                operation["x-evidence"] = "recorded; of a cat"
    return {
        row.name: (row.client, row.served, row.tests) for row in coverage.rows(document, project)
    }


def test_uses_handlers_and_mentions_are_found(document: Any, project: Path) -> None:
    """A use counts for the method around it, a handler by its name, a mention as a word."""
    assert found(document, project) == {
        "create_pet": (["PetClient.add"], False, ["test_pets"]),
        "list_pets": ([], True, ["test_more_pets"]),
        "delete_photo": ([], False, []),
        "fetch_result": (["find"], False, []),
    }


def test_the_page_has_an_entry_for_each_operation(document: Any, project: Path) -> None:
    """Evidence is shown without its notes, and missing entries as a dash."""
    found(document, project)
    text = coverage.text(coverage.rows(document, project), document)
    assert (
        "- **`create_pet`** `POST /pets`: recorded, not served\n    - client: "
        "`PetClient.add`\n    - tests: test_pets\n"
    ) in text
    lines = text.splitlines()
    assert any(
        line.startswith("4 operations and ") and "2 used by the client, 1 served" in line
        for line in lines
    )
