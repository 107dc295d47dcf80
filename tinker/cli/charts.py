"""Line charts of a run's numbers: as text for a terminal, and as SVG for a page or a notebook. Needs no plotting library."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

#: Curves by name, each as points with rising x.
Curves: TypeAlias = Mapping[str, Sequence[tuple[float, float]]]

_COLORS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#dc2626", "#0891b2")
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "10 4")
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille character: by column, then by row
_BRAILLE = 0x2800
_MARKS = "*o+x#%"


class _Frame(NamedTuple):
    """The ranges of a chart."""

    left: float
    right: float
    bottom: float
    top: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point is: shares of the width, and of the height from the top."""
        return (x - self.left) / (self.right - self.left), (self.top - y) / (self.top - self.bottom)


def _finite(curves: Curves) -> dict[str, list[tuple[float, float]]]:
    kept = {name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)] for name, points in curves.items()}
    return {name: points for name, points in kept.items() if points}


def _frame(curves: Curves) -> _Frame:
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points]
    bottom, top = min(ys), max(ys)
    margin = (top - bottom) * 0.05 or abs(top) * 0.05 or 1.0
    return _Frame(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, bottom - margin, top + margin)


def draw_text(curves: Curves, *, width: int = 72, height: int = 14, ascii_only: bool = False) -> str:
    """Return the curves as lines of text, no wider than ``width`` characters; points that are not finite are left out.

    Curves are told apart by their marks where there are several, or where only ASCII can be shown; otherwise braille is used.

    >>> print(draw_text({"loss": [(1, 4.0), (2, 2.0), (3, 1.0)]}, width=24, height=3, ascii_only=True))
     4.15 |*
          |        *
     0.85 |               *
           1              3
    """
    shown = _finite(curves)
    if not shown:
        return "(nothing to draw)"
    frame = _frame(shown)
    labels = [f"{value:.4g}" for value in (frame.top, frame.bottom)]
    margin = max(len(label) for label in labels) + 1
    columns = max(8, width - margin - 3)
    rows = _mark(shown, frame, columns, height) if ascii_only or len(shown) > 1 else _dot(shown, frame, columns, height)
    lines = [f"{_label(number, height, labels):>{margin}} |{row}".rstrip() for number, row in enumerate(rows)]
    left, right = f"{frame.left:g}", f"{frame.right:g}"
    lines.append(f"{'':{margin}}  {left}{right:>{columns - len(left)}}")
    if len(shown) > 1:
        lines.append(f"{'':{margin}}  {'   '.join(f'{mark} {name}' for mark, name in zip(_MARKS, shown))}")
    return "\n".join(lines)


def _label(row: int, height: int, labels: Sequence[str]) -> str:
    return labels[0] if row == 0 else labels[1] if row == height - 1 else ""


def _mark(curves: Curves, frame: _Frame, columns: int, height: int) -> list[str]:
    rows = [[" "] * columns for _ in range(height)]
    for number, points in enumerate(curves.values()):
        for x, y in points:
            across, down = frame.place(x, y)
            rows[round(down * (height - 1))][round(across * (columns - 1))] = _MARKS[number % len(_MARKS)]
    return ["".join(row) for row in rows]


def _dot(curves: Curves, frame: _Frame, columns: int, height: int) -> list[str]:
    cells = [[0] * columns for _ in range(height)]
    for points in curves.values():
        for column, row in _line(points, frame, columns * 2 - 1, height * 4 - 1):
            cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in row) for row in cells]


def _line(points: Sequence[tuple[float, float]], frame: _Frame, right: int, bottom: int) -> Iterator[tuple[int, int]]:
    """Yield the dots of the line through the points."""
    places = [(across * right, down * bottom) for across, down in (frame.place(x, y) for x, y in points)]
    yield round(places[0][0]), round(places[0][1])
    for (x, y), (to_x, to_y) in itertools.pairwise(places):
        count = max(1, math.ceil(max(abs(to_x - x), abs(to_y - y))))
        for part in range(1, count + 1):
            yield round(x + (to_x - x) * part / count), round(y + (to_y - y) * part / count)


_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 300, 64, 34


def draw_svg(curves: Curves, *, title: str = "", x_label: str = "step") -> str:
    """Return the curves as an SVG document that reads on light and dark pages; names are escaped.

    >>> draw_svg({"loss": [(1, 4.0), (2, 2.0)]}).startswith("<svg ")
    True
    """
    shown = _finite(curves)
    if not shown:
        shown, title = {"": [(0.0, 0.0)]}, title or "nothing to draw"
    frame = _frame(shown)
    parts = [_axes(frame, title, x_label), *(_path(*one, frame, number) for number, one in enumerate(shown.items()))]
    parts += [_legend(name, number) for number, name in enumerate(shown) if len(shown) > 1 or name != title]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" width="{_WIDTH}"'
    name = html.escape(title or ", ".join(shown))
    return f'{head} font-family="sans-serif" font-size="12" fill="#6b7280"><title>{name}</title>{"".join(parts)}</svg>\n'


def _at(frame: _Frame, x: float, y: float) -> tuple[float, float]:
    across, down = frame.place(x, y)
    return _LEFT + across * (_WIDTH - _LEFT - 20), _TOP + down * (_HEIGHT - _TOP - 46)


def _axes(frame: _Frame, title: str, x_label: str) -> str:
    parts = [f'<text x="{_LEFT}" y="18" font-size="14" font-weight="bold">{html.escape(title)}</text>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = frame.bottom + share * (frame.top - frame.bottom)
        (left, y), (right, _) = _at(frame, frame.left, value), _at(frame, frame.right, value)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#6b7280" stroke-opacity="0.25"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value, anchor in ((frame.left, "start"), (frame.right, "end")):
        x, bottom = _at(frame, value, frame.bottom)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="{anchor}">{value:g}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH - 20) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{html.escape(x_label)}</text>')
    return "".join(parts)


def _path(name: str, points: Sequence[tuple[float, float]], frame: _Frame, number: int) -> str:
    places = [_at(frame, x, y) for x, y in points]
    color, dash = _COLORS[number % len(_COLORS)], _DASHES[number % len(_DASHES)]
    if len(places) == 1:
        return f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3" fill="{color}"/>'
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = f'fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"' if dash else _solid(color)
    return f'<polyline points="{line}" {style}><title>{html.escape(name)}</title></polyline>'


def _solid(color: str) -> str:
    return f'fill="none" stroke="{color}" stroke-width="2"'


def _legend(name: str, number: int) -> str:
    x, color, dash = _WIDTH - 150, _COLORS[number % len(_COLORS)], _DASHES[number % len(_DASHES)]
    y = 16 + 16 * number
    line = f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
    return f'{line}<text x="{x + 28}" y="{y + 4}">{html.escape(name)}</text>'
