"""``tinker completion``."""

from __future__ import annotations

from pathlib import Path

import click

from tinker._config import login_shell
from tinker.cli.errors import CommandFailed

_LINES = {
    "bash": 'eval "$(_TINKER_COMPLETE=bash_source tinker)"',
    "zsh": 'eval "$(_TINKER_COMPLETE=zsh_source tinker)"',
    "fish": "_TINKER_COMPLETE=fish_source tinker | source",
}
_FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/tinker.fish"}


@click.command()
@click.argument("shell", type=click.Choice(list(_LINES)), required=False)
@click.option("--install", is_flag=True, help="Add the line to the startup file of the shell.")
def completion(shell: str | None, install: bool) -> None:
    """Print the line that enables completion in SHELL (default: your shell), or add it with --install."""
    shell = shell or login_shell()
    if shell not in _LINES:
        raise CommandFailed(f"Completion is available for {', '.join(_LINES)}", "Name one: tinker completion bash")
    if not install:
        click.echo(_LINES[shell])
        return
    file = Path.home() / _FILES[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    before = file.read_text() if file.exists() else ""
    if _LINES[shell] not in before:
        file.write_text(f"{before}{'' if before.endswith(chr(10)) or not before else chr(10)}{_LINES[shell]}\n")
    click.echo(f"Added completion to {file}. Open a new {shell} to use it.")
