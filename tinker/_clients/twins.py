"""Coroutine twins of methods, `*_async`: they take the arguments of their method and say so to type checkers and `help()`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Twin: TypeAlias = Callable[Concatenate[C, P], Coroutine[Any, Any, R]]
_FUTURE = "APIFuture["


def twin_of(method: Callable[Concatenate[C, P], R]) -> Callable[[Callable[..., Any]], Twin[C, P, R]]:
    """Give a coroutine method the signature of ``method``, of which it returns what that returns."""
    return lambda twin: _describe(twin, inspect.signature(method))


def awaiting_twin_of(method: Callable[Concatenate[C, P], Awaitable[T]]) -> Callable[[Callable[..., Any]], Twin[C, P, T]]:
    """Give a coroutine method the signature of ``method``, of which it returns the result."""
    signature = inspect.signature(method)
    returned = str(signature.return_annotation)  # text, as annotations are not evaluated
    result = returned.removeprefix(_FUTURE).removesuffix("]") if returned.startswith(_FUTURE) else returned
    return lambda twin: _describe(twin, signature.replace(return_annotation=result))


def _describe(twin: Callable[..., Any], signature: inspect.Signature) -> Any:
    annotations = {name: one.annotation for name, one in signature.parameters.items() if name != "self"}
    described = cast("Any", twin)
    described.__signature__ = signature
    described.__annotations__ = {**annotations, "return": signature.return_annotation}
    return described
