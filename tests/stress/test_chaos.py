"""The soak in short, on real sockets."""

from __future__ import annotations

import pytest
from chaos import run


@pytest.mark.parametrize(
    "protocol", [*(pytest.param(one, marks=pytest.mark.soak) for one in (None, "http/1.1")), "h2"]
)
def test_chaos_on_sockets(protocol: str | None) -> None:
    """Whatever fails on a port that is closed twice, in the clear and with TLS, every future ends,
    no step is lost or doubled, nothing is left behind and no secret is logged.
    """
    outcome = run(7, 0.1, seconds=2.0, samplers=40, protocol=protocol)
    assert outcome.complaints() == []
    assert outcome.summary()["resolved"] > 20
    assert outcome.totals["restarts"] == 2


@pytest.mark.parametrize("protocol", [None, "h2"])
def test_interrupts(protocol: str | None) -> None:
    """A caller that is interrupted repeatedly loses only the interrupted calls."""
    plan = {"seconds": 1.0, "samplers": 5, "training_clients": 1}
    outcome = run(3, 0.0, **plan, restarts=0, interrupted_with=3, protocol=protocol)
    assert outcome.complaints() == []
    assert outcome.result["interrupts"] > 10
    assert outcome.summary()["failed with a typed error"] == 0
