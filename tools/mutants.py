"""Mutation testing of the core modules: does some test fail when a line of them is wrong?

    python tools/mutants.py                      every module: about half an hour on two idle cores
    python tools/mutants.py _loop _wire/proto    only these
    python tools/mutants.py --list _loop         the sample, without running it

The sample of a module is the same in every run: SAMPLE mutations that `equivalent_mutants.toml` does not list. Each of them is
put into a copy of the tree, where pytest runs the tests of that module in a forked process until one fails. A mutant that
hangs is killed, which counts as noticed. Fails when fewer than 95 % of all mutants of the run are noticed, when a module's
tests fail without a mutation, and when the list names a mutation that does not exist.

Needs fork, and what the tests need. No part of CI.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mutations import Mutation, mutations, sample

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
COPIED = ("tinker", "tinker_records", "generated", "tests", "codegen", "docs", "examples")
SAMPLE = 12
NEEDED = 0.95
LONGEST_SECONDS = 600.0
PRELOADED = ["pytest", "numpy", "msgspec", "httpx", "httpunk", "starlette.applications", "uvicorn", "jsonschema_rs", "torch"]
TEST_SECONDS = 60  # of one test: a mutant may make it hang
OPTIONS = (
    f"-x -q --no-header --tb=short -p no:cacheprovider -p no:randomly -p no:xdist -o faulthandler_timeout={TEST_SECONDS} "
    "-o faulthandler_exit_on_timeout=true"
).split()

TABLES = "docs/test_docs.py::test_retry_tables_are_fresh"
URLS = "client/test_checkpoints.py::test_an_expired_url_is_renewed"
RETRIES = ["unit/test_retry.py", "unit/test_retry_times.py", "client/test_patience.py", "client/test_polling.py", TABLES, URLS]

#: Which tests are asked about a module; the ones most likely to notice first.
TESTS: dict[str, list[str]] = {
    "_http/retry": RETRIES,
    "_http/submission": ["unit/test_submission.py", *RETRIES],
    "_http/statuses": [
        *RETRIES,
        "unit/test_circuit_states.py",
        "client/test_session.py",
        "client/test_restarted_server.py",
        "client/test_telemetry.py",
    ],
    "_http/transport": [
        "client/test_exchanges.py",
        "client/test_session.py",
        "client/test_auth.py",
        "client/test_patience.py",
        "client/test_events.py",
        "client/test_streaming.py",
        "client/test_circuit_breaker.py",
        "client/test_training.py",
    ],
    "_http/limits": ["unit/test_order.py", "unit/test_budgets.py", "client/test_limits.py"],
    "_session/session": [
        "client/test_session.py",
        "client/test_restarted_server.py",
        "client/test_limits.py",
        "client/test_clones.py",
    ],
    "_session/results": [
        "client/test_polling.py",
        "client/test_waiting.py",
        "client/test_observing.py",
        "client/test_training.py",
        "client/test_sampling.py",
    ],
    "_session/session_poller": ["client/test_completions.py"],
    "_http/forms": [
        "unit/test_submission.py",
        "client/test_format_negotiation.py",
        "client/test_server_info.py",
        "client/test_training.py",
        "client/test_recordings_of_2025.py",
    ],
    "_training/run": [
        "client/test_older_versions.py",
        "client/test_turns.py",
        "client/test_failure_propagation.py",
        "client/test_training.py",
        "client/test_restarted_server.py",
        "client/test_samplers.py",
        "client/test_events.py",
    ],
    "_training/order": [
        "unit/test_order.py",
        "client/test_turns.py",
        "client/test_failure_propagation.py",
        "client/test_training.py",
    ],
    "_training/numbers": ["unit/test_submission.py", "client/test_turns.py", "client/test_failure_propagation.py"],
    "_training/loss_requests": [
        "client/test_turns.py",
        "client/test_training.py",
        "client/test_custom_loss.py",
        "client/test_failure_propagation.py",
        "unit/test_combine.py",
    ],
    "_training/combine": ["unit/test_combine.py"],
    "_sampling/submit": [
        "client/test_samplers.py",
        "client/test_sampling.py",
        "client/test_clones.py",
        "client/test_limits.py",
        "client/test_training.py",
        "client/test_completions.py",
        "client/test_streaming.py",
        "client/test_usage.py",
    ],
    "training_client": [
        "client/test_argument_errors.py",
        "client/test_turns.py",
        "client/test_training.py",
        "client/test_custom_loss.py",
        "client/test_session.py",
        "client/test_tokenizers.py::test_text",
    ],
    "sampling_client": [
        "client/test_samplers.py",
        "client/test_sampling.py",
        "client/test_clones.py",
        "client/test_argument_errors.py",
        "client/test_cookbook_calls.py",
        "client/test_older_versions.py",
        "client/test_streaming.py",
        "client/test_tokenizers.py::test_text",
    ],
    "futures": ["client/test_futures.py", "client/test_waiting.py", "unit/test_loop.py", "client/test_failure_propagation.py"],
    "_loop": ["unit/test_loop.py", "unit/test_lag.py", "client/test_futures.py", "client/test_waiting.py"],
    "types/tensor_data": ["unit/test_tensors.py", "unit/test_types.py"],
    "_wire/proto": ["codec"],
    "_wire/bodies": ["unit/test_bodies.py", "unit/test_combine.py", "client/test_samplers.py"],
    "_wire/json": [
        "unit/test_bodies.py",
        "unit/test_answers.py",
        "codec",
        "client/test_sampling.py",
        "client/test_training.py",
    ],
    "local/scheduling/models": ["local/test_schedule.py", "local/test_server_training.py"],
    "local/scheduling/samples": ["local/test_schedule.py", "local/test_server_sampling.py"],
    "local/scheduling/worker": ["local/test_schedule.py", "local/test_server_training.py"],
    "local/storage/checkpoint_records": [
        "local/test_checkpoint_files.py",
        "local/test_server_checkpoints.py",
        "local/test_server_admin.py",
        "local/test_server_catalog.py",
        "local/test_server_search.py",
    ],
    "local/storage/checkpoints": [
        "local/test_checkpoint_files.py",
        "local/test_durability.py",
        "local/test_kept_runs.py",
        "local/test_server_checkpoints.py",
        "local/test_server_catalog.py",
    ],
    "local/engines/losses": ["local/test_losses.py", "local/test_toy_engine.py", "local/test_torch_engine.py"],
}


@dataclass
class Run:
    """One run of the tests of a module, in a process of its own; the first of a module is without a mutation."""

    module: str
    mutation: Mutation | None
    started: float = 0.0
    passed: bool = False
    seconds: float = 0.0


@dataclass
class Slot:
    """A copy of the tree, used by one run at a time."""

    folder: Path
    run: Run | None = None
    pid: int = 0
    written: int = field(default=0)  # how often a module was written here

    def start(self, run: Run) -> None:
        source = (ROOT / path_of(run.module)).read_text() if run.mutation is None else run.mutation.source
        self._write(run.module, source)
        self.run, run.started = run, time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            with suppress(BaseException):
                code = run_tests(self.folder, TESTS[run.module])
            os._exit(code)

    def end(self, limit: float) -> Run | None:
        """Return the run, if it has ended; one that takes longer than the limit is ended."""
        assert self.run is not None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        elapsed = time.monotonic() - self.run.started
        if pid == 0 and elapsed < limit:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if pid == 0:
            _, status = os.waitpid(self.pid, 0)
        run, self.run = self.run, None
        run.passed, run.seconds = os.waitstatus_to_exitcode(status) == 0, elapsed
        self._write(run.module, (ROOT / path_of(run.module)).read_text())
        return run

    def _write(self, module: str, source: str) -> None:
        """A time of its own for every version, so that no compiled file of another version is taken for it."""
        place = self.folder / path_of(module)
        place.write_text(source)
        self.written += 1
        os.utime(place, (self.written, self.written))


def path_of(module: str) -> str:
    return f"tinker/{module}.py"


def copy_tree(folder: Path) -> Path:
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "site"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return folder


def run_tests(folder: Path, tests: Sequence[str]) -> int:
    """In the forked process: pytest's exit status; 0 means that nothing was noticed."""
    os.setsid()
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    sys.path[:0] = [str(folder), str(folder / "generated")]
    os.environ.update(PYTHONPATH=f"{folder}:{folder}/generated", TINKER_LOCAL_DIR=str(folder / "local"))
    import pytest

    files = [f"tests/{name}" for name in tests]
    return int(pytest.main([*OPTIONS, "--basetemp", str(folder / "temporary"), *files]))


def chosen(modules: Sequence[str], count: int) -> tuple[dict[str, list[Mutation]], list[str]]:
    """Return the sample of each module without those known to be equivalent, and the entries of that list that name nothing."""
    listed = {(one["module"], one["line"], one["change"]) for one in tomllib.loads(EQUIVALENT.read_text())["mutant"]}
    samples: dict[str, list[Mutation]] = {}
    for module in modules:
        found = mutations((ROOT / path_of(module)).read_text())
        unknown = {(module, *one.identity) for one in found}
        samples[module] = sample(module, [one for one in found if (module, *one.identity) not in listed], count)
        listed -= unknown
    return samples, sorted(f"{module}: {line}: {change}" for module, line, change in listed if module in modules)


def ended(runs: list[Run], jobs: int) -> Iterator[Run]:
    """Every run as it ends, ``jobs`` of them at once. Mutants get a few times as long as the tests took without one."""
    limits: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        slots = [Slot(copy_tree(Path(folder, str(number)))) for number in range(jobs)]
        while runs or any(slot.run for slot in slots):
            for slot in slots:
                if slot.run is None and runs:
                    slot.start(runs.pop(0))
                run = slot.end(limits.get(slot.run.module, LONGEST_SECONDS)) if slot.run else None
                if run is None:
                    continue
                if run.mutation is None:
                    limits[run.module] = 2 * run.seconds + 2 * TEST_SECONDS
                    if not run.passed:
                        print((slot.folder / "output.txt").read_text()[-3000:])
                yield run
            time.sleep(0.05)


def report(run: Run) -> None:
    if run.mutation is None:
        print(f"{run.module}: {'' if run.passed else 'NOT '}passed without a mutation, {run.seconds:.0f} s", flush=True)
    elif run.passed:
        one = run.mutation
        print(f"  not noticed: {path_of(run.module)}:{one.number}: {one.line}\n      {one.change}", flush=True)


def summary(runs: Sequence[Run]) -> bool:
    """Print the scores; whether they suffice."""
    mutants = [run for run in runs if run.mutation is not None]
    for module in dict.fromkeys(run.module for run in mutants):
        own = [run for run in mutants if run.module == module]
        noticed, seconds = sum(not run.passed for run in own), sum(run.seconds for run in own)
        print(f"{module:24} {noticed:3} of {len(own):3}   {seconds:5.0f} s")
    noticed = sum(not run.passed for run in mutants)
    share = noticed / len(mutants)
    print(f"{'all':24} {noticed:3} of {len(mutants):3}   {share:.1%}")
    return share >= NEEDED and all(run.passed for run in runs if run.mutation is None)


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation testing of the core modules.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(TESTS)}; all by default")
    parser.add_argument("--count", type=int, default=SAMPLE, help="mutants of each module (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (default %(default)s)")
    parser.add_argument("--list", action="store_true", help="only show the sample")
    options = parser.parse_args()
    modules = options.modules or list(TESTS)
    if unknown := set(modules) - TESTS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    samples, stale = chosen(modules, options.count)
    if options.list:
        for module, found in samples.items():
            print(*(f"{path_of(module)}:{one.number}: {one.line}\n    {one.change}" for one in found), sep="\n")
        return 0
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    done: list[Run] = []
    for run in ended([Run(module, one) for module in modules for one in [None, *samples[module]]], options.jobs):
        report(run)
        done.append(run)
    print(*(f"{EQUIVALENT.name} lists what does not exist: {entry}" for entry in stale), sep="\n")
    return 0 if summary(done) and not stale else 1


if __name__ == "__main__":
    sys.exit(main())
