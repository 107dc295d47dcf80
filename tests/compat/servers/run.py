"""Install other people's servers, start each, and run the scenario against it with this client and the official ones.

python tests/compat/servers/run.py --scratch FOLDER [--only SERVER ...] [--client CLIENT ...] [--step TEXT] [--keep] [--slow TIMES]

The Python that runs this has this client. What came of each run is written to `recorded/`, and the tables of docs/servers.md are
made from that. `--client` is `ours` or a version of the official client; with `--step` or `--keep` nothing is recorded.
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

from page import write_page
from servers import HERE, KEY, MODEL, SERVERS, Server, StartError, running

TORCH = "torch==2.13.0"
SPARE_SECONDS = 120
RECORDED = HERE / "recorded"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", required=True, type=Path, help="where environments and servers' files are kept")
    parser.add_argument("--only", nargs="*", choices=[one.name for one in SERVERS], help="these servers")
    parser.add_argument("--client", nargs="*", help="these clients")
    parser.add_argument("--step", default="", help="the steps whose area and title have this text")
    parser.add_argument("--keep", action="store_true", help="record nothing")
    parser.add_argument("--total", type=float, default=1500.0, help="seconds for one run of the scenario")
    parser.add_argument("--slow", type=float, default=1.0, help="how many times as long everything may take, on a busy machine")
    arguments = parser.parse_args()
    arguments.scratch = arguments.scratch.resolve()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))  # which ends the servers, too
    failures = 0
    for server in SERVERS:
        if not arguments.only or server.name in arguments.only:
            failures += compare(server, arguments)
    if not (arguments.step or arguments.keep):
        write_page()
    return failures


def compare(server: Server, arguments: argparse.Namespace) -> int:
    """Run the scenario with each client, on a fresh server each time; 1 when the server cannot be installed or started."""
    try:
        python = server_python(server, arguments.scratch)
        for client in server.clients:
            if arguments.client and client not in arguments.client:
                continue
            client_python = sys.executable if client == "ours" else official_python(client, arguments.scratch)
            run_scenario(server, python, client, client_python, arguments)
    except (StartError, subprocess.CalledProcessError) as error:
        print(f"ERROR: {error}", flush=True)
        return 1
    return 0


def run_scenario(server: Server, python: str, client: str, client_python: str, arguments: argparse.Namespace) -> None:
    """One run, recorded with what was run."""
    folder = fresh_folder(arguments.scratch / "run" / f"{server.name}-{client}")
    out = folder / "outcomes.json"
    total = arguments.total * arguments.slow
    print(f"== {server.title} {server.version} with {client}", flush=True)
    with running(server, python, folder, free_port()) as url:
        options = ["--base-url", url, "--api-key", KEY, "--model", MODEL, "--out", str(out), "--only", arguments.step]
        command = [client_python, "-P", str(HERE / "scenario"), *options, "--total", str(total), "--slow", str(arguments.slow)]
        try:
            subprocess.run(command, cwd=folder, timeout=total + SPARE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            print("the scenario did not end in time", flush=True)
    if not (arguments.step or arguments.keep):
        record(server, client, json.loads(out.read_text().replace(str(folder), "<folder>")))


def record(server: Server, client: str, found: dict[str, object]) -> None:
    """Write down a run for the page."""
    RECORDED.mkdir(exist_ok=True)
    entry = {"server": server.name, "server_version": server.version, "day": time.strftime("%Y-%m-%d", time.gmtime()), **found}
    (RECORDED / f"{server.name}-{client}.json").write_text(json.dumps(entry, indent=1) + "\n")


def fresh_folder(folder: Path) -> Path:
    """An empty folder with the model in it."""
    model = folder.parent / MODEL
    if not (model / "tokenizer_config.json").exists():  # the last file that is written
        subprocess.run([sys.executable, str(HERE / "tiny_model.py"), str(model)], check=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder / MODEL)
    return folder


def server_python(server: Server, scratch: Path) -> str:
    """The Python of the environment of a server. Ours is the one that runs this."""
    if not server.package:
        return sys.executable
    home = scratch / "servers" / server.name
    requirements = HERE / "requirements" / f"{server.name}.txt"
    ready = home / "ready"
    wanted = requirements.read_text() + server.package
    if not ready.exists() or ready.read_text() != wanted:
        python = new_environment(home)
        # PyTorch first and pinned in the same call, so that nothing brings another build of it. The server itself without
        # its requirements, which pin builds for GPUs, and whatever Python it declares.
        pip(python, TORCH)
        pip(python, "-r", str(requirements))
        pip(python, "--no-deps", "--ignore-requires-python", server.package)
        ready.write_text(wanted)
    return str(home / "bin" / "python")


def official_python(version: str, scratch: Path) -> str:
    """The Python of the environment of an official client."""
    home = scratch / "clients" / version
    if not (home / "ready").exists():
        python = new_environment(home)
        pip(python, TORCH)
        pip(python, TORCH, f"tinker=={version}")
        (home / "ready").write_text(version)
    return str(home / "bin" / "python")


def new_environment(home: Path) -> str:
    """An empty virtual environment."""
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    return str(home / "bin" / "python")


def pip(python: str, *arguments: str) -> None:
    """Install into an environment."""
    subprocess.run([python, "-m", "pip", "install", "-q", *arguments], check=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
