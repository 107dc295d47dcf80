"""The steps of a run: supervised steps on examples, DPO on pairs, or GRPO on prompts with a reward
function of the user's.

DPO makes the chosen answer of a pair likelier than the rejected one, compared with the model where
the run starts. GRPO samples a group of answers to each prompt, scores them, and learns from the
differences.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import runpy
import statistics
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, SupportsFloat, TypeAlias, TypeVar, cast

import tinker
from tinker._chat import read_options
from tinker.cli.errors import CommandFailed
from tinker.cli.examples import ExampleRow
from tinker.cli.model_input import Capacity, encode_prompt, note_answers, read_stops
from tinker.cli.reading import RowError, check_prompt, read_rows
from tinker.cli.training.plan import Plan, cut

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
        steps = plan.split(cut(rows, self._width))
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
        batches = cut(rows, self._plan.batch_size * self._width)
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
        prompt = check_prompt(record)
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

    rows = read_rows(file, "prompts", parse)
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
