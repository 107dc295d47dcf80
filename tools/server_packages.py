"""Try a server with our package in place of the official one: `python tools/server_packages.py SERVER PYTHON [--tests FOLDER]`.

PYTHON belongs to an environment with a server's dependencies, the server, and our wheel with the extra `proto`. In it the
server's modules are imported, and what they import of `tinker` must be ours. With `--tests FOLDER` the server's own tests of
the codec run as well. A server that does not import is an error.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

#: Modules of each server that import `tinker`, and its own tests that use it.
MODULES = {
    "tuft": ("tuft.compat", "tuft.server", "tuft.futures", "tuft.state", "tuft.loss_fn"),
    "skyrl": ("skyrl.tinker.proto_serialization", "skyrl.tinker.api"),
}
TESTS = {
    "tuft": ("tests/test_tinker_compat.py", "tests/test_futures.py", "tests/test_state_controllers.py", "tests/test_loss_fn.py")
}
PROGRAM = """
import importlib, sys, typing, typing_extensions
if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # what pydantic wants there
import tinker
assert tinker.OPEN_VERSION, "this is the official package"
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(name, "imports")
"""


def main() -> int:
    """Import the server, run its tests; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=sorted(MODULES))
    parser.add_argument("python", help="a Python with the server and our wheel")
    parser.add_argument("--tests", type=Path, help="the folder of the server's source distribution")
    arguments = parser.parse_args()
    code = subprocess.run([arguments.python, "-c", PROGRAM, *MODULES[arguments.server]], check=False).returncode
    if code == 0 and arguments.tests is not None:
        command = [arguments.python, "-m", "pytest", "-q", "-W", "ignore", *TESTS.get(arguments.server, ())]
        code = subprocess.run(command, cwd=arguments.tests, check=False).returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
