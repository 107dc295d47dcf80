"""Dispatch `python -m codegen COMMAND ...`; each command says with `--help` what it takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from codegen import coverage, diff, follow, generate, portable

COMMANDS = {
    "generate": generate.main,
    "diff": diff.main,
    "coverage": coverage.main,
    "portable": portable.main,
    "follow": follow.main,
}
USAGE = f"usage: python -m codegen {' | '.join(COMMANDS)} ..."


def main(arguments: Sequence[str]) -> int:
    """Run one command with the rest of the arguments; return its exit status, 2 for a command that does not exist."""
    if not arguments or arguments[0] not in COMMANDS:
        print(USAGE, file=sys.stderr)
        return 2
    return COMMANDS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
