"""Checkpoints on this machine: downloads, archives, and copies to a hub."""

from __future__ import annotations

from tinker._checkpoints.download import Source, Watch, fetch, save_url

__all__ = [
    "Source",
    "Watch",
    "fetch",
    "save_url",
]
