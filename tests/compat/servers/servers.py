"""The compared servers: how each is installed and started, and the parts replaced because they
cannot run on a CPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LOCKS = HERE.parents[2] / "locks"
MODEL = "tiny-qwen3"
KEY = "tml-comparison"
LOG_LINES = 60
SHORT_COMMIT = 7
OFFICIAL_OF_TODAY = "0.38.0"
CPU_TORCH = "PyTorch 2.13.0 for CPUs instead of the version that it pins"


@dataclass(frozen=True)
class Source:
    """Folders and files of a repository at a commit."""

    repository: str
    commit: str
    paths: tuple[str, ...]

    def unpack(self, folder: Path, clone: Path | None) -> Path:
        """Return a folder with them, from a clone; without one, it is made without files."""
        if clone is None:
            clone = folder / "clone"
            git = [
                "git",
                "clone",
                "-q",
                "--filter=blob:none",
                "--no-checkout",
                self.repository,
                str(clone),
            ]
            subprocess.run(git, check=True)
        archive = folder / "source.tar"
        git = [
            "git",
            "-C",
            str(clone),
            "archive",
            "--prefix=source/",
            "-o",
            str(archive),
            self.commit,
            *self.paths,
        ]
        subprocess.run(git, check=True)
        shutil.unpack_archive(archive, folder, filter="data")
        archive.unlink()
        return folder / "source"


@dataclass(frozen=True)
class Server:
    """A server: its name, its package, the official client of the same age, its program."""

    name: str
    title: str
    package: str
    own_client: str
    command: Callable[[str, int], list[str]]
    replaced: tuple[str, ...] = ()
    source: Source | None = None  # where it has no package
    ready_text: str = ""  # what its log says when it is ready, where its address answers before
    start_seconds: float = 300.0

    @property
    def version(self) -> str:
        """Its version; ours is that of the tree."""
        return self.source.commit[:SHORT_COMMIT] if self.source else self.package.partition("==")[2]

    @property
    def is_ours(self) -> bool:
        """Whether it is that of the tree, which needs no environment of its own."""
        return not (self.package or self.source)

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that it is tried with: `ours`, or versions of the official one."""
        return tuple(dict.fromkeys(("ours", OFFICIAL_OF_TODAY, self.own_client)))


def _host(script: str, *arguments: str) -> Callable[[str, int], list[str]]:
    return lambda python, port: [
        python,
        str(HERE / "hosts" / script),
        *(one.format(port=port) for one in arguments),
    ]


SERVERS = (
    Server(
        "ours",
        "`tinker serve`",
        "",
        OFFICIAL_OF_TODAY,
        lambda python, port: [
            python,
            "-m",
            "tinker.cli",
            "serve",
            "--model",
            f"./{MODEL}",
            "--port",
            str(port),
        ],
    ),
    Server(
        "skyrl",
        "SkyRL",
        "skyrl==0.4.0",
        "0.25.0",
        _host("skyrl_host.py", "serve", MODEL, "{port}", "."),
        (
            "its engine is a process of the same environment instead of `uv run`",
            "on Python 3.11, `TypedDict` of typing_extensions, which pydantic requires there",
            "it keeps 96 adapters instead of 32",
        ),
        ready_text="Starting background engine",
        start_seconds=900,
    ),
    Server(
        "tuft",
        "TuFT",
        "tuft==0.2.2",
        "0.25.0",
        _host("tuft_host.py", MODEL, "{port}", ".", KEY),
        (
            "its training model runs on a thread instead of a Ray actor on a GPU",
            (
                "a sampler in torch from this project replaces vLLM; the code that calls it and "
                "reads its outputs is TuFT's"
            ),
            "the GPU memory is not measured",
            CPU_TORCH,
        ),
    ),
    Server(
        "hatchery",
        "Hatchery",
        "hatchery-core==0.3.0",
        "0.18.2",
        _host("hatchery_host.py", MODEL, "{port}", KEY),
        (
            'its gateway and its own worker are combined as in its launcher, with `device="cpu"`; '
            "the launcher would use a scripted "
            "worker",
            "its tracebacks are logged without the values of variables",
            (
                "its worker keeps 128 adapters instead of 20; above 20, it drops "
                "adapters that it is about to use"
            ),
            CPU_TORCH,
        ),
    ),
    Server(
        "openrl",
        "OpenRL",
        "",
        "0.18.2",
        _host("openrl_host.py", MODEL, "{port}", "."),
        (
            (
                "its modules are imported from a clone; the Python is older than the "
                "one that it declares"
            ),
        ),
        Source(
            "https://github.com/gke-labs/open-rl",
            "bfc0f090b48b47630c993b779f23f7c2c7d3b5e3",
            ("src/server",),
        ),
    ),
)


def scenario_command(python: str, url: str, model: str, out: Path, *more: str) -> list[str]:
    """Return the command that plays the scenario on a server, with the client of that Python."""
    options = ["--base-url", url, "--api-key", KEY, "--model", model, "--out", str(out)]
    return [python, "-P", str(HERE / "scenario"), *options, *more]


class StartError(Exception):
    """A server that did not start; the text has the end of its log."""


@contextmanager
def running(server: Server, python: str, folder: Path, port: int) -> Iterator[str]:
    """Yield the address of a server that runs in a folder that has the model."""
    log = folder / "server.log"
    settings = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",
        "TOKENIZERS_PARALLELISM": "false",
        "TINKER_SERVE_API_KEY": KEY,
    }
    with ExitStack() as stack:
        out = stack.enter_context(log.open("w"))
        process = subprocess.Popen(
            server.command(python, port),
            cwd=folder,
            env={**_environment(), **settings, "TINKER_LOCAL_DIR": str(folder / "local")},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(_stop, process)
        url = f"http://127.0.0.1:{port}"
        _wait_until_up(server, process, url, log)
        yield url


def locked(lock: str) -> dict[str, str]:
    """Return the variables of this process with another lock for pip."""
    return {
        **os.environ,
        **dict.fromkeys(
            ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), (LOCKS / f"{lock}.txt").as_uri()
        ),
    }


def _environment() -> dict[str, str]:
    """Return the variables of this process without those of clients."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TINKER_")}


def _wait_until_up(server: Server, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + server.start_seconds
    while True:
        try:
            with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=5):
                if server.ready_text in log.read_text(errors="replace"):
                    return
                ended = process.poll()
        except (OSError, urllib.error.URLError):
            ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            how = (
                f"it ended with {ended}"
                if ended is not None
                else f"nothing answers after {server.start_seconds:.0f} s"
            )
            raise StartError(f"{server.title} did not start: {how}. The end of its log:\n{tail}")
        time.sleep(0.5)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it started."""
    for send in (process.terminate, lambda: os.killpg(process.pid, 9)):
        try:
            send()
            process.wait(20)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            continue
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
