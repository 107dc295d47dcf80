"""Keep code blocks at 80 columns: `python docs/_scripts/blocks.py` formats Python and lists the
lines that are wider.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
COLUMNS = 80  # what a page at 1400 px shows without scrolling
# written by other scripts
RECORDED = {
    "coverage.md",
    "methods.md",
    "servers.md",
    "ecosystem.md",
    "skyrl.md",
    "tuft.md",
    "hatchery.md",
    "openrl.md",
}
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FORMAT = (
    "ruff",
    "format",
    "--quiet",
    "--line-length",
    str(COLUMNS),
    "--stdin-filename",
    "block.py",
    "-",
)


def pages() -> list[Path]:
    """The pages that people write, and the README."""
    return [
        DOCS.parent / "README.md",
        *sorted(path for path in DOCS.rglob("*.md") if path.name not in RECORDED),
    ]


def find_wide_lines(text: str) -> list[str]:
    """The lines in blocks of a page that are wider than a block is shown."""
    return [
        line
        for found in BLOCK.finditer(text)
        for line in found[2].splitlines()
        if len(line) > COLUMNS
    ]


def format_blocks(text: str) -> str:
    """The page with its Python blocks formatted."""
    return BLOCK.sub(
        lambda found: (
            found[0].replace(found[2], _format(found[2])) if found[1] == "python" else found[0]
        ),
        text,
    )


def _format(code: str) -> str:
    return subprocess.run(FORMAT, input=code, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    wide = {}
    for page in pages():
        page.write_text(format_blocks(page.read_text()))
        wide[page] = find_wide_lines(page.read_text())
    for page, lines in wide.items():
        for line in lines:
            print(f"{page.relative_to(DOCS.parent)}: {line}")
    sys.exit(1 if any(wide.values()) else 0)
