"""Tables of the fields of the public types, from the code: what `docs/reference/types.md` shows for
`<!-- records: ... -->`.

Types and defaults are those of the class. A meaning comes from the docstring of the class
(``Attributes:``), or from the text below the field, which generated classes have from the contract.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import msgspec

from tinker import types

MODELS = Path(__file__).resolve().parents[2] / "generated" / "tinker_wire" / "models.py"
ENTRY = re.compile(
    r"^    (\w+)(?: \(([^\n]*)\))?: (.*?)(?=^    \w+[^\n]*?:|\Z)", re.MULTILINE | re.DOTALL
)
ROLE = re.compile(r":\w+:`~?([^`]+)`")


class Field(NamedTuple):
    name: str
    type: str
    default: str
    meaning: str


def fields_of(kind: type) -> list[Field]:
    """The fields of a public class, inherited ones too."""
    described = _attributes(kind)
    found = []
    for name, annotation, default in _declared(kind):
        meaning = described.get(name) or _below(kind, name)
        found.append(Field(name, _types(kind).get(name, annotation), default, _say(meaning)))
    return found


def _declared(kind: type) -> Iterator[tuple[str, str, str]]:
    if attrs.has(kind):
        for one in attrs.fields(kind):
            if not one.name.startswith("_"):
                yield one.name, _spell(one.type), _default(one.default, attrs.NOTHING)
        return
    annotations = {
        name: text
        for base in reversed(kind.__mro__)
        for name, text in vars(base).get("__annotations__", {}).items()
    }
    for one in msgspec.structs.fields(kind):
        made = one.default_factory
        default = (
            _default(one.default, msgspec.NODEFAULT)
            if made is msgspec.NODEFAULT
            else f"`{made()!r}`"
        )
        yield one.name, _spell(annotations.get(one.name, one.type)), default


def _default(value: object, nothing: object) -> str:
    if value is nothing:
        return "required"
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        return f"`{value.factory()!r}`" if not value.takes_self else "computed"
    return f"`{value!r}`"


def _spell(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    union = re.fullmatch(r"(?:typing\.)?Union\[((?:typing\.)?Literal\[[^\]]*\]), (.*)\]", text)
    if union:
        text = " | ".join([union[1], *union[2].replace("NoneType", "None").split(", ")])
    return re.sub(
        r"\b(?:tinker\.types(?:\.\w+)*|tinker_wire\.models|models|typing|collections\.abc|datetime)\.(?=\w)",
        "",
        text,
    )


def _attributes(kind: type) -> dict[str, str]:
    """What the docstrings of the class and its bases say below ``Attributes:``."""
    return {one[1]: one[3] for one in _entries(kind)}


def _types(kind: type) -> dict[str, str]:
    """The types that these docstrings name: what a user may pass, where the field holds what was
    made of it.
    """
    return {one[1]: one[2] for one in _entries(kind) if one[2]}


def _entries(kind: type) -> Iterator[re.Match[str]]:
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(vars(base).get("__doc__") or "")
        section = re.search(
            r"^(?:Attributes|Args):\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL
        )
        if section:
            yield from ENTRY.finditer(section[1])


@cache
def _texts() -> dict[str, dict[str, str]]:
    """For each generated class the texts below its fields."""
    found: dict[str, dict[str, str]] = {}
    for one in ast.parse(MODELS.read_text(encoding="utf-8")).body:
        if isinstance(one, ast.ClassDef):
            texts = found.setdefault(one.name, {})
            for field, below in zip(one.body, one.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                ):
                    texts[typing.cast("ast.Name", field.target).id] = str(below.value.value)
    return found


def _below(kind: type, name: str) -> str:
    return next(
        (
            _texts()[base.__name__][name]
            for base in kind.__mro__
            if name in _texts().get(base.__name__, {})
        ),
        "",
    )


def _say(text: str) -> str:
    return ROLE.sub(r"`\1`", re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split())))


def has_fields(kind: object) -> bool:
    return isinstance(kind, type) and (attrs.has(kind) or issubclass(kind, msgspec.Struct))


def show(names: list[str]) -> str:
    """Markdown for these names of tinker.types: a heading, what it is, and a table of its fields or
    its values.
    """
    return "\n\n".join(_show(name, getattr(types, name)) for name in names)


def _show(name: str, kind: Any) -> str:
    heading = f"### {name}"
    if not has_fields(kind):
        return f"{heading}\n\n{_values(kind)}"
    summary, _, rest = inspect.cleandoc(vars(kind).get("__doc__") or "").partition("Attributes:\n")
    text = _say(summary) or _say(kind.__mro__[1].__doc__ or "")
    if kind.__mro__[1].__name__.startswith("_") and not summary:  # the base of all
        text = ""
    table = table_of(kind)
    examples = "\n".join(
        line
        for line in rest.splitlines()
        if line.startswith((">>>", "...")) or (rest and _follows(rest, line))
    )
    parts = [heading, text, table or "It has no fields."]
    return "\n\n".join(
        part for part in [*parts, f"```pycon\n{examples}\n```" if examples else ""] if part
    )


def table_of(kind: type) -> str:
    """The table of the fields of a class, empty without any."""
    rows = [
        f"| `{one.name}` | {_code(one.type)} | {one.default} | {_cell(one.meaning)} |"
        for one in fields_of(kind)
    ]
    return (
        "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])
        if rows
        else ""
    )


def _follows(text: str, line: str) -> bool:
    """Whether a line is the output of an example."""
    lines = text.splitlines()
    place = lines.index(line)
    return (
        bool(line.strip())
        and not line.startswith(" ")
        and place > 0
        and lines[place - 1].startswith((">>>", "..."))
    )


def _values(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, str) and kind is not str:
        return "One of " + ", ".join(f"`{one}`" for one in kind.__members__) + "."  # type: ignore[attr-defined]
    literals = [value for one in (kind, *typing.get_args(kind)) for value in _literals(one)]
    if literals:
        more = "; other values are passed through" if str in typing.get_args(kind) else ""
        return "One of " + ", ".join(f"`{value!r}`" for value in literals) + more + "."
    if isinstance(kind, type):
        return f"Another name for `{kind.__name__}`."
    options = [_spell(one) for one in typing.get_args(kind)]
    if typing.get_origin(kind) in (list, dict):
        return f"The type `{_spell(kind)}`."
    return "One of " + ", ".join(f"`{one}`" for one in options) + "."


def _literals(kind: object) -> tuple[object, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _code(text: str) -> str:
    return f"`{text}`"  # inside code a bar does not end the cell


def _cell(text: str) -> str:
    return re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or "\\|", text)


if __name__ == "__main__":
    for name in types.__all__:
        kind = getattr(types, name)
        if not has_fields(kind):
            print(name, "=", kind)
            continue
        for field in fields_of(kind):
            if not field.meaning:
                print(f"   {name}.{field.name}: {field.type} = {field.default}")
