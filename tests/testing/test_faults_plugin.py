"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tinker._version import DISTRIBUTION_VERSION

PASSING = """
import asyncio
import tinker

PROMPT, PARAMS = tinker.ModelInput.from_ints([104, 105]), tinker.SamplingParams(max_tokens=4)

def test_rate_limits_are_waited_out(tinker_server, tinker_service, tinker_clock):
    tinker_server.fail_next("asample", status=429, headers={"retry-after": "3"}, times=3)
    sampler = tinker_service.create_sampling_client(base_model="tinker/toy")
    assert sampler.sample(PROMPT, 1, PARAMS).result(timeout=30).sequences
    assert tinker_clock.now - 1000 >= 9

def test_async(tinker_server, tinker_sampler, tinker_training):
    tinker_server.script_samples(["yes"])

    async def ask():
        assert (await tinker_training).model_id
        return await tinker_sampler.sample(PROMPT, 1, PARAMS)

    assert bytes(asyncio.run(ask()).sequences[0].tokens) == b"yes"

def test_url(tinker_url):
    service = tinker.ServiceClient(base_url=tinker_url, api_key="tml-test")
    with service:
        assert service.get_server_capabilities().supported_models
"""

FAILING = """
def test_unused(tinker_server):
    tinker_server.drop_next("asample", times=2)

def test_unheard(tinker_server):
    tinker_server.script_samples(["a", "b"])

def test_failing_by_itself(tinker_server):
    tinker_server.drop_next("asample")
    assert 1 == 2
"""

LAZY = """
import sys

HEAVY = {"httpx", "httpunk", "numpy", "starlette", "msgspec", "attrs", "tinker_wire", "http.client", "ssl", "urllib.request"}
LOADED = {
    "tinker",
    "tinker.testing",
    "tinker.testing.plugin",
    "tinker._basics",
    "tinker._basics.lazy",
    "tinker._version",
}

def test_nothing_heavy_is_loaded():
    ours = {name for name in sys.modules if name.partition(".")[0] == "tinker"}
    assert {name for name in ours if not name.startswith("tinker._basics.installation")} == LOADED
    assert not HEAVY & sys.modules.keys()
"""


def run_pytest(folder: Path, content: str) -> tuple[int, str]:
    """Return a run of pytest on one file, with this plugin and no other one."""
    (folder / "test_it.py").write_text(content)
    # what others have installed is not measured
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment |= {name: one for name, one in os.environ.items() if not name.startswith("PYTEST_")}
    plugins = ["-p", "no:cacheprovider", "-p", "tinker.testing.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *plugins, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        check=False,
        env=environment,
    )
    return done.returncode, done.stdout + done.stderr


def test_fixtures_work_as_shown(tmp_path: Path) -> None:
    """The fixtures give a server, a client of it, simulated time, and a port."""
    code, output = run_pytest(tmp_path, PASSING)
    assert code == 0, output
    assert "3 passed" in output


def test_unused_faults_fail_the_test(tmp_path: Path) -> None:
    """What was scripted and does not happen fails its test by name, unless that fails by itself."""
    code, output = run_pytest(tmp_path, FAILING)
    assert code == 1, output
    assert "asample: drop, 2 left" in output
    assert "never used: 2 samples" in output
    assert "1 failed, 2 passed, 2 errors" in output


def test_runs_that_do_not_use_it_load_nothing(tmp_path: Path) -> None:
    """Where no fixture is used the plugin loads little, and names the package in the header."""
    code, output = run_pytest(tmp_path, LAZY)
    assert code == 0, output
    assert f"\ntinker: {DISTRIBUTION_VERSION}\n" in output
