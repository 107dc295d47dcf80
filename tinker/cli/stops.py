"""Where an answer ends: the texts of the command line, and the first of them in an answer that comes in pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ESCAPES = {r"\n": "\n", r"\t": "\t", "\\\\": "\\"}


def read_stops(given: Sequence[str]) -> list[str]:
    r"""Return the stops of a command line, in which ``\n``, ``\t`` and ``\\`` are a newline, a tab and a backslash.

    >>> read_stops([r"\n", r"\d"])
    ['\n', '\\d']
    """
    return [re.sub(r"\\[nt\\]", lambda found: _ESCAPES[found[0]], stop) for stop in given]


class StopCutter:
    """Passes on what comes before the first stop, and holds an end back that may be the beginning of one.

    >>> cutter = StopCutter(["<end>"])
    >>> cutter.add("Yes <e"), cutter.add("m> no <end> and"), cutter.is_over
    ('Yes ', '<em> no ', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.is_over: bool = False

    def add(self, text: str) -> str:
        """Return what can be shown now; nothing once a stop has come."""
        if self.is_over:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        self.is_over = bool(found)
        end = min(found) if found else len(self._held) - self._count_open()
        shown, self._held = self._held[:end], "" if found else self._held[end:]
        return shown

    def end(self) -> str:
        """Return what is held back: no stop came of it."""
        held, self._held = self._held, ""
        return held

    def _count_open(self) -> int:
        """Count the characters at the end that a stop begins with."""
        beginnings = (stop[:count] for stop in self._stops for count in range(1, len(stop)))
        return max((len(one) for one in beginnings if self._held.endswith(one)), default=0)
