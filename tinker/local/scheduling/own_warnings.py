"""Warnings in the engine's thread: ignored there, whatever the filters of the process say.

With ``warnings.simplefilter("error")`` in a program, a warning of a library would raise in the middle of a request of the
server in the same process. Filters belong to the process, and the program may change them at any moment, so that
``warnings.catch_warnings()`` in this thread would not hold, and would disturb the program. Instead, this thread sees one filter
more, in front of those of the process. That is sound because each warning, of Python and of C code alike, looks up the filters
as an attribute of the module ``warnings``, which the class of a module may compute, and the list of the process never contains
the additional one.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

IGNORE = ("ignore", None, Warning, None, 0)


class _Thread(threading.local):
    is_ignoring: bool = False


_thread = _Thread()


class _Warnings(ModuleType):
    """The module ``warnings``. Threads that ignore warnings see ``IGNORE`` before the filters of the process."""

    @property
    def filters(self) -> list[Any]:
        found: list[Any] = vars(self)["filters"]
        return [IGNORE, *found] if _thread.is_ignoring else found

    @filters.setter
    def filters(self, value: list[Any]) -> None:
        vars(self)["filters"] = [one for one in value if one is not IGNORE] if _thread.is_ignoring else value


@contextmanager
def ignore_warnings() -> Generator[None]:
    """Ignore all warnings of this thread inside the block."""
    sys.modules[warnings.__name__].__class__ = _Warnings
    _thread.is_ignoring = True
    try:
        yield
    finally:
        _thread.is_ignoring = False
