"""What is installed: extras and the commands that add them, and files of several packages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

# elsewhere they would need a compiler; h11 and asyncio do without
_WHEELS = "platform_machine in 'x86_64 AMD64 aarch64 arm64'"
_SERVER = (
    "starlette>=0.40",
    "uvicorn>=0.30",
    "prometheus_client>=0.20",
    f"httptools>=0.6.4; {_WHEELS}",
    f"uvloop>=0.21; sys_platform != 'win32' and implementation_name == 'cpython' and {_WHEELS}",
)
_LOCAL = (*_SERVER, "transformers>=4.57", "jinja2>=3.1.6", "safetensors>=0.4")
_TORCH = "torch>=2.4"
# 3 GB less on Linux
_WITHOUT_CUDA = " (without a GPU, add --extra-index-url https://download.pytorch.org/whl/cpu)"
# The modules of packages that are not called as they are.
_MODULES = {"pillow": "PIL", "protobuf": "google.protobuf", "python-socks": "python_socks"}
#: What each extra adds; pyproject.toml says the same.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "torch": (_TORCH,),
    "tokenizers": ("transformers>=4.45", "jinja2>=3.1.6"),
    "zstd": ("zstandard>=0.22",),
    "proto": ("protobuf>=4.21",),
    "aiohttp": (),
    "socks": ("python-socks[asyncio]>=2.5", "socksio>=1"),
    "hub": ("huggingface_hub>=0.25",),
    "server": _SERVER,
    "ray": ("ray>=2.40",),
    "quantize": ("bitsandbytes>=0.50", "accelerate>=1.1"),
    "local": _LOCAL,
    "models": (*_LOCAL, f"{_TORCH},<=2.13.0", "peft>=0.17", "pillow>=10.1"),
}


def install_command(extra: str) -> str:
    """Return the command that installs what ``extra`` adds and this environment lacks.

    It names the packages instead of ``tinker[extra]``, which is the official SDK on the package
    index.
    """
    import shlex

    # others are for some platforms only
    needed = [requirement for requirement in EXTRAS[extra] if ";" not in requirement]
    missing = [requirement for requirement in needed if not _is_installed(requirement)] or needed
    hint = (
        _WITHOUT_CUDA
        if any(one.startswith(_TORCH) for one in missing) and sys.platform == "linux"
        else ""
    )
    return f"pip install {shlex.join(missing)}{hint}"


def _is_installed(requirement: str) -> bool:
    name = requirement.partition(">=")[0].partition("[")[0]
    try:
        return find_spec(_MODULES.get(name, name)) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False


#: Packages that change internals of the official client, to no effect here; by distribution: the
#: module, and what to do.
PATCHING_PACKAGES = {
    "twinkle-kit": (
        "twinkle_client",
        "twinkle_client.init_tinker_client() has no effect on this client, because it changes "
        "internals of the official one; "
        "pass its headers yourself: ServiceClient(wire='json', default_headers_overrides="
        "twinkle_client.http.headers.build_routing_headers(REQUEST_ID, f'Bearer {KEY}'))",
    ),
}


PACKAGE = Path(__file__).absolute().parents[1]
_OPEN = "+open."


class Distribution(NamedTuple):
    """A distribution that claims ``tinker/__init__.py``: its name and version, its files, and where
    pip got it.
    """

    name: str
    version: str
    files: frozenset[str]
    source: str | None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def is_ours(self) -> bool:
        """Return whether it is this client and not the official SDK."""
        return _OPEN in self.version


class Installation(NamedTuple):
    """Distributions that own files here; unowned and missing files. Empty for a checkout."""

    package: Path
    owners: tuple[Distribution, ...]
    foreign: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def problem(self) -> str | None:
        """Return what is wrong, naming the distributions and the repair command; None for a sound
        installation.
        """
        names = " and ".join(map(str, self.owners))
        if len(self.owners) > 1:
            return f"the files of {names} are mixed in {self.package}; {self._repair()}"
        if self.owners and not self.owners[0].is_ours:
            return (
                f"{names} owns {self.package}, but the folder contains files of this client; "
                f"{self._repair()}"
            )
        if changed := [*self.foreign, *self.missing]:
            return (
                f"files of {self.package} do not belong to {names} or are missing "
                f"({_some(changed)}); {self._repair()}"
            )
        return None

    def __str__(self) -> str:
        if self.owners:
            return f"{self.owners[0]} in {_below_home(self.package)}"
        return f"the source tree {_below_home(self.package.parent)}"

    def _repair(self) -> str:
        import shlex

        uninstall = " && ".join(f"pip uninstall -y {owner.name}" for owner in self.owners)
        source = next(
            (owner.source for owner in self.owners if owner.is_ours and owner.source), None
        )
        again = f"run: pip install {shlex.quote(source)}" if source else "install this client again"
        return f"to repair it, run: {uninstall}; delete what is left of that folder; then {again}"


def _below_home(path: Path) -> str:
    """Return a path as a shell takes it, without the name of the user."""
    home = Path(os.path.expanduser("~"))
    return os.path.join("~", path.relative_to(home)) if path.is_relative_to(home) else str(path)


def inspect_installation(package: Path | None = None) -> Installation:
    """Read from the metadata beside ``package`` (None: this one) which
    distributions own its files.
    """
    package = package or PACKAGE
    owners = _owners(package)
    if not owners:
        return Installation(package, (), (), ())
    claimed = frozenset[str]().union(*(owner.files for owner in owners))
    there = frozenset(path.relative_to(package.parent).as_posix() for path in package.rglob("*.py"))
    missing = {name for name in claimed if name.endswith(".py")} - there
    return Installation(package, owners, tuple(sorted(there - claimed)), tuple(sorted(missing)))


def _owners(package: Path) -> tuple[Distribution, ...]:
    """Return the distributions whose RECORD, beside the package, lists the package's
    ``__init__.py``.
    """
    records = sorted(package.parent.glob("*.dist-info/RECORD"))
    mark = f"{package.name}/__init__.py,"
    found = (
        (path.parent, text)
        for path in records
        if mark in (text := path.read_text("utf-8", "replace"))
    )
    owners = (_distribution(folder, _find_files(text, package.name)) for folder, text in found)
    return tuple(owner for owner in owners if f"{package.name}/__init__.py" in owner.files)


def _find_files(record: str, package: str) -> frozenset[str]:
    return frozenset(re.findall(rf'^"?({re.escape(package)}/[^,"]*)', record, re.MULTILINE))


def _distribution(folder: Path, files: frozenset[str]) -> Distribution:
    from importlib.metadata import PathDistribution

    found = PathDistribution(folder)
    return Distribution(
        found.metadata["Name"], found.version, files, _source(found.read_text("direct_url.json"))
    )


def _source(direct_url: str | None) -> str | None:
    """Return the folder or wheel that pip installed from, where that still exists."""
    import json

    url = urlsplit(str(json.loads(direct_url)["url"])) if direct_url else None
    if url is None or url.scheme != "file":
        return None
    # `urllib.request` would import HTTP and TLS, for which every pytest run would pay
    path = unquote(url.path)
    path = path.lstrip("/") if os.name == "nt" else path
    return path if Path(path).exists() else None


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
