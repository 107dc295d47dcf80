"""GRPO: sample a group of answers to each prompt, score them with the user's function, and learn from the differences."""

from __future__ import annotations

import inspect
import math
import runpy
import statistics
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from tinker.cli.errors import CommandFailed
from tinker.cli.jsonl import read_records
from tinker.cli.stops import read_stops
from tinker.cli.training.supervised import StepResult

if TYPE_CHECKING:
    from tinker.cli.capacity import Capacity
    from tinker.cli.training.plan import Plan
    from tinker.futures import APIFuture
    from tinker.training_client import TrainingClient
    from tinker.types import Datum, SampledSequence, SampleResponse, SamplingParams

#: ``reward(answer, example)``: the text of an answer, and the line of the file with its prompt.
Reward: TypeAlias = Callable[[str, dict[str, Any]], float]


_DEFINITION = "Define: def reward(answer: str, example: dict) -> float"


class PromptRow(NamedTuple):
    """A prompt, and the line of the file that it is from."""

    tokens: list[int]
    example: dict[str, Any]


def read_reward(file: Path) -> Reward:
    """Run a file of Python and return its function ``reward``.

    CommandFailed where the file fails, has no such function, or one that cannot be called with an answer and an example.
    """
    try:
        names = runpy.run_path(str(file))
    except Exception as error:
        raise CommandFailed(_describe(file, error)) from error
    reward = names.get("reward")
    if not callable(reward):
        raise CommandFailed(f"{file} has no function reward", _DEFINITION)
    try:
        signature = inspect.signature(reward)
    except ValueError:  # of a function that is not written in Python
        return cast("Reward", reward)
    try:
        signature.bind("answer", {})
    except TypeError:
        told = f"{_place_of(file, reward)}: reward{signature} cannot be called as reward(answer, example)"
        raise CommandFailed(told) from None
    return cast("Reward", reward)


def read_prompts(file: Path, tokenizer: Any, plan: Plan, capacity: Capacity) -> list[PromptRow]:
    """Read the prompt of every line, a text or the messages of a chat. CommandFailed naming a line without one that fits."""
    from tinker.cli.capacity import silence_length_warnings

    rows: list[PromptRow] = []
    with silence_length_warnings():
        for number, record in read_records(file):
            rows.append(_read_record(file, number, record, tokenizer))
            _check_length(rows[-1], plan, capacity, f"{file}, line {number}")
    if not rows:
        raise CommandFailed(f"{file} has no prompts")
    return rows


def _read_record(file: Path, number: int, example: dict[str, Any], tokenizer: Any) -> PromptRow:
    from tinker.cli.examples import PROMPT_ADVICE, chat_tokens, check_messages, explain_prompt_keys

    try:
        if "messages" in example:
            check_messages(messages := example["messages"])
            return PromptRow(chat_tokens(tokenizer, messages, prompt=True, advice=PROMPT_ADVICE), example)
        if "prompt" not in example:
            raise ValueError(explain_prompt_keys(example))
        if not isinstance(example["prompt"], str):
            raise ValueError(f'"prompt" must be a string, got {type(example["prompt"]).__name__}')
        return PromptRow(tokenizer.encode(example["prompt"]), example)
    except (ValueError, TypeError, KeyError) as error:
        raise CommandFailed(f"{file}, line {number}: {error}") from error


def _check_length(row: PromptRow, plan: Plan, capacity: Capacity, place: str) -> None:
    """Check that an answer of full length goes behind a prompt."""
    if capacity.is_exceeded(len(row.tokens) + plan.max_tokens):
        lengths = f"{len(row.tokens):,} tokens and an answer of {plan.max_tokens:,}"
        raise CommandFailed(f"{place}: {lengths}; {capacity}", "Shorten it, or give a smaller --max-tokens.")


class GRPO:
    """The steps over a file of prompts. Each samples from the weights of the step before, so none is sent ahead."""

    metric: str = "reward"
    steps_ahead: int = 0

    def __init__(self, plan: Plan, rows: Sequence[PromptRow], reward: Reward, tokenizer: Any) -> None:
        self._plan = plan
        self._reward = reward
        self._tokenizer = tokenizer
        self.examples: int = len(rows)
        self._prompts = [[row for batch in batches for row in batch] for batches in plan.split(rows)]

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(self._prompts)

    def send(self, training: TrainingClient, step: int) -> Rollout:
        """Ask for the answers of a step, counted from 0."""
        from tinker.types import ModelInput

        sampler, rows = training.save_weights_and_get_sampling_client(), self._prompts[step]
        futures = [
            sampler.sample(ModelInput.from_ints(row.tokens), self._plan.group_size, self._params(step, index))
            for index, row in enumerate(rows)
        ]
        return Rollout(self, training, step, rows, futures)

    def _params(self, step: int, index: int) -> SamplingParams:
        from tinker.types import SamplingParams

        seed = (self._plan.seed + 1_000_003 * step + index) % 2**31
        stop = read_stops(self._plan.stop) or None
        return SamplingParams(max_tokens=self._plan.max_tokens, temperature=self._plan.temperature, stop=stop, seed=seed)

    def read(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer, without what only marks its end."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def score(self, row: PromptRow, answer: str) -> float:
        """Return the reward of an answer. CommandFailed where the function fails, or returns no finite number."""
        file, shown = Path(self._plan.grpo or ""), f"The answer was {answer!r:.200}"
        try:
            reward = self._reward(answer, row.example)
        except Exception as error:
            raise CommandFailed(_describe(file, error), shown) from error
        if (fault := _find_fault(reward)) is not None:
            raise CommandFailed(f"{_place_of(file, self._reward)}: reward must return {fault}", shown)
        return float(reward)

    def learn(self, training: TrainingClient, step: int, data: Sequence[Datum]) -> dict[str, float]:
        """Take a step of the optimizer; nothing is learned where the answers of every group are alike."""
        if not data:
            return {}
        training.forward_backward(data, "importance_sampling")
        return training.optim_step(self._plan.adam_at(step, self.steps)).result().metrics or {}


class Rollout(NamedTuple):
    """A step whose answers are on their way."""

    recipe: GRPO
    training: TrainingClient
    step: int
    rows: Sequence[PromptRow]
    samples: Sequence[APIFuture[SampleResponse]]

    def wait(self) -> StepResult:
        """Score the answers and learn from them."""
        data: list[Datum] = []
        rewards: list[float] = []
        lengths: list[int] = []
        for row, future in zip(self.rows, self.samples):
            sequences = future.result().sequences
            group = [self.recipe.score(row, self.recipe.read(one.tokens)) for one in sequences]
            data += _compare(row.tokens, sequences, group)
            rewards += group
            lengths += [len(one.tokens) for one in sequences]
        reported = self.recipe.learn(self.training, self.step, data)
        metrics = {
            "reward": statistics.fmean(rewards),
            "reward_std": statistics.pstdev(rewards),
            "answer_tokens": statistics.fmean(lengths),
            "learned": float(len(data)),
        }
        return StepResult({**metrics, **reported}, sum(lengths))

    def futures(self) -> Sequence[APIFuture[Any]]:
        """Return what is waited for; the step of the optimizer is not sent yet."""
        return self.samples


def _compare(prompt: list[int], sequences: Sequence[SampledSequence], rewards: Sequence[float]) -> list[Datum]:
    """Return what there is to learn from a group: each answer with its reward, normalized within the group."""
    spread = statistics.pstdev(rewards)
    if spread == 0:
        return []
    mean = statistics.fmean(rewards)
    return [_datum(prompt, one, (reward - mean) / spread) for one, reward in zip(sequences, rewards) if len(one.tokens)]


def _datum(prompt: list[int], sequence: SampledSequence, advantage: float) -> Datum:
    """Return an answer as an example; only its own tokens have an advantage."""
    from tinker.types import Datum, ModelInput

    tokens, unlearned = [*prompt, *sequence.tokens], [0.0] * (len(prompt) - 1)
    inputs: Any = {
        "target_tokens": tokens[1:],
        "logprobs": unlearned + list(sequence.logprobs or []),
        "advantages": unlearned + [advantage] * len(sequence.tokens),
    }
    return Datum(ModelInput.from_ints(tokens[:-1]), inputs)


def _find_fault(reward: object) -> str | None:
    """Return what a reward should be and is not; None for a finite number, which may be one of numpy or a bool."""
    if reward is None or not hasattr(type(reward), "__float__"):
        return "a number, got None" if reward is None else f"a number, got {reward!r:.60} of type {type(reward).__name__}"
    value = float(cast("float", reward))
    return None if math.isfinite(value) else f"a finite number, got {value}"


def _describe(file: Path, error: Exception) -> str:
    """Return an error of the user's code in one line, with the last line of the file that it passed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file}:{error.lineno}: {type(error).__name__}: {error.msg}"
    return f"{file}{f':{lines[-1]}' if lines else ''}: {type(error).__name__}: {' '.join(str(error).split())}"


def _place_of(file: Path, function: Callable[..., Any]) -> str:
    """Return the file and the line where a function is defined; the file alone for one that is not written in it."""
    code = getattr(function, "__code__", None)
    return f"{file}:{code.co_firstlineno}" if code is not None and code.co_filename == str(file) else str(file)
