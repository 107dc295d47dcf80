"""The outputs of examples/notebooks/, from runs on the local server:
`python docs/_scripts/notebooks.py [NAME ...]` writes them again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
LARGEST = 150_000  # bytes of a notebook with its outputs
SECONDS = 900  # for a cell, on a machine that has much else to do
OF_A_RUN = ("execution", "scrolled")  # metadata of cells that say when and how they ran


def run(path: Path) -> Any:
    """Run all cells of the notebook in a file, and return it with what they print and draw."""
    return execute(nbformat.read(path, as_version=4))


def execute(notebook: Any) -> Any:
    """Run all cells of a notebook in a fresh kernel, in the folder of the notebooks, and return it
    with their outputs.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, variables(folder), clear=True),
    ):
        beside = {"metadata": {"path": str(NOTEBOOKS)}}
        NotebookClient(notebook, timeout=SECONDS, resources=beside, coalesce_streams=True).execute()
    return notebook


def variables(folder: str) -> dict[str, str]:
    """The environment of a reader who has set nothing; checkpoints go to the folder, and nothing
    asks for widgets.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TINKER_")}
    return {
        **kept,
        "TINKER_LOCAL_DIR": folder,
        "PYTHONWARNINGS": "ignore:IProgress not found",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


def without_circumstances(notebook: Any) -> Any:
    """The notebook without what differs from machine to machine: times, and the
    version of Python.
    """
    notebook.metadata = {
        "kernelspec": notebook.metadata.kernelspec,
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        for name in OF_A_RUN:
            cell.metadata.pop(name, None)
    return notebook


def write(path: Path) -> None:
    """Write the outputs of a run of now into the notebook."""
    text = nbformat.writes(without_circumstances(run(path)), version=4) + "\n"
    if len(text.encode()) > LARGEST:
        raise SystemExit(f"{path.name} has {len(text.encode())} bytes; make its pictures smaller")
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")):
        write(NOTEBOOKS / f"{name}.ipynb")
