"""Traces of the model, with the real client and the real server."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from simulation.loop import simulated_loop

from model.replay import draw_trace, replay

TRACES = 12  # of each program


@pytest.mark.parametrize("program", ["GSGS", "GGSV", "GVSG", "SGGS"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_the_client_and_the_server_do_what_the_model_does(
    tmp_path: Path, program: str, restarts: int
) -> None:
    """After each move, futures, messages and effects are those of the model's state."""
    for number in range(TRACES):
        trace = draw_trace(
            program, random.Random(f"{program} {number}"), faults=3, restarts=restarts
        )
        with simulated_loop(number) as loop:
            replay(loop, tmp_path / str(number), program, trace)
