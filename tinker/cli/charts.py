"""Line charts of a run's numbers: as text for a terminal, and as SVG for a page or a notebook.
Needs no plotting library.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias
from xml.etree import ElementTree

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
