"""The pictures of the command line, from real commands on a terminal of 80 columns:
`nox -s pictures`.
"""

from __future__ import annotations

import fcntl
import html
import itertools
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyte

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS, LINES = 80, 120
CELL, LINE, MARGIN = 8.4, 18, 14  # in pixels
BACKGROUND, FOREGROUND = "#0d1117", "#e6edf3"
COLORS = {
    "black": "#8b949e", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341",
    "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#56d4dd", "white": "#e6edf3",
    "brightblack": "#8b949e", "brightred": "#ffa198", "brightgreen": "#aff5b4",
    "brightbrown": "#f2cc60", "brightblue": "#a5d6ff", "brightmagenta": "#e2c5ff",
    "brightcyan": "#9ae6ee", "brightwhite": "#ffffff",
}  # fmt: skip
# The copy of the package in the folder comes before the one that is installed.
START = """
import sys
sys.path[:0] = ["tinker", "tinker/generated"]
from tinker.cli import main
main(prog_name="tinker")
"""
TRAIN = (
    "tinker train pig_latin.jsonl --rank {} --learning-rate 5e-3 --name rank{} --log rank{}.jsonl"
)


def show(command: str, folder: Path) -> list[list[Any]]:
    """Run a command on a terminal; return the lines that it leaves there, as cells."""
    screen = pyte.Screen(COLUMNS, LINES)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {command}\n".encode())
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    words = [sys.executable, "-c", START, *shlex.split(command.replace("\\\n", ""))[1:]]
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment(folder)
    )
    os.close(theirs)
    while piece := read(ours):
        stream.feed(piece)
    os.close(ours)
    if process.wait():
        raise SystemExit("\n".join(screen.display).rstrip())
    last = max(number for number, line in enumerate(screen.display) if line.strip())
    return [[screen.buffer[row][column] for column in range(COLUMNS)] for row in range(last + 1)]


def environment(folder: Path) -> dict[str, str]:
    """Return variables under which nothing of this machine is shown."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TINKER_") and name != "COLUMNS"
    }
    ours = {
        "HOME": str(folder),
        "TERM": "xterm-256color",
        "TINKER_BASE_URL": "local://",
        "TINKER_LOCAL_DIR": str(folder / "kept"),
    }
    return {**kept, **ours}


def read(terminal: int) -> bytes:
    """Return what was written since; nothing once the command has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def draw(lines: Sequence[Sequence[Any]], title: str) -> str:
    """Return the lines as a drawing, which is dark on light pages, too."""
    width, height = COLUMNS * CELL + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" '
        f'fill="{FOREGROUND}">'
    )
    parts = [
        head,
        f"<title>{html.escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>',
    ]
    parts += [write(cells, MARGIN + LINE * number + 13) for number, cells in enumerate(lines)]
    return "\n".join(filter(None, [*parts, "</svg>", ""])) + "\n"


def write(cells: Sequence[Any], y: float) -> str:
    """Return a line: the cells of one color and weight at a time, each run as wide
    as its columns.
    """
    parts: list[str] = []
    column = 0
    for (color, bold), group in itertools.groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in group)
        if text.strip():
            indent = len(text) - len(text.lstrip())
            shown = text.strip()
            style = f' fill="{paint(color)}"' if color != "default" else ""
            style += ' font-weight="bold"' if bold else ""
            x = MARGIN + CELL * (column + indent)
            length = f'textLength="{CELL * len(shown):.1f}" lengthAdjust="spacingAndGlyphs"'
            escaped = (
                html.escape(shown, quote=False).replace("  ", "\u00a0 ").replace("  ", " \u00a0")
            )
            parts.append(f'<text x="{x:.1f}" y="{y:.0f}" {length}{style}>{escaped}</text>')
        column += len(text)
    return "".join(parts)


def paint(color: str) -> str:
    """Return a color of the terminal as one of the page."""
    return COLORS.get(color) or (f"#{color}" if re.fullmatch("[0-9a-f]{6}", color) else FOREGROUND)


def main() -> None:
    """Run every command, in the order in which each needs what the others made."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(ROOT / "examples" / "data" / "pig_latin.jsonl", folder)
        for package in ("tinker", "tinker_records", "generated"):
            shutil.copytree(
                ROOT / package,
                folder / "tinker" / package,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        show(TRAIN.format(4, 4, 4), folder)
        trained = show(
            f"{TRAIN.format(16, 16, 16)} --plot loss.svg".replace("--log", "\\\n    --log"), folder
        )
        words = "".join(cell.data for line in trained for cell in line)
        found = re.search(r"tinker://\S+/sampler_weights/\w+", words)
        assert found is not None, words
        scenes = {
            "sample": (
                "tinker sample --max-tokens 8 --temperature 0 \\\n    "
                f'--model {found[0]} \\\n    "able" "about"'
            ),
            "watch": "tinker run watch rank16.jsonl --once",
            "compare": "tinker run compare rank4.jsonl rank16.jsonl",
            "doctor": "tinker doctor",
        }
        shown = {
            "train": trained,
            **{scene: show(command, folder) for scene, command in scenes.items()},
        }
    for scene, lines in shown.items():
        (PICTURES / f"terminal-{scene}.svg").write_text(
            draw(lines, f"tinker {scene} on a terminal"), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
