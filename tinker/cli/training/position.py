"""Where a run can be resumed: a small file for each run, written at each save and removed at the end of the run that wrote it.

It is called after the server, the data and the name of the run, so that the same command with ``--resume`` finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from tinker.cli.errors import CommandFailed
from tinker.cli.training.plan import Plan, option_of

_FORM = 1


class Position(NamedTuple):
    """The state of a run at a checkpoint: so many steps are in it, of so many in all."""

    step: int
    checkpoint: str
    steps: int | None = None

    def __str__(self) -> str:
        total = "" if self.steps is None else f" of {self.steps}"
        return f"step {self.step}{total}, {self.checkpoint}"


class Bookmark:
    """The file of one run. ``server`` is its base URL, without a password, and its folder where that makes it another server.

    The position of an earlier run stays until this one writes its own.
    """

    def __init__(self, folder: Path, server: str, data: Path, name: str) -> None:
        key = hashlib.sha256("\n".join((server, str(data.resolve()), name)).encode()).hexdigest()[:16]
        self.path: Path = folder / f"{key}.json"
        self._data = data
        self._is_own = False

    def find(self) -> Position | None:
        """Return where an unfinished run is; None where none is known."""
        try:
            return _position_of(self._load())
        except CommandFailed:
            return None

    def read(self, plan: Plan, given: Collection[str]) -> tuple[Plan, Position]:
        """Return the plan that the run began with, and where it is.

        CommandFailed where there is no such file, the data has changed since, or an option in ``given`` has another value.
        """
        value = self._load()
        began = Plan.from_values(value["plan"])
        for name in sorted(given):
            if (was := getattr(began, name)) != (now := getattr(plan, name)):
                raise CommandFailed(
                    f"{option_of(name)} was {_show(was)} when the run began, and is {_show(now)} now",
                    f"Leave {option_of(name)} out to resume, or leave --resume out to begin anew.",
                )
        if value["data"] != digest(self._data):
            raise CommandFailed(f"{self._data} has changed since the run began", "Leave out --resume to start over.")
        self._is_own = True
        return began, _position_of(value)

    def _load(self) -> dict[str, Any]:
        try:
            value = json.loads(self.path.read_text())
        except FileNotFoundError:
            raise CommandFailed(
                "There is nothing to resume: this machine has no unfinished run with this data file, --name and server",
                "Leave --resume out to begin. To go on from any checkpoint with new data or options, use --from PATH.",
            ) from None
        except ValueError:
            value = None
        if not isinstance(value, dict) or cast("dict[str, Any]", value).get("form") != _FORM:
            raise CommandFailed(f"{self.path} cannot be read", "Leave out --resume to start over.")
        return cast("dict[str, Any]", value)

    def write(self, plan: Plan, position: Position) -> None:
        """Keep a position, in place of an earlier one."""
        value = {"form": _FORM, "plan": plan._asdict(), "data": digest(self._data), **position._asdict()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(value, indent=2) + "\n")
        partial.replace(self.path)
        self._is_own = True

    def remove(self) -> None:
        """Forget the run: it has ended. An earlier one that it has not replaced can still be resumed."""
        if self._is_own:
            self.path.unlink(missing_ok=True)


def _show(value: object) -> str:
    """Return the value of an option, as in ``--stop was . when the run began``."""
    if value is None or value == ():
        return "not given"
    return " and ".join(map(repr, cast("tuple[str, ...]", value))) if isinstance(value, tuple) else str(value)


def _position_of(value: Mapping[str, Any]) -> Position:
    return Position(value["step"], value["checkpoint"], value.get("steps"))


def digest(file: Path) -> str:
    """Return a digest of what is in a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
