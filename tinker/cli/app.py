"""The ``tinker`` command and the options of all commands. Imports no command, so that ``tinker --help`` is quick."""

from __future__ import annotations

from typing import Any

import click

from tinker._version import DISTRIBUTION_VERSION
from tinker.cli.errors import convert_errors, show_failures
from tinker.cli.help_examples import example_text
from tinker.cli.lazy import Entry, LazyGroup
from tinker.cli.options import PATIENCE_SECONDS, GlobalOptions
from tinker.cli.wrong_options import explain_wrong_options

COMMANDS = {
    "auth": Entry("tinker.cli.commands.auth:auth", "Log in and out, and show the credential in use."),
    "billing": Entry("tinker.cli.commands.billing:billing", "Show usage and cost."),
    "chat": Entry("tinker.cli.commands.chat:chat", "Chat with a model or a checkpoint."),
    "checkpoint": Entry("tinker.cli.commands.checkpoint:checkpoint", "List, change, delete and download checkpoints."),
    "completion": Entry("tinker.cli.commands.completion:completion", "Enable completion in your shell."),
    "conformance": Entry("tinker.cli.commands.conformance:conformance", "Check a server against the contract."),
    "doctor": Entry("tinker.cli.commands.doctor:doctor", "Diagnose the installation and the connection."),
    "model": Entry("tinker.cli.commands.model:model", "List the models of the server."),
    "run": Entry("tinker.cli.commands.run:run", "List and show training runs."),
    "sample": Entry("tinker.cli.commands.sample:sample", "Sample from a model or a checkpoint."),
    "serve": Entry("tinker.cli.commands.serve:serve", "Serve the API from this machine."),
    "session": Entry("tinker.cli.commands.session:session", "Inspect sessions."),
    "train": Entry("tinker.cli.commands.train:train", "Fine-tune a model on a file of examples."),
    "version": Entry("tinker.cli.commands.version:version", "Print the version of this package."),
}


class Main(LazyGroup):
    """The outermost group, which shows failures."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with explain_wrong_options():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with show_failures(ctx.params), convert_errors(ctx.params), explain_wrong_options():
            return super().invoke(ctx)


@click.group(cls=Main, entries=COMMANDS, epilog=example_text("main"), context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-f", "--format", "format", type=click.Choice(["table", "json"]), default="table", help="Output format.")
@click.option("--base-url", metavar="URL", help="Base URL of the server. Default: TINKER_BASE_URL, else the hosted service.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=PATIENCE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to retry a request before the command fails; 0 disables retries.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(DISTRIBUTION_VERSION, prog_name="tinker")
@click.pass_context
def main(ctx: click.Context, /, **_: object) -> None:
    """Train and sample models with the Tinker API, or serve it from this machine.

    These options can also be given after the command.
    """
    ctx.obj = GlobalOptions.from_params(ctx.params)
