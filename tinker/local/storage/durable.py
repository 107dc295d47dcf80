"""Files that survive a power failure: their content, and their names in the folders that hold them."""

from __future__ import annotations

import os
from pathlib import Path


def sync_tree(folder: Path) -> None:
    """Write everything below a folder through to the disk, the folder itself last."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(path, name))
        sync_folder(Path(path))


def sync_folder(folder: Path) -> None:
    """Write the names in a folder through to the disk, where the system does that for folders."""
    if os.name == "posix":
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
