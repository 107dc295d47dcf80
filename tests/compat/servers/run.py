"""Install other people's servers, start each, and run the scenario against it with this client and
the official ones.

python tests/compat/servers/run.py --scratch FOLDER [--only SERVER ...] [--client CLIENT ...]
[--step TEXT] [--keep] [--slow TIMES]
                                     [--conformance | --own-tests --wheel WHEEL]
                                     [--skyrl CLONE] [--openrl CLONE]

The Python that runs this has this client. What came of each run is written to `recorded/`, and the
tables of docs/servers.md are made from that. `--client` is `ours` or a version of the official
client; with `--step` or `--keep` nothing is recorded. `--conformance` writes the reports in
docs/conformance instead, `--own-tests` runs the tests that come with the servers, for which
`--client` is `official`, `ours` or `codec`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from conformance import write_report
from own_tests import OWN_TESTS, run_own_tests
from page import scenario_version, write_page
from servers import (
    HERE,
    MODEL,
    OFFICIAL_OF_TODAY,
    SERVERS,
    Server,
    StartError,
    locked,
    running,
    scenario_command,
)

TORCH = "torch==2.13.0"
SPARE_SECONDS = 120
RECORDED = HERE / "recorded"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scratch", required=True, type=Path, help="where environments and servers' files are kept"
    )
    parser.add_argument(
        "--only", nargs="*", choices=[one.name for one in SERVERS], help="these servers"
    )
    parser.add_argument("--client", nargs="*", help="these clients")
    parser.add_argument("--step", default="", help="the steps whose area and title have this text")
    parser.add_argument("--keep", action="store_true", help="record nothing")
    parser.add_argument(
        "--conformance", action="store_true", help="run the conformance kit, and no scenario"
    )
    parser.add_argument(
        "--own-tests", action="store_true", help="run the servers' own tests, and no scenario"
    )
    parser.add_argument("--wheel", type=Path, help="of this package, for the servers' own tests")
    parser.add_argument(
        "--files", nargs="*", help="these files of a server's own tests, or FILE::TEST"
    )
    parser.add_argument(
        "--skyrl", type=Path, help="a clone of SkyRL, for its tests; else GitHub is asked"
    )
    parser.add_argument(
        "--openrl", type=Path, help="a clone of OpenRL, which has no package; else GitHub is asked"
    )
    parser.add_argument(
        "--total", type=float, default=1500.0, help="seconds for one run of the scenario"
    )
    parser.add_argument(
        "--slow",
        type=float,
        default=1.0,
        help="how many times as long everything may take, on a busy machine",
    )
    arguments = parser.parse_args()
    arguments.scratch = arguments.scratch.resolve()
    # which ends the servers, too
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))
    failures = 0
    for server in SERVERS:
        if not arguments.only or server.name in arguments.only:
            failures += compare(server, arguments)
    if not (arguments.step or arguments.keep):
        write_page()
    return failures


def compare(server: Server, arguments: argparse.Namespace) -> int:
    """Run the scenario with each client; 1 when the server cannot be installed or started."""
    try:
        python = server_python(server, arguments.scratch, arguments.openrl)
        if arguments.conformance:
            check_conformance(server, python, arguments.scratch)
            return 0
        if arguments.own_tests:
            try_own_tests(server, python, arguments)
            return 0
        for client in server.clients:
            if arguments.client and client not in arguments.client:
                continue
            client_python = (
                sys.executable if client == "ours" else official_python(client, arguments.scratch)
            )
            run_scenario(server, python, client, client_python, arguments)
    except (StartError, subprocess.CalledProcessError) as error:
        print(f"ERROR: {error}", flush=True)
        return 1
    return 0


def check_conformance(server: Server, python: str, scratch: Path) -> None:
    """The report of the conformance kit on a server of other people."""
    if not server.is_ours:
        folder = fresh_folder(scratch / "run" / f"{server.name}-conformance")
        with running(server, python, folder, free_port()) as url:
            write_report(server, url, folder)


def try_own_tests(server: Server, python: str, arguments: argparse.Namespace) -> None:
    """The tests that come with a server, with each client."""
    if (
        server.name in OWN_TESTS
        and (tests := OWN_TESTS[server.name].limited(arguments.files)).files
    ):
        fresh_folder(arguments.scratch / "run" / f"{server.name}-own-tests")
        run_own_tests(
            server,
            tests,
            python,
            arguments.scratch,
            arguments.wheel,
            arguments.skyrl,
            arguments.client,
        )


def run_scenario(
    server: Server, python: str, client: str, client_python: str, arguments: argparse.Namespace
) -> None:
    """Run one scenario, and record it with its versions."""
    folder = fresh_folder(arguments.scratch / "run" / f"{server.name}-{client}")
    out = folder / "outcomes.json"
    total = arguments.total * arguments.slow
    print(f"== {server.title} {server.version} with {client}", flush=True)
    with running(server, python, folder, free_port()) as url:
        limits = ["--only", arguments.step, "--total", str(total), "--slow", str(arguments.slow)]
        command = scenario_command(client_python, url, MODEL, out, *limits)
        try:
            subprocess.run(command, cwd=folder, timeout=total + SPARE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            print("the scenario did not end in time", flush=True)
    if not (arguments.step or arguments.keep):
        record(
            server,
            client,
            json.loads(
                hide_paths(out.read_text(), {folder: "<folder>", arguments.scratch: "<scratch>"})
            ),
        )


def hide_paths(text: str, names: dict[Path, str]) -> str:
    """Return a text without the places of this machine, which servers put into their errors."""
    for path, name in {**names, Path(sys.base_prefix): "<python>"}.items():
        text = text.replace(str(path), name)
    return text


def record(server: Server, client: str, found: dict[str, object]) -> None:
    """Write down a run for the page."""
    RECORDED.mkdir(exist_ok=True)
    facts = {
        "server": server.name,
        "server_version": server.version,
        "scenario": scenario_version(),
    }
    entry = {**facts, "day": time.strftime("%Y-%m-%d", time.gmtime()), **found}
    (RECORDED / f"{server.name}-{client}.json").write_text(json.dumps(entry, indent=1) + "\n")


def fresh_folder(folder: Path) -> Path:
    """Return an empty folder with the model in it."""
    model = folder.parent / MODEL
    if not (model / "tokenizer_config.json").exists():  # the last file that is written
        subprocess.run([sys.executable, str(HERE / "tiny_model.py"), str(model)], check=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder / MODEL)
    return folder


def server_python(server: Server, scratch: Path, clone: Path | None) -> str:
    """Return the Python of the environment of a server. Ours is the one that runs this."""
    if server.is_ours:
        return sys.executable
    home = scratch / "servers" / server.name
    requirements = HERE / "requirements" / f"{server.name}.txt"
    ready = home / "ready"
    wanted = requirements.read_text() + server.package + server.version
    if not ready.exists() or ready.read_text() != wanted:
        python = new_environment(home)
        # PyTorch first and pinned in the same call, so that nothing brings another build of it. The
        # server itself without its requirements, which pin builds for GPUs, and whatever Python it
        # declares.
        pip(python, server.name, TORCH)
        pip(python, server.name, "-r", str(requirements))
        if server.source:
            server.source.unpack(home, clone)
        else:
            pip(python, server.name, "--no-deps", "--ignore-requires-python", server.package)
        ready.write_text(wanted)
    return str(home / "bin" / "python")


def official_python(version: str, scratch: Path) -> str:
    """Return the Python of the environment of an official client."""
    home = scratch / "clients" / version
    if not (home / "ready").exists():
        python = new_environment(home)
        lock = "project" if version == OFFICIAL_OF_TODAY else f"official-{version}"
        pip(python, lock, TORCH)
        pip(python, lock, TORCH, f"tinker=={version}")
        (home / "ready").write_text(version)
    return str(home / "bin" / "python")


def new_environment(home: Path) -> str:
    """Return an empty virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    return str(home / "bin" / "python")


def pip(python: str, lock: str, *arguments: str) -> None:
    """Install packages into an environment, limited by a lock."""
    subprocess.run([python, "-m", "pip", "install", "-q", *arguments], env=locked(lock), check=True)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
