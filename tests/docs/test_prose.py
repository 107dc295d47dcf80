"""The wording and layout of the pages; `nox -s docs` checks their phrases by prose.py itself."""

from __future__ import annotations

import contextlib
import importlib
import re
import runpy
from pathlib import Path

from support.cases import for_each

import tinker
from tinker import (
    auth,
    checkpoints,
    local,
    observing,
    proto,
    recovery,
    regularizers,
    testing,
    types,
    usage,
    wire,
)

SCRIPTS = Path(__file__).resolve().parents[2] / "docs" / "_scripts"
PROSE = runpy.run_path(str(SCRIPTS / "prose.py"))
BLOCKS = runpy.run_path(str(SCRIPTS / "blocks.py"))
RECORDS = runpy.run_path(str(SCRIPTS / "records.py"))


def test_a_banned_phrase_is_found_with_its_line() -> None:
    """The list finds a phrase that is broken over two lines, and leaves code alone."""
    text = "A wait is\nfor ever.\n`for ever`\n\n```python\nfor ever\n```\nThis is to be\nread."
    assert [(line, phrase) for line, phrase, _ in PROSE["find_phrases"](text)] == [
        (2, "for ever"),
        (8, "is to be"),
    ]


@for_each("page", BLOCKS["pages"]())
def test_blocks_fit(page: Path) -> None:
    """No line of a code block is wider than 80 columns."""
    assert BLOCKS["find_wide_lines"](page.read_text(encoding="utf-8")) == []


def test_a_wide_line_is_found() -> None:
    """A line of 81 columns in a block is too wide, in a paragraph it is not."""
    assert BLOCKS["find_wide_lines"](f"{'a' * 81}\n```text\n{'b' * 81}\n{'c' * 80}\n```\n") == [
        "b" * 81
    ]


@for_each("name", [name for name in types.__all__ if RECORDS["has_fields"](getattr(types, name))])
def test_every_field_has_a_meaning(name: str) -> None:
    """Each field of each public type, its bases' too, has a type, a default and a meaning."""
    kind = getattr(types, name)
    fields = RECORDS["fields_of"](kind)
    assert all(field.type and field.default and field.meaning for field in fields)
    declared = set(getattr(kind, "__struct_fields__", ()))
    assert declared <= {field.name for field in fields}


def test_the_parameters_of_sampling_are_all_there() -> None:
    """The table of SamplingParams has every argument, with its default as the code has it."""
    fields = {field.name: field for field in RECORDS["fields_of"](types.SamplingParams)}
    params = types.SamplingParams()
    assert set(fields) == set(params.__struct_fields__)
    assert all(fields[name].default == f"`{getattr(params, name)!r}`" for name in fields)


def reference() -> str:
    pages = (SCRIPTS.parent / "reference").glob("*.md")
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def shown_names() -> set[str]:
    """Return the words of the pages, and what the modules define that they show whole."""
    text = reference()
    words = set(re.findall(r"\w+", text))
    for path in re.findall(r"^::: (tinker[\w.]*)$", text, re.MULTILINE):
        with contextlib.suppress(ModuleNotFoundError):
            words |= {name for name in dir(importlib.import_module(path)) if name[0] != "_"}
    return words


def test_every_public_name_is_in_the_reference() -> None:
    """Each public name of the package and of its public modules is in the reference."""
    modules = (
        tinker,
        types,
        auth,
        checkpoints,
        local,
        observing,
        proto,
        recovery,
        regularizers,
        testing,
        usage,
        wire,
    )
    public = {name for module in modules for name in module.__all__ if not name.startswith("_")}
    assert sorted(public - shown_names()) == []
    assert "NoSuchThing" not in shown_names()
