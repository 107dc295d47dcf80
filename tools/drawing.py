"""The import graph as a picture: floors are rows, rooms boxes, arrows curves. Plain SVG, the same
bytes for the same graph.

Everything is drawn in ``currentColor``: inside a page the picture has the colour of the text around
it, as a file of its own it follows the reader's light or dark setting. An arrow that goes down is
grey; one that does not go down is coloured, and dashed when only type checkers follow it.
"""

from __future__ import annotations

from html import escape

from import_graph import TYPES_ONLY, Arrow, Graph

BOX_HEIGHT, ROW_HEIGHT, GAP, MARGIN = 24, 64, 14, 16
CHARACTER_WIDTH = 7.2
UPWARD = "#d1495b"
# of a file, not of the page around
STYLE = "svg:root{color:#24292f}@media(prefers-color-scheme:dark){svg:root{color:#d0d7de}}"
SWEEPS = 4

Boxes = dict[str, tuple[float, float, float]]  # left, top, width


def draw(graph: Graph, title: str) -> str:
    """Return the SVG document of a graph."""
    rows = arrange(graph)
    width = max(sum(map(_box_width, row)) + GAP * (len(row) - 1) for row in rows) + 2 * MARGIN
    height = ROW_HEIGHT * (len(rows) - 1) + BOX_HEIGHT + 2 * MARGIN
    boxes = _place(rows, width)
    upward = set(graph.upward)
    lines = [
        _arrow(arrow, boxes, graph, arrow in upward)
        for arrow in sorted(graph.arrows, key=lambda arrow: (arrow in upward, arrow))
    ]
    return "\n".join(
        [
            *_head(width, height, title),
            *lines,
            *(_box(room, boxes) for row in rows for room in row),
            "</svg>",
            "",
        ]
    )


def arrange(graph: Graph) -> list[list[str]]:
    """Return the rooms of each floor, the highest first. Each is near what it is tied to, so that
    few arrows cross.
    """
    top = max(graph.floors.values())
    rows = [
        sorted(room for room in graph.rooms if graph.floors[room] == floor)
        for floor in range(top, 0, -1)
    ]
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else reversed(rows):
            places = {
                room: (index + 0.5) / len(row) for row in rows for index, room in enumerate(row)
            }
            row.sort(key=lambda room: (_pull(room, places, graph), room))
    return rows


def _pull(room: str, places: dict[str, float], graph: Graph) -> float:
    ties = [
        places[end if start == room else start]
        for start, end in graph.arrows
        if room in (start, end)
    ]
    return round(sum(ties) / len(ties), 6) if ties else places[room]


def _box_width(room: str) -> float:
    return round(CHARACTER_WIDTH * len(room) + 14, 1)


def _place(rows: list[list[str]], width: float) -> Boxes:
    boxes: Boxes = {}
    for index, row in enumerate(rows):
        left = (width - sum(map(_box_width, row)) - GAP * (len(row) - 1)) / 2
        for room in row:
            boxes[room] = (left, MARGIN + index * ROW_HEIGHT, _box_width(room))
            left += _box_width(room) + GAP
    return boxes


def _head(width: float, height: float, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'role="img" fill="none"'
        ' stroke="currentColor" font-family="ui-monospace, monospace" font-size="12">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
    ]


def _arrow(arrow: Arrow, boxes: Boxes, graph: Graph, goes_up: bool) -> str:
    start, end = arrow
    (x1, y1, w1), (x2, y2, w2) = boxes[start], boxes[end]
    x1, x2 = x1 + w1 / 2, x2 + w2 / 2
    y1, y2 = (y1, y2 + BOX_HEIGHT) if goes_up and y1 > y2 else (y1 + BOX_HEIGHT, y2)
    bend = (y2 - y1) / 2 if y1 != y2 else ROW_HEIGHT / 3
    style = f'stroke="{UPWARD}" stroke-width="1.6"' if goes_up else 'stroke-opacity="0.55"'
    if goes_up and graph.arrows[arrow] == TYPES_ONLY:
        style += ' stroke-dasharray="5 3"'
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    return f'<path d="{path}" {style}><title>{escape(f"{start} imports {end}")}</title></path>'


def _box(room: str, boxes: Boxes) -> str:
    left, top, width = boxes[room]
    area = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="5"'
    middle = f'x="{left + width / 2:.1f}" y="{top + 16:.1f}" text-anchor="middle"'
    return (
        f'<rect {area} fill="currentColor" fill-opacity="0.08"/>'
        f'<text {middle} fill="currentColor" stroke="none">{escape(room)}</text>'
    )
