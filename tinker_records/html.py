"""Values as HTML tables, which notebooks show: all text escaped, long values cut, secret fields
hidden.
"""

from __future__ import annotations

import html
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

LONGEST_TABLE = 50  # rows

_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = 8
_short.maxdict = _short.maxother = _short.maxstring = 200


def to_html(name: str, fields: Mapping[str, Any], secret: frozenset[str]) -> str:
    """Return a value of this kind as a table of its fields."""
    style = 'style="text-align:left"'
    cells = {
        html.escape(field): "***" if field in secret and value else _cell(value)
        for field, value in fields.items()
    }
    rows = "".join(
        f"<tr><th {style}>{field}</th><td {style}>{cell}</td></tr>" for field, cell in cells.items()
    )
    return f"<table><caption>{html.escape(name)}</caption><tbody>{rows}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        return "<br>".join(
            f"{html.escape(str(key))}: {_cell(entry)}" for key, entry in entries.items()
        )
    if (
        isinstance(value, (list, tuple))
        and value
        and all(hasattr(one, "_repr_html_") for one in cast("Sequence[Any]", value))
    ):
        return _table(cast("Sequence[Any]", value))
    other: Any = cast("Any", value)
    if hasattr(other, "_repr_html_"):
        return str(other._repr_html_())
    is_plain = isinstance(value, datetime) or (isinstance(value, str) and len(value) <= 200)
    return html.escape(str(other) if is_plain else _short.repr(other))


def _table(values: Sequence[Any]) -> str:
    """Return values of one kind as a table with a row for each; others one below the other."""
    shown = values[:LONGEST_TABLE]
    rest = f"<p>and {len(values) - len(shown)} more</p>" if len(values) > len(shown) else ""
    if any(type(one) is not type(shown[0]) for one in shown):
        return "".join(one._repr_html_() for one in shown) + rest
    columns = list(shown[0]._field_values())
    secret = getattr(shown[0], "_secret_fields", frozenset[str]())
    rows = (
        [
            "***" if name in secret and value else _cell(value)
            for name, value in one._field_values().items()
        ]
        for one in shown
    )
    return join_rows(columns, rows) + rest


def join_rows(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of cells that are HTML."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
