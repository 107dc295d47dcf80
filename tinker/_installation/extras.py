"""What the extras of this package add, and the command that installs what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.util import find_spec

_SERVER = ("starlette>=0.40", "uvicorn>=0.30")
#: What each extra adds; pyproject.toml says the same.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch>=2.4",),
    "tokenizers": ("transformers>=4.45",),
    "zstd": ("zstandard>=0.22",),
    "aiohttp": (),
    "hub": ("huggingface_hub>=0.25",),
    "server": _SERVER,
    "local": (*_SERVER, "torch>=2.4", "transformers>=4.45", "peft>=0.13", "safetensors>=0.4"),
}


def install_command(extra: str) -> str:
    """Return the command that installs what ``extra`` adds and this environment lacks.

    It names the packages instead of ``tinker[extra]``, which is the official SDK on the package index.
    """
    wanted = EXTRAS[extra]
    missing = [requirement for requirement in wanted if find_spec(_module(requirement)) is None]
    return f"pip install {shlex.join(missing or wanted)}"


def _module(requirement: str) -> str:
    return requirement.partition(">=")[0]
