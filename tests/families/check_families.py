"""Every causal language model of the installed transformers that has a small form:
`nox -s compat -- families`.

``families.toml`` says what becomes of each. To write it anew:
``python tests/families/check_families.py > FILE``, from the root, with ``tests`` on PYTHONPATH;
what differs from the file before is what a release of transformers or of this server has changed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
import warnings
from pathlib import Path

import pytest
import transformers

from families.judge import judge
from families.maker import find_kinds, make_kind

FOUND = Path(__file__).with_name("families.toml")
KINDS = {kind: (config, model) for kind, config, model in find_kinds()}
EXPECTED: dict[str, str] = tomllib.loads(FOUND.read_text()) if FOUND.exists() else {}


def find_outcome(kind: str, folder: Path) -> str:
    """Return what becomes of a kind: right, refused with a sentence, or why it was not made."""
    try:
        made = make_kind(kind, *KINDS[kind])
    except Exception as error:  # noqa: BLE001 - whatever a configuration raises for these sizes
        return f"not made: {type(error).__name__}"
    return judge(made, folder)


def test_every_kind_is_in_the_table() -> None:
    """No kind is passed over, and none is listed that transformers does not have."""
    assert sorted(EXPECTED) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind(kind: str, tmp_path: Path) -> None:
    """What the engine computes of it is what plain torch, PEFT and generate compute, or it is
    refused with the table's sentence.
    """
    assert find_outcome(kind, tmp_path) == EXPECTED.get(kind)


def main(kinds: list[str]) -> None:
    """Print the table."""
    transformers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    for kind in sorted(kinds or KINDS):
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = find_outcome(kind, Path(folder))
            except Exception as error:  # noqa: BLE001 - a difference, or a failure of either side
                outcome = f"WRONG: {type(error).__name__}: {str(error)[:300]}"
        sys.stdout.write(f"{json.dumps(kind)} = {json.dumps(outcome)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
