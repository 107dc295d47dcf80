"""A server with replicas, of which every kind of process is killed at random moments: nothing is
lost or executed twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from durable import SERVER, STEPS_FOR_EACH_KILL, disturbed, undisturbed
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
    (tmp_path / "quiet").mkdir()
    expected = undisturbed(tmp_path / "quiet", len(PARTS) * STEPS_FOR_EACH_KILL, *options)
    assert min(expected.norms) > 0.01
    assert disturbed(tmp_path, len(PARTS), 1, *options, parts=PARTS) == expected
