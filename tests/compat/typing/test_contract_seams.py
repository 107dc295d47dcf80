"""A change of the contract is an error of the type checker in the client: fields renamed and added, in a copy of the bindings."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[3]
BINDINGS = Path(models.__file__).parent
NOT_CLIENT = ("local", "testing", "cli")
CONFIG = """
[mypy]
strict = True
mypy_path = {copy}:{root}
cache_dir = {copy}/cache
[mypy-numpy.*,torch.*,transformers.*,huggingface_hub.*,uvicorn.*,starlette.*,tinker.local.*,tinker.testing.*,tinker.cli.*]
follow_imports = skip
"""
ADDED = "added_field"

Field = tuple[str, str]

BY_USER = "the user makes the record, and the client passes it on"
NOT_SENT = "the client does not send it"

#: Fields that no line of the client names, and why.
UNNAMED: dict[str, str] = {
    "ClientFinishedSessionStatusQuery": BY_USER,
    "CheckpointSearchCursor": BY_USER,
    "CheckpointSearchRequest": BY_USER,
    "SessionSearchCursor": BY_USER,
    "SessionSearchRequest": BY_USER,
    "UserSearchOwner": BY_USER,
    "CopyWeightsRequest.model_seq_id": NOT_SENT + ": a copy belongs to a project, not to a run",
    "CopyWeightsRequest.session_id": NOT_SENT + ": a copy belongs to a project, not to a run",
    "CopyWeightsRequest.weights_access_token": NOT_SENT + ": the token travels in a header",
    "CustomLossGraph.format": "the record's default is the only version",
    "ImageChunk.height": NOT_SENT + ": the server reads it from the image",
    "ImageChunk.tokens": NOT_SENT + ": the server counts",
    "ImageChunk.width": NOT_SENT + ": the server reads it from the image",
    "SampleRequest.base_model": NOT_SENT + ": samples belong to a sampling session",
    "SampleRequest.model_path": NOT_SENT + ": samples belong to a sampling session",
    "UnhandledExceptionEvent.traceback": NOT_SENT + ": it may hold secrets",
}
#: Records that no line of the client makes: users do.
NOT_MADE = {
    "AccessibleSearchOwner",
    "ActiveSessionStatusQuery",
    "AdamParams",
    "CancelledSessionStatusQuery",
    "CheckpointSearchCursor",
    "CheckpointSearchRequest",
    "ClientFinishedSessionStatusQuery",
    "FailedSessionStatusQuery",
    "OwnSearchOwner",
    "SessionSearchCursor",
    "SessionSearchRequest",
    "UserSearchOwner",
}
#: Records that a generated method makes from its arguments, which change with the contract.
GENERATED = set(re.findall(r"models\.(\w+)\(", (BINDINGS / "clients.py").read_text()))


def records_in(annotation: object, found: dict[str, type[msgspec.Struct]]) -> None:
    """Add the records that a type is made of, with those inside."""
    for part in typing.get_args(annotation):
        records_in(part, found)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct) and annotation.__name__ not in found:
        found[annotation.__name__] = annotation
        for kind in hints(annotation).values():
            records_in(kind, found)


def hints(record: type[msgspec.Struct]) -> dict[str, object]:
    """Return the types of a record's fields."""
    known = typing.get_type_hints(record)
    return {name: known[name] for name in record.__struct_fields__}


def requested() -> dict[str, type[msgspec.Struct]]:
    """Return the records that bodies of requests are made of, by their names."""
    found: dict[str, type[msgspec.Struct]] = {}
    for operation in OPERATIONS.values():
        records_in(operation.body, found)
    return found


def is_constant(kind: object) -> bool:
    """Return whether a field has one value, which the record sends by itself."""
    return typing.get_origin(kind) is typing.Literal and len(typing.get_args(kind)) == 1


def definitions(text: str) -> Iterator[ast.ClassDef]:
    """Find the records of requests in the module of records."""
    records = requested()
    return (one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name in records)


def with_fields_renamed(text: str) -> str:
    """Return the module with every field of the requests renamed."""
    lines = text.splitlines(keepends=True)
    for name in (name for definition in definitions(text) for name in fields_of(definition)):
        line = lines[name.lineno - 1]
        lines[name.lineno - 1] = f"{line[: name.col_offset]}{name.id}_renamed{line[name.end_col_offset :]}"
    return "".join(lines)


def with_fields_added(text: str) -> str:
    """Return the module with a required field added to every record of the requests."""
    lines = text.splitlines(keepends=True)
    for definition in definitions(text):
        lines[definition.end_lineno - 1] += f"\n    {ADDED}: int\n"
    return "".join(lines)


def fields_of(definition: ast.ClassDef) -> Iterator[ast.Name]:
    """Find the names of a record's fields."""
    targets = [statement.target for statement in definition.body if isinstance(statement, ast.AnnAssign)]
    return (target for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_"))


def check_types(copy: Path) -> str:
    """Return what mypy says of the client beside the bindings in this copy."""
    (copy / "mypy.ini").write_text(CONFIG.format(copy=copy, root=ROOT))
    files = [path for path in (ROOT / "tinker").rglob("*.py") if path.relative_to(ROOT).parts[1] not in NOT_CLIENT]
    command = [sys.executable, "-m", "mypy", "--config-file", str(copy / "mypy.ini"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


_MESSAGES = (
    re.compile(r'Unexpected keyword argument "(?P<field>\w+)" for "(?P<record>\w+)"'),
    re.compile(r'Missing named argument "(?P<field>\w+)" for "(?P<record>\w+)"'),
    re.compile(r'"(?P<record>\w+)"(?: of "[^"]*")? has no attribute "(?P<field>\w+)"'),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the bindings, and what the type checker remembers of everything else."""
    folder = tmp_path_factory.mktemp("bindings")
    shutil.copytree(BINDINGS, folder / "tinker_wire", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def flag(copy: Path, change: Callable[[str], str]) -> dict[Field, list[str]]:
    """Return the client's lines that the type checker refuses once the records are changed, by record and field."""
    (copy / "tinker_wire" / "models.py").write_text(change((BINDINGS / "models.py").read_text()))
    lines: dict[Field, list[str]] = defaultdict(list)
    for line in check_types(copy).splitlines():
        for found in filter(None, (message.search(line) for message in _MESSAGES)):
            if line.startswith("tinker/"):
                lines[found["record"], found["field"]].append(line)
    return lines


def test_a_renamed_field_is_an_error_in_the_client(copy: Path) -> None:
    """Each field of each request that the client sends is named by at least one typed line of it."""
    flagged = flag(copy, with_fields_renamed)
    sent = {
        (name, field) for name, record in requested().items() for field, kind in hints(record).items() if not is_constant(kind)
    }
    unnamed = {f"{name}.{field}" for name, field in sent - flagged.keys() if name not in GENERATED}
    listed = {one for one in unnamed if one in UNNAMED or one.partition(".")[0] in UNNAMED}
    assert sorted(unnamed - listed) == []
    used = listed | {one.partition(".")[0] for one in listed}
    assert sorted(UNNAMED.keys() - used) == []


def test_a_new_required_field_is_an_error_in_the_client(copy: Path) -> None:
    """Each record that the client sends is made by at least one typed line of it."""
    flagged = flag(copy, with_fields_added)
    unmade = {name for name in requested() if (name, ADDED) not in flagged} - GENERATED
    assert sorted(unmade ^ NOT_MADE) == []
