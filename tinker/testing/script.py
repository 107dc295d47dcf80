"""The script of a model: the responses, log-probabilities and losses that replace the model's own."""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, cast

import attrs

END_OF_TEXT = 256  # of the toy's vocabulary, whose ids below are bytes


def _read_tokens(said: str | Sequence[int]) -> tuple[int, ...]:
    try:
        tokens = tuple(said.encode()) if isinstance(said, str) else tuple(map(operator.index, said))
    except TypeError:
        raise TypeError(f"a response must be a string, token ids or a ScriptedSample, got {said!r}") from None
    return tokens or (END_OF_TEXT,)


def _read_logprobs(logprobs: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if logprobs is None else tuple(map(float, logprobs))


@attrs.frozen
class ScriptedSample:
    """One response of a scripted model.

    ``said`` is a text, encoded in the toy's tokens (its bytes), or a list of token ids. An empty text is the end-of-text
    token. If ``logprobs`` is None, the model computes the log-probabilities of these tokens, so that a policy that was just
    sampled has a ratio of 1. If ``stop_reason`` is None, it is ``stop``, or ``length`` if ``max_tokens`` truncates it.
    """

    tokens: tuple[int, ...] = attrs.field(alias="said", converter=_read_tokens)
    logprobs: tuple[float, ...] | None = attrs.field(default=None, converter=_read_logprobs)
    stop_reason: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.logprobs is not None and len(self.logprobs) != len(self.tokens):
            raise ValueError(f"got {len(self.logprobs)} logprobs for {len(self.tokens)} tokens; pass one for each token")


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
        self.logprob_rule: LogprobRule | None = None
        self.has_samples: bool = False
        self.has_losses: bool = False
        self._steps = 0

    def add_samples(self, answers: Iterable[Answer] | Mapping[str, Iterable[Answer]] | AnswerRule) -> None:
        """Set the next samples: in the order of the requests, by prompt, or by a rule."""
        if isinstance(answers, (str, ScriptedSample)):
            raise TypeError(f"script_samples takes a list of responses: write [{answers!r}]")
        with self._lock:
            self.has_samples = True
            if callable(answers):
                self._rule = answers
            elif isinstance(answers, Mapping):
                for prompt, several in cast("Mapping[str, Iterable[Answer]]", answers).items():
                    self._by_prompt.setdefault(prompt, deque()).extend(map(_to_sample, several))
            else:
                self._answers.extend(map(_to_sample, answers))

    def take_sample(self, prompt: Sequence[int]) -> ScriptedSample:
        """Return the next response to a prompt. Raises LookupError if the script has none."""
        text = bytes(token for token in prompt if token < END_OF_TEXT).decode(errors="replace")
        with self._lock:
            waiting = self._by_prompt.get(text) or self._answers
            if waiting:
                return waiting.popleft()
            rule = self._rule
        if rule is None:
            raise LookupError(f"the script has no response left for the prompt {text!r}")
        return _to_sample(rule(text))

    def add_losses(self, losses: Iterable[float] | LossRule) -> None:
        """Set the next losses, or a rule for them."""
        with self._lock:
            self.has_losses = True
            if callable(losses):
                self._loss_rule = losses
            else:
                self._losses.extend(map(float, losses))

    def take_loss(self, loss_fn: str) -> float:
        """Return the loss of the next request. Raises LookupError if the script has none."""
        with self._lock:
            number, self._steps = self._steps, self._steps + 1
            if self._losses:
                return self._losses.popleft()
            rule = self._loss_rule
        if rule is None:
            raise LookupError("the script has no loss left")
        return float(rule(loss_fn, number))

    def list_pending(self) -> list[str]:
        """Return the unused entries of the script."""
        with self._lock:
            pending = [_count_samples(self._answers)] if self._answers else []
            pending += [f"{_count_samples(left)} for {prompt!r}" for prompt, left in self._by_prompt.items() if left]
            losses = "1 loss" if len(self._losses) == 1 else f"{len(self._losses)} losses"
            return pending + ([losses] if self._losses else [])


def _count_samples(samples: Sequence[ScriptedSample]) -> str:
    return f"{len(samples)} sample{'' if len(samples) == 1 else 's'}"


def _to_sample(answer: Answer) -> ScriptedSample:
    return answer if isinstance(answer, ScriptedSample) else ScriptedSample(answer)
