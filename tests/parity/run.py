"""The official clients against our server: the quickstart unchanged with 0.38.0 (protobuf), a training run with 0.7.0 (JSON).

python tests/parity/run.py --current PYTHON_WITH_0_38_0 --old PYTHON_WITH_0_7_0
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tinker.local import Settings, running_server

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.py"
OLD_FORMS = Path(__file__).with_name("train_old.py")
QUICKSTART_SECONDS, OLD_FORMS_SECONDS = 1200, 600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--current", required=True, help="a Python that has the official 0.38.0")
    parser.add_argument("--old", required=True, help="a Python that has the official 0.7.0")
    arguments = parser.parse_args()
    failures = 0
    for python, version, script, seconds in (
        (arguments.old, "0.7.0", OLD_FORMS, OLD_FORMS_SECONDS),
        (arguments.current, "0.38.0", QUICKSTART, QUICKSTART_SECONDS),
    ):
        with server() as url:
            code = run(python, version, script, url, seconds)
        print(f"{script.name} with the official {version}: {'passed' if code == 0 else f'failed ({code})'}", flush=True)
        failures += code != 0
    return failures


@contextmanager
def server() -> Generator[str]:
    """Our server with the packaged model, its checkpoints in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, running_server(Settings(data_dir=Path(folder)), "torch") as url:
        yield url


def run(python: str, version: str, script: Path, url: str, seconds: int) -> int:
    """The exit code of the script in that environment, whose `tinker` must be the official one."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-parity", "TINKER_TELEMETRY": "0"}
    found = subprocess.run(
        [python, "-c", "import tinker, importlib.metadata as m; print(m.version('tinker'), hasattr(tinker, 'lib'))"],
        env=environment, capture_output=True, text=True, check=True, cwd=tempfile.gettempdir(),
    )  # fmt: skip
    if found.stdout.split() != [version, "True"]:
        print(f"{python} has tinker {found.stdout.strip()}, not the official {version}")
        return 2
    try:
        return subprocess.run([python, str(script)], env=environment, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        return 124


if __name__ == "__main__":
    sys.exit(main())
