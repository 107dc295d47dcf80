"""Reads the document and the committed tree, compares trees, and checks the pinned versions."""

from __future__ import annotations

import difflib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from codegen.document import Refusal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def load(path: Path) -> Any:
    """Return the document as plain Python values."""
    return load_text(path.read_text(encoding="utf-8"), path.name)


def load_text(text: str, name: str) -> Any:
    """Return the values of a document that was read; `name` is for the error."""
    try:
        yaml: Any = YAML(typ="safe")
        return yaml.load(text)
    except YAMLError as error:
        raise Refusal(name, f"not YAML: {error}") from error


def files_below(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def replace_tree(new: dict[str, str], folder: Path) -> int:
    """Make the folder hold exactly these files; return how many changed."""
    old = files_below(folder)
    changed = [name for name in new if new[name] != old.get(name)]
    for name in changed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(new[name], encoding="utf-8")
    removed = [name for name in old if name not in new]
    for name in removed:
        (folder / name).unlink()
    return len(changed) + len(removed)


def differences(new: dict[str, str], old: dict[str, str]) -> list[str]:
    """Return a readable summary: one line per file, then the first lines of its diff."""
    lines: list[str] = []
    for name in sorted(new.keys() | old.keys()):
        before, after = old.get(name), new.get(name)
        if before != after:
            lines.append(f"{name}: {'missing' if before is None else 'not generated' if after is None else 'differs'}")
            lines += diff_head(before or "", after or "", name) if before is not None and after is not None else []
    return lines


def diff_head(before: str, after: str, name: str, limit: int = 20) -> list[str]:
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), f"committed/{name}", f"generated/{name}", "", "", 1)
    lines = [f"  {line.rstrip()}" for line in diff]
    return lines[:limit] + ([f"  ... {len(lines) - limit} more lines"] if len(lines) > limit else [])


def check_pins() -> None:
    """Refuse to write with other versions than the pinned ones: the bytes depend on them."""
    for line in (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines():
        name, _, pinned = line.partition("==")
        if pinned and version(name) != pinned:
            raise Refusal("codegen/requirements.txt", f"{name} {version(name)} is installed, {pinned} is pinned")
