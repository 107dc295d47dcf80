"""Dispatch `python -m codegen generate [--check] | diff OLD [NEW] | coverage [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from codegen import coverage, diff, generate

COMMANDS = {"generate": generate.main, "diff": diff.main, "coverage": coverage.main}
USAGE = "usage: python -m codegen generate [--check] | diff OLD [NEW] | coverage [--check]"


def main(arguments: Sequence[str]) -> int:
    """Run one command with the rest of the arguments; return its exit status, 2 for a command that does not exist."""
    if not arguments or arguments[0] not in COMMANDS:
        print(USAGE, file=sys.stderr)
        return 2
    return COMMANDS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
