"""The one place that prints results: tables, JSON and progress. Results go to the output stream, all else to the error stream.

On a terminal a table has lines and fits the width; one that cannot is shown row by row. Into a pipe it has neither: one line of
text for each row, in columns, so that grep, cut and head can be used.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinker.cli.options import GlobalOptions

if TYPE_CHECKING:
    from tinker.cli.charts import Curves

#: Called with the work done (in units of the total) and a new description of the bar (None: as before).
Advance = Callable[..., None]

_GAP = "  "
_SHORT = len("59 minutes ago")  # a cell of a column that stays on one line where there is room


def show(options: GlobalOptions, value: Any, table: Callable[[], None]) -> None:
    """Print a result: ``value`` (a record, or a collection of records) as JSON, else by ``table``."""
    if options.format == "json":
        show_json(value)
    else:
        table()


def is_ascii_only() -> bool:
    """Return whether the output stream cannot show other letters."""
    return "utf" not in (sys.stdout.encoding or "").lower()


def show_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a record, or a collection of records, as JSON; a time is written ``2024-01-02 03:04:05+00:00``."""
    click.echo(json.dumps(value, indent=indent, default=_plain))


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump()


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, *, spared: Sequence[str] = ()
) -> None:
    """Print a table. Into a pipe its title goes to the error stream.

    ``spared`` are columns that a narrow terminal does without, from the first on, before it shows each row by itself.
    """
    lines = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _show_on_screen(columns, lines, title, spared)
        return
    if title is not None:
        click.echo(title, err=True)
    widths = [max(map(len, cells)) for cells in zip(columns, *lines)]
    for line in (columns, *lines):
        click.echo(_GAP.join(cell.replace("\n", " ").ljust(width) for cell, width in zip(line, widths)).rstrip())


def _show_on_screen(columns: Sequence[str], lines: Sequence[Sequence[str]], title: str | None, spared: Sequence[str]) -> None:
    """Draw a table with as many columns and lines as there is room for; where even words have none, show each row by itself."""
    from rich.console import Console

    width = Console().width
    for longest_kept, count in itertools.product((_SHORT, 0), range(len(spared) + 1)):
        kept = [number for number, name in enumerate(columns) if name not in spared[:count]]
        names, cells = [columns[number] for number in kept], [[line[number] for number in kept] for line in lines]
        least = _least_widths(names, cells, longest_kept)
        spare = width - sum(least) - len(_GAP) * (len(least) - 1)
        if spare >= 0:
            if left := [name for name in columns if name not in names]:
                click.echo(f"Not shown on a terminal of this width: {', '.join(left)}", err=True)
            _draw_table(names, cells, title, least, spare)
            return
    _show_records(columns, lines, title)


def _draw_table(
    columns: Sequence[str], lines: Sequence[Sequence[str]], title: str | None, least: Sequence[int], spare: int
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Text, as a str is searched for markup and emoji: the ids of runs hold `:train:`.
    heading = None if title is None else Text(title, "table.title")
    box_width = len(least) + 3
    if spare >= box_width:
        table, spare = Table(title=heading), spare - box_width
    else:
        table = Table(title=heading, box=None, padding=(0, len(_GAP), 0, 0), pad_edge=False, title_justify="left")
    for number, (name, width) in enumerate(zip(columns, _grow(least, columns, lines, spare))):
        style = "bright_cyan" if number == 0 else None
        table.add_column(Text(name), style=style, no_wrap=number == 0, overflow="fold", width=width)
    for line in lines:
        table.add_row(*map(Text, line))
    Console().print(table)


def _least_widths(columns: Sequence[str], lines: Sequence[Sequence[str]], longest_kept: int = 0) -> list[int]:
    """Return the width of the longest word of each column, or of its longest cell where cells are not broken.

    Those of the first column are not, nor those of the columns where none is longer than ``longest_kept``.
    """
    widths: list[int] = []
    for number, (name, cells) in enumerate(zip(columns, zip(*lines) if lines else [()] * len(columns))):
        longest = max(map(len, cells), default=0)
        words = max((len(word) for cell in (name, *cells) for word in cell.split()), default=0)
        widths.append(max(words, longest if number == 0 or longest <= longest_kept else 0))
    return widths


def _grow(least: Sequence[int], columns: Sequence[str], lines: Sequence[Sequence[str]], spare: int) -> list[int]:
    """Return the widths, from the left, with as much of the spare room as their longest cells can use."""
    widths: list[int] = []
    for width, cells in zip(least, zip(columns, *lines)):
        grown = min(max(map(len, cells)), width + spare)
        spare -= grown - width
        widths.append(grown)
    return widths


def _show_records(columns: Sequence[str], lines: Sequence[Sequence[str]], title: str | None) -> None:
    """Show each row as lines of a name and a value; long values are left to the terminal, so that they can be copied."""
    width = max(map(len, columns))
    if title is not None:
        click.secho(title, bold=True)
    for number, line in enumerate(lines):
        if number and len(columns) > 2:
            click.echo()
        pairs = [(line[0], line[1])] if len(columns) == 2 else list(zip(columns, line))
        room = max(len(one[0]) for one in lines) if len(columns) == 2 else width
        for name, value in pairs:
            click.echo(f"{click.style(name.ljust(room), fg='cyan')}{_GAP}{value}")


def show_properties(title: str, properties: Mapping[str, str] | Sequence[tuple[str, str]]) -> None:
    """Print one object, a line for each of its properties; its title on a terminal only."""
    pairs = properties.items() if isinstance(properties, Mapping) else properties
    show_table(("Property", "Value"), list(pairs), title if sys.stdout.isatty() else None)


def show_chart(options: GlobalOptions, curves: Curves, title: str, file: Path | None) -> None:
    """Draw curves into an SVG file, where one is named, and as text where the output is for people."""
    if file is not None:
        from tinker.cli.charts import draw_svg

        file.write_text(draw_svg(curves, title=title), encoding="utf-8")
    if options.format == "table":
        click.echo(chart_text(curves, is_ascii_only()))
        if file is not None:
            click.echo(f"The chart is in {file}", err=True)


def chart_text(curves: Curves, ascii_only: bool) -> str:
    """Return curves as text that fits the terminal."""
    from tinker.cli.charts import draw_text

    return draw_text(curves, width=min(120, shutil.get_terminal_size().columns), ascii_only=ascii_only)


@contextlib.contextmanager
def progress(options: GlobalOptions, description: str, total: float | None, *, nbytes: bool = False) -> Generator[Advance]:
    """Show a bar while the block runs, on a terminal; elsewhere the description, once. Nothing with ``--format json``.

    ``total`` None is work of unknown size; ``nbytes`` says that it is counted in bytes. The block's value is called with the
    work done so far; ``advance(done, total=..., description=...)`` also changes the others.
    """
    if options.format == "json":
        yield _no_advance
    elif sys.stderr.isatty():
        with _bar(description, total, nbytes) as advance:
            yield advance
    else:
        click.echo(description, err=True)
        yield _no_advance


def _no_advance(done: float, *, total: float | None = None, description: str | None = None) -> None:
    return None


@contextlib.contextmanager
def _bar(description: str, total: float | None, nbytes: bool) -> Generator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counted = DownloadColumn() if nbytes else MofNCompleteColumn()
    text = TextColumn("{task.description}", markup=False)
    with Progress(text, BarColumn(), counted, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)

        def advance(done: float, *, total: float | None = None, description: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=description)

        yield advance


# Values for people


def format_count(count: int, noun: str) -> str:
    """Format a number of things.

    >>> format_count(1, "step"), format_count(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_size(nbytes: float | None) -> str:
    """Format a number of bytes with a unit, in steps of 1024; ``N/A`` for None and negative numbers.

    >>> format_size(123456789)
    '117.7 MB'
    """
    if nbytes is None or nbytes < 0:
        return "N/A"
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KB", "MB", "GB", "TB"):
        nbytes /= 1024
        if nbytes < 1024:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1024:.1f} PB"


_STEPS = ((60.0, "minute"), (3600.0, "hour"), (86400.0, "day"), (7 * 86400.0, "week"))
_LONGEST_SECONDS = 30 * 86400.0


def format_timestamp(time: datetime.datetime | None, now: datetime.datetime | None = None) -> str:
    """Format as how long ago or how soon, within thirty days; else as a date. ``N/A`` for None; a time without zone is UTC.

    >>> hour = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    >>> format_timestamp(hour - datetime.timedelta(hours=3), now=hour)
    '3 hours ago'
    """
    if time is None:
        return "N/A"
    time = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
    seconds = (time - (now or datetime.datetime.now(datetime.UTC))).total_seconds()
    if abs(seconds) > _LONGEST_SECONDS:
        return time.strftime("%Y-%m-%d")
    if abs(seconds) < 60:
        return "just now" if seconds <= 0 else "in less than a minute"
    length, unit = next((length, unit) for length, unit in reversed(_STEPS) if abs(seconds) >= length)
    count = int(abs(seconds) // length)
    text = f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{text} ago" if seconds < 0 else f"in {text}"


def format_bool(value: bool | None) -> str:
    """Format as Yes or No; ``N/A`` for None."""
    return "N/A" if value is None else "Yes" if value else "No"


def format_optional(value: object) -> str:
    """Format any value as text; ``N/A`` for None."""
    return "N/A" if value is None else str(value)


def format_lora(is_lora: bool | None, rank: int | None) -> str:
    """Format as ``Yes (Rank 32)``, or as much as is known."""
    return f"Yes (Rank {rank})" if is_lora and rank is not None else format_bool(is_lora)


def list_metadata(metadata: Mapping[str, str] | None) -> list[tuple[str, str]]:
    """Return a heading and a property for each entry; nothing without entries."""
    return [("Metadata", ""), *((f"  - {name}", text) for name, text in metadata.items())] if metadata else []
