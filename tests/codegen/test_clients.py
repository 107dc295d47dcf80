"""Client methods from the document alone, each with its twin, and what is refused."""

from __future__ import annotations

import asyncio
import datetime
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")

from support.pet_contract import GET, POST, put

from codegen.bindings import generate
from tests.codegen.conftest import generated

PHOTO = "paths/~1api~1v1~1pets~1{pet_id}~1photos~1{photo_id}/delete"


class Answered:
    """A future that already has its result: the request."""

    def __init__(self, request: Any) -> None:
        self.request = request

    def __await__(self) -> Any:
        return self.request
        yield


def make_client(clients: ModuleType, name: str = "PetshopOperations") -> Any:
    """Return a client that answers with requests, and keeps the values that it was to check."""
    operations: Any = getattr(clients, name)

    class Client(operations):  # type: ignore[misc]
        def _ask(self, request: Any) -> Any:
            return Answered(request)

        def _check(self, **arguments: object) -> None:
            self.checked = arguments

        def _split_path(self, path: str, kind: str | None = None) -> dict[str, str]:
            pet, photo = path.split("#")
            return {"pet_id": f"{kind}:{pet}", "photo_id": photo}

    return Client()


@pytest.fixture
def clients(document: Any, tmp_path: Path) -> Any:
    """Yield the methods of a small document to which one operation and a few methods were added."""
    paths = document["paths"]
    paths["/api/v1/pets/{pet_id}/walks"] = {
        "get": {
            "operationId": "list_walks",
            "tags": ["pets"],
            "summary": "Walks of a pet.",
            "x-client": [{"client": "petshop", "name": "list_walks", "dates": ["day"]}],
            "parameters": [
                {"name": "pet_id", "in": "path", "required": True, "schema": {"type": "string"}},
                {
                    "name": "limit",
                    "in": "query",
                    "description": "At most.",
                    "schema": {"type": "integer", "default": 20},
                },
                {"name": "day", "in": "query", "schema": {"type": "string"}},
            ],
            "responses": {"200": {"description": "The walks.", "content": JSON_OF_DIARY}},
        }
    }
    put(document, f"{PHOTO}/x-client", [PHOTO_METHOD])
    with generated(document, tmp_path, "shop_wire", "clients") as package:
        yield package.clients


JSON_OF_DIARY = {"application/json": {"schema": {"$ref": "#/components/schemas/Diary"}}}
PHOTO_METHOD = {
    "client": "petshop",
    "name": "delete_photo_at",
    "summary": "Delete the photo at a place.",
    "path": {"name": "place", "description": "Pet and photo.", "kind": "snapshot"},
}


def test_a_new_operation_is_a_method_without_further_code(clients: ModuleType) -> None:
    """The method has the parameters and defaults of the operation, and makes its request."""
    client = make_client(clients)
    assert str(inspect.signature(client.list_walks)) == (
        "(pet_id: 'str', limit: 'int' = 20, day: 'datetime.date | None' = None, *, "
        "extra_headers: 'Mapping[str, str] | None' = None, timeout: 'float | None' = None) -> "
        "'APIFuture[models.Diary]'"
    )
    request = client.list_walks("io", 5, datetime.date(2026, 1, 2)).request
    assert (request.method, request.path) == ("GET", "/api/v1/pets/io/walks")
    assert request.query == "limit=5&day=2026-01-02"
    assert client.checked == {"pet_id": "io", "limit": 5, "day": datetime.date(2026, 1, 2)}


def test_its_docstring_names_the_arguments(clients: ModuleType) -> None:
    """The summary comes first, then the description of each parameter, then the errors."""
    assert inspect.getdoc(clients.PetshopOperations.list_walks) == (
        "Walks of a pet.\n\nArgs:\n    limit: At most.\n"
        "    extra_headers: Headers of this call only. They replace the client's of "
        "the same name, in any case.\n"
        "    timeout: The longest time for the call and its retries, "
        "in seconds; APITimeoutError after it.\n\n"
        "Raises:\n    ValueError: At once, for an argument that cannot be right."
    )


def test_the_options_of_a_call_go_with_its_request(clients: ModuleType) -> None:
    """Headers and timeout of a call are copied into its request, and not shown."""
    headers = {"X-Trace": "hush"}
    request = make_client(clients).list_walks("io", extra_headers=headers, timeout=5.0).request
    headers.clear()
    assert (request.extra_headers, request.timeout_seconds) == ({"X-Trace": "hush"}, 5.0)
    assert (request.headers, "hush" in repr(request)) == ({}, False)
    twin = asyncio.run(
        make_client(clients).list_walks_async("io", extra_headers={"X-Trace": "8"}, timeout=6)
    )
    assert (twin.extra_headers, twin.timeout_seconds) == ({"X-Trace": "8"}, 6)


def test_one_argument_may_hold_the_whole_path(clients: ModuleType) -> None:
    """The client splits it, and knows of what kind it must be."""
    request = make_client(clients).delete_photo_at("io#7").request
    assert request.path == "/api/v1/pets/snapshot:io/photos/7"


@pytest.mark.parametrize("name", ["RestOperations", "AdminOperations"])
def test_each_method_of_the_contract_has_its_twin(name: str) -> None:
    """A twin is a coroutine with the same parameters that returns the future's result."""
    import tinker_wire.clients as wire_clients

    members = dict(vars(getattr(wire_clients, name)))
    methods = [
        method for method in members if not method.startswith("_") and not method.endswith("_async")
    ]
    without = [method for method in methods if f"{method}_async" not in members]
    # older code has none
    assert set(without) <= {"get_server_capabilities", "get_weights_info_by_tinker_path"}
    for method in set(methods) - set(without):
        plain, twin = (inspect.signature(members[called]) for called in (method, f"{method}_async"))
        assert inspect.iscoroutinefunction(members[f"{method}_async"])
        assert plain.parameters == twin.parameters
        assert plain.return_annotation == f"APIFuture[{twin.return_annotation}]"


@pytest.mark.parametrize(
    ("methods", "parameters", "reason"),
    [
        pytest.param(
            {GET: "find"},
            [{"name": "timeout", "in": "query", "schema": {"type": "integer"}}],
            "two arguments are called timeout",
            id="a parameter with the name of an option of every call",
        ),
        pytest.param(
            {GET: "find", PHOTO: "find_async"}, [], "has find_async already", id="one name twice"
        ),
        pytest.param(
            {POST: "add"},
            [],
            "write this method by hand",
            id="defaults of a body, which are like values of the user",
        ),
    ],
)
def test_methods_that_would_be_ambiguous_are_refused(
    document: Any, tmp_path: Path, methods: dict[str, str], parameters: list[Any], reason: str
) -> None:
    """What a caller of the method, or the method itself, could not tell apart is refused."""
    document["paths"]["/api/v1/pets"]["get"]["parameters"] += parameters
    for operation, name in methods.items():
        put(document, f"{operation}/x-client", [{"client": "petshop", "name": name}])
    assert reason in str(generate(document, tmp_path / "wire")[0])
