"""Say what a user of the last release would find broken: public names that are gone, and signatures
that take less.

    python tools/breaking.py            the release that released.toml names, and this tree

Public is what a package exports that has no underscore in its name. What breaks and has a reason in
released.toml is left out; anything else, and a reason without a break, ends the script with 1.
Shallow clones are not looked at.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

import griffe

ROOT = Path(__file__).resolve().parents[1]
RELEASED = Path(__file__).with_name("released.toml")
INTERNAL = (
    "tinker.cli",
    "tinker.local.handlers",
    "tinker.local.losses",
    "tinker.local.operations",
    "tinker.local.call",
    "tinker.local.scheduling",
    "tinker.local.storage",
    "tinker.local.v1",
    "tinker.local.web",
)  # what they export is for each other


def public_paths(package: griffe.Module) -> Iterator[str]:
    """Where the exported names of a package and of those below it are, and where their definitions
    are.
    """
    for name in list_exports(package):
        yield f"{package.path}.{name}"
        member = package.members.get(name)
        if isinstance(member, griffe.Alias) and member.resolved:
            yield member.final_target.path
    for name, module in package.modules.items():
        if not name.startswith("_") and not module.is_alias and module.path not in INTERNAL:
            yield from public_paths(module)


def list_exports(package: griffe.Module) -> list[str]:
    """Return the names in `__all__`; without one, those that are imported from this project, as its
    lazy names are.
    """
    if package.exports is not None:
        return [str(name) for name in package.exports]
    imported = [
        name
        for name, path in package.imports.items()
        if path.startswith("tinker") and not name.startswith("_")
    ]
    return [name for name in imported if package.is_init_module and name != "LazyNames"]


def breaks(old: griffe.Module, new: griffe.Module) -> list[str]:
    """Return a line for each public thing that is less than it was."""
    public = set(public_paths(old))
    found = griffe.find_breaking_changes(old, new)
    return sorted(
        {f"{one.obj.path}: {one.kind.value}" for one in found if is_public(one.obj.path, public)}
    )


def is_public(path: str, public: set[str]) -> bool:
    """Whether a user may know this name: it is exported, or a public member of what is."""
    while path not in public:
        path, dot, name = path.rpartition(".")
        if not dot or name.startswith("_"):
            return False
    return True


def load(checkout: Path) -> griffe.Module:
    """Return the package of a checkout as a wheel has it: with what is made for it."""
    with TemporaryDirectory() as folder:
        for source in (checkout / "tinker", checkout / "generated" / "older" / "tinker"):
            if source.is_dir():
                shutil.copytree(source, Path(folder) / "tinker", dirs_exist_ok=True)
        found = griffe.load(
            "tinker",
            search_paths=[folder],
            try_relative_path=False,
            resolve_aliases=True,
            resolve_external=False,
        )
        assert isinstance(found, griffe.Module)
        return found


def git(*arguments: str) -> str:
    """Return what git answers."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> int:
    """Run the script."""
    if git("rev-parse", "--is-shallow-repository") == "true":
        print(
            "this clone has no history to find the last release in; `git "
            "fetch --unshallow` brings it"
        )
        return 0
    released = tomllib.loads(RELEASED.read_text(encoding="utf-8"))
    accepted: dict[str, str] = released["accepted"]
    with TemporaryDirectory() as folder:
        git("worktree", "add", "--detach", folder, released["commit"])
        try:
            found = breaks(load(Path(folder)), load(ROOT))
        finally:
            git("worktree", "remove", "--force", folder)
    unknown = [line for line in found if not any(fnmatchcase(line, wanted) for wanted in accepted)]
    unused = [wanted for wanted in accepted if not any(fnmatchcase(line, wanted) for line in found)]
    for line in unknown:
        print(f"breaks users of the last release: {line}")
    for wanted in unused:
        print(f"{RELEASED.name} gives a reason for what does not break: {wanted}")
    return 1 if unknown or unused else 0


if __name__ == "__main__":
    sys.exit(main())
