"""``vllm serve`` as a child process of the server."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

log: logging.Logger = logging.getLogger("tinker.local")
STOP_SECONDS = 10.0
LOG_TAIL_NBYTES = 2000
LOCALHOST = "127.0.0.1"


class VLLMProcess:
    """A vLLM on a free port of this machine, started by :meth:`ensure`, and again when it has ended.

    It needs the ``key``, since other users of this machine can reach the port. What it writes is in the file ``output``. It
    also ends when this process is killed, where the system has ``setpriv``.
    """

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        self.key: str = secrets.token_hex()
        self.has_started: bool = False
        self._output = output
        self._port = _find_port()
        self._arguments = [*arguments, "--host", LOCALHOST, "--port", str(self._port)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self._port}"

    def ensure(self) -> None:
        """Start it unless it runs. Raises OSError where there is no vLLM, or where it has ended before it answered."""
        code = None if self._process is None else self._process.poll()
        if self._process is not None and code is None:
            return
        if code is not None:
            self.stop()
            if not self.has_started:
                raise OSError(f"vLLM ended with code {code} when it was started; {self._output} ends with:\n{self._tail()}")
            log.error("vLLM ended with code %d, and is started again; its samples are sent again", code)
        self._start()

    def _start(self) -> None:
        program = shutil.which("vllm")
        if program is None:
            raise FileNotFoundError("there is no program `vllm` on PATH: install vLLM, in an environment of its own if need be")
        killed_with_parent = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        self._output.parent.mkdir(parents=True, exist_ok=True)
        self.has_started = False
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own vLLM, without a shell
                [*killed_with_parent, program, "serve", *self._arguments],
                env={**os.environ, "VLLM_API_KEY": self.key, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for the server, which ends it afterwards
            )

    def stop(self) -> None:
        """End it and all of its processes."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its engine's processes do not end with it
        process.wait()

    def _tail(self) -> str:
        return self._output.read_bytes()[-LOG_TAIL_NBYTES:].decode(errors="replace").strip()


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        port: int = probe.getsockname()[1]
        return port
