"""Output of commands: tables, charts, JSON, progress, and errors with their exit codes."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import errno
import itertools
import json
import logging
import math
import re
import shutil
import sys
import textwrap
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

import click

from tinker._basics.shown import clean

if TYPE_CHECKING:
    from tinker.cli.options import GlobalOptions
    from tinker.errors import APIStatusError

INTERRUPTED = 130

# By the names of the classes in tinker.errors, which is imported only for a failure.
_TITLES = {
    "BadRequestError": "Invalid request",
    "AuthenticationError": "Authentication failed",
    "BillingError": "Billing issue",
    "PermissionDeniedError": "Permission denied",
    "NotFoundError": "Resource not found",
    "ConflictError": "Conflict",
    "UnprocessableEntityError": "Invalid data provided",
    "RateLimitError": "Rate limit exceeded",
    "InternalServerError": "Internal server error",
}
_ADVICE = {
    "AuthenticationError": "Check the key with `tinker auth status`.",
    "BillingError": "Nothing can run until the account has credit.",
    "NotFoundError": "Either the base URL is wrong (--base-url or TINKER_BASE_URL), or this "
    "server does not support the "
    "operation; see `tinker doctor`.",
}
_CONNECTION_ADVICE = (
    "Check the network, that the server runs, and its address: --base-url or TINKER_BASE_URL."
)
_NO_ROUTE = "Not Found"  # the default of web frameworks for an unknown path; ours adds the path
_API = "/api/v1/"
_SHOWN_CHARACTERS = 2000  # of a message from the server
# The message from the server is enough for these: it names the user's mistake.
_SELF_EXPLAINING = ("BadRequestError", "UnprocessableEntityError", "NotFoundError")
_UNSUPPORTED = "This server does not support the operation; see `tinker doctor`."


class CommandFailed(click.ClickException):
    """A failed command: one line with the problem, then lines with details."""

    exit_code = 1

    def __init__(self, message: str, *details: str) -> None:
        super().__init__(message)
        self.details = details

    def show(self, file: IO[Any] | None = None) -> None:
        for line in (f"Error: {self.message}", *self.details):
            click.echo(clean(line), file=file, err=True)


@contextlib.contextmanager
def show_failures(params: Mapping[str, Any]) -> Generator[None]:
    """Print a failure in this block as one line of JSON with ``--format json``: the problem, the
    class of the error, and the lines with details. The exit code does not change.
    """
    try:
        yield
    except click.ClickException as failure:
        if params["format"] != "json":
            raise
        record: dict[str, object] = {
            "error": failure.format_message(),
            "type": type(failure.__cause__ or failure).__name__,
        }
        if isinstance(failure, CommandFailed) and failure.details:
            record["details"] = list(failure.details)
        click.echo(json.dumps(record), err=True)
        raise click.exceptions.Exit(failure.exit_code) from failure


@contextlib.contextmanager
def convert_errors(params: Mapping[str, Any]) -> Generator[None]:
    """Convert every exception in this block to one that click handles. With ``--debug``, print its
    traceback first.
    """
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        # no warning about the requests that this ends
        atexit.register(logging.disable, logging.WARNING)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader closed the pipe; click exits silently
        if params["debug"]:
            click.echo(
                clean("".join(traceback.format_exception(error)), lines=True), err=True, nl=False
            )
        raise to_failure(error) from error


def to_failure(error: Exception) -> CommandFailed:
    """Convert an exception to a failure of the command: the problem, details, and advice at the
    end.
    """
    message, details, advice = _describe(error)
    notes = () if _explains_absence(error) else getattr(error, "__notes__", ())
    return CommandFailed(message, *details, *notes, *([advice] if advice else []))


def _describe(error: Exception) -> tuple[str, list[str], str | None]:
    from tinker import errors
    from tinker._http.responses import NO_API

    if isinstance(error, errors.APIError) and NO_API in str(error):
        return str(error).rpartition(" - ")[2], [], None
    if isinstance(error, errors.APIStatusError):
        return _describe_status(error)
    if isinstance(error, errors.APITimeoutError):
        return "Request timeout", [f"Details: {error}"], None
    if isinstance(error, errors.APIConnectionError):
        cause, request = str(error.__cause__ or error), error.request
        return (
            cause[:1].upper() + cause[1:],
            [f"Request: {request.method} {request.url}"],
            _CONNECTION_ADVICE,
        )
    if isinstance(error, errors.RequestFailedError):
        message = clean(error.reason[:_SHOWN_CHARACTERS])
        if error.category == "user":  # the message names what the user can change
            return message, [], None
        return (
            "The request failed on the server",
            [f"Details: {message}", f"Request: {error.request_id}"],
            None,
        )
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", [], None
    if isinstance(error, (errors.TinkerError, ValueError, ImportError, OSError)):
        return str(error) or type(error).__name__, [], None
    problem = f"Unexpected error: {type(error).__name__}: {error}"
    return problem, [], "This is a bug; `tinker --debug ...` shows the traceback."


def _describe_status(error: APIStatusError) -> tuple[str, list[str], str | None]:
    from tinker._http.retry import ABSENT_STATUSES

    classes = [kind.__name__ for kind in type(error).__mro__]
    title = next(
        (_TITLES[name] for name in classes if name in _TITLES),
        f"API error (status {error.status_code})",
    )
    unsupported = _UNSUPPORTED if error.status_code in ABSENT_STATUSES else None
    advice = next((_ADVICE[name] for name in classes if name in _ADVICE), unsupported)
    message = read_message(error)
    if "AuthenticationError" in classes and not _has_key(error):
        return "The server requires an API key", [], "Set TINKER_API_KEY to the key of this server."
    if "NotFoundError" in classes and not _explains_absence(error):
        advice = _suspect_address(error) or advice
    elif message != str(error) and any(name in _SELF_EXPLAINING for name in classes):
        return message, [], None
    return title, [f"Details: {message}"], advice


def _has_key(error: APIStatusError) -> bool:
    """Return whether the settings have a credential for the server. Without one, no command gets to
    the hosted service.
    """
    from tinker._basics.config import load_config

    config = load_config(base_url=str(error.request.url).partition(_API)[0])
    return config.is_hosted or (config.api_key or config.credential_cmd) is not None


def _explains_absence(error: Exception) -> bool:
    """Return whether the server names the missing object. A missing route does not count."""
    is_absent = any(kind.__name__ == "NotFoundError" for kind in type(error).__mro__)
    return (
        is_absent
        and (message := read_message(error)) != str(error)
        and message.partition(":")[0] != _NO_ROUTE
    )


def _suspect_address(error: APIStatusError) -> str | None:
    """Return advice on the path of the base URL; None if the URL has no path."""
    base, found, _ = urlsplit(str(error.request.url)).path.partition(_API)
    if not base or not found:
        return None
    return (
        f"The base URL is probably wrong: check its path, {base}, in --base-url or TINKER_BASE_URL."
    )


def read_message(error: Exception) -> str:
    """Return the message of an error in one line: that of the server if it sent one."""
    from tinker._http.responses import find_explanation

    message = find_explanation(getattr(error, "body", None))
    return str(error) if message is None else clean(message[:_SHOWN_CHARACTERS])


Points: TypeAlias = Sequence[tuple[float, float]]
#: Curves by name, each as points with rising x.
Curves: TypeAlias = Mapping[str, Points]

_STYLES = (
    ("#2563eb", "none"),
    ("#ea580c", "6 3"),
    ("#16a34a", "2 3"),
    ("#9333ea", "8 3 2 3"),
    ("#dc2626", "1 4"),
    ("#0891b2", "10 4"),
)
# of a braille character: by column, then by row
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800
_MARKS = "*o+x#%"


class _Chart:
    """Curves without what cannot be drawn, and the ranges that they take."""

    def __init__(self, curves: Curves) -> None:
        finite = {
            name: [point for point in points if all(map(math.isfinite, point))]
            for name, points in curves.items()
        }
        self.curves = {name: points for name, points in finite.items() if points}
        xs, ys = zip(*(itertools.chain(*self.curves.values()) if self.curves else [(0.0, 0.0)]))
        self.left, self.right = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
        # a level line is in the middle
        margin = 0.0 if max(ys) > min(ys) else abs(max(ys)) * 0.05 or 1.0
        self.bottom, self.top = min(ys) - margin, max(ys) + margin

    def place(self, points: Points, width: float, height: float) -> list[tuple[float, float]]:
        """Return where points are in a drawing of this size, from its left and its top."""
        across, down = width / (self.right - self.left), height / (self.top - self.bottom)
        return [((x - self.left) * across, (self.top - y) * down) for x, y in points]


def draw_text(
    curves: Curves, *, width: int = 72, height: int = 14, ascii_only: bool = False
) -> str:
    """Return the curves as lines of text, no wider than ``width`` characters; points that are not
    finite are left out.

    Curves have marks of their own where there are several, or where only ASCII can be shown;
    otherwise braille is used.

    >>> print(
    ...     draw_text({"loss": [(1, 4.0), (2, 2.0), (3, 1.0)]}, width=24, height=3, ascii_only=True)
    ... )
     4 |*
       |         *
     1 |                  *
        1                 3
    """
    chart = _Chart(curves)
    if not chart.curves:
        return "(nothing to draw)"
    labels = {0: f"{chart.top:.4g}", height - 1: f"{chart.bottom:.4g}"}
    margin = max(map(len, labels.values())) + 1
    columns = max(8, width - margin - 3)
    has_marks = ascii_only or len(chart.curves) > 1
    rows = _draw_marks(chart, columns, height) if has_marks else _draw_dots(chart, columns, height)
    lines = [
        f"{labels.get(number, ''):>{margin}} |{row}".rstrip() for number, row in enumerate(rows)
    ]
    left, right = f"{chart.left:g}", f"{chart.right:g}"
    lines.append(f"{'':{margin}}  {left}{right:>{columns - len(left)}}")
    if len(chart.curves) > 1:
        lines.append(
            f"{'':{margin}}  "
            f"{'   '.join(f'{mark} {name}' for mark, name in zip(_MARKS, chart.curves))}"
        )
    return "\n".join(lines)


def _draw_marks(chart: _Chart, columns: int, height: int) -> list[str]:
    """Draw a mark for each point; where curves lie on one another, their marks take turns."""
    marks: dict[tuple[int, int], list[str]] = {}
    for number, points in enumerate(chart.curves.values()):
        for x, y in chart.place(points, columns - 1, height - 1):
            here = marks.setdefault((round(y), round(x)), [])
            if (mark := _MARKS[number % len(_MARKS)]) not in here:
                here.append(mark)
    rows = [[" "] * columns for _ in range(height)]
    turns = Counter[str]()
    for (y, x), here in sorted(marks.items(), key=lambda item: item[0][1]):
        rows[y][x] = here[turns["".join(here)] % len(here)]
        turns["".join(here)] += 1
    return ["".join(row) for row in rows]


def _draw_dots(chart: _Chart, columns: int, height: int) -> list[str]:
    cells = [[0] * columns for _ in range(height)]
    for points in chart.curves.values():
        for x, y in _connect(chart.place(points, columns * 2 - 1, height * 4 - 1)):
            cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in row) for row in cells]


def _connect(points: Points) -> Iterator[tuple[int, int]]:
    """Yield the dots of the line through the points."""
    yield round(points[0][0]), round(points[0][1])
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        count = max(1, math.ceil(max(abs(to_x - x), abs(to_y - y))))
        for part in range(1, count + 1):
            yield round(x + (to_x - x) * part / count), round(y + (to_y - y) * part / count)


# of the picture, and of the chart in it
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 300, 64, 34, 620, 254


def draw_svg(curves: Curves, *, title: str = "", x_label: str = "step") -> str:
    """Return the curves as an SVG document that reads on light and dark pages; names are escaped.

    >>> draw_svg({"loss": [(1, 4.0), (2, 2.0)]}).startswith("<svg ")
    True
    """
    chart = _Chart(curves)
    size = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "width": str(_WIDTH)}
    font = {"font-family": "sans-serif", "font-size": "12", "fill": "#6b7280"}
    svg = ElementTree.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", **size, **font}
    )
    ElementTree.SubElement(svg, "title").text = (
        title or ", ".join(chart.curves) or "nothing to draw"
    )
    _add_text(svg, _LEFT, 18, title, "start")
    for part in range(5):
        y = _BOTTOM + part / 4 * (_TOP - _BOTTOM)
        _add_line(svg, _LEFT, _RIGHT, y, {"stroke": "#6b7280", "stroke-opacity": "0.25"})
        _add_text(
            svg,
            _LEFT - 8,
            y + 4,
            f"{chart.bottom + part / 4 * (chart.top - chart.bottom):.4g}",
            "end",
        )
    _add_text(svg, _LEFT, _BOTTOM + 18, f"{chart.left:g}", "start")
    _add_text(svg, _RIGHT, _BOTTOM + 18, f"{chart.right:g}", "end")
    _add_text(svg, (_LEFT + _RIGHT) / 2, _HEIGHT - 10, x_label, "middle")
    for number, (name, points) in enumerate(chart.curves.items()):
        color, dashes = _STYLES[number % len(_STYLES)]
        style = {
            "stroke": color,
            "stroke-width": "2",
            "stroke-dasharray": dashes,
            "stroke-linecap": "round",
        }
        places = [
            (_LEFT + x, _TOP + y) for x, y in chart.place(points, _RIGHT - _LEFT, _BOTTOM - _TOP)
        ]
        # a line to itself is a dot, as its ends are round
        places += places if len(places) == 1 else []
        line = {"points": " ".join(f"{x:.1f},{y:.1f}" for x, y in places), "fill": "none", **style}
        ElementTree.SubElement(ElementTree.SubElement(svg, "polyline", line), "title").text = name
        if len(chart.curves) > 1 or name != title:
            y = 16 + 16 * number
            _add_line(svg, _WIDTH - 150, _WIDTH - 128, y, style)
            _add_text(svg, _WIDTH - 122, y + 4, name, "start")
    return f"{ElementTree.tostring(svg, encoding='unicode')}\n"


def _add_line(
    svg: ElementTree.Element, left: float, right: float, y: float, style: Mapping[str, str]
) -> None:
    ElementTree.SubElement(
        svg,
        "line",
        {"x1": f"{left}", "x2": f"{right}", "y1": f"{y:.1f}", "y2": f"{y:.1f}", **style},
    )


def _add_text(svg: ElementTree.Element, x: float, y: float, text: str, anchor: str) -> None:
    ElementTree.SubElement(
        svg, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    ).text = text


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
    text = json.dumps(value, indent=indent, default=_plain)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)


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
        file.write_text(draw_svg(curves, title=title), encoding="utf-8")
    if options.format == "table":
        click.echo(chart_text(curves, is_ascii_only()))
        if file is not None:
            say(f"The chart is in {file}")


def chart_text(curves: Curves, ascii_only: bool) -> str:
    """Return curves as text that fits the terminal."""

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
