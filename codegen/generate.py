"""Write generated/tinker_wire from openapi.yaml, or say with --check whether the committed tree is what would be written."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from codegen.bindings import generate
from codegen.document import Refusal
from codegen.files import ROOT, check_pins, differences, files_below, load, replace_tree
from codegen.public_names import public_modules


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write generated/tinker_wire from openapi.yaml.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the committed tree would change")
    parser.add_argument("--document", type=Path, default=ROOT / "openapi.yaml")
    parser.add_argument("--output", type=Path, default=ROOT / "generated" / "tinker_wire")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_pins()
            refusals = generate(load(options.document), Path(folder) / "tinker_wire", public_modules(ROOT / "tinker" / "types"))
        except Refusal as refusal:
            refusals = [refusal]
        if refusals:
            print(*dict.fromkeys(f"{options.document.name} {refusal}" for refusal in refusals), sep="\n", file=sys.stderr)
            return 1
        new = files_below(Path(folder) / "tinker_wire")
    if options.check:
        return report(differences(new, files_below(options.output)), options.output)
    print(f"{replace_tree(new, options.output)} of {len(new)} files changed in {options.output.name}")
    return 0


def report(lines: list[str], output: Path) -> int:
    if lines:
        print(*lines, sep="\n", file=sys.stderr)
        print(f"{output.name} is not what openapi.yaml says; run: python -m codegen generate", file=sys.stderr)
    return 1 if lines else 0
