# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""Every kind of transformers with a tower beside its language model, and with a cache of its own,
against PEFT and `generate`.

These are too many for the test command: ``python -m pytest -n 0 tests/families/check_towers.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed)

from support.compared import Compared
from support.small_configs import ONE_ROW, OTHER_ONE_ROW, OTHERS, TOWERS, Kind


@pytest.mark.numeric
@pytest.mark.parametrize("kind", [*TOWERS, *OTHERS], ids=lambda kind: kind.model_type)
def test_the_language_model_is_trained_and_sampled(kind: Kind, tmp_path: Path) -> None:
    """Only the language model has adapters, and losses, gradients, the adapter's file and samples
    of text are PEFT's.
    """
    compared = Compared.make(kind, tmp_path)
    targets = {target.name for target in compared.engine._targets.all}
    decoder = {
        name for name in targets if name.startswith(("model.language_model.", "model.text_model."))
    }
    assert targets - decoder == {"lm_head"}
    assert decoder
    assert compared.engine._parts.has_rows
    compared.assert_trains()
    compared.assert_samples()


@pytest.mark.numeric
@pytest.mark.parametrize("kind", [*ONE_ROW, *OTHER_ONE_ROW], ids=lambda kind: kind.model_type)
def test_rows_have_caches_of_their_own(kind: Kind, tmp_path: Path) -> None:
    """A model whose cache cannot be taken apart into rows is trained and sampled as PEFT does, each
    row with its own.
    """
    compared = Compared.make(kind, tmp_path)
    assert not compared.engine._parts.has_rows
    compared.assert_trains()
    compared.assert_samples()
