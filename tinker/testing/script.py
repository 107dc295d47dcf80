"""The script of a model: the responses, log-probabilities and losses that replace
the model's own.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import reprlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import attrs

from tinker.local.engines.protocol import EngineError

T = TypeVar("T")
LARGEST_TOKEN = 2**31 - 1
_SHOWN_CHARACTERS = 200
END_OF_TEXT = 256  # of the toy's vocabulary, whose ids below are bytes


class ScriptError(EngineError):
    """The script has no entry for a request, or a rule of it failed: the request fails."""


def call_rule(
    rule: Callable[..., object],
    arguments: tuple[object, ...],
    read: Callable[[Any], T],
    wanted: str,
) -> T:
    """Return what ``read`` makes of the result of a rule.

    Raises ScriptError, which names the rule, if it raises or if ``read`` refuses its result with
    TypeError or ValueError. ``wanted`` is what the rule must return.
    """
    try:
        said = rule(*arguments)
    except Exception as error:
        raise ScriptError(
            f"the rule {locate(rule)} raised {type(error).__name__}: {error}; "
            f"it must return {wanted}"
        ) from error
    try:
        return read(said)
    except (TypeError, ValueError) as error:
        raise ScriptError(
            f"the rule {locate(rule)} returned {_show(said)}; it must return {wanted}"
        ) from error


def locate(rule: Callable[..., object]) -> str:
    """Return the name of a function and, if it is written in Python, its file and line."""
    function: Any = rule
    while isinstance(function, functools.partial):
        function = cast("functools.partial[object]", function).func
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _show(value: object) -> str:
    text = repr(value)
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return (
        f"{shown} of length {len(cast('list[object]', value))}"
        if isinstance(value, (list, tuple))
        else shown
    )


def read_number(value: Any) -> float:
    """Return a number as a float. Raises TypeError for anything else, such as text."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def read_numbers(values: Iterable[Any], name: str) -> list[float]:
    """Return numbers as floats. Raises TypeError or ValueError, with the name and the index, for
    anything else.
    """
    numbers: list[float] = []
    for index, value in enumerate(values):
        try:
            numbers.append(read_number(value))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}[{index}] must be a number, got {value!r}") from None
    return numbers


def read_logprobs(values: Iterable[Any], count: int) -> list[float]:
    """Return ``count`` log-probabilities. Raises ValueError for another count or NaN, TypeError for
    what is no number.
    """
    logprobs = read_numbers(values, "logprobs")
    if len(logprobs) != count:
        raise ValueError(
            f"got {len(logprobs)} logprobs for {count} tokens; pass one for each token"
        )
    if any(map(math.isnan, logprobs)):
        raise ValueError("a log-probability cannot be NaN")
    return logprobs


def read_token(value: Any) -> int:
    """Return a token id. Raises TypeError for anything but an integer, ValueError for one outside 0
    to 2**31 - 1.
    """
    token = operator.index(value)
    if not 0 <= token <= LARGEST_TOKEN:
        raise ValueError(f"a token id must be from 0 to {LARGEST_TOKEN}, got {token}")
    return token


def _read_tokens(said: str | Sequence[int]) -> tuple[int, ...]:
    try:
        tokens = tuple(said.encode()) if isinstance(said, str) else tuple(map(read_token, said))
    except TypeError:
        raise TypeError(
            f"a response must be a string, token ids or a ScriptedSample, got {said!r}"
        ) from None
    return tokens or (END_OF_TEXT,)


def _read_logprobs(logprobs: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if logprobs is None else tuple(read_numbers(logprobs, "logprobs"))


@attrs.frozen
class ScriptedSample:
    """One response of a scripted model.

    ``said`` is a text, encoded in the toy's tokens (its bytes), or a list of token ids. An empty
    text is the end-of-text token. If ``logprobs`` is None, the model computes the log-probabilities
    of these tokens, so that a policy that was just sampled has a ratio of 1. If ``stop_reason`` is
    None, it is ``stop``, or ``length`` if ``max_tokens`` truncates it.
    """

    tokens: tuple[int, ...] = attrs.field(alias="said", converter=_read_tokens)
    logprobs: tuple[float, ...] | None = attrs.field(default=None, converter=_read_logprobs)
    stop_reason: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.logprobs is not None:
            read_logprobs(self.logprobs, len(self.tokens))


#: A text, token ids, or both with their log-probabilities.
Answer: TypeAlias = str | Sequence[int] | ScriptedSample
AnswerRule: TypeAlias = Callable[[str], Answer]
LogprobRule: TypeAlias = Callable[[list[int]], Sequence[float]]
LossRule: TypeAlias = Callable[[str, int], float]


class ModelScript:
    """The script of one server's model. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Remove the script."""
        self._answers: deque[ScriptedSample] = deque()
        self._by_prompt: dict[str, deque[ScriptedSample]] = {}
        self._rule: AnswerRule | None = None
        self._losses: deque[float] = deque()
        self._loss_rule: LossRule | None = None
        self._logprob_rule: LogprobRule | None = None
        self.has_samples: bool = False
        self.has_losses: bool = False
        self._steps = 0

    def add_samples(
        self, answers: Iterable[Answer] | Mapping[str, Iterable[Answer]] | AnswerRule
    ) -> None:
        """Set the next samples: in the order of the requests, by prompt, or by a rule."""
        if isinstance(answers, (str, ScriptedSample)):
            raise TypeError(f"script_samples takes a list of responses: write [{answers!r}]")
        with self._lock:
            if callable(answers):
                self._rule = answers
            elif isinstance(answers, Mapping):
                self._add_by_prompt(cast("Mapping[str, Iterable[Answer]]", answers))
            else:
                self._answers.extend(map(_to_sample, answers))
            self.has_samples = True

    def _add_by_prompt(self, answers: Mapping[str, Iterable[Answer]]) -> None:
        for prompt, several in answers.items():
            if isinstance(several, (str, ScriptedSample)):
                raise TypeError(
                    "script_samples takes a list of responses for each prompt: write "
                    f"{{{prompt!r}: [{several!r}]}}"
                )
        for prompt, several in answers.items():
            self._by_prompt.setdefault(prompt, deque()).extend(map(_to_sample, several))

    def take_sample(self, prompt: Sequence[int], taken: int, count: int) -> ScriptedSample:
        """Return the next response to a prompt, after the first ``taken`` of ``count`` for one
        request.

        Raises ScriptError if the script has none or its rule fails.
        """
        text = bytes(token for token in prompt if token < END_OF_TEXT).decode(errors="replace")
        with self._lock:
            waiting = self._by_prompt.get(text) or self._answers
            if waiting:
                return waiting.popleft()
            rule, prompts = self._rule, list(self._by_prompt)
        if rule is None:
            others = (
                ""
                if text in prompts or not prompts
                else f"; it has the prompts {reprlib.repr(prompts)[1:-1]}"
            )
            left = f"; {count} asked for, {taken} left"
            raise ScriptError(
                f"the script has no response left for the prompt {text!r}{left}{others}"
            )
        return call_rule(rule, (text,), _to_sample, "a string, token ids or a ScriptedSample")

    @property
    def has_logprobs(self) -> bool:
        """Return whether there is a rule for log-probabilities."""
        return self._logprob_rule is not None

    def set_logprobs(self, rule: LogprobRule) -> None:
        """Set the rule for the log-probabilities of prompts."""
        if not callable(rule):
            raise TypeError(f"script_logprobs takes a function, got {rule!r}")
        self._logprob_rule = rule

    def take_logprobs(self, prompt: list[int]) -> list[float] | None:
        """Return the log-probabilities after the first token; None without a rule. Raises
        ScriptError if the rule fails.
        """
        if self._logprob_rule is None:
            return None
        count = len(prompt) - 1
        wanted = (
            f"a number for each token after the first, none of them NaN; here {count} "
            f"number{'' if count == 1 else 's'}"
        )
        return call_rule(
            self._logprob_rule, (prompt,), lambda said: read_logprobs(said, count), wanted
        )

    def add_losses(self, losses: Iterable[float] | LossRule) -> None:
        """Set the next losses, or a rule for them."""
        if not callable(losses) and not hasattr(losses, "__iter__"):
            raise TypeError(f"script_losses takes a list of losses or a function, got {losses!r}")
        with self._lock:
            if callable(losses):
                self._loss_rule = losses
            else:
                self._losses.extend(read_numbers(losses, "losses"))
            self.has_losses = True

    def take_loss(self, loss_fn: str) -> float:
        """Return the loss of the next request. Raises ScriptError if the script has none or its
        rule fails.
        """
        with self._lock:
            number, self._steps = self._steps, self._steps + 1
            if self._losses:
                return self._losses.popleft()
            rule = self._loss_rule
        if rule is None:
            raise ScriptError("the script has no loss left")
        return call_rule(rule, (loss_fn, number), read_number, "a number")

    def list_pending(self) -> list[str]:
        """Return the unused entries of the script."""
        with self._lock:
            pending = [_count_samples(self._answers)] if self._answers else []
            pending += [
                f"{_count_samples(left)} for {prompt!r}"
                for prompt, left in self._by_prompt.items()
                if left
            ]
            losses = "1 loss" if len(self._losses) == 1 else f"{len(self._losses)} losses"
            return pending + ([losses] if self._losses else [])


def _count_samples(samples: Sequence[ScriptedSample]) -> str:
    return f"{len(samples)} sample{'' if len(samples) == 1 else 's'}"


def _to_sample(answer: Answer) -> ScriptedSample:
    return answer if isinstance(answer, ScriptedSample) else ScriptedSample(answer)
