"""Arguments that must be numbers, counts, functions or of a kind: one check and one sentence for each."""

from __future__ import annotations

import math
import numbers
from typing import cast


def check_number(name: str, value: object, *, positive: bool = False, finite: bool = True) -> None:
    """Raise TypeError or ValueError unless it is a number of Python or numpy, at least 0 or, when ``positive``, above it."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    number = float(cast("float", value))
    if math.isnan(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} must be {'above 0' if positive else 'at least 0'}, got {value}")
    if finite and math.isinf(number):
        raise ValueError(f"{name} must be finite, got {value}")


def check_integer(name: str, value: object) -> None:
    """Raise TypeError unless it is an integer of Python or numpy."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, numbers.Integral)):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise TypeError or ValueError unless it is an integer of Python or numpy, of at least ``least``."""
    check_integer(name, value)
    if cast("int", value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise TypeError unless it is of a kind."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"{name} must be {article} {kind.__name__}, got {type(value).__name__}")


def check_function(name: str, value: object) -> None:
    """Raise TypeError unless it is a function or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, got {type(value).__name__}")


def check_type(name: str, value: object, kind: type) -> None:
    """Raise TypeError unless the value is None or of its kind."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
