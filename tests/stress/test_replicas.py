"""A server with replicas, of which every kind of process is killed at random moments: nothing is
lost or executed twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import SERVER, STEPS_FOR_EACH_KILL, run
from support.tiny_models import write_tiny_llama

WORKER, NODE, CONTROL = "ray::Host", "raylet/raylet", "gcs_server"  # the last two are Ray's own
PARTS = [*([WORKER, WORKER, SERVER] * 6), NODE, CONTROL]


@pytest.mark.soak
def test_killed_processes_lose_nothing(tmp_path: Path) -> None:
    """Losses, norms, samples, saves and weights of a pipelined, clipped run are bit for bit those
    of a run without kills.
    """
    for needed in ("torch", "transformers", "peft", "ray"):
        pytest.importorskip(needed)
    options = [
        "--model",
        str(write_tiny_llama(tmp_path / "tiny-llama")),
        "--device",
        "cpu",
        "--replicas",
        "2",
    ]
    steps = len(PARTS) * STEPS_FOR_EACH_KILL
    expected = run(tmp_path / "quiet", steps, options)
    assert min(expected.norms.values()) > 0.01
    assert run(tmp_path / "killed", steps, options, kills=len(PARTS), parts=PARTS) == expected
