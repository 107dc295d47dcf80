"""Make the modules of `tinker.types` that only older code imports from, as data says: `python tools/older_paths.py [--check]`.

The official client has each of its types in a module of its own. tests/compat/surface/official/ lists the modules and their
names; for each of those that `tinker.types` has no module of, one is written that imports the names from `tinker.types`.
Modules written by hand stay as they are. With `--check` nothing is written, and what is not fresh is an error.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "tinker" / "types"
OFFICIAL = ROOT / "tests" / "compat" / "surface" / "official" / "0.38.0.json"
PREFIX = "tinker.types."
FIRST_LINE = '"""A path that older code imports from; made by tools/older_paths.py."""'
#: Of 0.4 to 0.7, and no longer in 0.38.
OLDER = {"checkpoint_archive_url_response": ["CheckpointArchiveUrlResponse"]}
#: Modules of functions, not of types.
NOT_MADE = ("_tensor_container", "_torch_utils")


def list_modules() -> dict[str, list[str]]:
    """Return the names of each module to make, by its path below `tinker.types`, such as `shared.untyped_api_future`."""
    public = set(_find_public_names())
    listed = json.loads(OFFICIAL.read_text())["paths"].items()
    modules = {path.removeprefix(PREFIX): names for path, names in listed if path.startswith(PREFIX)} | OLDER
    return {path: sorted(public & set(names)) for path, names in modules.items() if path not in NOT_MADE}


def _find_public_names() -> list[str]:
    """Return the names that `tinker.types` exports, without importing it."""
    for node in ast.parse((HOME / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise LookupError("tinker/types/__init__.py has no __all__")


def make_texts(modules: Mapping[str, list[str]]) -> dict[Path, str]:
    """Return the text of each module to make, by its file. Packages are those that others lie in."""
    packages = {path.rpartition(".")[0] for path in modules} - {""}
    files = {path: _find_file(path, is_package=path in packages) for path in {*modules, *packages}}
    return {file: _write_module(modules.get(path, [])) for path, file in files.items() if not _is_by_hand(file)}


def _find_file(path: str, *, is_package: bool) -> Path:
    folder = HOME.joinpath(*path.split("."))
    return folder / "__init__.py" if is_package else folder.with_suffix(".py")


def _is_by_hand(file: Path) -> bool:
    return file.exists() and not file.read_text().startswith(FIRST_LINE)


def _write_module(names: list[str]) -> str:
    if not names:
        return FIRST_LINE + "\n"
    imported = sorted(names, key=str.lower)
    line = f"from tinker.types import {', '.join(imported)}"
    if len(line) > 128:
        line = "from tinker.types import (\n" + "".join(f"    {name},\n" for name in imported) + ")"
    exported = f"__all__ = [{', '.join(json.dumps(name) for name in names)}]"
    if len(exported) > 128:
        exported = "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]"
    return f"{FIRST_LINE}\n\n{line}\n\n{exported}\n"


def find_stale() -> dict[Path, str | None]:
    """Return what is not as it should be: files and the text each should have, None for one that should not be there."""
    wanted = make_texts(list_modules())
    made = [file for file in HOME.rglob("*.py") if file.read_text().startswith(FIRST_LINE)]
    stale: dict[Path, str | None] = {file: None for file in made if file not in wanted}
    stale.update({file: text for file, text in wanted.items() if not file.exists() or file.read_text() != text})
    return stale


def main(arguments: list[str]) -> int:
    """Write the modules, or say which are not fresh; return the exit status."""
    stale = find_stale()
    for file, text in stale.items():
        print(file.relative_to(ROOT))
        if "--check" in arguments:
            continue
        if text is None:
            file.unlink()
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
