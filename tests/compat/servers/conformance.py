"""Run the conformance kit against a server and keep its report and badge in docs/conformance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from servers import HERE, KEY, MODEL, Server

REPORTS = HERE.parents[2] / "docs" / "conformance"
CHECK_SECONDS = 240.0
WHOLE_SECONDS = 3600.0
#: Exit statuses with which the kit has finished, whatever it has found.
DONE = (0, 1, 3)


def write_report(server: Server, url: str, folder: Path) -> None:
    """The report of a running server, under its name, without the place of its folder."""
    named = REPORTS / server.name
    label = f"{server.title} {server.version}"
    options = [
        "--base-url",
        url,
        "--api-key",
        KEY,
        "--base-model",
        MODEL,
        "--label",
        label,
        "--deadline",
        str(CHECK_SECONDS),
    ]
    files = [
        "--markdown",
        str(named.with_suffix(".md")),
        "--badge",
        str(named.with_suffix(".json")),
    ]
    command = [sys.executable, "-m", "tinker.cli", "conformance", *options, *files]
    ended = subprocess.run(command, timeout=WHOLE_SECONDS, check=False).returncode
    if ended not in DONE:
        raise subprocess.CalledProcessError(ended, command)
    report = named.with_suffix(".md")
    report.write_text(report.read_text().replace(str(folder).replace("_", r"\_"), "FOLDER"))
