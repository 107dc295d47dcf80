"""The numbers that the requests of one training run carry: 1, 2, 3, ... Used on the loop only, by
the request whose turn it is.

A server runs the requests of a run in the order of their numbers, and tells a repetition by its
number. So a number that the server may have accepted is never used for another request; one that it
never saw is used by the next request, so that no server waits for it; and one that it read and
refused is left out, as the official client does, unless the server says that it still expects it. A
server says so when it refuses a request, or as the result of one that it had accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from tinker._http import Findings, statuses
from tinker.errors import APIStatusError, RequestFailedError

FIRST_NUMBER = 1  # creation is implicitly 0
_EXPECTED = re.compile(r"expected\D{0,20}(\d+)\D{1,20}got\D{0,20}(\d+)", re.IGNORECASE)


class RunTarget(msgspec.Struct, frozen=True):
    """Which model a request is for, and the number of the last failure of the run that its caller
    knew of; 0 for none.
    """

    model_id: str
    known_failure: int = 0


class Numbers(Iterator[int]):
    """The sequence numbers of one run: the next one, the refused ones, and those to use again."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.next: int = FIRST_NUMBER  # of the next request
        # read by the server, and not carried out as far as is known
        self._refused: set[int] = set()
        self._reused: set[int] = set()  # in use again, as the server seemed not to have seen them
        #: The number that the server expects, as it refused the results of others for theirs; None
        #: once it was sent.
        self.expected: int | None = None

    def __next__(self) -> int:
        self.next += 1
        return self.next - 1

    def take(self, count: int = 1) -> int:
        """Return the first of the next ``count`` numbers, which are used now."""
        first = self.next
        self.next += count
        return first

    def accept(self, number: int) -> None:
        """Note that the server has the request of this number."""
        self._refused.discard(number)
        self._reused.discard(number)

    def expect(self, last: int, error: Exception) -> bool:
        """Return whether the result of a request, whose last number was ``last``, says that the
        server expects a refused one.

        Nothing numbered later has run then. The next request gets the expected number, after
        :meth:`restart`.
        """
        conflict = _find_conflict(error)
        if (
            conflict is None
            or not conflict[0] < conflict[1] <= last
            or conflict[0] not in self._refused
        ):
            return False
        self.expected = conflict[0]
        self._note_expected(*conflict)
        return True

    def restart(self) -> None:
        """Continue with the number that the server expects, if a result has said so; no other
        request is under way.
        """
        if self.expected is not None:
            self.next, self.expected = self.expected, None

    def abandon(self, first: int, outcomes: Sequence[object]) -> None:
        """Settle requests that were sent together, numbered from ``first``, and failed at least in
        part.

        ``outcomes`` are in the order of the numbers: an exception for each that failed, None for
        one that was not sent.
        """
        if all(
            outcome is None
            or (
                isinstance(outcome, Exception) and statuses.fate_of(outcome) is statuses.Fate.UNSEEN
            )
            for outcome in outcomes
        ):
            self.next = first
            self._reused.update(range(first, first + len(outcomes)))
            return
        self._refused.update(
            first + i
            for i, outcome in enumerate(outcomes)
            if outcome is None or isinstance(outcome, Exception)
        )

    def renumber(self, number: int, error: Exception) -> int | None:
        """Settle ``number`` after a failure, and return the number to send the same request under,
        if there is one.
        """
        fate = statuses.fate_of(error)
        if fate is statuses.Fate.UNSEEN:
            self.next = number
            self._reused.add(number)
            return None
        self._refused.add(number)
        if fate is not statuses.Fate.REFUSED:
            return None
        expected = _find_expected_number(error, number)
        if expected is not None and (expected > number or expected in self._refused):
            self._refused.discard(number)
            self.next = expected + 1
            self._note_expected(expected, number)
            return expected
        return next(self) if number in self._reused else None  # the server has seen it after all

    def _note_expected(self, expected: int, number: int) -> None:
        answer = f"expected {expected}, got {number}"
        self._findings.note(
            "numbers", "training requests", "the number of a refused request is used again", answer
        )


def _find_expected_number(error: Exception, number: int) -> int | None:
    """Return the number that the server says it expects in place of ``number``."""
    expected, got = _find_conflict(error) or (number, number)
    return expected if got == number != expected else None


def _find_conflict(error: Exception) -> tuple[int, int] | None:
    """Return the number that the server says it expects, and the one that it got."""
    found = (
        _EXPECTED.search(str(error))
        if isinstance(error, (APIStatusError, RequestFailedError))
        else None
    )
    return None if found is None else (int(found[1]), int(found[2]))
