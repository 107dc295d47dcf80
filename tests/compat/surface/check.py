"""Holds our surface against the official one: every difference has a reason in differences.toml, or
this fails.

    python tests/compat/surface/check.py OFFICIAL.json OURS.json [OFFICIAL.json OURS.json ...]

official/ is what introspect.py writes where the official package is installed. Prints, for each
group of names, how much is the same and how much differs for a reason. Fails for a difference
without a reason, and for a reason without a difference.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

from compare import compare

LISTED = tomllib.loads(Path(__file__).with_name("differences.toml").read_text())["difference"]
#: The patterns of each reason, which are searched in "group: what: how".
REASONS = [list(map(re.compile, one["what"])) for one in LISTED]


def find_unexplained(official: Path, ours: Path, used: set[re.Pattern[str]]) -> list[str]:
    """Print the score; return the differences without a reason, and note the reasons of others."""
    total, same, explained = Counter[str](), Counter[str](), Counter[str]()
    unexplained: list[str] = []
    for item in compare(json.loads(official.read_text()), json.loads(ours.read_text())):
        total[item.group] += 1
        same[item.group] += item.problems == []
        if item.problems != []:
            fitting = ([one for one in why if one.search(item.line)] for why in REASONS)
            found = {patterns[0] for patterns in fitting if patterns}
            used |= found
            explained[item.group] += bool(found)
            unexplained += [] if found else [item.line]
    print(f"\n{ours.stem}\n{'group':30}{'names':>8}{'the same':>10}{'for a reason':>14}{'else':>6}")
    for group in [*total, "all"]:
        row = [
            sum(one.values()) if group == "all" else one[group] for one in (total, same, explained)
        ]
        print(f"{group:30}{row[0]:>8}{row[1]:>10}{row[2]:>14}{row[0] - row[1] - row[2]:>6}")
    return unexplained


def main() -> int:
    """Compare each pair of files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    files = parser.parse_args().files
    used: set[re.Pattern[str]] = set()
    pairs = zip(files[::2], files[1::2], strict=True)
    faults = [line for pair in pairs for line in find_unexplained(*pair, used)]
    idle = [one.pattern for patterns in REASONS for one in patterns if one not in used]
    for title, lines in (
        ("Differences without a reason", faults),
        ("Reasons without a difference", idle),
    ):
        if lines:
            print(f"\n{title}:", *lines, sep="\n  ")
    return 1 if faults or idle else 0


if __name__ == "__main__":
    sys.exit(main())
