"""Changes of the real contract: each has exactly the expected findings."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")

from support.contract_changes import CHANGES, ContractEdit, Edit, levels_of, make, make_proto
from support.pet_contract import ROOT

from codegen.diff import ContractSource, ProtoReader, compare, main
from codegen.files import load

PROTO = (ROOT / "tinker_public.proto").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def real_contract() -> Any:
    """openapi.yaml, read once."""
    return load(ROOT / "openapi.yaml")


def source(document: Any, edits: tuple[Edit, ...]) -> ContractSource:
    return ContractSource(make(document, edits), ProtoReader(make_proto(PROTO, edits)).read())


def references(value: object) -> set[str]:
    """Return the components that a part of a document refers to."""
    return set(re.findall(r'"#/components/(\w+/[^"/]+)', json.dumps(value)))


def shorten(old: Any, new: Any) -> None:
    """Take out of two documents each path that is equal in both, with all that it refers to: it
    would be compared for long.
    """
    components = [
        {f"{kind}/{name}": one for kind in part for name, one in part[kind].items()}
        for part in (old["components"], new["components"])
    ]
    names = components[0].keys() | components[1].keys()
    used = {name: references([one.get(name) for one in components]) for name in names}
    changed = {name for name in names if components[0].get(name) != components[1].get(name)}
    if any(
        old[key] != new.get(key) for key in old.keys() - {"components", "paths"}
    ) or "securitySchemes" in str(changed):
        return  # what is said of all operations
    while more := {name for name, others in used.items() if others & changed} - changed:
        changed |= more
    for path in old["paths"].keys() & new["paths"].keys():
        if (
            old["paths"][path] == new["paths"][path]
            and not references(old["paths"][path]) & changed
        ):
            del old["paths"][path], new["paths"][path]
    kept = references([old["paths"], new["paths"]])
    while more := set().union(*(used[name] for name in kept if name in used)) - kept:
        kept |= more
    for name in names - changed - kept:
        kind, _, key = name.partition("/")
        del old["components"][kind][key], new["components"][kind][key]


@pytest.mark.parametrize(
    "change", CHANGES, ids=[change.name.replace(" ", "-") for change in CHANGES]
)
def test_a_change_of_the_contract_has_its_levels(real_contract: Any, change: ContractEdit) -> None:
    """A change has exactly the listed rules and levels, at places that exist."""
    old, new = (
        source(real_contract, change.given),
        source(real_contract, change.given + change.edits),
    )
    if all(kind != "proto" for kind, *_ in (*change.given, *change.edits)):
        shorten(old.document, new.document)
    found = compare(old, new)
    assert {(finding.rule, finding.level) for finding in found} == change.found, list(
        map(str, found)
    )
    assert all(finding.pointer.startswith(("#/", "tinker_public.proto#/")) for finding in found)


def test_nothing_is_found_in_the_same_contract(real_contract: Any) -> None:
    """A contract is compatible with itself, with every keyword that it has."""
    assert compare(source(real_contract, ()), source(real_contract, ())) == []


def test_a_revision_and_the_working_tree_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder is read like a revision, and a name is never taken as an option of git."""
    for name in ("openapi.yaml", "tinker_public.proto"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "tinker_public.proto").write_text(
        PROTO.replace("double number = 1;", "float number = 1;"), encoding="utf-8"
    )
    assert main([str(tmp_path), str(ROOT), "--format", "json"]) == 4 + 8 + 16
    assert '"pointer": "tinker_public.proto#/LossConfigValue/number"' in capsys.readouterr().out
    assert main(["no-such-revision"]) == 2
    assert "no-such-revision" in capsys.readouterr().err
    assert main(["--", "--output=never"]) == 2


def test_a_revision_is_read_from_git(capsys: pytest.CaptureFixture[str]) -> None:
    """HEAD is compared with itself without touching the working tree."""
    inside = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, check=False
    )
    if inside.returncode:
        pytest.skip("not a checkout of git")
    assert main(["HEAD", "HEAD"]) == 0
    assert capsys.readouterr().out == "no change\n"


def test_markdown_is_a_table_that_no_text_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pattern with a bar stays in its cell, and names with underscores are no markup."""
    for name, pattern in (("old.yaml", "^a$"), ("new.yaml", "^(a|b_c)$")):
        parameter = f"{{name: q, in: query, schema: {{type: string, pattern: '{pattern}'}}}}"
        paths = (
            "paths: {/x: {get: {operationId: x, "
            f"parameters: [{parameter}], responses: {{}}}}}}}}"
        )
        (tmp_path / name).write_text(f"openapi: 3.1.0\n{paths}\n")
    assert (
        main([str(tmp_path / "old.yaml"), str(tmp_path / "new.yaml"), "--format", "markdown"])
        == 4 + 8
    )
    assert capsys.readouterr().out.splitlines() == [
        "| Breaks | Where | What | Rule |",
        "|---|---|---|---|",
        (
            '| clients, servers | `#/paths/~1x/get/parameters/0/schema` | pattern was "^a$", is '
            '"^(a\\|b\\_c)$" (requests). | limit |'
        ),
        "",
        "clients: 1, servers: 1, python: 0, compatible: 0",
    ]
    (tmp_path / "bad.proto").write_text("message A { int32 a = ; }")
    assert main([str(tmp_path / "bad.proto"), str(tmp_path / "bad.proto")]) == 2
    assert main([str(tmp_path / "old.yaml"), str(tmp_path / "bad.proto")]) == 2


def test_the_documentation_has_every_change() -> None:
    """The table of the page has each change with its levels, and why redocly diff says otherwise."""
    page = (ROOT / "docs" / "contract" / "changes.md").read_text(encoding="utf-8")
    table = page.partition("| Change | This comparison | redocly diff | Reason |\n")[2]
    rows = [line[2:-2].split(" | ") for line in table.split("\n\n")[0].splitlines()[1:]]
    assert [row[:2] for row in rows] == [[change.name, levels_of(change)] for change in CHANGES]
    judged = [row for row in rows if row[2] != "not read"]
    assert len(judged) >= 60
    disagree = [row for row in judged if ("clients" in row[1]) != (row[2] == "major")]
    assert [row[0] for row in disagree if not row[3]] == []
