# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""Kinds of models whose images are read by the tokens that their processor writes, against PEFT and ``generate``.

The inputs of plain transformers are those of the model's processor, for the whole text with its images. Processors that need
other packages are skipped without them: ``python -m pytest -n 0 tests/families/check_images.py``.
"""

from __future__ import annotations

import pytest

for needed in ("torch", "transformers", "peft", "PIL"):
    pytest.importorskip(needed)

from support.read_images import ReadImages, make_value
from support.seeing_kinds import READ, Seeing

VALUES = [
    make_value(3),
    make_value(2, (33, 20)),
    make_value(4, (12, 40), (24, 24)),
    make_value(9),
    make_value(1, (70, 9)),
]


@pytest.fixture(scope="module", params=READ, ids=lambda kind: kind.model_type)
def read(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReadImages:
    """Each kind in turn."""
    kind: Seeing = request.param
    if kind.lacking:
        pytest.skip(f"transformers makes this processor with {', '.join(kind.lacking)} only")
    return ReadImages.make(kind, tmp_path_factory.mktemp("read"))


def test_tokens_are_those_of_the_processor(read: ReadImages) -> None:
    """An input with 0, 1 or 2 images has the tokens that the processor writes for the whole text."""
    for value in VALUES:
        assert read.tokens(value) == read.inputs(value)["input_ids"][0].tolist()


@pytest.mark.numeric
def test_training_equals_peft(read: ReadImages) -> None:
    """Log-probabilities of rows with 0, 1 and 2 images in one call, and every matrix's gradient, are PEFT's."""
    read.assert_trains(VALUES)


@pytest.mark.numeric
def test_samples_equal_generate(read: ReadImages) -> None:
    """Greedy samples, with and without images beside each other, are those of ``generate``, and their scores PEFT's."""
    read.assert_samples(VALUES, read.adapter)
