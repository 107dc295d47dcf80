"""Copies of the project, for tests that change it: a later change, or a fault."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.contract import ROOT

FOLDERS = ("tinker", "tinker_records", "codegen", "tests", "generated", "docs", "tools")
FILES = ("openapi.yaml", "tinker_public.proto", "pyproject.toml", "schemathesis.toml")
WARM = """
import importlib, json, os
import pytest
for name in ("httpunk", "hypothesis", "jsonschema_rs", "numpy", "ruamel.yaml", "schemathesis", "starlette", "torch", "uvicorn"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
for line in sys.stdin:
    job = json.loads(line)
    if (child := os.fork()) == 0:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        status = pytest.main(job["arguments"])
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
QUIET = ("-p", "no:randomly", "-p", "no:cacheprovider")


class ProjectCopy:
    """A copy of what tests need of the project, and programs that see it before any other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warm: subprocess.Popen[str] | None = None
        for name in FOLDERS:
            shutil.copytree(
                ROOT / name,
                folder / name,
                ignore=shutil.ignore_patterns("__pycache__", "*.svg", "compat"),
            )
        for name in FILES:
            shutil.copy(ROOT / name, folder / name)

    @contextmanager
    def changed(self, name: str, old: str, new: str) -> Iterator[None]:
        """While it lasts, the one place where a file has this text has another."""
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        self._write(path, text.replace(old, new))
        try:
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # made in the same second, it may pass for current
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()

    def _command(self, code: str) -> list[str]:
        paths = [str(self.folder / name) for name in ("generated", ".", "tests", "tools")]
        return [sys.executable, "-c", f"import sys; sys.path[:0] = {paths}\n{code}"]

    def run(self, code: str, *arguments: str) -> str:
        """Run a program that must succeed, and return its output."""
        command = [*self._command(code), *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def run_module(self, name: str, *arguments: str) -> str:
        """Run a module as `python -m` does."""
        return self.run(as_main(name), *arguments)

    def run_tests(self, *arguments: str) -> tuple[int, str]:
        """Run pytest in a warm child process; return exit status and output."""
        if self._warm is None or self._warm.poll() is not None:
            self._warm = subprocess.Popen(
                self._command(WARM),
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        log = self.folder / "log"
        self._warm.stdin.write(
            json.dumps({"arguments": [*QUIET, *arguments], "log": str(log)}) + "\n"
        )
        self._warm.stdin.flush()
        return int(self._warm.stdout.readline()), log.read_text(encoding="utf-8")

    def close(self) -> None:
        """End the warm process."""
        if self._warm is not None:
            self._warm.communicate()


def as_main(name: str) -> str:
    """Return the program that a module is."""
    return f"import runpy; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
