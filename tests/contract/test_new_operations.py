"""New operations need their YAML, one regeneration and their handlers. Everything
else is derived.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")

from support.contract import ROOT
from support.copies import QUIET, ProjectCopy

pytestmark = pytest.mark.soak  # as the recipes, which change copies of the project too

FAMILY = ROOT / "tests" / "support" / "notes_family.yaml"
#: Tests in which every operation has its place, none of them written for one.
DERIVED = (
    "tests/contract/test_document.py",
    "tests/contract/test_client.py::test_every_request_fits",
    "tests/contract/test_client.py::test_every_answer_fits",
    "tests/contract/test_client.py::test_every_operation_is_asked",
    "tests/contract/test_evidence.py::test_every_operation_is_described",
    "tests/contract/test_official.py::test_the_document_has_all_of_the_official_sdk",
    "tests/local/test_profiles.py::test_the_json_core_has_the_basic_operations_only",
    "tests/local/test_server_contract.py",
    "tests/testing/test_conformance.py::test_every_operation_is_checked",
)
NAMES = ("create_note", "list_notes", "delete_note")
FUZZED = "tests/contract/test_server.py::test_every_operation"

HANDLERS = '''

_NOTES: dict[str, list[models.Note]] = {}


def _notes_of(state: State, call: APICall) -> list[models.Note]:
    with state.lock() as shared:
        return _NOTES.setdefault(shared.store.session(call.path["session_id"]).session_id, [])


async def create_note(state: State, call: APICall) -> models.Note:
    """Keep a note."""
    text, notes = call.read(models.CreateNoteRequest).text, _notes_of(state, call)
    notes.append(models.Note(note_id=f"n{len(notes)}", text=text))
    return notes[-1]


async def list_notes(state: State, call: APICall) -> models.NotesResponse:
    """Return the notes."""
    return models.NotesResponse(notes=_notes_of(state, call))


async def delete_note(state: State, call: APICall) -> None:
    """Forget a note; 404 when it is not there."""
    notes = _notes_of(state, call)
    kept = [note for note in notes if note.note_id != call.path["note_id"]]
    if len(kept) == len(notes):
        raise APIProblem(404, "there is no such note")
    notes[:] = kept
'''

SCRIPT = """
import asyncio, inspect, json, sys, tempfile
import httpx
from pathlib import Path
import tinker
from support.judge import Judge, Judging
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine

state, judge = State(ToyEngine, Settings(data_dir=Path(tempfile.mkdtemp()), api_key="tml-key")), Judge()
transport = httpx.ASGITransport(Judging(create_app(state), judge))
service = tinker.ServiceClient(base_url="http://server", api_key="tml-key", transport=transport)
rest = service.create_rest_client()
service.get_server_capabilities()
service.create_lora_training_client("tinker/toy").result()
session = service.session_id
written = rest.create_note(session, "first").result()
asyncio.run(rest.create_note_async(session, text="second"))
rest.delete_note(session, written.note_id).result()
left = [note.text for note in asyncio.run(rest.list_notes_async(session)).notes]
try:
    rest.delete_note(session, "n9").result()
except tinker.NotFoundError:
    left.append("not found")
docs = {name: inspect.getdoc(getattr(tinker.RestClient, name)) for name in sys.argv[1:]}
twins = [name for name in sys.argv[1:] if inspect.iscoroutinefunction(getattr(rest, name + "_async"))]
service.close().result()
state.close()
print(json.dumps({"left": left, "docs": docs, "twins": twins, "faults": judge.faults, "done": sorted(judge.succeeded)}))
"""


def with_family(text: str) -> str:
    """Return the document with the family pasted in."""
    paths, schemas = FAMILY.read_text(encoding="utf-8").split("paths:\n")[1].split("schemas:\n", 1)
    head, tail = text.split("\ncomponents:\n")
    indented = "".join(f"  {line}" for line in schemas.splitlines(keepends=True))
    return (
        head
        + "\n"
        + paths
        + "\ncomponents:\n"
        + tail.replace("  schemas:\n", f"  schemas:\n{indented}", 1)
    )


class Grown(ProjectCopy):
    """A copy of the project with the family added and everything regenerated once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        document = folder / "openapi.yaml"
        document.write_text(with_family(document.read_text(encoding="utf-8")), encoding="utf-8")
        handlers = folder / "tinker" / "local" / "handlers" / "service.py"
        handlers.write_text(handlers.read_text(encoding="utf-8") + HANDLERS, encoding="utf-8")
        official = Path("tests", "compat", "surface", "official", "0.38.0.json")
        (folder / official).parent.mkdir(parents=True)
        shutil.copy(ROOT / official, folder / official)
        self.run_module("codegen", "generate")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    return Grown(tmp_path_factory.mktemp("grown"))


@pytest.fixture(scope="module")
def told(grown: Grown) -> Any:
    """Return the output of a program on the copy: its client, its server, and a
    judge between them.
    """
    return json.loads(grown.run(SCRIPT, *NAMES).splitlines()[-1])


def test_client_methods_and_their_twins_are_there(told: Any) -> None:
    """Methods and coroutines write, list and take back notes, on the server that has the three
    handlers.
    """
    assert told["left"] == ["second", "not found"]
    assert told["twins"] == list(NAMES)


def test_exchanges_are_judged(told: Any) -> None:
    """The judge of the contract tests knows the new operations, and finds nothing
    wrong with them.
    """
    assert told["faults"] == []
    assert set(NAMES) <= set(told["done"])


def test_reference_pages_show_the_methods(told: Any, grown: Grown) -> None:
    """The client's page includes inherited methods; each method documents its arguments, its result
    and its errors.
    """
    page = (grown.folder / "docs" / "reference" / "clients.md").read_text(encoding="utf-8")
    assert "inherited_members: true" in page.split("::: tinker.RestClient\n")[1].split(":::")[0]
    for name in NAMES:
        assert all(
            f"\n{section}:\n" in told["docs"][name] for section in ("Args", "Returns", "Raises")
        )


def test_the_coverage_table_has_the_rows(grown: Grown) -> None:
    """Each entry says that there are a client method and a handler."""
    table = (grown.folder / "docs" / "coverage.md").read_text(encoding="utf-8")
    for name in NAMES:
        (entry,) = [part for part in table.split("\n- ") if part.startswith(f"**`{name}`**")]
        assert f"`RestClient.{name}`" in entry
        assert entry.splitlines()[0].endswith(", served")


@pytest.mark.soak
def test_contract_tests_try_the_operations(grown: Grown) -> None:
    """The tests that fuzz the server, and those that call every operation, include the new
    operations and pass.
    """
    words = grown.run_module(
        "pytest", *QUIET, "-rp", FUZZED, *DERIVED, "-k", "notes or not test_server.py"
    )
    assert len(re.findall(rf"^PASSED {FUZZED}\b", words, re.MULTILINE)) == len(NAMES)


def test_the_cost_is_small() -> None:
    """Three operations and three schemas are fewer than a hundred lines of YAML."""
    assert len(FAMILY.read_text(encoding="utf-8").splitlines()) < 100
