"""The settings of a recovery, its report, and the error when it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

import attrs

from tinker._checks import check_count, check_field, check_kind, check_number
from tinker._http import retry
from tinker._validate import check_model_path
from tinker.errors import TinkerError

logger: logging.Logger = logging.getLogger("tinker")
T = TypeVar("T")
LATEST = "latest"


@attrs.frozen(kw_only=True)
class SavePoint:
    """A checkpoint from which a run can be recovered.

    Attributes:
        path: The path of the checkpoint.
        step: The number of steps done when it was saved; None for one that was not saved by
            :meth:`steps`.
        user_metadata: The text that was stored with it.
    """

    path: str
    step: int | None = None
    user_metadata: Mapping[str, str] = attrs.field(factory=dict[str, str])


@attrs.frozen(kw_only=True)
class Recovery:
    """A recovery: the lost run, and the step from which work is repeated.

    Attributes:
        run_id: The run that was lost.
        new_run_id: The run that took its place.
        save: The checkpoint that the new run starts from; None for a new run, from which all work
            has to be repeated.
        step: The number of steps that the new run has done: the loop continues with the step of
            this number. None where the checkpoint is not one of the loop's.
        attempt: The number of the attempt that succeeded, from 1.
        with_optimizer: Whether the optimizer's state was restored too.
        error: The error that the loss was noticed by.
    """

    run_id: str
    new_run_id: str
    save: SavePoint | None
    step: int | None
    attempt: int
    with_optimizer: bool
    error: Exception


class RecoveryFailedError(TinkerError):
    """A lost run could not be recovered in as many attempts as the policy allows; ``__cause__`` is
    the last failure.

    Attributes:
        run_id: The run that was lost.
        attempts: The number of attempts since the last save.
    """

    def __init__(self, message: str, run_id: str, attempts: int) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.attempts = attempts


RecoveryFailedError.__module__ = "tinker.recovery"

CheckpointChoice: TypeAlias = str | Callable[[SavePoint], float]
"""Which checkpoint a recovery loads: ``latest``, a path, or a function that scores save points; the
highest score wins.
"""


def call_user(function: Callable[[T], object] | None, value: T) -> None:
    """Call a function of the user, whose failure does not undo the recovery."""
    if function is None:
        return
    try:
        function(value)
    except Exception:
        logger.exception("%r failed; the recovery continues", function)


def _check_choice(_: object, __: object, value: object) -> None:
    if callable(value) or value == LATEST:
        return
    if not isinstance(value, str):
        raise TypeError(
            "checkpoint must be 'latest', a path or a function of a SavePoint, got "
            f"{type(value).__name__}"
        )
    check_model_path("checkpoint", value)


@attrs.frozen(kw_only=True)
class RecoveryPolicy:
    """How lost runs are recovered.

    Attributes:
        attempts: The number of attempts in a row without a save in between, 1 or more.
        backoff_seconds: The time in seconds before the second attempt; each later one waits twice
            as long as the one before.
        max_backoff_seconds: The longest of these times.
        checkpoint: ``latest`` for the last save, a path for that checkpoint, or a function: the
            save of which it returns the greatest number is taken.
        with_optimizer: Whether the state of the optimizer is restored; False begins with a fresh
            one.

    Raises:
        TypeError: A value of the wrong kind.
        ValueError: A value out of its range, or a path without a scheme.

    >>> [RecoveryPolicy(backoff_seconds=5).delay(attempt) for attempt in (1, 2, 3, 9)]
    [0.0, 5.0, 10.0, 60.0]
    """

    attempts: int = attrs.field(default=3, validator=check_field(check_count))
    backoff_seconds: float = attrs.field(default=5.0, validator=check_field(check_number))
    max_backoff_seconds: float = attrs.field(default=60.0, validator=check_field(check_number))
    checkpoint: CheckpointChoice = attrs.field(default=LATEST, validator=_check_choice)
    with_optimizer: bool = attrs.field(default=True, validator=check_field(check_kind, kind=bool))

    def delay(self, attempt: int) -> float:
        """Return the time in seconds before an attempt, 0 before the first.

        Args:
            attempt: The number of the attempt, from 1.
        """
        if attempt == 1:
            return 0.0
        return float(
            retry.longest_delay(self.backoff_seconds, self.max_backoff_seconds, attempt - 2)
        )

    def choose(self, saves: list[SavePoint]) -> SavePoint | None:
        """Return the save to recover from; None without one.

        Args:
            saves: The saves of the run, the last one at the end.
        """
        if isinstance(self.checkpoint, str):
            if self.checkpoint != LATEST:
                return next(
                    (save for save in saves if save.path == self.checkpoint),
                    SavePoint(path=self.checkpoint),
                )
            return saves[-1] if saves else None
        return max(reversed(saves), key=self.checkpoint, default=None)
