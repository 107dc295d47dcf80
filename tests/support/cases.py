"""One test for all cases of a rule. It fails with the list of the cases that break the rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def for_each(
    names: str, cases: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a check of one case into a test of all of them.

    ``names`` are the arguments that take a case, as for `pytest.mark.parametrize`; other arguments
    are fixtures, which all cases share.
    """
    arguments, listed = [name.strip() for name in names.split(",")], list(cases)

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def test(**fixtures: Any) -> None:
            problems = [
                problem for case in listed if (problem := _run(check, arguments, case, fixtures))
            ]
            assert listed, "there is no case"
            assert not problems, f"{len(problems)} of {len(listed)} cases:\n" + "\n".join(problems)

        signature = inspect.signature(check)
        fixtures = [one for name, one in signature.parameters.items() if name not in arguments]
        test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        return test

    return decorate


def _run(
    check: Callable[..., None], arguments: list[str], case: Any, fixtures: dict[str, Any]
) -> str:
    """Return the problem of a case; an empty text if there is none."""
    values = (case,) if len(arguments) == 1 else case
    try:
        check(**dict(zip(arguments, values, strict=True)), **fixtures)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - any of them is a problem of this case
        return f"- {_shorten(repr(case))}: {type(error).__name__}: {error}"
    return ""


def _shorten(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}..."
