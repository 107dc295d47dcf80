"""What people are shown: text from others, without anything that controls a terminal and without
secrets, and tables for rich and notebooks.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable, Sequence
from textwrap import indent
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rich.table import Table

_BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029][\t-\r\x1c-\x1e\x85\u2028\u2029 ]*")
# All controls but tab and line feed, what changes the direction of text, separators of lines, and
# halves of characters.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

HIDDEN = "<redacted>"
#: Text that is a secret wherever it stands: keys, JSON web tokens, bearer tokens. It is compiled
#: when it is first needed, which in most processes is never.
_HIDDEN_TEXT = (
    r"(?i)\b(?:tml|sk|hf|ghp|github_pat)[-_][^\s'\",]+|\bAKIA\w{12,}|eyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"
    r"|\b(?:bearer|basic)\s+[^\s'\",]+"
)


def hide_secrets(text: str, mark: str = HIDDEN) -> str:
    """Return a text with a mark in the place of anything that looks like a secret."""
    return re.sub(_HIDDEN_TEXT, mark, text)


def hide_signature(url: str) -> str:
    """Return a signed URL as errors show it: without its query, and without tokens in its path."""
    return hide_secrets(url.partition("?")[0])


def clean(text: str, *, lines: bool = False) -> str:
    """Return text from others in one line, with escapes for what controls a terminal or changes the
    direction of text.

    With ``lines``, line feeds and tabs stay.

    >>> clean("a name" + chr(27) + "[2J\\r\\nERROR forged")
    'a name\\\\x1b[2J ERROR forged'
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n") if lines else _BREAKS.sub(" ", text)
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def clean_record(record: logging.LogRecord) -> bool:
    """Clean a record of the log: its message is one line, and the lines of its traceback are
    indented. A filter.
    """
    message = record.getMessage()
    if (shown := clean(message)) != message:
        record.msg, record.args = shown, None
    if record.exc_info and not record.exc_text:
        record.exc_text = indent(
            clean("".join(traceback.format_exception(*record.exc_info)), lines=True).rstrip(), "  "
        )
    return True


logging.getLogger("tinker").addFilter(clean_record)


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
            table.add_row(*(Text(clean(cell)) for cell in cells))
        return table

    def _repr_html_(self) -> str:
        from html import escape

        from tinker_records.html import join_rows

        return join_rows(self._columns, (map(escape, cells) for cells in self._rows()))
