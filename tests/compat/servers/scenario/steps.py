"""What a step is, how one is run within its time, and what is kept of how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

SECONDS = 90.0
LONGEST_MESSAGE = 600


class NotReached(Exception):
    """What a step needs could not be made; the text says what, and why."""


class NotOffered(Exception):
    """The client under test has no such method."""


@dataclass(frozen=True)
class Step:
    """One thing that users do. ``area`` is its part of the table, ``title`` its row."""

    area: str
    title: str
    seconds: float
    run: Callable[[Any], None]


@dataclass
class Outcome:
    """How a step ended: passed, failed, timeout, not reached, or not offered by the client."""

    area: str
    title: str
    status: str
    seconds: float
    error: str = ""
    code: int | None = None
    message: str = ""


STEPS: list[Step] = []


def step(
    area: str, title: str, seconds: float = SECONDS
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Make a function a step of the scenario."""

    def register(function: Callable[[Any], None]) -> Callable[[Any], None]:
        STEPS.append(Step(area, title, seconds, function))
        return function

    return register


def run_step(one: Step, world: Any, seconds: float) -> Outcome:
    """Run a step on a thread of its own; what is not done in time is given up, and the scenario
    goes on.
    """
    ended: list[BaseException | None] = []

    def work() -> None:
        try:
            one.run(world)
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    begun = time.monotonic()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    taken = round(time.monotonic() - begun, 2)
    if not ended:
        return Outcome(
            one.area, one.title, "timeout", taken, message=f"not done within {seconds:.0f} s"
        )
    return _outcome(one, taken, ended[0])


def _outcome(one: Step, taken: float, error: BaseException | None) -> Outcome:
    if error is None:
        return Outcome(one.area, one.title, "passed", taken)
    status = {NotReached: "not reached", NotOffered: "not offered"}.get(type(error), "failed")
    code = getattr(error, "status_code", None)
    return Outcome(
        one.area, one.title, status, taken, type(error).__name__, code, str(error)[:LONGEST_MESSAGE]
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """As it is written down."""
    return {key: value for key, value in asdict(outcome).items() if value not in ("", None)}
