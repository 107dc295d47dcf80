"""Checkpoints on this machine: downloads, uploads, archives, and copies to a hub."""

from __future__ import annotations

from tinker._checkpoints import archives, hub
from tinker._checkpoints.adapter import LocalAdapter, read_adapter
from tinker._checkpoints.download import FileSource, Watch, fetch, save_url
from tinker._checkpoints.upload import Uploading

__all__ = [
    "FileSource",
    "LocalAdapter",
    "Uploading",
    "Watch",
    "archives",
    "fetch",
    "hub",
    "read_adapter",
    "save_url",
]
