"""A server with two base models and many clients: no request fails, and every client makes
progress.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from two_models import CLIENTS_PER_MODEL, MODELS, SAMPLERS_PER_CLIENT, Tally, serve_two, work

STEPS, SAMPLES = 4, 2


def test_two_models_serve_many_clients(tmp_path: Path) -> None:
    """Every training client makes its steps and every sampler draws its samples, on either model,
    without an error.
    """
    server, tally = serve_two(tmp_path), Tally()
    server.start()
    try:
        asyncio.run(work(server.url, lambda done: done < STEPS, lambda done: done < SAMPLES, tally))
        assert server.read_memory() > 0
    finally:
        server.kill()
    clients = len(MODELS) * CLIENTS_PER_MODEL
    assert not tally.errors
    assert list(tally.steps.values()) == [STEPS] * clients
    assert list(tally.samples.values()) == [SAMPLES] * (clients * SAMPLERS_PER_CLIENT)
