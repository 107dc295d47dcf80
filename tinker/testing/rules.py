"""Rules of a script: calls of the user's functions, and what is said of one that fails or returns something else."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

T = TypeVar("T")
LARGEST_TOKEN = 2**31 - 1
_SHOWN_CHARACTERS = 200


class ScriptError(Exception):
    """The script has no entry for a request, or a rule of it failed."""


def call_rule(rule: Callable[..., object], arguments: tuple[object, ...], read: Callable[[Any], T], wanted: str) -> T:
    """Return what ``read`` makes of the result of a rule.

    Raises ScriptError, which names the rule, if it raises or if ``read`` refuses its result with TypeError or ValueError.
    ``wanted`` is what the rule must return.
    """
    try:
        said = rule(*arguments)
    except Exception as error:
        raise ScriptError(f"the rule {locate(rule)} raised {type(error).__name__}: {error}; it must return {wanted}") from error
    try:
        return read(said)
    except (TypeError, ValueError) as error:
        raise ScriptError(f"the rule {locate(rule)} returned {_show(said)}; it must return {wanted}") from error


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
    return f"{shown} of length {len(cast('list[object]', value))}" if isinstance(value, (list, tuple)) else shown


def read_number(value: Any) -> float:
    """Return a number as a float. Raises TypeError for anything else, such as text."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def read_numbers(values: Iterable[Any], name: str) -> list[float]:
    """Return numbers as floats. Raises TypeError or ValueError, with the name and the index, for anything else."""
    numbers: list[float] = []
    for index, value in enumerate(values):
        try:
            numbers.append(read_number(value))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}[{index}] must be a number, got {value!r}") from None
    return numbers


def read_logprobs(values: Iterable[Any], count: int) -> list[float]:
    """Return ``count`` log-probabilities. Raises ValueError for another count or NaN, TypeError for what is no number."""
    logprobs = read_numbers(values, "logprobs")
    if len(logprobs) != count:
        raise ValueError(f"got {len(logprobs)} logprobs for {count} tokens; pass one for each token")
    if any(map(math.isnan, logprobs)):
        raise ValueError("a log-probability cannot be NaN")
    return logprobs


def read_token(value: Any) -> int:
    """Return a token id. Raises TypeError for anything but an integer, ValueError for one outside 0 to 2**31 - 1."""
    token = operator.index(value)
    if not 0 <= token <= LARGEST_TOKEN:
        raise ValueError(f"a token id must be from 0 to {LARGEST_TOKEN}, got {token}")
    return token
