"""Examples in docstrings, run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import tinker

# The module that the classes of another one name as theirs.
PUBLIC = {"tinker._basics.events": "tinker.observing.events"}
NEED_TORCH = ("tinker._tokenizers", "tinker.data", "tinker.service_client")


def modules_with_examples() -> list[str]:
    """Yield every module of the client whose docstrings contain an example."""
    names = ["tinker", *(info.name for info in pkgutil.walk_packages(tinker.__path__, "tinker."))]
    files = {name: spec.origin for name in names if (spec := find_spec(name)) is not None}
    return [name for name, file in files.items() if ">>> " in Path(str(file)).read_text()]


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example in a docstring gives the output shown."""
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path))
    module = importlib.import_module(PUBLIC.get(name, name))
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
