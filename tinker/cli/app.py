"""The ``tinker`` command and the tree of its commands. Imports none of them, so that ``tinker --help`` is quick."""

from __future__ import annotations

from typing import Any

import click

from tinker._version import DISTRIBUTION_VERSION
from tinker.cli.errors import convert_errors, show_failures
from tinker.cli.lazy import Entry, LazyGroup, explain_wrong_options, list_examples
from tinker.cli.options import GlobalOptions, options_of

EXAMPLES = ("tinker --base-url local:// train examples.jsonl", 'tinker sample "Once upon a time"', "tinker -f json run list")
COMMANDS: dict[str, Entry | LazyGroup] = {
    "auth": LazyGroup(
        "Log in and out, and show the credential in use.",
        {
            "login": Entry(
                "auth", "Store an API key of the hosted service.", "tinker auth login", "echo $KEY | tinker auth login"
            ),
            "logout": Entry("auth", "Remove the stored key.", "tinker auth logout"),
            "status": Entry(
                "auth", "Show whether a credential is set and accepted.", "tinker auth status", "tinker -f json auth status"
            ),
            "whoami": Entry("auth", "Show the owner of the credential.", "tinker auth whoami"),
        },
    ),
    "billing": LazyGroup(
        "Show usage and cost. This needs permission to see the bills of your organization.",
        {
            "checkpoint-storage": Entry(
                "billing",
                "Show the storage that checkpoints use now.",
                "tinker billing checkpoint-storage",
                "tinker billing checkpoint-storage --csv storage.csv",
            ),
            "usage": Entry(
                "billing", "Show hourly usage.", "tinker billing usage 2026-01-01T00:00Z 2026-01-08T00:00Z --csv usage.csv"
            ),
        },
    ),
    "chat": Entry(
        "chat",
        "Chat with a model or a checkpoint.",
        'tinker chat --model Qwen/Qwen3-8B --system "Answer in one sentence."',
        "tinker chat --model tinker://RUN/sampler_weights/final",
        'echo "What is LoRA?" | tinker chat',
    ),
    "checkpoint": LazyGroup(
        """List, find, change, delete, download and upload checkpoints.

        The path of a checkpoint is tinker://RUN/KIND/NAME, where KIND is weights, sampler_weights or external_weights.
        """,
        {
            "create": Entry(
                "checkpoint.change",
                "Create an adapter and save it.",
                "tinker checkpoint create --model Qwen/Qwen3-8B --name start --sampler",
            ),
            "delete": Entry(
                "checkpoint.delete",
                "Permanently delete checkpoints.",
                "tinker checkpoint delete tinker://RUN/weights/final",
                "tinker checkpoint delete --run-id RUN --before 2026-01-31T08:00Z",
            ),
            "download": Entry(
                "checkpoint.files",
                "Download a checkpoint.",
                "tinker checkpoint download tinker://RUN/sampler_weights/final --output out",
            ),
            "info": Entry("checkpoint.show", "Show a checkpoint.", "tinker checkpoint info tinker://RUN/weights/final"),
            "list": Entry("checkpoint.show", "List the checkpoints of one or all runs.", "tinker checkpoint list --run-id RUN"),
            "publish": Entry(
                "checkpoint.change", "Make a checkpoint public.", "tinker checkpoint publish tinker://RUN/weights/final"
            ),
            "push-hf": Entry(
                "checkpoint.files",
                "Push a checkpoint to the Hugging Face Hub.",
                "tinker checkpoint push-hf tinker://RUN/sampler_weights/final --repo me/model",
            ),
            "search": Entry(
                "checkpoint.show",
                "Find checkpoints by metadata, kind, model or project.",
                "tinker checkpoint search --type training --metadata step=100",
            ),
            "set-ttl": Entry(
                "checkpoint.change",
                "Set when a checkpoint expires.",
                "tinker checkpoint set-ttl tinker://RUN/weights/final --ttl 86400",
            ),
            "unpublish": Entry(
                "checkpoint.change",
                "Make a public checkpoint private again.",
                "tinker checkpoint unpublish tinker://RUN/weights/final",
            ),
            "upload": Entry(
                "checkpoint.files",
                "Upload a LoRA adapter from this machine.",
                "tinker checkpoint upload ./my-adapter --base-model Qwen/Qwen3-8B",
            ),
        },
    ),
    "completion": Entry(
        "installation", "Enable completion in your shell.", "tinker completion --install", "tinker completion zsh >> ~/.zshrc"
    ),
    "conformance": Entry(
        "conformance",
        "Check a server against the contract.",
        "tinker conformance --base-url http://localhost:8000",
        "tinker conformance --base-url http://localhost:8000 --json report.json",
    ),
    "doctor": Entry(
        "doctor",
        "Diagnose the installation and the connection.",
        "tinker doctor",
        "tinker --base-url http://localhost:8000 doctor --operations",
    ),
    "model": LazyGroup("List the models of the server.", {"list": Entry("model", "List the models.", "tinker model list")}),
    "run": LazyGroup(
        "List and show training runs.",
        {
            "compare": Entry(
                "curves",
                "Compare the curves of training runs.",
                "tinker run compare rank8.jsonl rank32.jsonl",
                "tinker run compare *.jsonl --metric reward --plot rewards.svg",
                "tinker --base-url http://localhost:8000 run compare RUN_ID ANOTHER_ID",
            ),
            "info": Entry("run", "Show one training run.", "tinker run info RUN"),
            "list": Entry("run", "List training runs.", "tinker run list --limit 5 --columns id,model,updated"),
            "usage": Entry(
                "run", "Show the tokens that a training run used, and their cost.", "tinker run usage RUN --prices prices.toml"
            ),
            "watch": Entry(
                "curves",
                "Follow the curve of a training run.",
                "tinker run watch log.jsonl",
                "tinker run watch metrics.jsonl --metric env/all/reward/total",
                "tinker --base-url http://localhost:8000 run watch RUN_ID --once",
            ),
        },
    ),
    "sample": Entry(
        "sample",
        "Sample from a model or a checkpoint.",
        'tinker sample "Once upon a time" --num-samples 4 --temperature 0.7',
        'tinker sample --model tinker://RUN/sampler_weights/final "2 + 2 ="',
        "tinker sample --file prompts.jsonl --output answers.jsonl",
    ),
    "serve": Entry(
        "serve",
        "Serve the API from this machine.",
        "tinker serve",
        "tinker serve --model Qwen/Qwen3-0.6B --port 8001",
        "tinker serve --engine toy --port 0",
    ),
    "session": LazyGroup(
        "Inspect sessions.",
        {
            "export-trace": Entry(
                "run",
                "Save what ran when, to look at in Perfetto.",
                "tinker session export-trace SESSION --output trace.pftrace",
            )
        },
    ),
    "train": Entry(
        "train",
        "Fine-tune a model on a file of examples.",
        "tinker train examples.jsonl --epochs 2 --save-every 50",
        "tinker train examples.jsonl --eval-file held_out.jsonl --plot loss.svg",
        "tinker train prompts.jsonl --grpo reward.py --group-size 16",
    ),
    "version": Entry("installation", "Print the version of this package.", "tinker version"),
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
