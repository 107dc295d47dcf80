"""Holds our surface against the official one: every difference has a reason in differences.toml, or
this fails.

    python tests/compat/surface/check.py OFFICIAL.json OURS.json [OFFICIAL.json OURS.json ...]

official/ is what introspect.py finds where the official package is installed, without its words:
help and warnings. Prints, for each group of names, how much is the same and how much differs for a
reason. Fails for a difference without a reason, and for a reason without a difference.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compare

REASONS = Path(__file__).parent / "differences.toml"
#: Compared loosely elsewhere, or a matter of wording.
LEFT_OUT = ("cli_text", "modules", "probes_outcome")


@dataclass
class Reason:
    """Why what matches one of the patterns differs. A pattern is searched in "group: what: how"."""

    why: str
    patterns: dict[re.Pattern[str], int]

    def covers(self, difference: str) -> bool:
        """Whether this is why, and take note of that."""
        found = next((pattern for pattern in self.patterns if pattern.search(difference)), None)
        if found is not None:
            self.patterns[found] += 1
        return found is not None


def reasons() -> list[Reason]:
    """Return the known differences."""
    listed = tomllib.loads(REASONS.read_text())["difference"]
    return [
        Reason(one["why"], {re.compile(pattern): 0 for pattern in one["what"]}) for one in listed
    ]


def differences(official: Path, ours: Path) -> Iterator[tuple[str, str]]:
    """Each group and difference; the counts are in compare.R afterwards."""
    compare.OPT = argparse.Namespace(private=False, strict=False)
    compare.R = compare.Result()
    reference, candidate = (json.loads(path.read_text()) for path in (official, ours))
    for part in (compare.cmp_groups, compare.cmp_cli, compare.cmp_rest):
        part(reference, candidate)
    for group in compare.R.total:
        if group not in LEFT_OUT:
            yield from ((group, f"{group}: missing: {line}") for line in compare.R.missing[group])
            yield from ((group, f"{group}: {line}") for line in compare.R.different[group])


def held(official: Path, ours: Path, known: list[Reason]) -> list[str]:
    """Print the score; return the differences without a reason."""
    explained: Counter[str] = Counter()
    unexplained: list[str] = []
    for group, line in differences(official, ours):
        covered = [reason.covers(line) for reason in known]  # each one, so that none looks idle
        if any(covered):
            explained[group] += 1
        else:
            unexplained.append(line)
    _print(ours, compare.R, explained)
    return unexplained


def _print(ours: Path, result: Any, explained: Counter[str]) -> None:
    print(f"\n{ours.stem}\n{'group':30}{'names':>8}{'the same':>10}{'for a reason':>14}{'else':>6}")
    groups = [group for group in result.total if group not in LEFT_OUT]
    rows = [
        (
            group,
            result.ok[group],
            explained[group],
            len(result.missing[group] + result.different[group]),
        )
        for group in groups
    ]
    rows.append(("all", *(sum(column) for column in list(zip(*rows))[1:])))
    for group, same, reasoned, other in rows:
        print(f"{group:30}{same + other:>8}{same:>10}{reasoned:>14}{other - reasoned:>6}")


def main() -> int:
    """Compare each pair of files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    files = parser.parse_args().files
    known = reasons()
    faults = [line for pair in zip(files[::2], files[1::2]) for line in held(*pair, known)]
    idle = [
        pattern.pattern
        for reason in known
        for pattern, count in reason.patterns.items()
        if not count
    ]
    for title, lines in (
        ("Differences without a reason", faults),
        ("Reasons without a difference", idle),
    ):
        if lines:
            print(f"\n{title}:", *lines, sep="\n  ")
    return 1 if faults or idle else 0


if __name__ == "__main__":
    sys.exit(main())
