"""Commands of the command line on a terminal of a given width, and what it is sent."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SILENCES = 120  # of a second, after which a program counts as stuck
PROGRAM = """
import json, sys
from tinker.cli import main
from tinker.cli.app import LazyGroup
for arguments in json.loads(sys.argv[1]):
    print("$", *arguments, flush=True)
    try:
        main(arguments)
    except SystemExit as end:
        print("ended with", end.code, flush=True)
"""


def show_on_terminal(
    calls: list[list[str]], columns: int, folder: Path, typed: Sequence[tuple[str, str]] = ()
) -> str:
    """Return what a terminal of so many columns is sent by the commands, one after the other in one
    process.

    ``typed`` is what is typed once a text has appeared, in this order. As a program may show a text
    before it reads, what was typed last is typed again for as long as nothing happens.
    """
    import fcntl
    import struct
    import termios

    def own_terminal() -> None:
        # a shell ignores it for what it starts in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TINKER_") and name != "COLUMNS"
    }
    environment = {
        **kept,
        "HOME": str(folder),
        "TERM": "xterm-256color",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True,
        preexec_fn=own_terminal,
    )  # fmt: skip
    os.close(theirs)
    shown, since, waiting, answer, silences = b"", 0, list(typed), "", 0
    while True:
        if not select.select([ours], [], [], 1.0)[0]:
            os.write(ours, answer.encode())
            silences += 1
            if silences == SILENCES:
                process.kill()
            continue
        if not (piece := read(ours)):
            break
        shown += piece
        while waiting and (found := shown.find(waiting[0][0].encode(), since)) >= 0:
            text, answer = waiting.pop(0)
            since = found + len(text)
            os.write(ours, answer.encode())
    process.wait()
    os.close(ours)
    return shown.decode()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has the other end any more
        return b""
