"""The command `python -m codegen diff`: its arguments, its output and its exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from codegen.diff.contracts import compare
from codegen.diff.findings import LEVELS, DiffFinding
from codegen.diff.report import FORMATS
from codegen.diff.sources import read_source
from codegen.document import Refusal
from codegen.files import ROOT

#: What each level adds to the exit status. 1 is an error of Python's, 2 a comparison that cannot be
#: made.
STATUS = {"clients": 4, "servers": 8, "python": 16}
UNREADABLE = 2


def main(arguments: Sequence[str]) -> int:
    """Compare two contracts and print what changed; return the exit status."""
    try:
        options = read_arguments(arguments)
        findings = compare(read_source(options.old), read_source(options.new))
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else UNREADABLE
    except (OSError, Refusal) as error:
        print(error, file=sys.stderr)
        return UNREADABLE
    print(FORMATS[options.format](findings))
    return exit_status(findings, options.fail_on)


def exit_status(findings: Sequence[DiffFinding], fail_on: Sequence[str]) -> int:
    """Return the sum over the levels that count and that a finding has."""
    return sum(
        STATUS[level] for level in fail_on if any(level in finding.breaks for finding in findings)
    )


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m codegen diff",
        description="Say what a change of the contract breaks, and for whom.",
        epilog="Exit status: 0, or the sum of 4 (breaks clients), 8 (breaks servers), "
        "16 (breaks this Python API), "
        "as far as --fail-on names them; 2 where a contract cannot be read.",
    )
    source = (
        "a document (.yaml, .json), a .proto, a folder with openapi.yaml and tinker_public.proto, "
        "or a git revision"
    )
    parser.add_argument("old", help=source)
    parser.add_argument(
        "new", nargs="?", default=str(ROOT), help=f"{source}; the working tree if left out"
    )
    parser.add_argument("--format", choices=sorted(FORMATS), default="text")
    parser.add_argument(
        "--fail-on",
        type=read_levels,
        default=list(LEVELS),
        metavar="LEVELS",
        help="some of clients,servers,python, or none",
    )
    return parser.parse_args(arguments)


def read_levels(text: str) -> list[str]:
    """Read levels such as `clients,python`; `none` means no levels."""
    levels = [] if text == "none" else list(dict.fromkeys(text.split(",")))
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(map(repr, unknown))}: not among {', '.join(LEVELS)}, none"
        )
    return levels
