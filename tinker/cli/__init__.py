"""The command line. Each command is imported when it is run or asked for help, so that ``tinker --help`` is quick."""

from __future__ import annotations

from importlib import import_module

import click

from tinker._version import __version__

COMMANDS = {"conformance": "tinker.cli.conformance", "serve": "tinker.cli.serve", "version": "tinker.cli.version"}


class LazyGroup(click.Group):
    """A group whose commands live in modules of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tinker")
def main() -> None:
    """Train and sample models through the Tinker API, or serve it from this machine."""
