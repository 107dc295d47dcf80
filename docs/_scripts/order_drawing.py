"""Draw the states of a request for docs/contract/order.md:
`python docs/_scripts/order_drawing.py`.
"""

from __future__ import annotations

from pathlib import Path

FIGURE = Path(__file__).resolve().parents[1] / "contract" / "order.svg"
STYLE = "svg:root{color:#24292f}@media(prefers-color-scheme:dark){svg:root{color:#d0d7de}}"
#: Where each state is drawn: its middle, and its text.
STATES = {
    "called": (80, 60),
    "sent": (250, 60),
    "accepted": (420, 60),
    "done": (600, 60),
    "stopped": (80, 180),
    "unseen": (210, 180),
    "refused": (320, 180),
    "unknown": (430, 180),
    "failed": (540, 180),
    "not run": (650, 180),
}
ARROWS = (
    *(
        ("called", "sent"),
        ("sent", "accepted"),
        ("accepted", "done"),
        ("called", "stopped"),
        ("sent", "unseen"),
    ),
    *(("sent", "refused"), ("sent", "unknown"), ("accepted", "failed"), ("accepted", "not run")),
)
WIDTH, HEIGHT = 90, 32


def draw() -> str:
    """Return the drawing."""
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 730 230" role="img" fill="none" '
        'stroke="currentColor" '
        'font-family="system-ui, sans-serif" font-size="14">'
    )
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="currentColor" stroke="none"/></marker></defs>'
    )
    arrows = [_arrow(*STATES[one], *STATES[other]) for one, other in ARROWS]
    boxes = [part for name, place in STATES.items() for part in _box(name, *place)]
    return "\n".join([head, f"<style>{STYLE}</style>", marker, *arrows, *boxes, "</svg>", ""])


def _arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    if y == to_y:
        x, to_x = x + WIDTH // 2, to_x - WIDTH // 2
    else:
        y, to_y = y + HEIGHT // 2, to_y - HEIGHT // 2
    return f'<path d="M{x} {y}L{to_x} {to_y}" marker-end="url(#tip)"/>'


def _box(name: str, x: int, y: int) -> tuple[str, str]:
    rect = (
        f'<rect x="{x - WIDTH // 2}" '
        f'y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    )
    text = (
        f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="currentColor" '
        f'stroke="none">{name}</text>'
    )
    return rect, text


if __name__ == "__main__":
    FIGURE.write_text(draw(), encoding="utf-8")
