"""A real ``tinker serve`` that can be killed and started again on the same folder and port."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path


class ServerProcess:
    """The server of one folder, of the toy engine unless the options name a model.

    Its standard error is kept, for whoever asks why it did not come up.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self.kills = 0

    @property
    def url(self) -> str:
        """The base URL, which stays the same."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start a process and wait until it accepts connections."""
        model = [] if "--model" in self._options else ["--engine", "toy"]
        command = [sys.executable, "-m", "tinker.cli", "serve", *model, "--port", str(self._port)]
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--data", str(self.data), *self._options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith("TINKER_")
                },
            )
        assert self._process.stdout is not None
        if self.url not in self._process.stdout.readline():
            raise RuntimeError(
                f"the server did not start: {(self._folder / 'server.log').read_text()[-2000:]}"
            )

    def kill(self) -> None:
        """End the process as ``kill -9`` does, wherever it happens to be."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()
        self.kills += 1

    def kill_part(self, name: str, seconds: float) -> None:
        """End a process that the server has started, by a part of its command, the newest one of
        that name.

        Where the server cannot go on without it, it ends by itself, and is started again.
        """
        process = self._process
        assert process is not None
        os.kill(max(find_descendants(process.pid, name)), signal.SIGKILL)
        self.kills += 1
        if name == "gcs_server":
            process.communicate(timeout=seconds)
            self.start()

    def stop(self) -> int:
        """End the process as ``kill`` does without a number; its exit code."""
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        process.communicate()
        return process.returncode

    def read_memory(self) -> int:
        """Return the bytes of memory that the process uses."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def data(self) -> Path:
        """Where the server keeps its checkpoints."""
        return self._folder / "data"


def find_descendants(pid: int, name: str) -> list[int]:
    """Return the processes below this one, at any depth, whose command contains the name."""
    found: list[int] = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        if name in Path(f"/proc/{child}/cmdline").read_text():
            found.append(child)
        found += find_descendants(child, name)
    return found


def free_port() -> int:
    """Return a free port, below those that the system gives to outgoing connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
