"""GRPO: sample a group of answers to each prompt, score them with the user's function, and learn from the differences."""

from __future__ import annotations

import inspect
import math
import runpy
import statistics
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import tinker
from tinker.cli.errors import CommandFailed
from tinker.cli.model_input import Capacity, encode_prompt, read_stops
from tinker.cli.reading import RowError, check_prompt, read_rows
from tinker.cli.training.plan import Plan
from tinker.cli.training.supervised import StepResult


class Reward:
    """The user's function ``reward(answer, example)``, loaded from a file. ``example`` is the line with the prompt.

    CommandFailed if the file fails, has no such function, or if the function does not take an answer and an example.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        try:
            self._function: Callable[[str, dict[str, Any]], object] | None = runpy.run_path(file).get("reward")
        except Exception as error:
            raise CommandFailed(self._describe(error)) from error
        if not callable(self._function):
            raise CommandFailed(f"{file} has no function reward", "Define: def reward(answer: str, example: dict) -> float")
        code = getattr(self._function, "__code__", None)
        self._place = f"{file}:{code.co_firstlineno}" if code is not None and code.co_filename == file else file
        try:
            signature = inspect.signature(self._function)
        except ValueError:  # of a function that is not written in Python
            return
        try:
            signature.bind("answer", {})
        except TypeError:
            problem = f"{self._place}: reward{signature} cannot be called as reward(answer, example)"
            raise CommandFailed(problem) from None

    def score(self, answer: str, example: dict[str, Any]) -> float:
        """Return the reward of an answer. CommandFailed if the function fails or does not return a finite number."""
        shown = f"The answer was {answer!r:.200}"
        assert self._function is not None
        try:
            reward = self._function(answer, example)
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
    """The tokens of a prompt, and the line of the file."""

    tokens: list[int]
    example: dict[str, Any]


def read_prompts(file: Path, tokenizer: Any, plan: Plan, capacity: Capacity) -> list[PromptRow]:
    """Read the prompt of every line. CommandFailed names a line without one, or with one that leaves no room for an answer."""

    def parse(record: dict[str, Any]) -> PromptRow:
        tokens = encode_prompt(tokenizer, check_prompt(record))
        if capacity.is_exceeded(len(tokens) + plan.max_tokens):
            lengths = f"{len(tokens):,} tokens and an answer of {plan.max_tokens:,}"
            raise RowError(f"{lengths}; {capacity}", "Shorten it, or give a smaller --max-tokens.")
        return PromptRow(tokens, record)

    return read_rows(file, "prompts", parse)


class GRPO:
    """The steps over a file of prompts. Each step samples from the weights of the step before, so none is sent ahead."""

    metric: str = "reward"
    steps_ahead: int = 0

    def __init__(self, plan: Plan, rows: Sequence[PromptRow], reward: Reward, tokenizer: Any) -> None:
        self.plan = plan
        self.reward = reward
        self.tokenizer: Any = tokenizer
        self.examples: int = len(rows)
        self._prompts = [[row for batch in batches for row in batch] for batches in plan.split(rows)]
        self.steps: int = len(self._prompts)

    def send(self, training: tinker.TrainingClient, step: int) -> Rollout:
        """Ask for the answers of a step, counted from 0."""
        sampler, rows, plan = training.save_weights_and_get_sampling_client(), self._prompts[step], self.plan
        params = tinker.SamplingParams(
            max_tokens=plan.max_tokens, temperature=plan.temperature, stop=read_stops(plan.stop) or None
        )
        futures: list[tinker.APIFuture[tinker.SampleResponse]] = []
        for index, row in enumerate(rows):
            seeded = params.model_copy(update={"seed": (plan.seed + 1_000_003 * step + index) % 2**31})
            futures.append(sampler.sample(tinker.ModelInput.from_ints(row.tokens), plan.group_size, seeded))
        return Rollout(self, training, step, rows, futures)


class Rollout(NamedTuple):
    """A step whose answers are being sampled."""

    recipe: GRPO
    training: tinker.TrainingClient
    step: int
    rows: Sequence[PromptRow]
    #: The samples. The requests that train are sent when these have arrived.
    futures: Sequence[tinker.APIFuture[tinker.SampleResponse]]

    def wait(self) -> StepResult:
        """Score the answers and train on them. Nothing is sent if all rewards of every group are equal."""
        data: list[tinker.Datum] = []
        rewards: list[float] = []
        lengths: list[int] = []
        for row, future in zip(self.rows, self.futures):
            sequences = future.result().sequences
            decoded = [self.recipe.tokenizer.decode(list(one.tokens), skip_special_tokens=True) for one in sequences]
            group = [self.recipe.reward.score(str(answer), row.example) for answer in decoded]
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
            self.training.forward_backward(data, "importance_sampling")
            adam = self.recipe.plan.adam_at(self.step, self.recipe.steps)
            metrics |= self.training.optim_step(adam).result().metrics or {}
        return StepResult(metrics, sum(lengths))


def compare_group(
    prompt: list[int], sequences: Sequence[tinker.SampledSequence], rewards: Sequence[float]
) -> list[tinker.Datum]:
    """Return the training data of a group: each answer with its reward, normalized within the group.

    Only the tokens of the answer have an advantage. A group with equal rewards has no data.
    """
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    unlearned = [0.0] * (len(prompt) - 1)
    data: list[tinker.Datum] = []
    for sequence, reward in zip(sequences, rewards):
        if spread and len(sequence.tokens):
            tokens = [*prompt, *sequence.tokens]
            inputs: Any = {
                "target_tokens": tokens[1:],
                "logprobs": unlearned + list(sequence.logprobs or []),
                "advantages": unlearned + [(reward - mean) / spread] * len(sequence.tokens),
            }
            data.append(tinker.Datum(tinker.ModelInput.from_ints(tokens[:-1]), inputs))
    return data
