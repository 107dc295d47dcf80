"""A server with durable steps is killed with SIGKILL: its clients continue, and nothing is lost or
executed twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from durable import STEPS_FOR_EACH_KILL, disturbed, undisturbed
from support.tiny_models import write_tiny_llama

KILLS, TORCH_KILLS = 4, 2


@pytest.mark.soak
def test_a_killed_server_goes_on(tmp_path: Path) -> None:
    """Losses, norms, samples, saves and weights of a pipelined, clipped run are bit for bit those
    of a run without kills.
    """
    (tmp_path / "quiet").mkdir()
    expected = undisturbed(tmp_path / "quiet", KILLS * STEPS_FOR_EACH_KILL)
    assert min(expected.norms) > 0.01
    assert disturbed(tmp_path, KILLS, 1) == expected


@pytest.mark.soak
def test_a_killed_server_of_torch_goes_on(tmp_path: Path) -> None:
    """The same with a transformer that torch trains: its adapter and its optimizer come back to the
    last bit.
    """
    for needed in ("torch", "transformers", "peft"):
        pytest.importorskip(needed)
    options = ["--model", str(write_tiny_llama(tmp_path / "tiny-llama"))]
    (tmp_path / "quiet").mkdir()
    expected = undisturbed(tmp_path / "quiet", TORCH_KILLS * STEPS_FOR_EACH_KILL, *options)
    assert min(expected.norms) > 0.01
    assert disturbed(tmp_path, TORCH_KILLS, 1, *options) == expected
