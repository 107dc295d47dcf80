"""Internals of the official client, which this one does not have: packages that change them are
told that it has no effect.
"""

from __future__ import annotations

import sys
import warnings
from typing import NoReturn

from tinker._installation import PATCHING_PACKAGES


def __getattr__(name: str) -> NoReturn:
    advice = [advice for module, advice in PATCHING_PACKAGES.values() if module in sys.modules]
    # such packages take the ImportError for "not installed", and say nothing
    if advice and not name.startswith("__"):
        warnings.warn(
            f"{__name__}.{name} is internal to the official client. {'; '.join(advice)}",
            stacklevel=2,
        )
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}: it is internal to the official client"
    )
