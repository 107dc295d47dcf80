"""The modules of `tinker.types` that only older code imports from, as data says.

The official client has each of its types in a module of its own. tests/compat/surface/official/
lists the modules and their names; for each of those that `tinker.types` has no module of, one is
written that imports the names from `tinker.types`. Modules written by hand stay as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from codegen.files import Wanted
from codegen.public_names import names_to_export, parse

HOME = Path("tinker", "types")
OFFICIAL = Path("tests", "compat", "surface", "official", "0.38.0.json")
PREFIX = "tinker.types."
LINE_LENGTH = 100  # of pyproject.toml, since the modules are formatted like all others
FIRST_LINE = '"""A path that older code imports from; made by `python -m codegen generate`."""'
#: Of 0.4 to 0.7, and no longer in 0.38.
OLDER = {"checkpoint_archive_url_response": ["CheckpointArchiveUrlResponse"]}
#: Modules of functions, not of types.
NOT_MADE = ("_tensor_container", "_torch_utils")


def make_modules(root: Path, document: Any) -> Wanted:
    """Return the text of each module, None for one that was made and is not wanted any more."""
    home = root / HOME
    modules = list_modules(root)
    packages = {path.rpartition(".")[0] for path in modules} - {""}
    files = {
        _find_file(home, path, is_package=path in packages): modules.get(path, [])
        for path in {*modules, *packages}
    }
    made = [file for file in home.rglob("*.py") if not _is_by_hand(file)]
    return dict.fromkeys(made) | {
        file: _write_module(names) for file, names in files.items() if not _is_by_hand(file)
    }


def list_modules(root: Path) -> dict[str, list[str]]:
    """Return the names of each module to make, by its path below `tinker.types`, such as
    `shared.untyped_api_future`.
    """
    public = set(names_to_export(parse(root / HOME / "__init__.py")))
    listed = json.loads((root / OFFICIAL).read_text())["paths"].items()
    modules = {
        path.removeprefix(PREFIX): names for path, names in listed if path.startswith(PREFIX)
    } | OLDER
    return {
        path: sorted(public & set(names)) for path, names in modules.items() if path not in NOT_MADE
    }


def _find_file(home: Path, path: str, *, is_package: bool) -> Path:
    folder = home.joinpath(*path.split("."))
    return folder / "__init__.py" if is_package else folder.with_suffix(".py")


def _is_by_hand(file: Path) -> bool:
    return file.exists() and not file.read_text().startswith(FIRST_LINE)


def _write_module(names: list[str]) -> str:
    if not names:
        return FIRST_LINE + "\n"
    imported = sorted(names, key=str.lower)
    line = f"from tinker.types import {', '.join(imported)}"
    if len(line) > LINE_LENGTH:
        line = "from tinker.types import (\n" + "".join(f"    {name},\n" for name in imported) + ")"
    exported = f"__all__ = [{', '.join(json.dumps(name) for name in names)}]"
    if len(exported) > LINE_LENGTH:
        exported = "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]"
    return f"{FIRST_LINE}\n\n{line}\n\n{exported}\n"
