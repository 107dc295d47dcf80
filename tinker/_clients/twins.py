"""Coroutine twins of methods, ``*_async``, for older code. Type checkers and ``help()`` see the
arguments of the method.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Twin: TypeAlias = Callable[Concatenate[C, P], Coroutine[Any, Any, R]]
_FUTURE = "APIFuture["


def twin(method: Callable[Concatenate[C, P], R]) -> Twin[C, P, R]:
    """Make the coroutine that calls ``method`` and returns what that returns."""

    async def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        # which a subclass may have replaced
        returned: R = getattr(self, method.__name__)(*args, **kwargs)
        return returned

    call.__doc__ = f"Call :meth:`{method.__name__}`; await the future that this returns."
    return _describe(call, method, inspect.signature(method))


def awaiting_twin(method: Callable[Concatenate[C, P], Awaitable[T]]) -> Twin[C, P, T]:
    """Make the coroutine that calls ``method``, awaits what that returns, and
    returns the result.
    """

    async def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await getattr(self, method.__name__)(*args, **kwargs)
        return result

    signature = inspect.signature(method)
    returned = str(signature.return_annotation)  # text, as annotations are not evaluated
    call.__doc__ = f"Await :meth:`{method.__name__}` and return its result."
    result = (
        returned.removeprefix(_FUTURE).removesuffix("]")
        if returned.startswith(_FUTURE)
        else returned
    )
    return _describe(call, method, signature.replace(return_annotation=result))


def _describe(twin: F, method: Callable[..., object], signature: inspect.Signature) -> F:
    annotations = {
        name: one.annotation for name, one in signature.parameters.items() if name != "self"
    }
    described: Any = twin
    described.__module__ = method.__module__
    described.__name__, described.__qualname__ = (
        f"{method.__name__}_async",
        f"{method.__qualname__}_async",
    )
    described.__signature__ = signature
    described.__annotations__ = {**annotations, "return": signature.return_annotation}
    return twin
