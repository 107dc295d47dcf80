"""Suggestions for names that a server refused, where the server makes none.

Names of models and losses are the server's business, so a name that nobody here knows is sent; only
a refusal is explained.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import get_args

from tinker_wire import models

from tinker.errors import APIStatusError, RequestFailedError
from tinker_records import LOSSES_OF_METHODS, find_closest

LOSSES: tuple[str, ...] = get_args(models.ListedLossFnType)


def suggest_loss(error: Exception, loss_fn: str) -> None:
    """Add a note with the closest known loss, or with that of a method, to an error that names this
    one.
    """
    if not isinstance(error, (APIStatusError, RequestFailedError)):
        return
    if (advice := LOSSES_OF_METHODS.get(loss_fn.lower())) is None:
        _add_suggestion(error, "loss function", loss_fn, LOSSES)
    elif loss_fn in str(error) and advice not in str(error):
        error.add_note(f"loss function {loss_fn!r}: {advice}")


@contextmanager
def suggest_models(base_model: str | None, known: Iterable[str]) -> Generator[None]:
    """Add a note with the closest known model to an error of the block that names this one."""
    try:
        yield
    except (APIStatusError, RequestFailedError) as error:
        if base_model is not None:
            _add_suggestion(error, "base model", base_model, known)
        raise


def _add_suggestion(error: Exception, what: str, name: str, known: Iterable[str]) -> None:
    """Add the known name that is closest to the refused one, unless the server has named it."""
    names = list(known)
    closest = None if name in names else find_closest(name, names)
    if closest is not None and name in str(error) and repr(closest) not in str(error):
        error.add_note(f"{what} {name!r}: did you mean {closest!r}?")
