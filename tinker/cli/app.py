"""The ``tinker`` command and the tree of its commands. Imports none of them, so that
``tinker --help`` is quick.
"""

from __future__ import annotations

from typing import Any

import click

from tinker._version import DISTRIBUTION_VERSION
from tinker.cli.errors import convert_errors, show_failures
from tinker.cli.lazy import Entry, LazyGroup, explain_wrong_options
from tinker.cli.options import GlobalOptions, list_examples, options_of

EXAMPLES = (
    "tinker --base-url local:// train examples.jsonl",
    'tinker sample "Once upon a time"',
    "tinker -f json run list",
)
COMMANDS: dict[str, Entry | LazyGroup] = {
    "auth": LazyGroup(
        "Log in and out, and show the credential in use.",
        {
            "login": Entry("auth", "Store an API key of the hosted service."),
            "logout": Entry("auth", "Remove the stored key."),
            "status": Entry("auth", "Show whether a credential is set and accepted."),
            "whoami": Entry("auth", "Show the owner of the credential."),
        },
    ),
    "billing": LazyGroup(
        "Show usage and cost. This needs permission to see the bills of your organization.",
        {
            "checkpoint-storage": Entry("billing", "Show the storage that checkpoints use now."),
            "usage": Entry("billing", "Show hourly usage."),
        },
    ),
    "chat": Entry("chat", "Chat with a model or a checkpoint."),
    "checkpoint": LazyGroup(
        """List, find, change, delete, download, merge and upload checkpoints.

        The path of a checkpoint is tinker://RUN/KIND/NAME, where KIND is weights,
        sampler_weights or external_weights.
        """,
        {
            "create": Entry("checkpoint.change", "Create an adapter and save it."),
            "delete": Entry("checkpoint.change", "Permanently delete checkpoints."),
            "download": Entry("checkpoint.files", "Download a checkpoint."),
            "info": Entry("checkpoint.show", "Show a checkpoint."),
            "list": Entry("checkpoint.show", "List the checkpoints of one or all runs."),
            "merge": Entry("checkpoint.files", "Merge an adapter into its base model."),
            "publish": Entry("checkpoint.change", "Make a checkpoint public."),
            "push-hf": Entry("checkpoint.files", "Push a checkpoint to the Hugging Face Hub."),
            "search": Entry(
                "checkpoint.show", "Find checkpoints by metadata, kind, model or project."
            ),
            "set-ttl": Entry("checkpoint.change", "Set when a checkpoint expires."),
            "unpublish": Entry("checkpoint.change", "Make a public checkpoint private again."),
            "upload": Entry("checkpoint.files", "Upload a LoRA adapter from this machine."),
        },
    ),
    "completion": Entry("installation", "Enable completion in your shell."),
    "conformance": Entry("conformance", "Check a server against the contract."),
    "doctor": Entry("doctor", "Diagnose the installation and the connection."),
    "model": LazyGroup(
        "List the models of the server.", {"list": Entry("model", "List the models.")}
    ),
    "run": LazyGroup(
        "List and show training runs.",
        {
            "compare": Entry("curves", "Compare the curves of training runs."),
            "info": Entry("run", "Show one training run."),
            "list": Entry("run", "List training runs."),
            "usage": Entry("run", "Show the tokens that a training run used, and their cost."),
            "watch": Entry("curves", "Follow the curve of a training run."),
        },
    ),
    "sample": Entry("sample", "Sample from a model or a checkpoint."),
    "serve": Entry("serve", "Serve the API from this machine."),
    "session": LazyGroup(
        "List and show sessions, and export the trace of one.",
        {
            "export-trace": Entry("session", "Save what ran when, to look at in Perfetto."),
            "info": Entry("session", "Show one session."),
            "list": Entry("session", "List sessions."),
        },
    ),
    "train": Entry("train", "Fine-tune a model on a file of examples."),
    "version": Entry("installation", "Print the version of this package."),
}


class Main(LazyGroup):
    """The outermost group, which shows failures."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with explain_wrong_options():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.obj = GlobalOptions(**ctx.params)
        with show_failures(ctx.params), convert_errors(ctx.params), explain_wrong_options():
            return super().invoke(ctx)


main: Main = Main(
    """Train and sample models with the Tinker API, or serve it from this machine.

    These options can also be given after the command.
    """,
    COMMANDS,
    name="main",
    params=options_of(GlobalOptions),
    epilog=list_examples(EXAMPLES),
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(DISTRIBUTION_VERSION, prog_name="tinker")(main)
