"""The ``tinker`` command and the tree of its commands, each imported when it is used."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.types import FloatParamType, IntParamType

from tinker._version import DISTRIBUTION_VERSION
from tinker.cli.options import GlobalOptions, accept_global_options, list_examples, options_of
from tinker.cli.output import convert_errors, show_failures
from tinker.cli.reading import read_hints, suggest

_REFUSALS = (" is not a valid ", " is not in the range ")  # click's own words after the value
_EXTRA = "unexpected extra argument"  # so are these


class Entry(NamedTuple):
    """A command that is not imported yet: its module in ``tinker.cli.commands``, and its help in
    short.

    Its function has its name, or that with ``_command`` behind it, which click leaves out of names.
    """

    module: str
    help: str

    def load(self, name: str) -> click.Command:
        """Import the command."""
        module = import_module(f"tinker.cli.commands.{self.module}")
        function = name.replace("-", "_")
        command = getattr(module, f"{function}_command", None) or getattr(module, function)
        assert isinstance(command, click.Command)
        return command


class LazyGroup(click.Group):
    """A group of lazy commands and of other groups."""

    def __init__(
        self, help: str, entries: Mapping[str, Entry | LazyGroup], **settings: Any
    ) -> None:
        super().__init__(help=inspect.cleandoc(help), **settings)
        self.entries = entries

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        command = entry.load(cmd_name) if isinstance(entry, Entry) else entry
        accept_global_options(command, ctx.find_root().command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. UsageError for an unknown name, with similar names."""
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            hint = (
                suggest(args[0], self.entries)
                or f"There are: {', '.join(self.list_commands(ctx))}."
            )
            raise click.UsageError(f"No such command '{args[0]}'. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, f"{(self.entries[name].help or '').partition('.')[0]}.")
                    for name in self.list_commands(ctx)
                ]
            )


@contextmanager
def explain_wrong_options() -> Generator[None]:
    """Improve the errors of click in this block: suggestions for unknown options, and plain words
    for number ranges.
    """
    try:
        yield
    except click.NoSuchOption as error:
        context = error.ctx
        if context is None:
            raise
        hint = suggest(error.option_name, _list_options(context))
        raise click.UsageError(
            f"No such option '{error.option_name}'. {hint}".rstrip(), context
        ) from None
    except click.BadParameter as error:
        rule = None if error.param is None else _describe_numbers(error.param.type)
        refusal = next((words for words in _REFUSALS if words in error.message), None)
        if error.message.startswith("'vllm' is not one of"):  # of --engine
            raise click.BadParameter(
                f"{error.message} {suggest('--use-vllm', ())}", error.ctx, error.param
            ) from None
        if rule is None or refusal is None:
            raise
        problem = f"must be {rule}, got {error.message.rpartition(refusal)[0]}"
        raise click.BadParameter(problem, error.ctx, error.param, error.param_hint) from None
    except click.UsageError as error:
        known = [] if error.ctx is None or _EXTRA not in error.message else _list_options(error.ctx)
        if (
            extra := next(
                (text for option, text in read_hints()["extra"].items() if option in known), None
            )
        ) is None:
            raise
        raise click.UsageError(
            f"{error.message}. {extra.format(error.message.partition('(')[2][:-1])}", error.ctx
        ) from None


def _list_options(context: click.Context) -> list[str]:
    options = [one for one in context.command.get_params(context) if isinstance(one, click.Option)]
    return [name for option in options for name in option.opts]


def _describe_numbers(kind: object) -> str | None:
    """Describe the numbers that an option takes, such as ``a number from 0 to 2``; None for other
    types.
    """
    if not isinstance(kind, (IntParamType, FloatParamType)):
        return None
    noun = "an integer" if isinstance(kind, IntParamType) else "a number"
    if not isinstance(kind, (click.IntRange, click.FloatRange)):
        return noun
    if kind.max is not None:
        return f"{noun} from {kind.min:g} to {kind.max:g}"
    return f"{noun} {'above' if kind.min_open else 'of at least'} {kind.min:g}"


EXAMPLES = (
    "tinker --base-url local:// train examples.jsonl",
    'tinker sample "Once upon a time"',
    "tinker -f json run list",
)
COMMANDS: dict[str, Entry | LazyGroup] = {
    "auth": LazyGroup(
        "Log in and out, and show the credential in use.",
        {
            "login": Entry("account", "Store an API key of the hosted service."),
            "logout": Entry("account", "Remove the stored key."),
            "status": Entry("account", "Show whether a credential is set and accepted."),
            "whoami": Entry("account", "Show the owner of the credential."),
        },
    ),
    "billing": LazyGroup(
        "Show usage and cost. This needs permission to see the bills of your organization.",
        {
            "checkpoint-storage": Entry("account", "Show the storage that checkpoints use now."),
            "usage": Entry("account", "Show hourly usage."),
        },
    ),
    "chat": Entry("sample", "Chat with a model or a checkpoint."),
    "checkpoint": LazyGroup(
        """List, find, change, delete, download, merge and upload checkpoints.

        The path of a checkpoint is tinker://RUN/KIND/NAME, where KIND is weights,
        sampler_weights or external_weights.
        """,
        {
            "create": Entry("checkpoint", "Create an adapter and save it."),
            "delete": Entry("checkpoint", "Permanently delete checkpoints."),
            "download": Entry("checkpoint", "Download a checkpoint."),
            "info": Entry("checkpoint", "Show a checkpoint."),
            "list": Entry("checkpoint", "List the checkpoints of one or all runs."),
            "merge": Entry("checkpoint", "Merge an adapter into its base model."),
            "publish": Entry("checkpoint", "Make a checkpoint public."),
            "push-hf": Entry("checkpoint", "Push a checkpoint to the Hugging Face Hub."),
            "search": Entry("checkpoint", "Find checkpoints by metadata, kind, model or project."),
            "set-ttl": Entry("checkpoint", "Set when a checkpoint expires."),
            "unpublish": Entry("checkpoint", "Make a public checkpoint private again."),
            "upload": Entry("checkpoint", "Upload a LoRA adapter from this machine."),
        },
    ),
    "completion": Entry("installation", "Enable completion in your shell."),
    "conformance": Entry("doctor", "Check a server against the contract."),
    "doctor": Entry("doctor", "Diagnose the installation and the connection."),
    "model": LazyGroup(
        "List the models of the server.", {"list": Entry("sample", "List the models.")}
    ),
    "run": LazyGroup(
        "List and show training runs.",
        {
            "compare": Entry("run", "Compare the curves of training runs."),
            "info": Entry("run", "Show one training run."),
            "list": Entry("run", "List training runs."),
            "usage": Entry("run", "Show the tokens that a training run used, and their cost."),
            "watch": Entry("run", "Follow the curve of a training run."),
        },
    ),
    "sample": Entry("sample", "Sample from a model or a checkpoint."),
    "serve": Entry("serve", "Serve the API from this machine."),
    "session": LazyGroup(
        "List and show sessions, and export the trace of one.",
        {
            "export-trace": Entry("account", "Save what ran when, to look at in Perfetto."),
            "info": Entry("account", "Show one session."),
            "list": Entry("account", "List sessions."),
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
