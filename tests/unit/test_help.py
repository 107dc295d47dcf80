"""`help()`, and what notebooks and editors read from an object."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from support.cases import for_each
from tinker_wire import models

import tinker
import tinker.types

MODULES = (
    "tinker",
    "tinker.auth",
    "tinker.checkpoints",
    "tinker.errors",
    "tinker.lib",
    "tinker.observing",
    "tinker.types",
)
PUBLIC = {
    **{
        name: getattr(tinker, name)
        for name in dir(tinker)
        if not name.startswith("_") and name != "OPEN_VERSION"
    },
    **{f"types.{name}": getattr(tinker.types, name) for name in tinker.types.__all__},
}


@for_each("name", PUBLIC)
def test_public_names(name: str) -> None:
    """`help()` shows a page about every public name."""
    assert pydoc.plain(pydoc.render_doc(PUBLIC[name])).strip()


@for_each("name", MODULES)
def test_modules(name: str) -> None:
    """`help()` shows a page about the package and about every public module."""
    page = pydoc.plain(pydoc.render_doc(importlib.import_module(name)))
    assert f"NAME\n    {name}" in page


def test_the_package_without_protobuf() -> None:
    """`help(tinker)`, and code that reads every name of it, need no optional package."""
    look = "import inspect, pydoc, tinker; inspect.getmembers(tinker); pydoc.render_doc(tinker)"
    absent = "import sys; sys.modules.update({'google.protobuf': None, 'google': None})"
    done = subprocess.run(
        [sys.executable, "-c", f"{absent}; {look}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def members() -> dict[str, Any]:
    """Yield every public method and property of every public class, by its path."""
    classes = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
    return {
        f"{name}.{member}": found
        for name, value in classes.items()
        for member, found in inspect.getmembers_static(value)
        # `help()` looks up text as a name
        if not member.startswith("_") and not isinstance(found, str)
    }


def test_members() -> None:
    """`help()` shows a page about every public member of every public class."""
    found = members()
    assert len(found) > 500
    pages = {path: pydoc.render_doc(value) for path, value in found.items()}
    assert all(pages.values())


def test_fields_on_the_page() -> None:
    """The page about a value names its methods and its fields."""
    page = pydoc.plain(pydoc.render_doc(tinker.SamplingParams))
    for name in ("max_tokens", "temperature", "top_p", "model_dump"):
        assert name in page
    assert " _field" not in page


def test_defaults_in_the_signature() -> None:
    """A signature shows each default as a value, also if records create it by a factory."""
    assert "learning_rate: float = 0.0001, beta1: float = 0.9" in str(
        inspect.signature(tinker.AdamParams)
    )


def test_types_in_the_signature() -> None:
    """A signature shows the types of type checkers, also where a decoder declares less."""
    shown = inspect.signature(tinker.SamplingParams).parameters["stop"].annotation
    assert shown == get_type_hints(stops)["stop"]


def stops(stop: str | Sequence[str] | Sequence[int] | None) -> None:
    """A function with the parameter as type checkers see it."""


def test_type_checkers_see_plain_defaults() -> None:
    """No default of a generated field is a function, which editors would show."""
    source = Path(str(models.__file__)).read_text()
    values = re.findall(r"default_factory=lambda: (.*)\)$", source, re.MULTILINE)
    assert values
    assert [value for value in values if value[-1] not in ")]}"] == []


@pytest.mark.parametrize(
    "value", [tinker.SamplingParams(), tinker.ModelInput.from_ints([1])], ids=["record", "attrs"]
)
def test_instances(value: object) -> None:
    """`help()` works on a value as it does on its class."""
    assert type(value).__name__ in pydoc.plain(pydoc.render_doc(value))


@for_each("name", [name for name, value in PUBLIC.items() if inspect.isclass(value)])
def test_bases(name: str) -> None:
    """Every base class of a public class can be inspected member by member."""
    for base in inspect.getmro(PUBLIC[name]):
        assert inspect.classify_class_attrs(base)
