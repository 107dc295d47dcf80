"""Read the document, compare generated files with those on disk, and check the pinned versions."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from codegen.document import Refusal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

#: Files and the text that each must have; None for a file that must not be there.
Wanted: TypeAlias = Mapping[Path, str | None]
#: A step of `codegen generate`: from the root of the project and the document to the files that it
#: is responsible for.
Step: TypeAlias = Callable[[Path, Any], Wanted]


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


def exactly(folder: Path, texts: Mapping[str, str]) -> Wanted:
    """Want these files in a folder, and no others."""
    extra = dict.fromkeys(folder / name for name in files_below(folder) if name not in texts)
    return extra | {folder / name: text for name, text in texts.items()}


def find_stale(wanted: Wanted) -> Wanted:
    """Return the files that differ from the wanted ones."""
    return {path: text for path, text in wanted.items() if text != read_if_there(path)}


def read_if_there(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def write(stale: Wanted) -> None:
    for path, text in stale.items():
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def describe(stale: Wanted, root: Path) -> Iterator[str]:
    """Yield a readable summary: one line for each file, then the first lines of its diff."""
    for path, text in stale.items():
        name, before = path.relative_to(root).as_posix(), read_if_there(path)
        yield (
            f"{name}: "
            f"{'missing' if before is None else 'not generated' if text is None else 'differs'}"
        )
        if before is not None and text is not None:
            yield from diff_head(before, text, name)


def diff_head(before: str, after: str, name: str, limit: int = 20) -> list[str]:
    diff = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"committed/{name}", f"generated/{name}", "", "", 1
    )
    lines = [f"  {line.rstrip()}"[:200] for line in diff]
    return lines[:limit] + (
        [f"  ... {len(lines) - limit} more lines"] if len(lines) > limit else []
    )


def check_pins() -> None:
    """Refuse to write with other versions than the pinned ones: the bytes depend on them."""
    for line in (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines():
        name, _, pinned = line.partition("==")
        if pinned and version(name) != pinned:
            raise Refusal(
                "codegen/requirements.txt",
                f"{name} {version(name)} is installed, {pinned} is pinned",
            )
