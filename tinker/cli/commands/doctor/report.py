"""What the doctor says: a result for each check, and which operations the server has."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from tinker._http import ConnectionFacts
from tinker.observing import ServerInfo

CheckStatus: TypeAlias = Literal["ok", "note", "FAIL"]
Support: TypeAlias = Literal["yes", "no", "unknown"]


class CheckResult(NamedTuple):
    """One thing that was checked: in order, worth knowing, or broken."""

    name: str
    status: CheckStatus
    detail: str


class DoctorReport(NamedTuple):
    """All results. ``operations`` says of each operation of the contract whether the server has it.

    ``info`` is what clients would do otherwise for this server; None where nothing was asked. ``connections`` are those that
    were used.
    """

    base_url: str
    results: list[CheckResult]
    operations: dict[str, Support]
    info: ServerInfo | None = None
    connections: tuple[ConnectionFacts, ...] = ()

    @property
    def failures(self) -> list[str]:
        """Return the names of the checks that failed."""
        return [result.name for result in self.results if result.status == "FAIL"]
