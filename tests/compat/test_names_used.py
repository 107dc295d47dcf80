"""The names that other people's packages and servers use are there (ecosystem/names.py finds them
in their sources).
"""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from compat.ecosystem.names import find_names

USED: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "ecosystem" / "names_used.toml").read_text()
)
CODEC = "tinker.proto."


def find(name: str) -> object:
    """Return the object of a dotted name, imported as far as it is a module."""
    owner, _, last = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not owner or not name.startswith(f"{error.name}"):
            raise
    return getattr(find(owner), last)


def is_there(name: str) -> bool:
    """Whether a dotted name can be imported or reached."""
    try:
        find(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_names_are_found() -> None:
    """Imports count, and chains of attributes from an import; methods of values do not."""
    source = """
import numpy, tinker
import tinker.types.datum
from tinker import types as tt, ServiceClient
from .tinker import ours
def run(client: "x"):
    from tinker.lib.public_interfaces import APIFuture
    tinker.ModelInput.from_ints([numpy.int64(1)]).length
    client.sample(tt.SamplingParams())
"""
    expected = {
        "types",
        "types.datum",
        "ServiceClient",
        "lib.public_interfaces.APIFuture",
        "ModelInput",
        "ModelInput.from_ints",
    }
    assert find_names(source) == {
        "tinker",
        *(f"tinker.{name}" for name in {*expected, "types.SamplingParams"}),
    }
    assert find_names("print 1") == set()


def test_names_are_looked_up() -> None:
    """A module, a name in one and a method are found; any other name is not."""
    assert all(
        map(
            is_there,
            ("tinker.types", "tinker.types.tensor_data.TensorData", "tinker.ModelInput.from_ints"),
        )
    )
    assert not any(
        map(
            is_there,
            (
                "tinker.nothing",
                "tinker.types.Nothing",
                "tinker.ModelInput.nothing",
                "nothing.at.all",
            ),
        )
    )


@pytest.mark.parametrize("package", USED)
def test_names_of_clients(package: str) -> None:
    """Every name of the client that a package uses exists, except those listed with a reason."""
    exempt = {*USED[package].get("left_out", ()), *USED[package].get("not_in_the_official", ())}
    assert [
        name
        for name in USED[package]["names"]
        if not name.startswith(CODEC) and name not in exempt and not is_there(name)
    ] == []


@pytest.mark.parametrize(
    "package",
    [package for package in USED if any(CODEC in name for name in USED[package]["names"])],
)
def test_names_of_the_codec(package: str) -> None:
    """Every name of the protobuf codec that it uses exists, where Google's runtime is installed."""
    pytest.importorskip("google.protobuf")
    pytest.importorskip("tinker.proto")
    exempt = USED[package].get("not_in_the_official", ())
    assert [
        name
        for name in USED[package]["names"]
        if name.startswith(CODEC) and name not in exempt and not is_there(name)
    ] == []


@pytest.mark.parametrize("package", [package for package in USED if "left_out" in USED[package]])
def test_exemptions_are_needed(package: str) -> None:
    """A name that is left out is used and is not there, and the list says why."""
    assert USED[package]["why"]
    assert set(USED[package]["left_out"]) <= set(USED[package]["names"])
    assert not any(map(is_there, USED[package]["left_out"]))
