"""Docstrings as the site shows them: roles become code, examples blocks, generated defaults what
they are; with places.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import griffe

from tinker import types

_ROLE = re.compile(r":(?:meth|func|class|attr|mod|exc):`~?([^`]+)`")
_DOUBLED = re.compile(r"``([^`]+)``")
_DEFAULT = re.compile(r"_field\(default_factory=lambda: (.*)\)", re.DOTALL)
ROOT = Path(__file__).resolve().parents[2]
_COLUMNS = 76  # of code, in blocks of 80 columns
_FORMAT = (
    sys.executable,
    "-m",
    "ruff",
    "format",
    "--quiet",
    "--line-length",
    str(_COLUMNS),
    "--stdin-filename",
    "example.py",
    "-",
)
_STATEMENT = re.compile(r"^>>> .*\n?(?:^\.\.\.(?: .*)?\n?)*", re.MULTILINE)
_ATTRIBUTES = re.compile(r"^Attributes:\n(?:(?: .*)?\n?)*", re.MULTILINE)
_EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes the text of each docstring once it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is None:
            return
        kind = (
            getattr(types, obj.name, None)
            if obj.is_class and obj.path.startswith("tinker.types.")
            else None
        )
        if kind is not None:  # with the defaults, and what is inherited
            obj.docstring.value = _ATTRIBUTES.sub(
                lambda _: f"{records()['table_of'](kind)}\n\n", obj.docstring.value
            )
        obj.docstring.value = shown(obj.docstring.value)
        if (obj.is_class or obj.is_function) and (place := source_of(obj)) is not None:
            obj.docstring.value += f"\n\n{place}"

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """A constructor is shown with what users pass: nothing if another client makes the object,
        and no internal name.
        """
        if func.name == "__init__":
            internal = any("name_maker" in str(one.value) for one in func.decorators)
            shown_ones = (
                one
                for one in func.parameters
                if one.name == "self" or not (internal or one.name.startswith("_"))
            )
            func.parameters = griffe.Parameters(*shown_ones)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """A generated default that is a factory only because it must be sent is shown as what it
        makes.
        """
        if (made := _DEFAULT.fullmatch(str(attr.value))) is not None:
            attr.value = made[1]


def source_of(obj: griffe.Object) -> str | None:
    """A link to the file and line of an object, from a page of the reference to a page that the
    hooks write.
    """
    file = obj.filepath
    if (
        not isinstance(file, Path)
        or not file.is_relative_to(ROOT)
        or obj.lineno is None
        or obj.name.startswith("_")
    ):
        return None
    name = file.relative_to(ROOT).as_posix()
    return (
        f'<p class="source"><a href="../../source/{name}.html#L-{obj.lineno}">{name}, line '
        f"{obj.lineno}</a></p>"
    )


@cache
def records() -> dict[str, Any]:
    """The script that makes tables of fields."""
    return runpy.run_path(str(Path(__file__).with_name("records.py")))


def shown(text: str) -> str:
    """The docstring in Markdown."""
    text = _DOUBLED.sub(r"`\1`", _ROLE.sub(r"`\1`", text))
    return _EXAMPLE.sub(
        lambda found: f"```pycon\n{_STATEMENT.sub(_fit, found[0]).rstrip()}\n```\n", text
    )


def _fit(statement: re.Match[str]) -> str:
    """The statement on lines that a block shows whole."""
    lines = statement[0].splitlines()
    if all(len(line) <= _COLUMNS + 4 for line in lines):
        return statement[0]
    code = "\n".join(line[4:] for line in lines)
    formatted = (
        subprocess.run(_FORMAT, input=code, capture_output=True, text=True, check=True)
        .stdout.rstrip()
        .splitlines()
    )
    first, *others = formatted
    return "\n".join([f">>> {first}", *(f"... {line}".rstrip() for line in others)]) + "\n"
