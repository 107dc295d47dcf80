"""The pictures of the guides, from runs on the local server: `python docs/_scripts/pictures.py`
makes them again.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
PICTURES = DOCS / "pictures"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT, TOP, WIDTH, HEIGHT = 52, 30, 560, 200  # of the panel
COLOR = "#0e8a9a"
STYLE = "svg:root{color:#24292f}@media(prefers-color-scheme:dark){svg:root{color:#d0d7de}}"


def run_page(name: str) -> dict[str, Any]:
    """Run the Python blocks of a page; what they have defined."""
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(BLOCK.findall((DOCS / name).read_text()), start=1):
        exec(compile(block, f"{name}, block {number}", "exec"), names)
    return names


def record_loss() -> list[float]:
    """The losses of the program of the home page."""
    return list(run_page("index.md")["losses"])


def record_reward() -> list[float]:
    """The mean rewards of the loop of the page on GRPO."""
    return list(run_page("rl.md")["mean_rewards"])


def draw(values: Sequence[float], title: str) -> str:
    """A curve over the steps; in a page it takes the color of the text."""
    top = max(values)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in place(values, top))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} '
        f'{TOP + HEIGHT + 40}" role="img" fill="none" '
        'stroke="currentColor" font-family="ui-sans-serif, system-ui, sans-serif" font-size="13">',
        f"<title>{title}</title><style>{STYLE}</style>",
        _write(LEFT, TOP - 12, "start", title),
    ]
    for share in (0.0, 0.5, 1.0):
        y = TOP + HEIGHT * (1 - share)
        lines.append(f'<path stroke-opacity="0.25" d="M{LEFT} {y:.0f}h{WIDTH}"/>')
        lines.append(_write(LEFT - 8, y + 4, "end", f"{top * share:.3g}"))
    lines.append(
        f'<polyline stroke="{COLOR}" stroke-width="2.5" stroke-linejoin="round" points="{points}"/>'
    )
    lines.append(_write(LEFT, TOP + HEIGHT + 24, "start", "step 1"))
    lines.append(_write(LEFT + WIDTH, TOP + HEIGHT + 24, "end", f"step {len(values)}"))
    return "\n".join([*lines, "</svg>", ""])


def place(values: Sequence[float], top: float) -> list[tuple[float, float]]:
    """Where the points of a curve are."""
    last = max(len(values) - 1, 1)
    return [
        (LEFT + WIDTH * step / last, TOP + HEIGHT * (1 - value / top))
        for step, value in enumerate(values)
    ]


def _write(x: float, y: float, anchor: str, text: str) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="currentColor" '
        f'stroke="none">{text}</text>'
    )


RECORDED = {
    "loss.svg": (record_loss, "loss per token"),
    "reward.svg": (record_reward, "mean reward"),
}


if __name__ == "__main__":
    for name, (record, title) in RECORDED.items():
        (PICTURES / name).write_text(draw(record(), title), encoding="utf-8")
    runpy.run_path(str(Path(__file__).with_name("kl_figure.py")), run_name="__main__")
