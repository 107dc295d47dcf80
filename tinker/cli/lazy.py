"""Groups that import a command when it is used, and suggestions for unknown commands and options."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.types import FloatParamType, IntParamType

from tinker.cli.options import accept_global_options

_SYNONYMS = {  # some are those of TRL's trainers
    **dict.fromkeys(("--lora-r", "--lora-rank"), "--rank"),
    **dict.fromkeys(("--model-name-or-path", "--base-model"), "--model"),
    **dict.fromkeys(("--reward-func", "--reward-funcs"), "--grpo"),
    **dict.fromkeys(("--max-completion-length", "--max-new-tokens"), "--max-tokens"),
    **dict.fromkeys(("--do-eval", "--eval-dataset"), "--eval-file"),
    **dict.fromkeys(("--eval-steps", "--eval-strategy"), "--eval-every"),
    **dict.fromkeys(("--batch", "--per-device-train-batch-size"), "--batch-size"),
    **dict.fromkeys(("complete", "generate"), "sample"),
    **dict.fromkeys(("describe", "get", "show"), "info"),
    **dict.fromkeys(("finetune", "fit", "sft"), "train"),
    **dict.fromkeys(("remove", "rm"), "delete"),
    "--checkpoint": "--from --model",
    "--dry-run": "--estimate",
    "--gradient-accumulation-steps": "--accumulate",
    "--lr-scheduler-type": "--schedule",
    "--max-grad-norm": "--grad-clip-norm",
    "--max-seq-length": "--max-length",
    "--num-generations": "--group-size",
    "--num-train-epochs": "--epochs",
    "--output-dir": "--output",
    "--report-to": "--log",
    "--resume-from-checkpoint": "--resume",
    "--save-steps": "--save-every",
    "--steps": "--max-steps",
    "--temp": "--temperature",
    "--warmup-steps": "--warmup",
    "ls": "list",
}
_EXPLAINED = {  # what neither a command nor an option of another name does
    **dict.fromkeys(("--bf16", "--fp16"), "The server sets the data type: `tinker serve --dtype`."),
    **dict.fromkeys(("--dpo", "dpo"), "DPO is a loop of your own: see 'DPO and preference pairs' in the documentation."),
    **dict.fromkeys(
        ("--dataset", "--dataset-name", "--train-file"), "Name the JSONL file without an option: tinker train DATA."
    ),
    **dict.fromkeys(("--load-in-4bit", "--load-in-8bit", "--quantization", "--quantize"), "Models are not quantized."),
    **dict.fromkeys(
        ("--assistant-only-loss", "--completion-only-loss"),
        'It is not needed: only answers are learned, except of lines with "text" or "tokens".',
    ),
    **dict.fromkeys(
        ("--gpus", "--num-gpus"),
        "Use --replicas for a process on each GPU, or --device-map to spread a model; CUDA_VISIBLE_DEVICES chooses the GPUs.",
    ),
    **dict.fromkeys(
        ("--lora-target-modules", "--target-modules"),
        "All linear layers get an adapter; so does the output layer, unless --no-train-unembed is given.",
    ),
    **dict.fromkeys(
        ("--output", "--output-dir"),
        "Checkpoints are on the server, under the --name; `tinker checkpoint download` copies them.",
    ),
    **dict.fromkeys(("--quiet", "-q"), "Progress goes to the error stream: `2> FILE` keeps it off the screen."),
    **dict.fromkeys(("--top-p", "--top-k"), "GRPO samples from all tokens; --temperature is its only setting."),
    **dict.fromkeys(("eval", "evaluate"), "Use `tinker train --eval-file FILE`, or score what `tinker sample --file` prints."),
    **dict.fromkeys(("download", "export"), "Use `tinker checkpoint download`."),
    **dict.fromkeys(("login", "logout"), "Use `tinker auth login` or `tinker auth logout`."),
    "--api-key": "Run `tinker auth login`, or set TINKER_API_KEY.",
    "--beta": "There is no KL penalty: see 'Stay near a reference model' in the documentation.",
    "--config": "Only `tinker train` reads options from a file.",
    "--gradient-checkpointing": "It is an option of the server: `tinker serve --recompute always`.",
    "--lora-alpha": "It is an argument of create_lora_training_client, and 32 here.",
    "--lora-dropout": "Adapters have no dropout.",
    "--packing": "It is not needed: each example is a sequence of its own, without padding.",
    "--logging-steps": "Every step is shown.",
    "--loss-type": "The loss is always a sum over tokens.",
    "--num-iterations": "The optimizer takes one step on the answers of a step.",
    "--optim": "The optimizer is always Adam; --weight-decay makes it AdamW.",
    "--push-to-hub": "Use `tinker checkpoint push-hf` afterwards.",
    "--save-total-limit": "All checkpoints are kept; `tinker checkpoint delete` deletes some.",
    "--scale-rewards": "GRPO always divides the advantages by the standard deviation of the group.",
    "--use-vllm": "The server samples with vLLM: `tinker serve --sampler vllm`.",
    "--warmup-ratio": "--warmup is a number of steps.",
    "--use-peft": "It is not needed: every run trains a LoRA adapter.",
    "grpo": "Use `tinker train --grpo REWARD.py`.",
    "merge": "Download the adapter with `tinker checkpoint download`, and merge it with PEFT.",
    "upload": "Use `tinker checkpoint upload`.",
}
_SIMILAR = 0.75  # of 1: --epoch is close to --epochs, --base-url is not to --schedule
_REFUSALS = (" is not a valid ", " is not in the range ")  # click's own words after the value
_EXTRA = "unexpected extra argument"  # so are these


class Entry(NamedTuple):
    """A command that is not imported yet: its module in ``tinker.cli.commands``, and its help in short.

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

    def __init__(self, help: str, entries: Mapping[str, Entry | LazyGroup], **settings: Any) -> None:
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

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. UsageError for an unknown name, with similar names."""
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            word = _SYNONYMS.get(args[0], "")
            close = [word] if word in self.entries else difflib.get_close_matches(args[0], self.entries, 2)
            hint = _EXPLAINED.get(args[0]) or _ask(close) or f"There are: {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(f"No such command '{args[0]}'. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(self.entries[name].help)) for name in self.list_commands(ctx)])


def _first_sentence(help: str | None) -> str:
    return f"{(help or '').partition('.')[0]}."


@contextmanager
def explain_wrong_options() -> Generator[None]:
    """Improve the errors of click in this block: suggestions for unknown options, and plain words for number ranges."""
    try:
        yield
    except click.NoSuchOption as error:
        context = error.ctx
        if context is None:
            raise
        raise click.UsageError(_suggest(error.option_name, context), context) from None
    except click.BadParameter as error:
        rule = None if error.param is None else _describe_numbers(error.param.type)
        refusal = next((words for words in _REFUSALS if words in error.message), None)
        if rule is None or refusal is None:
            raise
        problem = f"must be {rule}, got {error.message.rpartition(refusal)[0]}"
        raise click.BadParameter(problem, error.ctx, error.param, error.param_hint) from None
    except click.UsageError as error:
        if _EXTRA not in error.message or error.ctx is None or "--model" not in _list_options(error.ctx):
            raise
        name = error.message.partition("(")[2].rstrip(")")
        raise click.UsageError(f"{error.message}. To name a model: --model {name}", error.ctx) from None


def _suggest(name: str, context: click.Context) -> str:
    known, plain = _list_options(context), name.replace("_", "-")  # TRL spells its options with underscores
    close = [one for one in _SYNONYMS.get(plain, "").split() if one in known]
    hint = _ask(close) or _EXPLAINED.get(plain) or _ask(difflib.get_close_matches(plain, known, 2, _SIMILAR))
    return f"No such option '{name}'. {hint}".rstrip()


def _ask(close: Sequence[str]) -> str:
    return f"Did you mean {' or '.join(close)}?" if close else ""


def _list_options(context: click.Context) -> list[str]:
    options = [one for one in context.command.get_params(context) if isinstance(one, click.Option)]
    return [name for option in options for name in option.opts]


def _describe_numbers(kind: object) -> str | None:
    """Describe the numbers that an option takes, such as ``a number from 0 to 2``; None for other types."""
    if not isinstance(kind, (IntParamType, FloatParamType)):
        return None
    noun = "an integer" if isinstance(kind, IntParamType) else "a number"
    if not isinstance(kind, (click.IntRange, click.FloatRange)):
        return noun
    if kind.max is not None:
        return f"{noun} from {kind.min:g} to {kind.max:g}"
    return f"{noun} {'above' if kind.min_open else 'of at least'} {kind.min:g}"
