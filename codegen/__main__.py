"""Dispatch `python -m codegen COMMAND ...`; each command describes its arguments with `--help`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

#: Each is a module with a `main`, imported when it is called: not every command needs what another
#: does.
COMMANDS = ("generate", "diff", "follow")
USAGE = f"usage: python -m codegen {' | '.join(COMMANDS)} ..."


def main(arguments: Sequence[str]) -> int:
    """Run one command with the rest of the arguments; return its exit status, 2 for a command that
    does not exist.
    """
    if not arguments or arguments[0] not in COMMANDS:
        print(USAGE, file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"codegen.{arguments[0]}").main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
