"""Whether a data folder can be written, found out before anything is learned that it should keep."""

from __future__ import annotations

import tempfile
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
