"""The list of `tools/mutants.py`: the mutations that it leaves out exist."""

from __future__ import annotations

import tomllib
from pathlib import Path

from mutations import mutations

ROOT = Path(__file__).resolve().parents[2]


def test_the_mutations_left_out_exist() -> None:
    """An excluded mutation of a line that has changed must be reviewed again."""
    for one in tomllib.loads((ROOT / "tools" / "equivalent_mutants.toml").read_text())["mutant"]:
        found = mutations((ROOT / "tinker" / f"{one['module']}.py").read_text())
        assert (one["line"], one["change"]) in {mutation.identity for mutation in found}
