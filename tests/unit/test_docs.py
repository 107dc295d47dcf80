"""Examples in docstrings, run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import tinker

NEED_TORCH = ("tinker._tokenizers", "tinker.data", "tinker.service_client")


def modules_with_examples() -> list[str]:
    """Yield every module of the client whose docstrings contain an example."""
    folder = Path(tinker.__file__).parent
    names = ["tinker", *(info.name for info in pkgutil.walk_packages([str(folder)], "tinker."))]
    sources = {name: folder.joinpath(*name.split(".")[1:]) for name in names}
    files = {
        name: path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        for name, path in sources.items()
    }
    return [name for name, file in files.items() if ">>> " in file.read_text()]


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example in a docstring gives the output shown."""
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path))
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
