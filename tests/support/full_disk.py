"""A disk that is full for a while: below one folder no file is opened for writing, nothing is made,
and SQLite writes nothing.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

_CHANGES = ("insert", "update", "delete", "commit")


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
        self._is_watching = True
        sys.addaudithook(self._audit)
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

    def stop(self) -> None:
        """Watch no more; a hook cannot be removed."""
        self._is_watching = False

    def write(self) -> bool:
        """Count a write; whether there is room for it."""
        self.writes += 1
        return not self.was_full

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if (
            not self._is_watching
            or not _is_write(event, args)
            or not str(args[0]).startswith(self.root)
        ):
            return
        if not self.write():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), args[0])

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


def _is_write(event: str, args: tuple[Any, ...]) -> bool:
    if event == "open":
        return isinstance(args[0], str) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
    return event in ("os.mkdir", "os.rename", "os.link")
