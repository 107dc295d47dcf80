"""The options of a run, its batches and learning rates, and the file from which it can be resumed.

Each run has a small file, which is written at each save and removed at the end. Its name is a
digest of the server, the data and the name of the run, so that the same command with ``--resume``
finds it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

import click

import tinker
from tinker.cli.errors import CommandFailed
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
from tinker.cli.output import say
from tinker.cli.reading import open_data

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
            steps += cut(cut(shuffle.sample(rows, len(rows)), self.batch_size), self.accumulate)
        return steps[: self.max_steps]


def cut(rows: Sequence[Row], size: int) -> list[Sequence[Row]]:
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
    with open_data(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
