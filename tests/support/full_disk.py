"""A disk that is full for a while: below one folder no file is opened for writing, nothing is made,
and SQLite writes nothing.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

_CHANGES = ("insert", "update", "delete", "commit")
_OPENING = (open, os.open)
_CALLS = (
    *((home, "open") for home in (builtins, io, os)),
    *((os, name) for name in ("mkdir", "rename", "replace", "link")),
)


class FullDisk:
    """Counts the writes below ``root``, and lets them fail from ``first`` on until :meth:`free` is
    called.

    ``rolls_back`` says whether SQLite ends the transaction by itself when a statement fails: it
    may, and it may not.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.rolls_back = str(root), False
        self.writes = 0
        self.first: int | None = None
        for home, name in _CALLS:
            monkeypatch.setattr(home, name, partial(self._call, getattr(home, name)))
        monkeypatch.setattr(
            sqlite3, "connect", partial(sqlite3.connect, factory=self._connection())
        )

    @property
    def was_full(self) -> bool:
        """Whether a write has failed since the last call of :meth:`free`."""
        return self.first is not None and self.writes > self.first

    def free(self) -> None:
        """Make room."""
        self.first = None

    def write(self) -> bool:
        """Count a write; whether there is room for it."""
        self.writes += 1
        return not self.was_full

    def _call(self, call: Callable[..., Any], path: Any, *args: Any, **named: Any) -> Any:
        # No audit hook: one cannot be removed, and before Python 3.12 a thread that starts while
        # another one is in a hook dies where threads are traced, as for coverage.
        is_write = call not in _OPENING or _opens_for_writing(*args, **named)
        if is_write and str(path).startswith(self.root) and not self.write():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return call(path, *args, **named)

    def _connection(self) -> type[sqlite3.Connection]:
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                return self._write(
                    statement, lambda: super(Connection, self).execute(statement, *values)
                )

            def executemany(self, statement: str, values: Any) -> sqlite3.Cursor:
                return self._write(
                    statement, lambda: super(Connection, self).executemany(statement, values)
                )

            def _write(self, statement: str, run: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
                if statement.strip().lower().startswith(_CHANGES) and not disk.write():
                    if disk.rolls_back:
                        super().execute("rollback")
                    raise sqlite3.OperationalError("database or disk is full")
                return run()

        return Connection


def _opens_for_writing(how: Any = "r", *_: object, mode: Any = None, **__: object) -> bool:
    """Return whether these arguments behind the path, of either function, open a file to write."""
    return (
        bool(how & (os.O_WRONLY | os.O_RDWR))
        if isinstance(how, int)
        else not {*"wax+"}.isdisjoint(mode or how)
    )
