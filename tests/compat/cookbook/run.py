"""tinker-cookbook's training loops against our server, as itself and as a bare SkyRL server.

python tests/compat/cookbook/run.py [NAME ...], in an environment that has this client and
tinker-cookbook.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tinker.local import Settings, running_server

SCRIPT = Path(__file__).with_name("loops.py")
LOOPS = re.findall(r"^async def ([a-z]\w+)\(url", SCRIPT.read_text(), re.MULTILINE)
# Loops that a server cannot run: a bare SkyRL server makes no files for others, and lacks the loss
# stable_reinforce.
WITH_DEFAULT_LOSS = frozenset(
    {"reinforcement_async", "recipe_math_rl", "recipe_rl_loop", "recipe_rubric"}
)
ABSENT = {"official": frozenset[str](), "skyrl": WITH_DEFAULT_LOSS | {"download"}}
NO_HUB = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TINKER_API_KEY": "tml-cookbook"}


def main() -> int:
    """Return the number of profiles with failures; the output is shown where a loop fails."""
    names = sys.argv[1:] or list(LOOPS)
    return sum(
        run(profile, [name for name in names if name not in absent]) != 0
        for profile, absent in ABSENT.items()
    )


def run(profile: str, names: list[str]) -> int:
    """How many loops failed against our server with that profile."""
    print(f"against the profile {profile}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Settings(data_dir=Path(folder) / "server", profile=profile), "torch") as url,
        (Path(folder) / "log").open("w+") as log,
    ):
        command = [sys.executable, str(SCRIPT), url, folder, *names]
        failed = subprocess.run(
            command, env={**os.environ, **NO_HUB}, stderr=log, check=False
        ).returncode
        if failed:
            log.seek(0)
            sys.stderr.write(log.read()[-8000:])
        return failed


if __name__ == "__main__":
    sys.exit(main())
