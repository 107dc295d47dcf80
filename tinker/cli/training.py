"""What ``tinker train`` is given: examples, the plan of a run, and the steps of each recipe."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import math
import os
import random
import runpy
import shlex
import statistics
import sys
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    SupportsFloat,
    TypeAlias,
    TypeVar,
    cast,
)

import click

import tinker
from tinker._chat import (
    LARGEST_WEIGHT,
    Encoded,
    Example,
    encode_completion,
    encode_examples,
    read_options,
    take_one,
    with_end,
)
from tinker.cli import reading
from tinker.cli.clients import Capacity, encode_prompt, note_answers, read_stops
from tinker.cli.options import (
    ChartFile,
    ChatOptions,
    CheckpointName,
    ConfigFile,
    GivenFile,
    Natural,
    NewFile,
    NonNegative,
    Option,
    Positive,
    PricesOption,
    TokenizerOption,
)
from tinker.cli.output import CommandFailed, format_count, say, say_once
from tinker.cli.reading import RowError

_ANSWERS = ("completion", "answer", "response")
_NOT_LEARNED = -100  # the label of a token that is not learned, in transformers
_MASKS = ("completion_mask", "assistant_masks")  # of the tokens that are learned, in TRL


class ExampleRow(NamedTuple):
    """The tokens of an example, and the weight of each in the loss."""

    tokens: list[int]
    weights: list[float]

    def datum(self) -> tinker.Datum:
        """Make the datum in which each token is predicted from those before it; the first one
        cannot be learned.
        """
        return tinker.data.from_tokens(self.tokens, self.weights)

    @property
    def weight(self) -> float:
        """Return the sum of the weights, by which the loss is divided."""
        return sum(self.weights[1:])

    def likelihood(self, logprobs: Sequence[float]) -> float:
        """Return the log-likelihood of what is learned, from that of each token after the first."""
        return sum(weight * value for weight, value in zip(self.weights[1:], logprobs) if weight)


def read_examples(
    file: Path,
    tokenizer: Any,
    max_length: int | None,
    capacity: Capacity | None = None,
    chat_options: Mapping[str, object] | None = None,
    *,
    is_pairs: bool = False,
) -> list[ExampleRow]:
    """Read every line of the file. Examples longer than ``max_length`` tokens are cut at the end.

    Those of which nothing is left to learn are left out, which is said, as is what a chat template
    does not write, and how many lines have more than one example. A pair is two rows: the chosen
    answer, and then the rejected one. CommandFailed names the line that is not an example, has
    nothing to learn, has an unknown token id or is too long.
    """
    count = max(tokenizer.get_vocab().values()) + 1 if hasattr(tokenizer, "get_vocab") else None

    def parse(record: dict[str, Any]) -> list[ExampleRow]:
        examples, unwritten = (_encode_pair if is_pairs else _encode)(
            reading.normalize_line(record), tokenizer, chat_options
        )
        for one in unwritten:
            say_once(f"{file}: {one.message}")
        return [cut(*example) for example in examples]

    def cut(tokens: list[int], weights: list[float]) -> ExampleRow:
        example = ExampleRow(tokens[:max_length], weights[:max_length])
        if example.weight <= 0 and len(example.tokens) == len(tokens):
            raise RowError("nothing to learn: no token after the first one has weight")
        if count is not None and (
            unknown := [token for token in example.tokens if not 0 <= token < count]
        ):
            raise RowError(f"there is no token id {unknown[0]}; ids run from 0 to {count - 1}")
        length = len(example.tokens) - 1  # the last token is predicted, not read
        if capacity is not None and capacity.is_exceeded(length):
            advice = f"Shorten it, or cut longer examples with --max-length {capacity.tokens}."
            raise RowError(f"{length:,} tokens; {capacity}", advice)
        return example

    rows = lines = reading.read_rows(file, "examples", parse)
    if not is_pairs:
        rows = [[example] for line in lines for example in line]
    if len(rows) > len(lines):
        reason = "the chat template changes earlier messages when later ones come"
        say(
            f"{format_count(len(lines), 'line')} of {file} became "
            f"{format_count(len(rows), 'example')}: {reason}"
        )
    kept = [row for row in rows if all(one.weight > 0 for one in row)]
    if not kept:
        raise CommandFailed(f"{file} has nothing to learn within --max-length {max_length}")
    if left_out := len(rows) - len(kept):
        say(
            f"{format_count(left_out, 'example')} of {file} left out: nothing to learn within "
            f"--max-length {max_length}"
        )
    return [one for row in kept for one in row]


def check_lines(file: Path, *, is_pairs: bool = False) -> bool:
    """Check without a tokenizer that every line is an example, and return whether one is a chat.
    CommandFailed as above.
    """
    read_examples(file, stand_in := _NoTokenizer(), None, is_pairs=is_pairs)
    return stand_in.has_read_chat


class _NoTokenizer:
    """A stand-in for checks without a tokenizer: every letter is a token, and a chat is written as
    JSON.
    """

    eos_token_id = -1
    chat_template = "any"
    has_read_chat = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * (len(text) + add_special_tokens)

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: object) -> str:
        self.has_read_chat = True
        return "".join(map(json.dumps, [options.get("tools"), *messages]))


def _encode(
    line: dict[str, Any], tokenizer: Any, chat_options: Mapping[str, object] | None
) -> Encoded:
    answer = next((name for name in _ANSWERS if name in line), None)
    extras = (line.get("tools"), read_options(chat_options, line.get("chat_template_kwargs")))
    if "functions" in line:
        raise ValueError(
            '"functions" reach no chat template; write "tools": '
            '[{"type": "function", "function": ...}]'
        )
    if "messages" in line:
        if "text" in line:
            raise ValueError('a line has "messages" and "text"; keep one of them')
        return encode_examples(tokenizer, line["messages"], *extras)
    if "rejected" in line:
        raise ValueError('"rejected" is for preference pairs: to learn from them, add --dpo')
    if isinstance(line.get("label"), bool):
        raise ValueError(
            '"label" is for preferences without pairs, which `tinker train` does '
            "not learn: see docs/dpo.md"
        )
    if "prompt" in line and answer is not None:
        return encode_completion(tokenizer, line["prompt"], line[answer], *extras, name=answer)
    tokens, weights = _encode_tokens(line, tokenizer)
    return Encoded([Example(tokens, weights)], [])


def _encode_tokens(line: dict[str, Any], tokenizer: Any) -> ExampleRow:
    if "text" in line:
        if not isinstance(text := line["text"], str):
            raise ValueError(f'"text" must be a string, got {type(text).__name__}')
        if not text:
            raise ValueError("the text is empty")
        tokens = with_end(tokenizer, tokenizer.encode(text))
        return ExampleRow(tokens, [1.0] * len(tokens))
    if "input_ids" in line and "tokens" not in line:
        line = {**line, "tokens": line["input_ids"]}
    masks = [line[name] for name in _MASKS if name in line]
    if "tokens" in line and masks and "labels" not in line:
        line = {**line, "labels": _mask_labels(line["tokens"], masks)}
    if "tokens" in line:
        from tinker_records import find_closest

        if line.keys() & {"labels", "attention_mask"} and "weights" not in line:
            tokens = line["tokens"]
            return _read_labels(
                tokens, line.get("labels", tokens), line.get("attention_mask", [1] * len(tokens))
            )
        if "weights" not in line and (wrong := find_closest("weights", line)) is not None:
            raise ValueError(reading.explain_typo(wrong, "weights"))
        return _token_example(line["tokens"], line.get("weights"))
    raise ValueError(_explain_fields(line))


def _explain_fields(line: dict[str, Any]) -> str:
    """Explain why a line is not an example: missing, misspelled or differently named keys."""
    answer = next((name for name in _ANSWERS if name in line), None)
    names: Collection[str] = ["prompt", _ANSWERS[0], "messages", "text", "tokens"]
    lacking = f'an example has "prompt" and "{_ANSWERS[0]}", or "messages", or "text", or "tokens"'
    if "prompt" in line:
        alone = (
            "" if len(line) > 1 else ", or a reward function to score its answers: --grpo REWARD.py"
        )
        lacking, names = f'"prompt" needs "{_ANSWERS[0]}" beside it{alone}', _ANSWERS[:1]
    elif answer is not None:
        lacking, names = f'"{answer}" needs "prompt" beside it', ["prompt"]
    return reading.explain_keys(
        line, lacking, names, ["prompt", *_ANSWERS, "messages", "text", "tokens"]
    )


def _read_labels(tokens: list[Any], labels: list[Any], mask: list[Any]) -> ExampleRow:
    """Make an example of what the models of transformers are given: each label is its token, or
    says that it is not learned.
    """
    reading.check_token_ids(tokens, '"tokens" must be a list of integers from 0')
    if not len(tokens) == len(labels) == len(mask):
        raise ValueError(
            f'"labels" and "attention_mask" must have {len(tokens)} entries, one per token'
        )
    for position, (token, label) in enumerate(zip(tokens, labels, strict=True)):
        if label not in (token, _NOT_LEARNED):
            rule = f"a label is the token itself, not the next one, or {_NOT_LEARNED}"
            raise ValueError(
                f'"labels" has {label} at position {position}, where the token is {token}; {rule}'
            )
    shown = [position for position, is_shown in enumerate(mask) if is_shown]
    return ExampleRow(
        [tokens[at] for at in shown], [float(labels[at] != _NOT_LEARNED) for at in shown]
    )


def _mask_labels(tokens: list[Any], masks: list[list[Any]]) -> list[Any]:
    """Return the labels that masks stand for: a token is learned where all of them are 1."""
    reading.check_token_ids(tokens, '"tokens" must be a list of integers from 0')
    if any(len(mask) != len(tokens) for mask in masks):
        raise ValueError(f"{' and '.join(_MASKS)} must have {len(tokens)} entries, one per token")
    return [
        token if all(learned) else _NOT_LEARNED
        for token, *learned in zip(tokens, *masks, strict=True)
    ]


def _token_example(tokens: list[Any], weights: Sequence[Any] | None) -> ExampleRow:
    reading.check_token_ids(tokens, '"tokens" must be a list of integers from 0')
    weights = [1.0] * len(tokens) if weights is None else weights
    if len(weights) != len(tokens):
        counts = f"{format_count(len(tokens), 'token')} and {format_count(len(weights), 'weight')}"
        raise ValueError(f'"weights" must have one entry per token, got {counts}')
    for position, weight in enumerate(weights):
        if not isinstance(weight, (int, float)) or not abs(weight) <= LARGEST_WEIGHT:
            raise ValueError(
                f'"weights" must be finite numbers; at position {position} it has '
                f"{json.dumps(weight)[:40]}"
            )
    return ExampleRow(tokens, list(map(float, weights)))


def _encode_pair(
    line: dict[str, Any], tokenizer: Any, chat_options: Mapping[str, object] | None
) -> Encoded:
    """Encode the chosen and the rejected answer of a preference pair. What whole chats both begin
    with is their prompt.
    """
    known = ("prompt", "chosen", "rejected", "tools", "chat_template_kwargs")
    fields: list[Any] = [line.get(name) for name in known[:3]]
    prompt, chosen, rejected = fields
    kinds: list[object] = [type(chosen), type(rejected)]
    if kinds not in ([str, str], [list, list]):
        lacking = (
            'with --dpo, "chosen" and "rejected" must both be strings, or both lists of messages'
        )
        raise ValueError(reading.explain_keys(line, lacking, (), known))
    if chosen == rejected:
        raise ValueError('"chosen" and "rejected" are equal, so neither can be preferred')
    is_chat = list in kinds
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected)))
    if prompt is None and (
        not shared or (not is_chat and line.keys() & set(reading.read_hints()["keys"]["prompt"]))
    ):
        lacking = '"chosen" and "rejected" need "prompt" beside them, or a common beginning'
        raise ValueError(reading.explain_keys(line, lacking, ("prompt",), known))
    # the text of a prompt may be beside whole chats
    if shared and is_chat and (prompt is None or isinstance(prompt, str)):
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    # what texts have in common is as likely in both, wherever it ends
    prompt = "" if prompt is None else prompt
    extras = (line.get("tools"), read_options(chat_options, line.get("chat_template_kwargs")))
    answers = [
        encode_completion(tokenizer, prompt, answer, *extras, name=f"{name} answer")
        for name, answer in (("chosen", chosen), ("rejected", rejected))
    ]
    return Encoded(
        list(map(take_one, answers)), [one for answer in answers for one in answer.unwritten]
    )


Row = TypeVar("Row")
_FORM = 1
_HOME = "Set HOME to a folder that can be written."


class Plan(NamedTuple):
    """The options that determine what a run computes. They are stored and used again by
    ``--resume``.
    """

    model: Annotated[
        str | None,
        Option(
            "The base model. Default: the first that can be trained.",
            "-m",
            "--model",
            metavar="NAME",
        ),
    ] = None
    start: Annotated[
        str | None,
        Option(
            "Start from this checkpoint or run, not with a new adapter.",
            "--from",
            metavar="PATH_OR_RUN",
        ),
    ] = None
    rank: Annotated[Positive, Option("Rank of the new LoRA adapter.")] = 32
    learning_rate: Annotated[
        NonNegative, Option("Peak learning rate.", "--learning-rate", "--lr")
    ] = 1e-4
    schedule: Annotated[
        Literal["linear", "cosine", "constant"],
        Option("Learning rate schedule after the warm-up; `constant` does not decay."),
    ] = "linear"
    warmup: Annotated[Natural, Option("Number of warm-up steps.")] = 0
    grad_clip_norm: Annotated[
        NonNegative,
        Option(
            "Largest norm of the gradient, a sum over the learned tokens of a step; "
            "0 does not clip."
        ),
    ] = 0.0
    weight_decay: Annotated[NonNegative, Option("Decoupled weight decay.")] = 0.0
    batch_size: Annotated[Positive, Option("Examples per batch.")] = 16
    accumulate: Annotated[Positive, Option("Batches per optimizer step.")] = 1
    epochs: Annotated[Positive, Option("Number of passes over the file.")] = 1
    max_steps: Annotated[
        Positive | None, Option("Stop after this many steps, or when the epochs end.")
    ] = None
    max_length: Annotated[
        int | None, click.IntRange(min=2), Option("Truncate longer examples to this many tokens.")
    ] = None
    train_unembed: Annotated[
        bool,
        Option("Whether the output layer gets an adapter.", "--train-unembed/--no-train-unembed"),
    ] = True
    tokenizer_id: TokenizerOption = None
    chat_template_kwargs: ChatOptions = None
    seed: Annotated[int, Option("Seed for shuffling and for initializing the adapter.")] = 0
    name: Annotated[
        CheckpointName,
        Option(
            "Name of the run and of its checkpoints. Default: no name, "
            "and checkpoints called `final`.",
            metavar="NAME",
            show_default=False,
        ),
    ] = "final"
    dpo: Annotated[bool, Option("Train with DPO, on pairs of a chosen and a rejected answer.")] = (
        False
    )
    beta: Annotated[
        float,
        click.FloatRange(min=0, min_open=True),
        Option("DPO: strength with which the model is held to its start."),
    ] = 0.1
    grpo: Annotated[
        str | None,
        click.Path(exists=True, dir_okay=False),
        Option("Train with GRPO, using the function `reward` in this file.", metavar="REWARD.py"),
    ] = None
    group_size: Annotated[int, click.IntRange(min=2), Option("GRPO: answers per prompt.")] = 8
    max_tokens: Annotated[Positive, Option("GRPO: maximum number of tokens in an answer.")] = 128
    temperature: Annotated[
        NonNegative, Option("GRPO: sampling temperature; the model at 1 is what is trained.")
    ] = 1.0
    stop: Annotated[
        tuple[str, ...],
        Option(
            "GRPO: end an answer before this text, instead of at the end-of-text "
            "token; may be repeated.",
            metavar="TEXT",
        ),
    ] = ()

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, in a run of ``steps`` steps.

        >>> plan = Plan(learning_rate=1.0, warmup=2)
        >>> [plan.learning_rate_at(step, 6) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
        """
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * (1 - done if self.schedule == "linear" else 1.0)

    def adam_at(self, step: int, steps: int) -> tinker.AdamParams:
        """Return the parameters of the optimizer for a step."""
        rate = self.learning_rate_at(step, steps)
        return tinker.AdamParams(
            learning_rate=rate, grad_clip_norm=self.grad_clip_norm, weight_decay=self.weight_decay
        )

    def split(self, rows: Sequence[Row]) -> list[Sequence[Sequence[Row]]]:
        """Return the batches of every step. Each epoch has its own order, and its last step may be
        smaller.
        """
        shuffle = random.Random(self.seed)  # noqa: S311  (an order, not a secret)
        steps: list[Sequence[Sequence[Row]]] = []
        for _ in range(self.epochs):
            steps += cut_rows(
                cut_rows(shuffle.sample(rows, len(rows)), self.batch_size), self.accumulate
            )
        return steps[: self.max_steps]


def cut_rows(rows: Sequence[Row], size: int) -> list[Sequence[Row]]:
    """Return the rows in parts of this size; the last one may be smaller."""
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def option_of(name: str) -> str:
    """Return the option that sets a field of the plan.

    >>> option_of("learning_rate"), option_of("start")
    ('--learning-rate', '--from')
    """
    special = {"start": "--from", "tokenizer_id": "--tokenizer"}
    return special.get(name, f"--{name.replace('_', '-')}")


class RunOptions(NamedTuple):
    """The other options of a run: saving, evaluation and output."""

    save_every: Annotated[
        Positive | None, Option("Save a resumable checkpoint every STEPS steps.", metavar="STEPS")
    ] = None
    keep_last: Annotated[
        Positive | None,
        Option("Keep only the last N of these; a feature of the local server.", metavar="N"),
    ] = None
    resume: Annotated[bool, Option("Continue this run from its last checkpoint.")] = False
    eval_file: Annotated[GivenFile | None, Option("Held-out examples; their loss is reported.")] = (
        None
    )
    eval_every: Annotated[
        Positive | None,
        Option(
            "Evaluate every STEPS steps. Default: before the first step and at the end.",
            metavar="STEPS",
        ),
    ] = None
    log_path: Annotated[
        NewFile | None,
        Option("Append one line per step to this file.", "--log", metavar="FILE.jsonl"),
    ] = None
    plot: ChartFile = None
    estimate: Annotated[bool, Option("Estimate tokens and cost without training.")] = False
    prices_path: PricesOption = None
    config: ConfigFile = None


class Position(NamedTuple):
    """The checkpoint of a run after ``step`` of ``steps`` steps, and the one that it started from,
    None for a new adapter.

    A run that begins has no checkpoint of its own.
    """

    step: int = 0
    checkpoint: str = ""
    steps: int | None = None
    origin: str | None = None

    def __str__(self) -> str:
        total = "" if self.steps is None else f" of {self.steps}"
        return f"step {self.step}{total}, {self.checkpoint}"


class Bookmark:
    """The resume file of one run. ``server`` is the base URL without a password, plus the folder of
    a local server.

    The position of an earlier run is kept until this run writes its own.
    """

    def __init__(self, folder: Path, server: str, data: Path, name: str) -> None:
        key = hashlib.sha256(
            os.fsencode("\n".join((server, str(data.resolve()), name)))
        ).hexdigest()[:16]
        self.path: Path = folder / f"{key}.json"
        self._server, self._data = server, data
        self._is_own = False
        self.can_resume: bool = True

    def find(self) -> Position | None:
        """Return the position of an unfinished run; None if there is none."""
        try:
            return self._load()[1]
        except (CommandFailed, OSError):
            return None

    def read(self, plan: Plan, given: Collection[str]) -> tuple[Plan, Position]:
        """Return the plan that the run started with, and its position.

        CommandFailed if there is no such file, the data has changed, or an option in ``given`` has
        another value.
        """
        began, position, data_digest = self._load()
        for name in sorted(given):
            if (was := getattr(began, name)) != (now := getattr(plan, name)):
                raise CommandFailed(
                    f"{option_of(name)} was {_show(was)} when the run began, "
                    f"and is {_show(now)} now",
                    f"Leave {option_of(name)} out to resume, or leave --resume out to start again.",
                )
        if data_digest != digest(self._data):
            raise CommandFailed(
                f"{self._data} has changed since the run began", "Leave out --resume to start over."
            )
        self._is_own = True
        return began, position

    def _load(self) -> tuple[Plan, Position, str]:
        try:
            value: Any = json.loads(self.path.read_text())
        except FileNotFoundError:
            raise CommandFailed(
                "There is nothing to resume: this machine has no unfinished run with this data "
                "file, --name and server",
                *self._find_others(),
                "Leave --resume out to begin. To continue from any checkpoint with new data or "
                "options, use --from PATH.",
            ) from None
        except ValueError:
            value = None
        if (
            not isinstance(value, dict)
            or (kept := cast("dict[str, Any]", value)).get("form") != _FORM
        ):
            raise CommandFailed(f"{self.path} cannot be read", "Leave out --resume to start over.")
        plan = Plan(**{name: kept["plan"][name] for name in Plan._fields if name in kept["plan"]})
        position = Position(kept["step"], kept["checkpoint"], kept.get("steps"), kept.get("origin"))
        return plan._replace(stop=tuple(plan.stop)), position, kept["data"]

    def _find_others(self) -> list[str]:
        """Return how to resume the runs with the same data and server that have other names."""
        names: list[str] = []
        for path in self.path.parent.glob("*.json"):
            with suppress(ValueError, KeyError, TypeError):
                name = str(json.loads(path.read_text())["plan"]["name"])
                names += (
                    [name]
                    if path == Bookmark(self.path.parent, self._server, self._data, name).path
                    else []
                )
        return [
            f"To resume the run {name!r}, which is unfinished: --resume --name {shlex.quote(name)}"
            for name in names
        ]

    def check(self, *, is_needed: bool) -> None:
        """Try whether a position can be written. If not: CommandFailed where it is needed, else a
        warning.
        """
        try:
            self._write_partial("").unlink()
        except OSError as error:
            self._give_up(error, is_needed)

    def write(self, plan: Plan, position: Position) -> None:
        """Write a position; it replaces an earlier one. A warning is printed where that is
        impossible.
        """
        value = {
            "form": _FORM,
            "plan": plan._asdict(),
            "data": digest(self._data),
            **position._asdict(),
        }
        try:
            self._write_partial(json.dumps(value, indent=2) + "\n").replace(self.path)
            self._is_own = self.can_resume = True
        except OSError as error:
            self._give_up(error, is_needed=False)

    def _write_partial(self, text: str) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}")
        partial.write_text(text)
        return partial

    def _give_up(self, error: OSError, is_needed: bool) -> None:
        problem = (
            f"{self.path.parent} cannot be written ({error.strerror}): --resume "
            "could not continue this run."
        )
        if is_needed:
            raise CommandFailed(problem, _HOME) from error
        if self.can_resume:
            say(problem, _HOME)
        self.can_resume = False

    def remove(self) -> None:
        """Remove the file at the end of the run. An earlier run that was not replaced can still be
        resumed.
        """
        if self._is_own:
            self.path.unlink(missing_ok=True)


def _show(value: object) -> str:
    """Format the value of an option, as in ``--stop was . when the run began``."""
    if value is None or value == ():
        return "not given"
    return (
        " and ".join(map(repr, cast("tuple[str, ...]", value)))
        if isinstance(value, tuple)
        else str(value)
    )


def digest(file: Path) -> str:
    """Return the digest of a file."""
    with reading.open_data(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


#: The future of a pass over a batch.
PassFuture: TypeAlias = "tinker.APIFuture[tinker.ForwardBackwardOutput]"
Result = TypeVar("Result")


class StepResult(NamedTuple):
    """The result of a step: its metrics by name, with ``loss`` or ``reward``, and its number of
    tokens.
    """

    metrics: dict[str, float]
    tokens: int


class Sent(NamedTuple, Generic[Result]):
    """What is sent: the futures of its requests, of a step that of the optimizer last, and how to
    wait for the result.
    """

    futures: Sequence[tinker.APIFuture[Any]]
    wait: Callable[[], Result]


class Supervised:
    """Supervised steps over a file of examples. They are sent before earlier results arrive, so
    that the server never idles.
    """

    metric: str = "loss"
    steps_ahead: int = 2
    _width = 1  # the rows of an example

    def __init__(
        self, plan: Plan, rows: Sequence[ExampleRow], held_out: Sequence[ExampleRow]
    ) -> None:
        self._plan, self._held_out = plan, held_out
        steps = plan.split(cut_rows(rows, self._width))
        self._batches = [
            [[row for example in batch for row in example] for batch in batches]
            for batches in steps
        ]
        self.examples: int = len(rows) // self._width
        self.steps: int = len(self._batches)

    def rows(self) -> list[ExampleRow]:
        """Return the rows that are sent, of each step and in further passes over them."""
        return [row for batches in self._batches for batch in batches for row in batch]

    def send(self, training: tinker.TrainingClient, step: int) -> Sent[StepResult]:
        """Send the requests of a step, counted from 0."""
        batches = self._batches[step]
        passes = [self._learn(training, batch) for batch in batches]
        optimizer = training.optim_step(self._plan.adam_at(step, self.steps))
        rows = [row for batch in batches for row in batch]
        return Sent([*passes, optimizer], partial(self._read_step, rows, passes, optimizer))

    def _learn(self, training: tinker.TrainingClient, rows: Sequence[ExampleRow]) -> PassFuture:
        return training.forward_backward([row.datum() for row in rows], "cross_entropy")

    def _read_step(
        self,
        rows: Sequence[ExampleRow],
        passes: Sequence[PassFuture],
        optimizer: tinker.APIFuture[tinker.OptimStepResponse],
    ) -> StepResult:
        """Wait for a step. The metrics are those of the examples and of the optimizer."""
        metrics = self._measure(rows, passes)
        return StepResult(
            {**metrics, **(optimizer.result().metrics or {})},
            sum(len(row.tokens) - 1 for row in rows),
        )

    def evaluate(self, training: tinker.TrainingClient) -> Sent[dict[str, float]] | None:
        """Send the held-out examples, if there are any; they use the weights after all steps sent
        so far.
        """
        passes = self._forward(training, self._held_out)
        return Sent(passes, partial(self._measure, self._held_out, passes)) if passes else None

    def _forward(
        self, training: tinker.TrainingClient, rows: Sequence[ExampleRow]
    ) -> list[PassFuture]:
        batches = cut_rows(rows, self._plan.batch_size * self._width)
        return [
            training.forward([row.datum() for row in batch], "cross_entropy") for batch in batches
        ]

    def _measure(
        self, rows: Sequence[ExampleRow], passes: Sequence[PassFuture]
    ) -> dict[str, float]:
        """Wait for passes over rows, and return the loss per token."""
        return {"loss": -sum(_likelihoods(rows, passes)) / sum(row.weight for row in rows)}


def _likelihoods(rows: Sequence[ExampleRow], passes: Iterable[PassFuture]) -> list[float]:
    """Return the log-likelihood of each row, computed from its outputs, as servers do not agree on
    the names of metrics.
    """
    outputs = [
        output["logprobs"].tolist()
        for future in passes
        for output in future.result().loss_fn_outputs
    ]
    return [row.likelihood(logprobs) for row, logprobs in zip(rows, outputs)]


class Preferences(Supervised):
    """DPO on pairs. The rows of an example are the chosen answer and the rejected one."""

    _width = 2

    def rows(self) -> list[ExampleRow]:
        """Return the rows of all passes: one for the reference, and two in each step."""
        rows = super().rows()
        return [*_distinct(rows), *rows, *rows]

    def compute_references(self, training: tinker.TrainingClient) -> None:
        """Compute the log-likelihood of every answer with the weights where the run starts."""
        rows = _distinct([*super().rows(), *self._held_out])
        self._references = dict(
            zip(map(id, rows), _likelihoods(rows, self._forward(training, rows)))
        )

    def _learn(self, training: tinker.TrainingClient, rows: Sequence[ExampleRow]) -> PassFuture:
        def compute(_: object, logprobs: Sequence[Any]) -> tuple[float, list[list[float]]]:
            margins = self._compare(
                rows, [row.likelihood(one.tolist()) for row, one in zip(rows, logprobs)]
            )
            chosen = [-self._plan.beta * math.exp(-_loss_of_pair(-margin)) for margin in margins]
            slopes = [slope for one in chosen for slope in (one, -one)]
            gradients = [
                [slope * weight for weight in row.weights[1:]] for row, slope in zip(rows, slopes)
            ]
            return sum(map(_loss_of_pair, margins)), gradients

        return training.forward_backward_custom(
            [row.datum() for row in rows], tinker.with_gradients(compute)
        )

    def _compare(self, rows: Sequence[ExampleRow], likelihoods: Sequence[float]) -> list[float]:
        """Return the margin of each pair: how much more the chosen answer has gained over its
        reference, times beta.
        """
        gains = [
            likelihood - self._references[id(row)] for row, likelihood in zip(rows, likelihoods)
        ]
        return [
            self._plan.beta * (chosen - rejected)
            for chosen, rejected in zip(gains[::2], gains[1::2])
        ]

    def _measure(
        self, rows: Sequence[ExampleRow], passes: Sequence[PassFuture]
    ) -> dict[str, float]:
        """Wait for passes over pairs, and return the mean loss and margin, and the share of
        positive margins.
        """
        margins = self._compare(rows, _likelihoods(rows, passes))
        means = [
            statistics.fmean(values)
            for values in (map(_loss_of_pair, margins), margins, (one > 0 for one in margins))
        ]
        return dict(zip(("loss", "margin", "accuracy"), means))


def _distinct(rows: Sequence[ExampleRow]) -> list[ExampleRow]:
    return list({id(row): row for row in rows}.values())


def _loss_of_pair(margin: float) -> float:
    """Return -log(sigmoid(margin)), for every size of the margin."""
    return max(0.0, -margin) + math.log1p(math.exp(-abs(margin)))


_DEFINE = "Define: def reward(answer: str, example: dict) -> float"
_TRL = (
    "To use a function written for TRL, see 'From TRL' in the documentation: it needs "
    "a few lines around it."
)


class Reward:
    """The user's function ``reward(answer, example)``, loaded from a file. ``example`` is the line
    with the prompt.

    CommandFailed if the file fails, has no such function, or if the function does not take an
    answer and an example.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        # the file may import others of its folder
        sys.path.append(str(Path(file).resolve().parent))
        try:
            function = runpy.run_path(file).get("reward")
        except Exception as error:
            raise CommandFailed(self._describe(error)) from error
        if not callable(function):
            raise CommandFailed(f"{file} has no function reward", _DEFINE, _TRL)
        self._function: Callable[[str, dict[str, Any]], object] = function
        self._loop = asyncio.Runner()  # of a function that is async
        code = getattr(function, "__code__", None)
        if code is not None and {"completions", "prompts"} & set(
            code.co_varnames[: code.co_argcount]
        ):
            raise CommandFailed(
                f"{file}: reward takes lists, as in TRL; here it takes one answer and its line",
                _TRL,
            )
        self._place = (
            f"{file}:{code.co_firstlineno}"
            if code is not None and code.co_filename == file
            else file
        )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise CommandFailed(f"{self._place}: reward is a generator; it returns one number")
        try:
            inspect.signature(function).bind("answer", {})
        except TypeError:
            problem = (
                f"{self._place}: reward{inspect.signature(function)} cannot be called as "
                "reward(answer, example)"
            )
            raise CommandFailed(problem) from None
        except ValueError:  # it is not written in Python, and has no signature
            pass

    def score(self, answer: str, example: dict[str, Any]) -> float:
        """Return the reward of an answer. CommandFailed if the function fails or does not return a
        finite number.
        """
        shown = f"The answer was {answer!r:.200}"
        try:
            reward = self._function(answer, example)
            if inspect.iscoroutine(reward):
                reward = self._loop.run(cast("Coroutine[Any, Any, object]", reward))
        except Exception as error:
            raise CommandFailed(self._describe(error), shown) from error
        # numpy numbers and bools are accepted
        if reward is None or not isinstance(reward, SupportsFloat):
            got = "None" if reward is None else f"{reward!r:.60} of type {type(reward).__name__}"
            raise CommandFailed(f"{self._place}: reward must return a number, got {got}", shown)
        if not math.isfinite(value := float(reward)):
            raise CommandFailed(
                f"{self._place}: reward must return a finite number, got {value}", shown
            )
        return value

    def _describe(self, error: Exception) -> str:
        """Describe an error of the user's code in one line, with the last line of the file in its
        traceback.
        """
        if isinstance(error, SyntaxError) and error.filename == self._file:
            return f"{self._file}:{error.lineno}: {type(error).__name__}: {error.msg}"
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == self._file
        ]
        line = f":{lines[-1]}" if lines else ""
        return f"{self._file}{line}: {type(error).__name__}: {' '.join(str(error).split())}"


class PromptRow(NamedTuple):
    """The tokens of a prompt, the line of the file, and whether the prompt is a
    list of messages.
    """

    tokens: list[int]
    example: dict[str, Any]
    is_chat: bool


def read_prompts(file: Path, tokenizer: Any, plan: Plan, capacity: Capacity) -> list[PromptRow]:
    """Read the prompt of every line. CommandFailed names a line without one, or with one that
    leaves no room for an answer.
    """

    options = read_options(plan.chat_template_kwargs)

    def parse(record: dict[str, Any]) -> PromptRow:
        prompt = reading.check_prompt(record)
        tokens = encode_prompt(tokenizer, prompt, record, options)
        if capacity.is_exceeded(len(tokens) + plan.max_tokens):
            if capacity.is_exceeded(len(tokens) + 1):
                raise RowError(
                    f"the prompt has {len(tokens):,} tokens; {capacity}, with the answer",
                    "Shorten it.",
                )
            lengths = f"{len(tokens):,} tokens and an answer of {plan.max_tokens:,}"
            raise RowError(f"{lengths}; {capacity}", "Shorten it, or give a smaller --max-tokens.")
        return PromptRow(tokens, record, isinstance(prompt[0], dict))

    rows = reading.read_rows(file, "prompts", parse)
    note_answers(row.example for row in rows)
    return rows


class GRPO:
    """The steps over a file of prompts. Each step samples from the weights of the step before, so
    none is sent ahead.
    """

    metric: str = "reward"
    steps_ahead: int = 0

    def __init__(
        self, plan: Plan, rows: Sequence[PromptRow], reward: Reward, tokenizer: Any
    ) -> None:
        self._plan, self._reward, self._tokenizer = plan, reward, tokenizer
        self.examples: int = len(rows)
        self._prompts = [
            [row for batch in batches for row in batch] for batches in plan.split(rows)
        ]
        self.steps: int = len(self._prompts)

    def evaluate(self, training: tinker.TrainingClient) -> None:
        """Do nothing: there are no held-out prompts."""

    def send(self, training: tinker.TrainingClient, step: int) -> Sent[StepResult]:
        """Ask for the answers of a step, counted from 0. The step trains on them when they have
        arrived.
        """
        sampler, plan = training.save_weights_and_get_sampling_client(), self._plan
        stops = read_stops(plan.stop) or None
        params = tinker.SamplingParams(
            max_tokens=plan.max_tokens, temperature=plan.temperature, stop=stops
        )
        futures: list[tinker.APIFuture[tinker.SampleResponse]] = []
        for index, row in enumerate(self._prompts[step]):
            seeded = params.model_copy(
                update={"seed": (plan.seed + 1_000_003 * step + index) % 2**31}
            )
            futures.append(
                sampler.sample(tinker.ModelInput.from_ints(row.tokens), plan.group_size, seeded)
            )
        return Sent(futures, partial(self._learn, training, step, futures))

    def _learn(
        self,
        training: tinker.TrainingClient,
        step: int,
        futures: Sequence[tinker.APIFuture[tinker.SampleResponse]],
    ) -> StepResult:
        """Score the answers and train on them. Nothing is sent if all rewards of every group are
        equal.
        """
        data: list[tinker.Datum] = []
        rewards: list[float] = []
        lengths: list[int] = []
        for row, future in zip(self._prompts[step], futures):
            sequences = future.result().sequences
            answers = [
                str(self._tokenizer.decode(list(one.tokens), skip_special_tokens=True))
                for one in sequences
            ]
            group = [self._reward.score(answer, row.example) for answer in answers]
            data += compare_group(row.tokens, sequences, group)
            rewards += group
            lengths += [len(one.tokens) for one in sequences]
        metrics = {
            "reward": statistics.fmean(rewards),
            "reward_std": statistics.pstdev(rewards),
            "answer_tokens": statistics.fmean(lengths),
            "learned": float(len(data)),
        }
        if data:
            training.forward_backward(data, "importance_sampling")
            metrics |= (
                training.optim_step(self._plan.adam_at(step, self.steps)).result().metrics or {}
            )
        return StepResult(metrics, sum(lengths))


def compare_group(
    prompt: list[int], sequences: Sequence[tinker.SampledSequence], rewards: Sequence[float]
) -> list[tinker.Datum]:
    """Return the training data of a group: each answer with its reward, normalized within the
    group.

    Only the tokens of the answer have an advantage. A group with equal rewards has no data.
    """
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    return [
        tinker.data.from_sample(prompt, sequence, (reward - mean) / spread)
        for sequence, reward in zip(sequences, rewards)
        if spread and sequence.tokens
    ]


#: The steps of a run: their number, and how to send one.
Recipe: TypeAlias = Supervised | GRPO
