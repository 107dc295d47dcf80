"""Facts that a client discovers about its server, with their evidence. Written on the loop, read anywhere."""

from __future__ import annotations

from tinker.errors import APIError, APIStatusError
from tinker.observing import ServerFact

ABSENT = "absent"


class Findings:
    """The facts about one server, by subject and operation."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], ServerFact] = {}

    @property
    def facts(self) -> tuple[ServerFact, ...]:
        """Return all of them, in the order in which they were first found."""
        return tuple(self._facts.copy().values())

    def note(self, subject: str, operation: str, finding: str, evidence: str) -> None:
        """Note a fact, in the place of an earlier one on the same subject."""
        self._facts[subject, operation] = ServerFact(operation=operation, finding=finding, evidence=evidence)

    def note_absence(self, operation: str, error: APIError | None) -> None:
        """Note that the server lacks an operation. If there is no error, its response had an unexpected type."""
        evidence = "unexpected response type" if error is None else _describe(error)
        self.note(ABSENT, operation, ABSENT, evidence)

    def forget_absences(self) -> None:
        """Forget what the server lacked: it was restarted, perhaps as another version."""
        for key in [key for key in self._facts if key[0] == ABSENT]:
            del self._facts[key]

    def lacks(self, operation: str) -> bool:
        """Return whether the server is known to lack an operation."""
        return (ABSENT, operation) in self._facts


def _describe(error: APIError) -> str:
    """Describe a failure in one word or number."""
    return str(error.status_code) if isinstance(error, APIStatusError) else type(error).__name__
