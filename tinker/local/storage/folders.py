"""Folders: whether a data folder can be written, and new ones that are complete or not there."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path


def make_data_folder(folder: Path) -> None:
    """Make the folder where it is missing, and try to write there. OSError names it and the reason."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OSError(f"nothing can be written to the data folder {folder}: {reason}") from error


@contextlib.contextmanager
def new_folder(folder: Path) -> Generator[None]:
    """Make an empty folder in place of what is there, for the block to fill; it is removed when that fails."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
