"""Internals of the official client, which this one does not have: packages that change them are told that it has no effect."""

from __future__ import annotations

import warnings
from typing import NoReturn

from tinker._installation import PATCHING_PACKAGES


def __getattr__(name: str) -> NoReturn:
    if not name.startswith("__"):  # such packages take the ImportError for "not installed", and say nothing
        advice = "; ".join(PATCHING_PACKAGES.values())
        warnings.warn(f"{__name__}.{name} is internal to the official client. {advice}", stacklevel=2)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it is internal to the official client")
