"""The steps of a run: supervised steps on examples, or GRPO on prompts with a reward function of the user's.

GRPO samples a group of answers to each prompt, scores them, and learns from the differences.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import runpy
import statistics
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat, TypeAlias, cast

import tinker
from tinker._chat import read_options
from tinker.cli.errors import CommandFailed
from tinker.cli.examples import ExampleRow
from tinker.cli.model_input import Capacity, encode_prompt, note_answers, read_stops
from tinker.cli.reading import RowError, check_prompt, read_rows
from tinker.cli.training.plan import Plan

#: A batch and the future of its outputs.
SentBatch: TypeAlias = "tuple[Sequence[ExampleRow], tinker.APIFuture[tinker.ForwardBackwardOutput]]"


class StepResult(NamedTuple):
    """The result of a step: its metrics by name, with ``loss`` or ``reward``, and its number of tokens."""

    metrics: dict[str, float]
    tokens: int


class SentStep(NamedTuple):
    """A step whose requests are sent: their futures, that of the optimizer last, and how to wait for the result."""

    futures: Sequence[tinker.APIFuture[Any]]
    wait: Callable[[], StepResult]


class Supervised:
    """Supervised steps over a file of examples. They are sent before earlier results arrive, so that the server never idles."""

    metric: str = "loss"
    steps_ahead: int = 2

    def __init__(self, plan: Plan, rows: Sequence[ExampleRow]) -> None:
        self._plan = plan
        self._batches = plan.split(rows)
        self.examples: int = len(rows)
        self.steps: int = len(self._batches)

    def send(self, training: tinker.TrainingClient, step: int) -> SentStep:
        """Send the requests of a step, counted from 0."""
        data = [[row.datum() for row in rows] for rows in self._batches[step]]
        losses = [training.forward_backward(batch, "cross_entropy") for batch in data]
        optimizer = training.optim_step(self._plan.adam_at(step, self.steps))
        return SentStep([*losses, optimizer], partial(_read_step, list(zip(self._batches[step], losses)), optimizer))


def _read_step(batches: Sequence[SentBatch], optimizer: tinker.APIFuture[tinker.OptimStepResponse]) -> StepResult:
    """Wait for a step. The metrics are the loss per token and those of the optimizer."""
    loss = mean_loss(batches)
    tokens = sum(len(row.tokens) - 1 for rows, _ in batches for row in rows)
    return StepResult({"loss": loss, **(optimizer.result().metrics or {})}, tokens)


class HeldOutLoss:
    """The loss on examples that are not trained on."""

    def __init__(self, rows: Sequence[ExampleRow], batch_size: int) -> None:
        self._batches = [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]

    def send(self, training: tinker.TrainingClient) -> Sequence[SentBatch]:
        """Send the requests; they use the weights after all steps sent so far."""
        return [(rows, training.forward([row.datum() for row in rows], "cross_entropy")) for rows in self._batches]


def mean_loss(batches: Sequence[SentBatch]) -> float:
    """Return the loss per token, computed from log-probabilities, as servers do not agree on the names of their metrics."""
    total = 0.0
    for rows, future in batches:
        for row, output in zip(rows, future.result().loss_fn_outputs):
            logprobs = output["logprobs"].tolist()
            total -= sum(weight * value for weight, value in zip(row.weights[1:], logprobs) if weight)
    return total / sum(row.weight for rows, _ in batches for row in rows)


_DEFINE = "Define: def reward(answer: str, example: dict) -> float"
_TRL = "To use a function written for TRL, see 'From TRL' in the documentation: it needs a few lines around it."


class Reward:
    """The user's function ``reward(answer, example)``, loaded from a file. ``example`` is the line with the prompt.

    CommandFailed if the file fails, has no such function, or if the function does not take an answer and an example.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        sys.path.append(str(Path(file).resolve().parent))  # the file may import others of its folder
        try:
            function = runpy.run_path(file).get("reward")
        except Exception as error:
            raise CommandFailed(self._describe(error)) from error
        if not callable(function):
            raise CommandFailed(f"{file} has no function reward", _DEFINE, _TRL)
        self._function: Callable[[str, dict[str, Any]], object] = function
        self._loop = asyncio.Runner()  # of a function that is async
        code = getattr(function, "__code__", None)
        if code is not None and {"completions", "prompts"} & set(code.co_varnames[: code.co_argcount]):
            raise CommandFailed(f"{file}: reward takes lists, as in TRL; here it takes one answer and its line", _TRL)
        self._place = f"{file}:{code.co_firstlineno}" if code is not None and code.co_filename == file else file
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise CommandFailed(f"{self._place}: reward is a generator; it returns one number")
        try:
            inspect.signature(function).bind("answer", {})
        except TypeError:
            problem = f"{self._place}: reward{inspect.signature(function)} cannot be called as reward(answer, example)"
            raise CommandFailed(problem) from None
        except ValueError:  # it is not written in Python, and has no signature
            pass

    def score(self, answer: str, example: dict[str, Any]) -> float:
        """Return the reward of an answer. CommandFailed if the function fails or does not return a finite number."""
        shown = f"The answer was {answer!r:.200}"
        try:
            reward = self._function(answer, example)
            if inspect.iscoroutine(reward):
                reward = self._loop.run(cast("Coroutine[Any, Any, object]", reward))
        except Exception as error:
            raise CommandFailed(self._describe(error), shown) from error
        if reward is None or not isinstance(reward, SupportsFloat):  # numpy numbers and bools are accepted
            got = "None" if reward is None else f"{reward!r:.60} of type {type(reward).__name__}"
            raise CommandFailed(f"{self._place}: reward must return a number, got {got}", shown)
        if not math.isfinite(value := float(reward)):
            raise CommandFailed(f"{self._place}: reward must return a finite number, got {value}", shown)
        return value

    def _describe(self, error: Exception) -> str:
        """Describe an error of the user's code in one line, with the last line of the file in its traceback."""
        if isinstance(error, SyntaxError) and error.filename == self._file:
            return f"{self._file}:{error.lineno}: {type(error).__name__}: {error.msg}"
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self._file]
        line = f":{lines[-1]}" if lines else ""
        return f"{self._file}{line}: {type(error).__name__}: {' '.join(str(error).split())}"


class PromptRow(NamedTuple):
    """The tokens of a prompt, the line of the file, and whether the prompt is a list of messages."""

    tokens: list[int]
    example: dict[str, Any]
    is_chat: bool


def read_prompts(file: Path, tokenizer: Any, plan: Plan, capacity: Capacity) -> list[PromptRow]:
    """Read the prompt of every line. CommandFailed names a line without one, or with one that leaves no room for an answer."""

    options = read_options(plan.chat_template_kwargs)

    def parse(record: dict[str, Any]) -> PromptRow:
        prompt = check_prompt(record)
        tokens = encode_prompt(tokenizer, prompt, record, options)
        if capacity.is_exceeded(len(tokens) + plan.max_tokens):
            if capacity.is_exceeded(len(tokens) + 1):
                raise RowError(f"the prompt has {len(tokens):,} tokens; {capacity}, with the answer", "Shorten it.")
            lengths = f"{len(tokens):,} tokens and an answer of {plan.max_tokens:,}"
            raise RowError(f"{lengths}; {capacity}", "Shorten it, or give a smaller --max-tokens.")
        return PromptRow(tokens, record, isinstance(prompt[0], dict))

    rows = read_rows(file, "prompts", parse)
    note_answers(row.example for row in rows)
    return rows


class GRPO:
    """The steps over a file of prompts. Each step samples from the weights of the step before, so none is sent ahead."""

    metric: str = "reward"
    steps_ahead: int = 0

    def __init__(self, plan: Plan, rows: Sequence[PromptRow], reward: Reward, tokenizer: Any) -> None:
        self._plan, self._reward, self._tokenizer = plan, reward, tokenizer
        self.examples: int = len(rows)
        self._prompts = [[row for batch in batches for row in batch] for batches in plan.split(rows)]
        self.steps: int = len(self._prompts)

    def send(self, training: tinker.TrainingClient, step: int) -> SentStep:
        """Ask for the answers of a step, counted from 0. The step trains on them when they have arrived."""
        sampler, plan = training.save_weights_and_get_sampling_client(), self._plan
        stops = read_stops(plan.stop) or None
        params = tinker.SamplingParams(max_tokens=plan.max_tokens, temperature=plan.temperature, stop=stops)
        futures: list[tinker.APIFuture[tinker.SampleResponse]] = []
        for index, row in enumerate(self._prompts[step]):
            seeded = params.model_copy(update={"seed": (plan.seed + 1_000_003 * step + index) % 2**31})
            futures.append(sampler.sample(tinker.ModelInput.from_ints(row.tokens), plan.group_size, seeded))
        return SentStep(futures, partial(self._learn, training, step, futures))

    def _learn(
        self, training: tinker.TrainingClient, step: int, futures: Sequence[tinker.APIFuture[tinker.SampleResponse]]
    ) -> StepResult:
        """Score the answers and train on them. Nothing is sent if all rewards of every group are equal."""
        data: list[tinker.Datum] = []
        rewards: list[float] = []
        lengths: list[int] = []
        for row, future in zip(self._prompts[step], futures):
            sequences = future.result().sequences
            answers = [str(self._tokenizer.decode(list(one.tokens), skip_special_tokens=True)) for one in sequences]
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
            metrics |= training.optim_step(self._plan.adam_at(step, self.steps)).result().metrics or {}
        return StepResult(metrics, sum(lengths))


def compare_group(
    prompt: list[int], sequences: Sequence[tinker.SampledSequence], rewards: Sequence[float]
) -> list[tinker.Datum]:
    """Return the training data of a group: each answer with its reward, normalized within the group.

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
