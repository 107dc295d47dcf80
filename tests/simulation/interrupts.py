"""Ctrl-C at a place that is counted, so that it comes there again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def interrupt(function: Callable[[], T], calls: int) -> T:
    """Call a function, and raise KeyboardInterrupt when it and what it calls have called so many
    others.

    That is one of the places where Python raises what a signal handler raises.
    """
    left = calls

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return function()
    finally:
        sys.settrace(before)
