"""Every script of examples/, run as a user would run it."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinker._loop import loop_thread

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ELSEWHERE = {"quickstart"}  # nox sessions of its own run it to the end
SECONDS = 120


def run(
    command: list[str], folder: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    how: Any = {"timeout": SECONDS, "capture_output": True, "text": True, "check": False}
    return subprocess.run(command, cwd=folder, env=variables, **how)


def scripts() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in ELSEWHERE)


@pytest.mark.parametrize("name", scripts())
def test_example(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each example runs on ``local://`` without a setting, and waits for all that it has begun."""
    for variable in [variable for variable in os.environ if variable.startswith("TINKER_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path))
    script = str(EXAMPLES / f"{name}.py")
    if name == "process_pool":  # which other processes import as their main module
        done = run([sys.executable, script], tmp_path, dict(os.environ))
        assert done.returncode == 0, done.stderr[-4000:]
    else:  # importing torch once for all of them saves most of the time
        runpy.run_path(script, run_name="__main__")
    loop_thread().log_unfinished("when the script ended")
    assert [line for line in caplog.messages if "had not finished" in line] == []


@pytest.mark.parametrize(
    "program", ["README.md", pytest.param("quickstart.py", marks=pytest.mark.soak), "tinker serve"]
)
def test_first_programs_print_nothing_of_others(program: str, tmp_path: Path) -> None:
    """No package writes on a newcomer's screen: stderr has only lines of this package."""
    for name in ("torch", "transformers", "peft"):
        pytest.importorskip(name)
    own = ("TINKER_", "PYTHONWARNINGS")
    variables = {name: one for name, one in os.environ.items() if not name.startswith(own)}
    variables["TINKER_LOCAL_DIR"] = str(tmp_path)
    done = FIRST_PROGRAMS[program](tmp_path, variables)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not OURS.fullmatch(line)] == []
    assert done.stdout


def run_readme(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    page = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return run([sys.executable, "-c", block], folder, variables)


def run_quickstart(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Two steps train, save, load and sample; without the score the program ends with 1."""
    done = run([sys.executable, str(EXAMPLES / "quickstart.py"), "--steps", "2"], folder, variables)
    assert done.returncode in (0, 1), done.stderr
    return subprocess.CompletedProcess(done.args, 0, done.stdout, done.stderr)


def run_server(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`tinker serve`, and a sample of its own model by the command line."""
    tinker = [sys.executable, "-m", "tinker"]
    how: Any = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    serve = [*tinker, "serve", "--port", "0"]
    with subprocess.Popen(serve, cwd=folder, env=variables, **how) as server:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        url = next(
            found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\d+", line))
        )
        command = [*tinker, "--base-url", url, "sample", "--max-tokens", "4", "to be"]
        sampled = run(command, folder, variables)
        server.send_signal(signal.SIGINT)
        stdout, stderr = server.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(
        server.args, sampled.returncode, stdout + sampled.stdout, stderr + sampled.stderr
    )


FIRST_PROGRAMS = {
    "README.md": run_readme,
    "quickstart.py": run_quickstart,
    "tinker serve": run_server,
}
OURS = re.compile(
    r"|Sampling tinker/babble|Stopped\.|Loading torch and tinker/babble "
    r"\.\.\.|still loading torch and .*"
)
