"""Tables that rich and notebooks show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rich.table import Table


class ShownAsTable:
    """Base of classes whose objects rich and notebooks show as a table."""

    _title: ClassVar[str]
    _columns: ClassVar[Sequence[str]]

    def _rows(self) -> Iterable[Sequence[str]]:
        raise NotImplementedError

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(*self._columns, title=self._title)
        for cells in self._rows():
            table.add_row(*map(Text, cells))
        return table

    def _repr_html_(self) -> str:
        from tinker_records.html import join_rows

        return join_rows(self._columns, (map(escape, cells) for cells in self._rows()))
