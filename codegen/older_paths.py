"""The modules that only older code imports from, as data says. The wheel has them in `tinker/`.

The official client has each of its types in a module of its own. tests/compat/surface/official/
lists the modules and their names; for each of those that `tinker.types` has no module of, one is
written that imports the names from `tinker.types`. `older_paths.toml` lists the others. Modules
written by hand stay as they are.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from codegen.files import HERE, Wanted, exactly
from codegen.public_names import MODULE, names_to_export, parse

MADE = Path("generated", "older")
OFFICIAL = Path("tests", "compat", "surface", "official", "0.38.0.json")
TABLE = tomllib.loads((HERE / "older_paths.toml").read_text(encoding="utf-8"))
LINE_LENGTH = 100  # of pyproject.toml, since the modules are formatted like all others
FIRST_LINE = '"""A path that older code imports from; made by `python -m codegen generate`."""'
#: Modules of functions, not of types.
NOT_MADE = (f"{MODULE}._tensor_container", f"{MODULE}._torch_utils")


def make_modules(root: Path, document: Any) -> Wanted:
    """Return the text of each module, None for one that was made and is not wanted any more."""
    modules = {name: dict.fromkeys(names, MODULE) for name, names in list_types(root).items()}
    modules |= {
        name: {one: TABLE["homes"].get(one, MODULE) for one in names}
        for name, names in TABLE["modules"].items()
    }
    texts = {
        PurePosixPath(*name.split(".")): write_module(homes) for name, homes in modules.items()
    }
    packages = {parent for path in texts for parent in path.parents[:-1]}
    texts = dict.fromkeys(packages, write_module({})) | texts
    files = {
        str(path / "__init__.py" if path in packages else f"{path}.py"): text
        for path, text in texts.items()
    }
    return exactly(
        root / MADE,
        {file: text for file, text in sorted(files.items()) if not (root / file).exists()},
    )


def list_types(root: Path) -> dict[str, list[str]]:
    """Return the names of each module of `tinker.types` to make, such as
    `tinker.types.shared.untyped_api_future`.
    """
    public = set(names_to_export(parse(root.joinpath(*MODULE.split("."), "__init__.py"))))
    listed = json.loads((root / OFFICIAL).read_text())["paths"].items()
    modules = {
        name: names
        for name, names in listed
        if name.startswith(f"{MODULE}.") and name not in NOT_MADE
    }
    return {name: sorted(public & set(names)) for name, names in modules.items()}


def write_module(homes: Mapping[str, str]) -> str:
    """Return the text of a module that imports each name from its home."""
    imports: dict[str, list[str]] = {}
    for name in sorted(homes, key=str.lower):
        module, _, name_there = homes[name].partition(":")
        imports.setdefault(module, []).append(f"{name_there} as {name}" if name_there else name)
    parts = [
        FIRST_LINE,
        "\n".join(
            _fold(f"from {home} import ", names, "()") for home, names in sorted(imports.items())
        ),
    ]
    exported = [json.dumps(name) for name in homes if name[0] not in "_*"]
    parts += [_fold("__all__ = ", exported, "[]")] if exported else []
    return "\n\n".join(filter(None, parts)) + "\n"


def _fold(begin: str, items: list[str], brackets: str) -> str:
    """Write a list on one line, where parentheses may be left out, or each item on its own."""
    line = begin + (f"[{', '.join(items)}]" if brackets == "[]" else ", ".join(items))
    return (
        line
        if len(line) <= LINE_LENGTH
        else f"{begin}{brackets[0]}\n" + "".join(f"    {item},\n" for item in items) + brackets[1]
    )
