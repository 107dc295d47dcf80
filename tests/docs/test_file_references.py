"""The files that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

from support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    ".ci",
    "benchmarks",
    "codegen",
    "docs",
    "examples",
    "generated",
    "locks",
    "tests",
    "tinker",
    "tinker_records",
    "tools",
)
MODELS = {"tinker/babble", "tinker/toy"}
MODULES = {"tinker.proto"}
PATH = re.compile(rf"`((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*)`")
FILE = re.compile(r"`([\w-]+\.(?:py|toml|yml|proto|txt))`")
PAGES = sorted(
    page
    for pattern in (
        "*.md",
        "docs/**/*.md",
        *(f"{one}/*.md" for one in ("codegen", "benchmarks", "tests", "locks")),
    )
    for page in ROOT.glob(pattern)
)
FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")} | {
    path.name for path in ROOT.iterdir()
}


@for_each("page", PAGES)
def test_what_a_page_names_exists(page: Path) -> None:
    """A path is one from the repository's root; a file name alone is that of some file in it."""
    text = page.read_text(encoding="utf-8")
    paths = set(PATH.findall(text)) - MODELS
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []
    assert sorted(set(FILE.findall(text)) - MODULES - FILES) == []
