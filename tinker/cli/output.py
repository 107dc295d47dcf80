"""Output of commands: tables, charts, JSON and progress. Results go to the output stream,
everything else to the error stream.

On a terminal, a table has borders and fits the width; one that cannot fit is shown row by row. In a
pipe, each row is a line of plain columns, for grep, cut and head.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from tinker._shown import clean

if TYPE_CHECKING:
    from tinker.cli.charts import Curves
    from tinker.cli.options import GlobalOptions

T = TypeVar("T")
#: The name and the cell of each column of a table of items.
Columns: TypeAlias = Sequence[tuple[str, Callable[[T], object]]]
#: Updates a progress bar: the work done, and optionally a new total and description.
Advance = Callable[..., None]

_GAP = "  "
# of indented JSON, whose strings have no line break
_NUMBERS = re.compile(r"\[\n\s+[-+.\deE]+(?:,\n\s+[-+.\deE]+)*\n\s*\]")
# columns with cells up to this length are not wrapped if there is room
_SHORT = len("59 minutes ago")


def show(options: GlobalOptions, value: Any, table: Callable[[], None]) -> None:
    """Print a result: ``value`` (a record, or a collection of records) as JSON,
    else by ``table``.
    """
    if options.format == "json":
        show_json(value)
    else:
        table()


def say(*lines: str, end: str = "\n") -> None:
    """Print lines for people on the error stream; unlike ``click.echo``, above the progress bar if
    there is one.
    """
    sys.stderr.write("\n".join(map(clean, lines)) + end)
    sys.stderr.flush()


def say_once(line: str) -> None:
    """Print a line for people, unless this command has printed it already."""
    context = click.get_current_context(silent=True)
    said: set[str] = set() if context is None else context.meta.setdefault("tinker.said", set())
    if line not in said:
        said.add(line)
        say(line)


def note(options: GlobalOptions, line: str) -> None:
    """Print a line as :func:`say` does, unless the output is JSON."""
    if options.format == "table":
        say(line)


def show_lines(*lines: str) -> None:
    """Print lines for people on the output stream."""
    click.echo("\n".join(map(clean, lines)))


def write_data(text: str) -> None:
    """Write data to the output stream: into a file or a pipe as it is, on a terminal without what
    would control it.
    """
    sys.stdout.write(clean(text, lines=True) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def is_ascii_only() -> bool:
    """Return whether the output stream can only show ASCII."""
    return "utf" not in (sys.stdout.encoding or "").lower()


def show_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a record, or a collection of records, as JSON; a time is written
    ``2024-01-02T03:04:05Z``.
    """
    click.echo(format_json(value, indent=indent))


def format_json(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON in which a list of numbers is on one line.

    >>> print(format_json({"tokens": [1, 2], "done": True}))
    {
      "tokens": [1, 2],
      "done": true
    }
    """
    return _NUMBERS.sub(_join_lines, json.dumps(value, indent=indent, default=_plain))


def _join_lines(found: re.Match[str]) -> str:
    return f"[{' '.join(found[0][1:-1].split())}]"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump()


def show_table(
    columns: Sequence[str],
    rows: Iterable[Iterable[object]],
    title: str | None = None,
    *,
    optional: Sequence[str] = (),
) -> None:
    """Print a table, with each cell as :func:`format_value` formats it. In a pipe, its title goes
    to the error stream.

    On a narrow terminal the columns in ``optional`` are left out, in this order, before rows are
    shown one by one.
    """
    columns, title = list(map(clean, columns)), None if title is None else clean(title)
    lines = [list(map(format_value, row)) for row in rows]
    if sys.stdout.isatty():
        _show_on_screen(columns, lines, title, optional)
        return
    if title is not None:
        say(title)
    widths = [max(map(len, cells)) for cells in zip(columns, *lines)]
    for line in (columns, *lines):
        click.echo(_GAP.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def _show_on_screen(
    columns: Sequence[str],
    lines: Sequence[Sequence[str]],
    title: str | None,
    optional: Sequence[str],
) -> None:
    """Draw a table with as many columns and borders as fit; if the words do not fit, show the rows
    one by one.
    """
    from rich.console import Console

    width = Console().width
    names, cells, least, spare = columns, lines, list[int](), -1
    for longest_kept, count in itertools.product((_SHORT, 0), range(len(optional) + 1)):
        kept = [number for number, name in enumerate(columns) if name not in optional[:count]]
        names, cells = (
            [columns[number] for number in kept],
            [[line[number] for number in kept] for line in lines],
        )
        least = _least_widths(names, cells, longest_kept)
        spare = width - sum(least) - len(_GAP) * (len(least) - 1)
        if spare >= 0:
            break
    if left := [name for name in columns if name not in names]:
        say(f"Not shown on a terminal of this width: {', '.join(left)}")
    if spare >= 0:
        _draw_table(names, cells, title, least, spare)
    else:
        _show_records(names, cells, title, width)


def _draw_table(
    columns: Sequence[str],
    lines: Sequence[Sequence[str]],
    title: str | None,
    least: Sequence[int],
    spare: int,
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Text, because rich replaces emoji codes in a str, and the ids of runs contain `:train:`.
    heading = None if title is None else Text(title, "table.title")
    box_width = len(least) + 3
    if spare >= box_width:
        table, spare = Table(title=heading), spare - box_width
    else:
        table = Table(
            title=heading,
            box=None,
            padding=(0, len(_GAP), 0, 0),
            pad_edge=False,
            title_justify="left",
        )
    for number, (name, width) in enumerate(zip(columns, _grow(least, columns, lines, spare))):
        style = "bright_cyan" if number == 0 else None
        table.add_column(Text(name), style=style, no_wrap=number == 0, overflow="fold", width=width)
    for line in lines:
        table.add_row(*map(Text, line))
    Console().print(table)


def _least_widths(
    columns: Sequence[str], lines: Sequence[Sequence[str]], longest_kept: int = 0
) -> list[int]:
    """Return the width of the longest word of each column, or of its longest cell if the column is
    not wrapped.

    The first column is not wrapped, nor is one whose cells are at most ``longest_kept`` long.
    """
    widths: list[int] = []
    for number, (name, cells) in enumerate(
        zip(columns, zip(*lines) if lines else [()] * len(columns))
    ):
        longest = max(map(len, cells), default=0)
        words = max((len(word) for cell in (name, *cells) for word in cell.split()), default=0)
        widths.append(max(words, longest if number == 0 or longest <= longest_kept else 0))
    return widths


def _grow(
    least: Sequence[int], columns: Sequence[str], lines: Sequence[Sequence[str]], spare: int
) -> list[int]:
    """Give the spare room to the columns, from the left, up to the length of their
    longest cells.
    """
    widths: list[int] = []
    for width, cells in zip(least, zip(columns, *lines)):
        grown = min(max(map(len, cells)), width + spare)
        spare -= grown - width
        widths.append(grown)
    return widths


def _show_records(
    columns: Sequence[str], lines: Sequence[Sequence[str]], title: str | None, width: int
) -> None:
    """Show properties as a name and a value, and other rows as their longest cell with the rest
    below it.

    A long value has a line of its own, so that it can be copied.
    """
    if title is not None:
        click.secho(title, bold=True)
    if len(columns) == 2:
        room = max((len(name) for name, _ in lines), default=0)
        for name, value in lines:
            fits = room + len(_GAP) + len(value) <= width or " " in value
            shown = click.style(name.ljust(room) if fits else name, fg="cyan")
            click.echo(f"{shown}{_GAP if fits else chr(10)}{value}")
        return
    longest = max(
        range(len(columns)), key=lambda at: max((len(line[at]) for line in lines), default=0)
    )
    for line in lines:
        click.secho(line[longest], fg="cyan")
        rest = ", ".join(
            f"{name}: {cell}"
            for at, (name, cell) in enumerate(zip(columns, line))
            if cell and at != longest
        )
        click.echo(textwrap.fill(rest, width, initial_indent=_GAP, subsequent_indent=_GAP))


def show_items(
    items: Iterable[T],
    columns: Columns[T],
    title: str | None = None,
    *,
    optional: Sequence[str] = (),
) -> None:
    """Print a table with a row for each item. ``columns`` are their names, each with the function
    that returns the cell.
    """
    rows = [[cell(item) for _, cell in columns] for item in items]
    show_table([name for name, _ in columns], rows, title, optional=optional)


def show_properties(
    options: GlobalOptions,
    value: Any,
    title: str,
    properties: Mapping[str, object] | Sequence[tuple[str, object]],
) -> None:
    """Print one object: ``value`` as JSON, else a table of its properties, with a title on a
    terminal.
    """
    rows = list(properties.items() if isinstance(properties, Mapping) else properties)
    show(
        options,
        value,
        lambda: show_table(("Property", "Value"), rows, title if sys.stdout.isatty() else None),
    )


def show_chart(options: GlobalOptions, curves: Curves, title: str, file: Path | None) -> None:
    """Draw curves into an SVG file, if one is given, and as text unless the output is JSON."""
    if file is not None:
        from tinker.cli.charts import draw_svg

        file.write_text(draw_svg(curves, title=title), encoding="utf-8")
    if options.format == "table":
        click.echo(chart_text(curves, is_ascii_only()))
        if file is not None:
            say(f"The chart is in {file}")


def chart_text(curves: Curves, ascii_only: bool) -> str:
    """Return curves as text that fits the terminal."""
    from tinker.cli.charts import draw_text

    curves = {clean(name): points for name, points in curves.items()}
    return draw_text(
        curves, width=min(120, shutil.get_terminal_size().columns), ascii_only=ascii_only
    )


@contextlib.contextmanager
def progress(
    options: GlobalOptions, description: str, total: float | None, *, nbytes: bool = False
) -> Generator[Advance]:
    """Show a progress bar during the block; without a terminal, only print the description. Nothing
    with ``--format json``.

    The block gets a function ``advance(done, total=..., description=...)``. ``total`` None is an
    unknown total; ``nbytes`` shows numbers as sizes in bytes.
    """
    description = clean(description)
    if options.format == "json":
        yield _no_advance
    elif sys.stderr.isatty():
        with _bar(description, total, nbytes) as advance:
            yield advance
    else:
        say(description)
        yield _no_advance


def _no_advance(done: float, *, total: float | None = None, description: str | None = None) -> None:
    return None


@contextlib.contextmanager
def _bar(description: str, total: float | None, nbytes: bool) -> Generator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class SizeColumn(ProgressColumn):
        """How much of how many bytes, in the units of everything else."""

        def render(self, task: Task) -> Text:
            return Text(f"{format_size(task.completed)} of {format_size(task.total)}")

    counted = SizeColumn() if nbytes else MofNCompleteColumn()
    text = TextColumn("{task.description}", markup=False)
    with Progress(
        text,
        BarColumn(),
        counted,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(description, total=total)

        def advance(
            done: float, *, total: float | None = None, description: str | None = None
        ) -> None:
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
    """Format a number of bytes with a unit, in steps of 1024; ``N/A`` for None and negative
    numbers.

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
    """Format as how long ago or how soon, within thirty days; else as a date. ``N/A`` for None; a
    time without zone is UTC.

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
    length, unit = next(
        (length, unit) for length, unit in reversed(_STEPS) if abs(seconds) >= length
    )
    count = int(abs(seconds) // length)
    text = f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{text} ago" if seconds < 0 else f"in {text}"


def format_metric(value: float) -> str:
    """Return a loss or another metric with four decimals, or in the form 1.17e-05 where these would
    all be zero.
    """
    return f"{value:.3g}" if 0 < abs(value) < 5e-5 else f"{value:.4f}"


def format_value(value: object) -> str:
    """Format a value by its type: a time as :func:`format_timestamp` does, a bool as Yes or No;
    ``N/A`` for None.

    >>> format_value(True), format_value(None), format_value(3)
    ('Yes', 'N/A', '3')
    """
    if isinstance(value, datetime.datetime):
        return format_timestamp(value)
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return "N/A" if value is None else clean(str(value))


def format_lora(is_lora: bool | None, rank: int | None) -> str:
    """Format as ``Yes (Rank 32)``, or as much as is known."""
    return f"Yes (Rank {rank})" if is_lora and rank is not None else format_value(is_lora)


def list_metadata(metadata: Mapping[str, str] | None) -> list[tuple[str, str]]:
    """Return a heading and a property for each entry; nothing without entries."""
    return (
        [("Metadata", ""), *((f"  - {name}", text) for name, text in metadata.items())]
        if metadata
        else []
    )
