"""Checks of arguments that must be numbers, counts, functions or of a kind; and warnings."""

from __future__ import annotations

import math
import numbers
import struct
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

if TYPE_CHECKING:
    import attrs
    import numpy as np

T = TypeVar("T", bool, int)
_OURS = ("tinker", "tinker_records")
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of the line of the user: the nearest call from outside this package, whatever wrappers
    and twins are between.
    """
    level = 1
    while sys._getframe(level).f_globals.get("__name__", "").partition(".")[0] in _OURS:  # pyright: ignore[reportPrivateUsage]
        level += 1
    warnings.warn(message, category, stacklevel=level + 1)


def check_number(name: str, value: object, *, positive: bool = False, finite: bool = True) -> None:
    """Raise TypeError or ValueError unless it is a number of Python or numpy, at least 0 or, when
    ``positive``, above it.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    number = float(cast("float", value))
    if math.isnan(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} must be {'above 0' if positive else 'at least 0'}, got {value}")
    if finite and math.isinf(number):
        raise ValueError(f"{name} must be finite, got {value}")


def find_float32_fault(step: Mapping[str, float]) -> str | None:
    """Return which finite number of an optimizer step float32, the type of weights, does not hold;
    None if it holds all.
    """
    numbers = dict(step)
    if "weight_decay" in step:  # the factors with which Adam multiplies
        numbers["learning_rate / (1 - beta1)"] = step["learning_rate"] / (1 - step["beta1"])
        numbers["learning_rate * weight_decay"] = step["learning_rate"] * step["weight_decay"]
    for name, value in numbers.items():
        held = (
            math.inf
            if abs(value) > _FLOAT32_MAX
            else float(struct.unpack("f", struct.pack("f", value))[0])
        )
        is_lost = held == 0 != value and name in step
        if is_lost or held == math.inf or (held == 1 and name in ("beta1", "beta2")):
            becomes = "too large for" if held == math.inf else f"{held:g} in"
            return f"{name} is {value!r}, which is {becomes} float32, the type of the weights"
    return None


def read_integer(name: str, value: object) -> int:
    """Return an integer: of Python or numpy, a whole float, a tensor or array of one number, or
    text. TypeError otherwise.
    """
    return value if type(value) is int else _read(name, value, int, "an integer")


def read_flag(name: str, value: object) -> bool:
    """Return True or False: of Python or numpy, a tensor or array of one, 0 or 1, or text.
    TypeError otherwise.
    """
    return value if type(value) is bool else _read(name, value, bool, "True or False")


def _read(name: str, value: object, kind: type[T], words: str) -> T:
    is_flag = isinstance(value, bool) and kind is int
    try:
        return msgspec.convert(None if is_flag else to_plain(value), kind, strict=False)
    except msgspec.ValidationError:
        raise TypeError(f"{name} must be {words}, got {type(value).__name__}") from None


def to_plain(value: object) -> object:
    """Return the number of Python that a number, array or tensor of one number holds; anything else
    as it is.
    """
    return cast("np.generic", value).item() if getattr(value, "ndim", None) == 0 else value


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise TypeError or ValueError unless it is an integer of Python or numpy, of at least
    ``least``.
    """
    if type(value) is not int and (
        isinstance(value, bool) or not isinstance(value, numbers.Integral)
    ):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if cast("int", value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise TypeError unless it is of a kind."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        words = {bool: "True or False", str: "a string"}.get(kind, f"{article} {kind.__name__}")
        raise TypeError(f"{name} must be {words}, got {type(value).__name__}")


def check_function(name: str, value: object) -> None:
    """Raise TypeError unless it is a function or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, got {type(value).__name__}")


def check_type(name: str, value: object, kind: type) -> None:
    """Raise TypeError unless the value is None or of its kind."""
    if value is not None:
        check_kind(name, value, kind)


def check_field(
    check: Callable[..., object], **options: object
) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """Return a validator of attrs that calls ``check(name, value, **options)``."""

    def validate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        check(attribute.name, value, **options)

    return validate
