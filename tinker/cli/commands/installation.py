"""``tinker version`` and ``tinker completion``: what is installed, and completion in the shell."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import click
from tinker_wire import CONTRACT_VERSION

from tinker._basics.installation import EXTRAS
from tinker._version import DISTRIBUTION_VERSION
from tinker.cli.options import GlobalOptions, Option, command
from tinker.cli.output import CommandFailed, show

_PACKAGES = ("torch", "transformers", "huggingface_hub", "zstandard", "starlette", "ray")
_EXTRAS = ("local", "models", "hub", "zstd", "ray")  # which bring these
_LINES = {
    "bash": 'eval "$(_TINKER_COMPLETE=bash_source tinker)"',
    "zsh": 'eval "$(_TINKER_COMPLETE=zsh_source tinker)"',
    "fish": "_TINKER_COMPLETE=fish_source tinker | source",
}
_FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/tinker.fish"}


@command("tinker version")
def version(
    options: GlobalOptions,
    deps: Annotated[
        bool, Option("Also print the versions of Python and of the optional packages.")
    ] = False,
) -> None:
    """Print the version of this package."""
    found = {"Python": platform.python_version(), **list_packages()} if deps else {}
    value: dict[str, object] = {"version": DISTRIBUTION_VERSION, "contract": CONTRACT_VERSION}
    lines = [
        f"tinker {DISTRIBUTION_VERSION}",
        *(f"{name} {there or 'not installed'}" for name, there in found.items()),
    ]
    show(
        options,
        value | ({"dependencies": found} if deps else {}),
        lambda: click.echo("\n".join(lines)),
    )


def list_packages() -> Mapping[str, str | None]:
    """Return the version of each optional package by its name, None where it is not installed."""
    return {name: find_version(name) for name in _PACKAGES}


def find_extra(name: str) -> str:
    """Return the extra that brings an optional package."""
    return next(
        extra
        for extra in _EXTRAS
        if any(requirement.startswith(name) for requirement in EXTRAS[extra])
    )


def find_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@command("tinker completion --install", "tinker completion zsh >> ~/.zshrc")
def completion(
    shell: Literal["bash", "zsh", "fish"] | None = None,
    install: Annotated[bool, Option("Add the line to the startup file of the shell.")] = False,
) -> None:
    """Print the line that enables completion in SHELL (default: your shell), or add it with
    --install.
    """
    from tinker._basics.config import login_shell

    name = shell or login_shell()
    if name not in _LINES:
        raise CommandFailed(
            f"Completion is available for {', '.join(_LINES)}", "Name one: tinker completion bash"
        )
    if not install:
        click.echo(_LINES[name])
        return
    file = Path.home() / _FILES[name]
    file.parent.mkdir(parents=True, exist_ok=True)
    before = file.read_text() if file.exists() else ""
    if _LINES[name] not in before:
        file.write_text(
            f"{before}{'' if before.endswith(chr(10)) or not before else chr(10)}{_LINES[name]}\n"
        )
    click.echo(f"Added completion to {file}. Open a new {name} to use it.")
