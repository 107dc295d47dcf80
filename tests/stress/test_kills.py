"""A server that is killed with SIGKILL: nothing is lost or executed twice but what a restarted
server forgets, and of that its clients hear.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import STEPS_FOR_EACH_KILL, run
from support.tiny_models import write_tiny_llama


@pytest.mark.soak
@pytest.mark.parametrize(
    ("durability", "kills", "engine"),
    [("step", 4, "toy"), ("step", 2, "torch"), ("save", 4, "toy")],
)
def test_a_killed_server(tmp_path: Path, durability: str, kills: int, engine: str) -> None:
    """Losses, norms, samples, checkpoints and weights of a clipped run are bit for bit those of a
    run without kills: of several steps in flight, or of a loop that recovers where runs are lost.
    """
    options = []
    if engine == "torch":
        for needed in ("torch", "transformers", "peft"):
            pytest.importorskip(needed)
        options = ["--model", str(write_tiny_llama(tmp_path / "tiny-llama"))]
    steps = kills * STEPS_FOR_EACH_KILL
    expected = run(tmp_path / "quiet", steps, options, durability=durability)
    assert min(expected.norms.values()) > 0.01
    assert len(expected.checkpoints) == steps // 4
    found = run(tmp_path / "killed", steps, options, durability=durability, kills=kills)
    assert found == expected
    assert (found.recoveries > 0) == (durability == "save")
