"""The table of `tools/mutants.py`: its modules, tests and excluded mutations exist."""

from __future__ import annotations

import tomllib

import mutants
from mutations import mutations
from support.cases import for_each


@for_each("module", mutants.TESTS)
def test_the_modules_and_their_tests_exist(module: str) -> None:
    """A table with a file that was removed would fail only half an hour later."""
    named = [f"tests/{test.partition('::')[0]}" for test in mutants.TESTS[module]]
    assert [path for path in [mutants.path_of(module), *named] if not (mutants.ROOT / path).exists()] == []


def test_the_mutations_left_out_exist() -> None:
    """An excluded mutation of a line that has changed must be reviewed again."""
    for one in tomllib.loads(mutants.EQUIVALENT.read_text())["mutant"]:
        found = mutations((mutants.ROOT / mutants.path_of(one["module"])).read_text())
        assert (one["line"], one["change"]) in {mutation.identity for mutation in found}
        assert one["module"] in mutants.TESTS
