"""The file of the journal: rows with a key are kept once, and what a failed write held back is
written once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tinker.local.storage.futures import Journal, Table


class Row(msgspec.Struct, array_like=True):
    name: str
    value: int


THINGS = Table("things", Row, "name")


def test_a_row_replaces_that_of_its_key(tmp_path: Path) -> None:
    """Two rows with one key are one row, the later one."""
    journal = Journal(tmp_path)
    journal.add_tables(THINGS)
    journal.note(THINGS.add(Row("a", 1)), THINGS.add(Row("a", 2)))
    journal.flush()
    assert journal.read(THINGS) == [Row("a", 2)]
    journal.close()


def test_what_a_failed_write_held_back_is_written_once(tmp_path: Path) -> None:
    """Rows that could not be written are written with the next ones; deleted later, they do not
    come back.
    """
    journal = Journal(tmp_path)
    journal.note(THINGS.add(Row("a", 1)))
    journal.flush()  # there is no such table
    journal.add_tables(THINGS)
    names: list[list[str]] = []
    for statement in (
        THINGS.add(Row("b", 1)),
        THINGS.delete("name = ?", "a"),
        THINGS.add(Row("c", 1)),
    ):
        journal.note(statement)
        journal.flush()
        names.append([row.name for row in journal.read(THINGS)])
    assert names == [["a", "b"], ["b"], ["b", "c"]]
    journal.close()
