"""Checkpoints on this machine: downloads, archives, and copies to a hub."""

from __future__ import annotations

from tinker._checkpoints import archives, hub
from tinker._checkpoints.download import FileSource, Watch, fetch, save_url

__all__ = [
    "FileSource",
    "Watch",
    "archives",
    "fetch",
    "hub",
    "save_url",
]
