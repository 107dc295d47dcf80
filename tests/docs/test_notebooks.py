"""The notebooks of examples/: they run, and what they show is what runs print and draw."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "_scripts" / "notebooks.py"))
NAMES = ("evaluate", "rl", "sft")


def path_of(name: str) -> Path:
    folder: Path = SCRIPT["NOTEBOOKS"]
    return folder / f"{name}.ipynb"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def forms(notebook: Any) -> list[list[tuple[str, ...]]]:
    """For each cell the kinds of its outputs, and how many lines of text."""
    code = (cell for cell in notebook.cells if cell.cell_type == "code")
    return [[form(output) for output in cell.outputs] for cell in code]


def without_warnings(notebook: Any) -> list[list[tuple[str, ...]]]:
    """Leave out warnings, as of a slow machine."""
    return [[one for one in kinds if one[0] != "stderr"] for kinds in forms(notebook)]


def form(output: Any) -> tuple[str, ...]:
    if output.output_type == "stream":
        return (output.name, str(len(output.text.splitlines())))
    return (output.output_type, *sorted(output.data))


def test_the_notebooks_are_these() -> None:
    """Each notebook is tested, and listed on the page of examples."""
    assert sorted(path.stem for path in SCRIPT["NOTEBOOKS"].glob("*.ipynb")) == sorted(NAMES)
    page = (ROOT / "docs" / "examples.md").read_text()
    assert all(f"{name}.ipynb" in page for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown(name: str) -> None:
    """Outputs are those of one run without errors and warnings, with a picture, in a small file."""
    notebook = read(path_of(name))
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    kinds = [kind for cell in forms(notebook) for kind in cell]
    assert not [kind for kind in kinds if kind[0] in ("error", "stderr")]
    assert any("image/png" in kind for kind in kinds)
    assert path_of(name).stat().st_size < SCRIPT["LARGEST"]
    assert not re.search(r"/(home|root|tmp|Users)/", path_of(name).read_text())


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_a_whole_notebook_runs(name: str) -> None:
    """No cell fails, and each prints as many lines and draws as many pictures as are shown."""
    found, shown = SCRIPT["run"](path_of(name)), read(path_of(name))
    assert without_warnings(found) == without_warnings(shown)
