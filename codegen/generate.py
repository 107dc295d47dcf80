"""Write every file derived from the contract, or with --check report stale ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codegen import (
    bindings,
    coverage,
    evidence,
    method_index,
    older_paths,
    portable,
    proto_module,
    served_document,
)
from codegen.document import Refusal
from codegen.drawing import make_drawing
from codegen.files import ROOT, Step, check_pins, describe, find_stale, load, write

#: In this order; steps that read the sources come after those that write some.
STEPS: Mapping[str, Step] = {
    "bindings": bindings.make_bindings,
    "portable": portable.make_document,
    "document": served_document.make_document,
    "methods": method_index.make_page,
    "evidence": evidence.make_evidence,
    "protobuf": proto_module.make_modules,
    "paths": older_paths.make_modules,
    "coverage": coverage.make_page,
    "drawing": make_drawing,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every step, or the named ones; return 1 for a refused document, and for stale files with
    --check.
    """
    options = read_arguments(arguments)
    document = options.root / "openapi.yaml"
    try:
        check_pins()
        return run(options.steps or STEPS, options.root, load(document), check=options.check)
    except Refusal as refusal:
        print(f"{document.name} {refusal}", file=sys.stderr)
    except ExceptionGroup as group:
        print(
            *dict.fromkeys(f"{document.name} {refusal}" for refusal in group.exceptions),
            sep="\n",
            file=sys.stderr,
        )
    return 1


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m codegen generate", description="Write all that is made from the contract."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a committed file would change"
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the project: the folder of openapi.yaml"
    )
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help=f"run these only: {', '.join(STEPS)}"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.steps if name not in STEPS]:
        parser.error(f"there is no step {', '.join(unknown)}")
    return options


def run(
    names: Sequence[str] | Mapping[str, Step], root: Path, document: Any, *, check: bool
) -> int:
    """Run steps and write their files, or only report them."""
    found = 0
    for name in names:
        stale = find_stale(STEPS[name](root, document))
        found += len(stale)
        if check:
            print(*describe(stale, root), sep="\n", end="\n" if stale else "", file=sys.stderr)
        else:
            write(stale)
    if not check:
        print(f"{found} files changed")
    elif found:
        print(
            "these files are not what their sources say; run: python -m codegen generate",
            file=sys.stderr,
        )
    return 1 if check and found else 0
