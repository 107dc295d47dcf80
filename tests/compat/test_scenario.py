"""The scenario of `nox -s compat -- servers`, with this client on the local server: toy and
torch, in the process and over HTTP.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import KEY, scenario_command

from tinker.local import Settings, running_server
from tinker.local.engines import EngineName

SECONDS = 300
#: A server of one's own has no accounts.
NEEDS_ACCOUNTS = {"who the key belongs to"}
#: A server in the process checks no key, and other programs cannot reach it.
NEED_A_PORT = {
    "a key that is wrong",
    "the archive of a checkpoint",
    "a pickled sampling client in another process",
}
#: The toy only sees the previous token, and any prompt is short enough.
NEED_A_MODEL = {"a loss over a pair of sequences", "a prompt longer than the context"}


def write_model(folder: Path) -> Path:
    """Write the model that every server of the scenario loads, and return its folder."""
    for needed in ("torch", "transformers", "peft"):
        pytest.importorskip(needed)
    import tiny_model

    tiny_model.write_model(folder)
    return folder


@contextlib.contextmanager
def serve(engine: EngineName, way: str, folder: Path) -> Iterator[str]:
    """Run a server, and yield its URL."""
    model = str(write_model(folder / "tiny")) if engine == "torch" else "toy"
    if way == "in process":
        yield f"local://{model}"
        return
    settings = Settings(data_dir=folder / "server", api_key=KEY)
    with running_server(settings, engine, model=None if engine == "toy" else model) as url:
        yield url


@pytest.mark.parametrize(
    ("engine", "way"),
    [
        pytest.param("toy", "in process", marks=pytest.mark.soak),
        ("torch", "HTTP"),
        pytest.param("toy", "HTTP", marks=pytest.mark.soak),
        pytest.param("torch", "in process", marks=pytest.mark.soak),
    ],
)
def test_every_step_works(engine: EngineName, way: str, tmp_path: Path) -> None:
    """Every step of the scenario passes, except those that need features outside this server."""
    out = tmp_path / "outcomes.json"
    name = "tinker/toy" if engine == "toy" else "tiny"
    with serve(engine, way, tmp_path) as url:
        command = scenario_command(sys.executable, url, name, out)
        environment = {**os.environ, "TINKER_LOCAL_DIR": str(tmp_path / "local")}
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            timeout=SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    steps = json.loads(out.read_text())["steps"]
    missing = (
        NEEDS_ACCOUNTS
        | (NEED_A_PORT if way == "in process" else set())
        | (NEED_A_MODEL if engine == "toy" else set())
    )
    failed = {
        step["title"]: step.get("message", step["status"])
        for step in steps
        if step["status"] != "passed"
    }
    assert failed.keys() == missing, failed
    assert len(steps) > 120
