# ruff: noqa: E402 (torch is optional, so its absence skips before the imports)
"""The memory that a custom loss may take, and whose fault it is when torch refuses one."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("resource", reason="a limit on the memory of a process")
from local.test_server_custom_loss import REF, call, custom, graph, inputs, upload
from support.api import Api, datum, node

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_no_loss_takes_more_memory_than_one_may(every: int) -> None:
    """Every function and method with sizes that would take gigabytes is computed in its budget, or refused before that."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, "-m", "support.evil_losses", str(every)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *found, count = map(json.loads, done.stdout.splitlines())
    assert found == []
    assert count > 9000 / every


def outcome(api: Api, *nodes: dict[str, Any], loss: str = "last", metric: str | None = None, data: int = 1) -> Any:
    """Return the result of a loss, or its failure."""
    made = graph(*nodes, loss=loss)
    if metric is not None:
        made["nodes"][-1]["args"] = [{"tuple": [{"ref": loss}, {"dict": {"custom/m:sum": {"ref": metric}}}]}]
    session = api.session()
    loss_id = upload(api, session, inputs=inputs(), graph=made)
    return api.result(api.loss(api.model(session), 1, **custom(loss_id, *[datum([1], [2])] * data)))


SIDE = node("call_method", "side", "sum", REF)


@pytest.mark.parametrize(
    ("nodes", "metric"),
    [
        ([call("torch.heaviside", REF, REF)], None),
        ([call("torch.floor_divide", REF, 2.0)], None),
        ([call("torch.fmod", REF, REF), node("call_method", "m", "remainder", {"ref": "n"}, {"ref": "n"})], None),
        ([call("torch.unique", REF)], None),
        ([node("call_method", "l", "long", REF), call("torch.bincount", {"ref": "l"})], None),
        ([call("torch.histc", REF, 4)], None),
        ([node("call_method", "n", "to", REF, "meta")], None),
        ([call("torch.zeros", 3, device="meta")], None),
        ([call("operator.pow", -8.0, 0.5), node("call_function", "m", "operator.mul", REF, {"ref": "n"})], None),
        (
            [SIDE, call("operator.pow", -8.0, 0.5), node("call_function", "m", "operator.mul", {"ref": "side"}, {"ref": "n"})],
            "m",
        ),
    ],
)
def test_what_torch_refuses_is_the_users_fault(
    api: Api, caplog: pytest.LogCaptureFixture, nodes: list[dict[str, Any]], metric: str | None
) -> None:
    """What has no derivative, or no real value, is a user error that names datum and loss, and no error of the server."""
    loss = "side" if metric else "last"
    with caplog.at_level(logging.WARNING, "tinker.local"):
        found = outcome(api, *nodes, loss=loss, metric=metric)
    category, error = found["category"], found["error"]
    assert (category, error[:24]) == ("user", "data[0]: the loss 'nll':"), error
    assert not caplog.records


HALF = node("call_method", "half", "repeat", REF, 2**24)  # 64 MB


def test_values_are_freed_after_their_last_use(api: Api) -> None:
    """A loss whose values together exceed the limit many times, one after the other, is computed."""
    parts = [node("call_method", "p0", "detach", {"ref": "half"})]
    parts += [node("call_method", f"p{index}", "exp", {"ref": f"p{index - 1}"}) for index in range(1, 30)]
    assert outcome(api, SIDE, HALF, *parts, loss="side")["metrics"]["loss:sum"] < 0


def test_what_the_backward_pass_needs_counts_too(api: Api) -> None:
    """The same loss with a gradient is refused, as its derivative needs all the values; the message names the limit."""
    parts = [node("call_method", "p0", "mul", {"ref": "half"}, 0.5)]
    parts += [node("call_method", f"p{index}", "exp", {"ref": f"p{index - 1}"}) for index in range(1, 30)]
    found = outcome(api, HALF, *parts)
    assert found["category"] == "user"
    assert "a loss may take 536870912 for one datum" in found["error"]
