"""Requests that need no session."""

from __future__ import annotations

from tinker._rest.requests import Rest, open_rest

__all__ = [
    "Rest",
    "open_rest",
]
