"""A change of the contract is an error of the type checker in the client: each is made in a copy of
the generated records.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[3]
BINDINGS = Path(models.__file__).parent
RECORDS, RUNS = ((BINDINGS / name).read_text() for name in ("models.py", "runs.py"))
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

BY_USER = "the user makes the record, and the client passes it on"
NOT_SENT = "the client does not send it"

#: Records and fields that no line of the client names, and why.
UNNAMED: dict[str, str] = {
    "AdamParams": BY_USER,
    "DimuonParams": BY_USER,
    "CheckpointSearchCursor": BY_USER,
    "CheckpointSearchRequest": BY_USER,
    "ClientFinishedSessionStatusQuery": BY_USER,
    "SessionSearchCursor": BY_USER,
    "SessionSearchRequest": BY_USER,
    "UserSearchOwner": BY_USER,
    "CopyWeightsRequest.model_seq_id": NOT_SENT + ": a copy belongs to a project, not to a run",
    "CopyWeightsRequest.session_id": NOT_SENT + ": a copy belongs to a project, not to a run",
    "CopyWeightsRequest.weights_access_token": NOT_SENT + ": the token travels in a header",
    "CustomLossGraph.format": "the record's default is the only version",
    "DimuonOptimizerConfig.version": "the record's default, or the user's",
    "ImageChunk.height": NOT_SENT + ": the server reads it from the image",
    "ImageChunk.tokens": NOT_SENT + ": the server counts",
    "ImageChunk.width": NOT_SENT + ": the server reads it from the image",
    "SampleRequest.base_model": NOT_SENT + ": samples belong to a sampling session",
    "SampleRequest.model_path": NOT_SENT + ": samples belong to a sampling session",
    "UnhandledExceptionEvent.traceback": NOT_SENT + ": it may hold secrets",
}
#: Records that no line of the client makes: users do, and the end of a session is sent as plain
#: data.
NOT_MADE = {
    "AccessibleSearchOwner",
    "ActiveSessionStatusQuery",
    "AdamParams",
    "CancelledSessionStatusQuery",
    "CheckpointSearchCursor",
    "CheckpointSearchRequest",
    "ClientFinishedSessionStatusQuery",
    "ClientSessionFinishErrored",
    "ClientSessionFinishInterrupted",
    "ClientSessionFinishSuccess",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "FailedSessionStatusQuery",
    "OwnSearchOwner",
    "SessionSearchCursor",
    "SessionSearchRequest",
    "UserSearchOwner",
}
#: Unions and closed enums that the client passes on as a whole, so that no line of it has to
#: change, and why.
PASSED_ON: dict[str, str] = {
    **dict.fromkeys(("SearchOwner", "SessionStatusQuery"), BY_USER),
    **dict.fromkeys(
        ("BillingEventInfo", "SessionFailedReason", "SessionStatus"),
        "users read it, with the contract's type",
    ),
    **dict.fromkeys(
        ("AccessScope", "ImageFormat"), "what the user gives is compared with all values"
    ),
    **dict.fromkeys(
        ("ListedCheckpointType", "ListedClientSessionFinishReasonType", "ListedLossFnType"),
        "the listed values of an open enum, which may have others",
    ),
    **dict.fromkeys(
        ("CustomLossNodeOp", "SamplingClientKind", "Severity"),
        "the client chooses among those it knows",
    ),
    "ClientSessionFinishReason": "sent as its kind alone",
    "OptimizerParams": "a new family needs parameters with checks in tinker.types",
}
#: Records that a generated method makes from its arguments, which change with the contract.
GENERATED = set(re.findall(r"models\.(\w+)\(", (BINDINGS / "clients.py").read_text()))
#: The generated functions that make a request of a run from their arguments, which the client names.
RUN_REQUESTS = [one for one in ast.parse(RUNS).body if isinstance(one, ast.FunctionDef)]
#: The record that each of them makes.
RECORD_OF = {one.name: re.findall(r"models\.(\w+)\(", ast.unparse(one))[0] for one in RUN_REQUESTS}
#: What they fill in by themselves, once the turn of the request has come.
FILLED = {(record, name) for record in RECORD_OF.values() for name in ("model_id", "seq_id")}


# -------------------------------------------------------------------------------- fields of records


def defined() -> dict[str, ast.ClassDef | ast.AnnAssign]:
    """Return the records and the aliases of the contract by their names."""
    found: dict[str, ast.ClassDef | ast.AnnAssign] = {}
    for statement in ast.parse(RECORDS).body:
        if isinstance(statement, ast.ClassDef):
            found[statement.name] = statement
        elif (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.value is not None
        ):
            found[statement.target.id] = statement
    return found


def fields_of(record: ast.AST) -> dict[str, ast.AnnAssign]:
    """Return the fields of a record by their names."""
    statements = [one for one in getattr(record, "body", []) if isinstance(one, ast.AnnAssign)]
    named = {one.target.id: one for one in statements if isinstance(one.target, ast.Name)}
    return {name: field for name, field in named.items() if not name.startswith("_")}


def requested() -> dict[str, ast.ClassDef]:
    """Return the records in request bodies, by their names."""
    everything = defined()
    found: dict[str, ast.ClassDef | ast.AnnAssign] = {}
    waiting = [name for operation in OPERATIONS.values() for name in _names(operation.body)]
    while waiting:
        name = waiting.pop().lstrip("_")
        if name in everything and name not in found:
            definition = found[name] = everything[name]
            parts = [field.annotation for field in fields_of(definition).values()]
            parts += (
                [definition.value]
                if isinstance(definition, ast.AnnAssign) and definition.value
                else []
            )
            waiting += [
                one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)
            ]
    return {name: one for name, one in found.items() if isinstance(one, ast.ClassDef)}


def _names(body: object) -> Iterator[str]:
    kinds: Iterable[object] = getattr(body, "__args__", (body,))
    return (
        kind.__name__
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    )


def is_literal(annotation: ast.AST | None) -> bool:
    """Return whether a type is a list of values, and nothing else."""
    return isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal"


def is_constant(annotation: ast.AST) -> bool:
    """Return whether a field has one value, which the record sends by itself."""
    return is_literal(annotation) and not isinstance(annotation.slice, ast.Tuple)


def unions() -> dict[str, ast.expr]:
    """Return the unions of records, open ones too, by their names."""
    records = requested().keys() | {
        name for name, one in defined().items() if isinstance(one, ast.ClassDef)
    }
    return {
        name: one.value
        for name, one in defined().items()
        if isinstance(one, ast.AnnAssign) and isinstance(one.value, ast.BinOp)
        if any(isinstance(part, ast.Name) and part.id in records for part in ast.walk(one.value))
    }


def enums() -> dict[str, ast.expr]:
    """Return the closed enums by their names."""
    return {
        name: one.value
        for name, one in defined().items()
        if isinstance(one, ast.AnnAssign) and one.value is not None and is_literal(one.value)
    }


# -------------------------------------------------------------------------------------- the changes


Edit = tuple[int, int, int, str]  # line, first and last column, text instead


def edit(edits: Iterable[Edit], text: str = RECORDS) -> str:
    """Return the module of records, or another text, with these changes."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for line, start, end, text in sorted(edits, reverse=True):
        old = lines[line - 1]
        lines[line - 1] = old[:start] + text.encode() + old[end:]
    return b"".join(lines).decode()


def rename_fields() -> tuple[str, str]:
    """Rename every field of the requests, and the arguments for them."""
    fields = [
        field.target for record in requested().values() for field in fields_of(record).values()
    ]
    return (
        edit(
            (one.lineno, one.col_offset, one.end_col_offset or 0, f"{ast.unparse(one)}_renamed")
            for one in fields
        ),
        edit(
            (
                (one.lineno, one.col_offset, one.col_offset, "renamed_")
                for function in RUN_REQUESTS
                for one in function.args.kwonlyargs
            ),
            RUNS,
        ),
    )


def add_fields() -> tuple[str, str]:
    """Add a required field to every record of the requests, and an argument for it."""
    ends = [(one.end_lineno or 0, one.end_col_offset or 0) for one in requested().values()]
    return (
        edit((line, column, column, f"\n\n    {ADDED}: int") for line, column in ends),
        re.sub(r"^(def [a-z_]+\()(?:\s*\*,)?", rf"\1*, {ADDED}: int, ", RUNS, flags=re.MULTILINE),
    )


def add_members() -> tuple[str, str]:
    """Add a record to every union and a value to every closed enum, named after it."""
    ends = {name: (one.end_lineno or 0, one.end_col_offset or 0) for name, one in unions().items()}
    edits = [(line, column, column, f" | AddedTo{name}") for name, (line, column) in ends.items()]
    for name, one in enums().items():
        line, column = one.end_lineno or 0, (one.end_col_offset or 0) - 1
        edits.append((line, column, column, f', "AddedTo{name}"'))
    header = "frozen=True, kw_only=True, omit_defaults=True"
    members = "".join(
        f"class AddedTo{name}(_Record, {header}):\n    pass\n\n\n" for name in unions()
    )
    before = next(one.lineno for one in ast.parse(RECORDS).body if isinstance(one, ast.ClassDef))
    return edit([*edits, (before, 0, 0, members)]), RUNS


# --------------------------------------------------------------------------------- the type checker


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the bindings, and mypy's cache of everything else."""
    folder = tmp_path_factory.mktemp("bindings")
    shutil.copytree(BINDINGS, folder / "tinker_wire", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "mypy.ini").write_text(CONFIG.format(copy=folder, root=ROOT))
    return folder


def check_client(copy: Path, changed: tuple[str, str]) -> list[str]:
    """Return what mypy says of the client with these records and requests of runs."""
    for name, text in zip(("models.py", "runs.py"), changed):
        (copy / "tinker_wire" / name).write_text(text)
    files = [
        path
        for path in (ROOT / "tinker").rglob("*.py")
        if path.relative_to(ROOT).parts[1] not in NOT_CLIENT
    ]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(copy / "mypy.ini"),
        *map(str, files),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("tinker/")]


_MESSAGES = (
    re.compile(r'Unexpected keyword argument "(?P<field>\w+)" for "(?P<record>\w+)"'),
    re.compile(r'Missing named argument "(?P<field>\w+)" for "(?P<record>\w+)"'),
    re.compile(r'"(?P<record>\w+)"(?: of "[^"]*")? has no attribute "(?P<field>\w+)"'),
)


def flag_fields(copy: Path, changed: tuple[str, str]) -> set[tuple[str, str]]:
    """Return the records and fields that the type checker complains about."""
    found = (message.search(line) for line in check_client(copy, changed) for message in _MESSAGES)
    return {
        (RECORD_OF.get(one["record"], one["record"]), one["field"])
        for one in found
        if one is not None
    }


def test_a_renamed_field_is_an_error_in_the_client(copy: Path) -> None:
    """Each field of a request that the client sends is named by a typed line of it."""
    flagged = flag_fields(copy, rename_fields())
    fields = [
        (record, name, one)
        for record, node in requested().items()
        for name, one in fields_of(node).items()
    ]
    sent = {
        (record, name)
        for record, name, one in fields
        if record not in GENERATED and not is_constant(one.annotation)
    }
    unnamed = {f"{record}.{name}" for record, name in sent - flagged - FILLED}
    listed = {one for one in unnamed if one in UNNAMED or one.partition(".")[0] in UNNAMED}
    assert sorted(unnamed - listed) == [], (
        "no typed line of tinker/ sends it: send it, or write it with the reason in UNNAMED of "
        "test_contract_seams.py"
    )
    assert sorted(UNNAMED.keys() - listed - {one.partition(".")[0] for one in listed}) == []


def test_a_new_required_field_is_an_error_in_the_client(copy: Path) -> None:
    """Each record that the client sends is made by at least one typed line of it."""
    flagged = flag_fields(copy, add_fields())
    unmade = {name for name in requested() if (name, ADDED) not in flagged} - GENERATED
    assert sorted(unmade ^ NOT_MADE) == []


def test_a_new_member_or_value_is_an_error_where_the_client_tells_them_apart(copy: Path) -> None:
    """Each union and closed enum is matched by a typed line, or passed on as a whole."""
    lines = check_client(copy, add_members())
    unnoticed = {
        name for name in unions() | enums() if not any(f"AddedTo{name}" in line for line in lines)
    }
    assert sorted(unnoticed ^ PASSED_ON.keys()) == []
