"""Mutation testing: does a test fail when a line of tinker/ is wrong? And which lines and branches
does no test reach?

    python tools/mutants.py                      a sample of all modules: --count mutants, 60 by
                                                 default
    python tools/mutants.py _loop _wire/json     --count mutants of each of these, 12 by default
    python tools/mutants.py --list _loop         the sample, and how many tests reach each line,
                                                 without running them
    python tools/mutants.py --branches           what each module has that no test reaches
    python tools/mutants.py --measure            measure again what each test reaches;
                                                 `--measure PATH ...` adds these tests

The first run measures under coverage what each test reaches, of code that runs in the processes
that it starts as well: about a quarter of an hour on two cores. That is kept in `build/reached`; a
module that has changed since is left out until it is measured again.

A mutation that `equivalent_mutants.toml` does not list is put into a copy of the tree, where pytest
runs the tests that reach its line in a forked process until one fails, quick ones first, for
--longest seconds. One that hangs is killed, which counts as noticed. Tests that failed when they
were measured are not asked, and lines that no test reaches are not mutated. The seed of the sample
is printed, and --seed repeats it. Fails when fewer than 90 % are noticed, of all or of a module
with ten or more.

Needs fork, and what the tests need. No part of CI.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path

import coverage
import pytest
from mutations import Mutation, mutations
from structure import ROOT, written_files

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
COPIED = (
    "tinker",
    "tinker_records",
    "generated",
    "tests",
    "codegen",
    "docs",
    "examples",
    "tools",
    "locks",
)
FOLDERS = [
    f"tests/{name}"
    for name in (
        "unit",
        "codec",
        "client",
        "local",
        "cli",
        "testing",
        "model",
        "simulation",
        "docs",
    )
]
MODULES = {
    path.relative_to(ROOT / "tinker").with_suffix("").as_posix(): building
    for building, paths in written_files(ROOT).items()
    for path in paths
    if ROOT / "tinker" in path.parents
}
REACHED = ROOT / "build" / "reached"
SETTINGS, SECONDS = REACHED / "settings.ini", REACHED / "seconds.txt"
#: Of coverage, also in the processes that a test starts, where pytest's variable names the test.
SETTINGS_TEXT = """[run]
branch = true
parallel = true
data_file = {reached}/data
include = {copies}/*/tinker/**
context = ${{PYTEST_CURRENT_TEST-}}
[paths]
tinker =
    {root}/tinker
    {copies}/*/tinker
"""
STEP = 30  # tests that are asked at once; a mutant that they do not notice goes to the next
BATCHES = 16  # in which the tests are measured
NEEDED, ENOUGH = 0.9, 10
LONGEST_SECONDS = 3600.0
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
PRELOADED = [
    "msgspec",
    "httpx",
    "httpunk",
    "starlette.applications",
    "uvicorn",
    "jsonschema_rs",
    "torch",
    "schemathesis",
]
# pytest says of tests that cannot even be imported
UNIMPORTABLE = ("found no collectors", "while loading conftest")
TEST_SECONDS = 30  # of one test: a mutant may make it hang
OPTIONS = ["--no-header", "--continue-on-collection-errors", "--tb=short", "-p", "no:cacheprovider"]


@dataclass
class Run:
    """One run of some tests in a process of its own; without a mutation it measures what they
    reach.
    """

    tests: Sequence[str]
    module: str = ""
    mutation: Mutation | None = None
    first: int = 0  # of the STEP tests that are asked now
    others: int = 0  # how many more tests reach the line
    started: float = 0.0
    limit: float = LONGEST_SECONDS
    status: int = 0
    seconds: float = 0.0

    @property
    def asked(self) -> Sequence[str]:
        return self.tests[self.first : self.first + STEP]

    @property
    def noticed(self) -> bool:
        return self.status not in (0, 4, 5)  # no test failed, or pytest did not find it

    def __str__(self) -> str:
        assert self.mutation is not None
        place = (
            f"{path_of(self.module).relative_to(ROOT)}:{self.mutation.number}: {self.mutation.line}"
        )
        return (
            f"{place}\n    {self.mutation.change}   ({len(self.tests)} of "
            f"{len(self.tests) + self.others} tests)"
        )


@dataclass
class Slot:
    """A copy of the tree, used by one run at a time."""

    folder: Path
    run: Run | None = None
    pid: int = 0
    written: int = 0  # how often a module was written here

    def start(self, run: Run) -> None:
        if run.mutation is not None:
            self._write(run.module, run.mutation.source)
        self.run, run.started = run, time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            with suppress(BaseException):
                code = run_tests(self.folder, run)
            os._exit(code)

    def end(self) -> Run | None:
        """Return the run, if it has ended; one that takes longer than its limit is ended."""
        assert self.run is not None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        elapsed = time.monotonic() - self.run.started
        if pid == 0 and elapsed < self.run.limit:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if pid == 0:
            _, status = os.waitpid(self.pid, 0)
        run, self.run = self.run, None
        run.status, run.seconds = os.waitstatus_to_exitcode(status), elapsed
        if run.mutation is not None:
            self._write(run.module, path_of(run.module).read_text())
            if run.status == 4 and any(
                text in (self.folder / "output.txt").read_text() for text in UNIMPORTABLE
            ):
                run.status = 2
        return run

    def _write(self, module: str, source: str) -> None:
        """A time of its own for every version, so that no compiled file of another version is taken
        for it.
        """
        place = self.folder / path_of(module).relative_to(ROOT)
        place.write_text(source)
        self.written += 1
        os.utime(place, (self.written, self.written))


class Recorder:
    """Tells coverage which test runs, and notes how long each took; one that fails
    takes forever.
    """

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._measured.switch_context(name_of(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        with SECONDS.open("a") as file:
            print(math.inf if report.failed else report.duration, name_of(report.nodeid), file=file)


class Reached:
    """What each test reaches, as it was measured."""

    def __init__(self) -> None:
        self._measured = coverage.Coverage(config_file=str(SETTINGS))
        self._measured.load()
        self._names: dict[str, dict[int, list[str]]] = {}
        self.seconds: defaultdict[str, float] = defaultdict(float)
        for line in SECONDS.read_text().splitlines():
            seconds, _, test = line.partition(" ")
            self.seconds[test] += float(seconds)

    def tests(self, module: str, found: Sequence[Mutation]) -> Iterator[tuple[Mutation, list[str]]]:
        """Each mutation on a line that tests reach, with these; what runs on import belongs to all
        tests of the module.
        """
        path = path_of(module)
        kept = REACHED / path.relative_to(ROOT)
        if not kept.exists() or path.read_bytes() != kept.read_bytes():
            print(f"{module} has changed since it was measured", flush=True)
            return
        _, statements, _, missing, _ = self._measured.analysis2(str(path))
        tree = ast.parse(path.read_text())
        bodies = [body_of(node) for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
        inside = {line for body in bodies for line in body}
        for one in found:
            place = bisect(statements, one.number)
            start, end = statements[place - 1], [*statements, one.number + 1][place]
            if start in inside:
                places = {module: set(range(start, end))}
            else:
                places = self._uses_of(module, tree, one.number) or {module: inside}
            tests = self._ordered(
                {test for used, lines in places.items() for test in self._tests_of(used, lines)}
            )
            if tests and start not in missing:
                yield one, tests

    def _tests_of(self, module: str, lines: set[int]) -> set[str]:
        if module not in self._names:
            self._names[module] = self._measured.get_data().contexts_by_lineno(str(path_of(module)))
        names = self._names[module]
        return {name_of(name) for line in lines for name in names.get(line, ())}

    def _uses_of(self, module: str, tree: ast.Module, number: int) -> dict[str, set[int]]:
        """The lines in functions for which a line matters that runs on import: of its function, or
        those that have its name.
        """
        statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
        *_, node = (node for node in statements if first_line(node) <= number <= last_line(node))
        if isinstance(node, FUNCTIONS):
            return {module: set(body_of(node))}
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AnnAssign)
            else None
        )
        uses = self._users[target.id] if isinstance(target, ast.Name) else {}
        return {module: uses[module]} if module in uses else uses

    @cached_property
    def _users(self) -> defaultdict[str, dict[str, set[int]]]:
        """The lines of functions that have a name, of all modules."""
        found: defaultdict[str, dict[str, set[int]]] = defaultdict(dict)
        for module in MODULES:
            for function in ast.walk(ast.parse(path_of(module).read_text())):
                if isinstance(function, FUNCTIONS):
                    for node in (
                        inner for statement in function.body for inner in ast.walk(statement)
                    ):
                        if isinstance(node, ast.Name | ast.Attribute):
                            name = node.id if isinstance(node, ast.Name) else node.attr
                            found[name].setdefault(module, set()).add(node.lineno)
        return found

    def _ordered(self, tests: set[str]) -> list[str]:
        """Quick tests first, but not many of one file in a row."""
        rank: Counter[str] = Counter()
        places: list[tuple[float, str]] = []
        for seconds, test in sorted(
            (self.seconds[test], test) for test in tests & self.seconds.keys()
        ):
            file, _, _ = test.partition("::")
            rank[file] += 1
            places += [((seconds + 0.1) * rank[file], test)] if seconds < math.inf else []
        return [test for _, test in sorted(places)]

    def print_branches(self, modules: Sequence[str]) -> None:
        """The share of statements and branches that tests reach, of each building and of each
        module where some lack.
        """
        for building in dict.fromkeys(MODULES[module] for module in modules):
            print(f"\n{building}")
            files = [str(path_of(module)) for module in modules if MODULES[module] == building]
            self._measured.report(files, show_missing=True, skip_covered=True)


def path_of(module: str) -> Path:
    return ROOT / "tinker" / f"{module}.py"


def body_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> range:
    return range(function.body[0].lineno, last_line(function) + 1)


def first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, ast.ClassDef | FUNCTIONS) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def name_of(test: str) -> str:
    """Return the name of a test without its parameters, and without the phase that pytest's
    variable has.
    """
    return test.partition("[")[0].partition(" ")[0]


def copy_tree(folder: Path) -> Path:
    for name in COPIED:
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "site")
        )
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return folder


def run_tests(folder: Path, run: Run) -> int:
    """In the forked process: pytest's exit status; 0 means that nothing was noticed."""
    os.setsid()
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    sys.dont_write_bytecode = False  # a copy is used for many runs
    sys.path[:0] = [str(folder), str(folder / "generated")]
    os.environ.update(
        PYTHONPATH=f"{folder}:{folder}/generated", TINKER_LOCAL_DIR=str(folder / "local")
    )
    options = [
        *OPTIONS,
        "-o",
        "faulthandler_exit_on_timeout=true",
        "--basetemp",
        f"{folder}-temporary",
        *run.asked,
    ]
    if run.mutation is not None:
        return int(pytest.main(["-x", "-o", f"faulthandler_timeout={TEST_SECONDS}", *options]))
    os.environ["COVERAGE_PROCESS_START"] = str(SETTINGS)
    measured = coverage.Coverage(config_file=str(SETTINGS))
    with measured.collect():
        status = int(pytest.main(options, plugins=[Recorder(measured)]))
    measured.save()
    return status


def measure(tests: Sequence[str], jobs: int) -> None:
    """Measure what these tests reach, or else all tests, which begins anew."""
    if not tests or not REACHED.exists():
        shutil.rmtree(REACHED, ignore_errors=True)
        shutil.copytree(
            ROOT / "tinker",
            REACHED / "tinker",
            ignore=shutil.ignore_patterns("__pycache__", "assets"),
        )
    tests = tests or sorted(
        str(file.relative_to(ROOT))
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("test_*.py")
    )
    kept = SECONDS.read_text().splitlines(keepends=True) if SECONDS.exists() else []
    SECONDS.write_text(
        "".join(line for line in kept if line.split(" ")[1].partition("::")[0] not in tests)
    )
    with tempfile.TemporaryDirectory() as copies:
        SETTINGS.write_text(SETTINGS_TEXT.format(reached=REACHED, root=ROOT, copies=copies))
        batches = [Run(batch) for start in range(BATCHES) if (batch := tests[start::BATCHES])]
        for run in ended(batches, jobs, Path(copies)):
            print(
                f"{len(run.tests)} files of tests measured, "
                f"{run.seconds:.0f} s, status {run.status}",
                flush=True,
            )
        measured = coverage.Coverage(config_file=str(SETTINGS))
        measured.load()
        measured.combine([str(REACHED)])
        measured.save()


def chosen(module: str, seed: int) -> list[Mutation]:
    """Return the mutations of a module, without those known to be equivalent, in the order of the
    seed.
    """
    listed = {
        (one["module"], one["line"], one["change"])
        for one in tomllib.loads(EQUIVALENT.read_text())["mutant"]
    }
    found = [
        one
        for one in mutations(path_of(module).read_text())
        if (module, *one.identity) not in listed
    ]
    random.Random(f"{seed} {module}").shuffle(found)
    return found


def ended(runs: list[Run], jobs: int, copies: Path) -> Iterator[Run]:
    """Every run as it ends, ``jobs`` of them at once."""
    slots = [Slot(copy_tree(copies / str(number))) for number in range(jobs)]
    while runs or any(slot.run for slot in slots):
        for slot in slots:
            if slot.run is None and runs:
                slot.start(runs.pop(0))
            run = slot.end() if slot.run else None
            if run is not None:
                if run.status in (4, 5) or (run.status and run.mutation is None):
                    print((slot.folder / "output.txt").read_text()[-3000:])
                yield run
        time.sleep(0.05)


def summary(runs: Sequence[Run]) -> bool:
    """Print the scores; whether they suffice."""
    scores: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.module):
        for name in (run.module, f"all of {MODULES[run.module]}", "all"):
            scores.setdefault(name, []).append(run)
    for name, own in sorted(scores.items(), key=lambda score: score[0].startswith("all")):
        noticed = sum(run.noticed for run in own)
        print(
            f"{name:40} {noticed:3} of {len(own):3}   {noticed / len(own):6.1%}   "
            f"{sum(run.seconds for run in own):5.0f} s"
        )
    return bool(runs) and all(
        sum(run.noticed for run in own) >= NEEDED * len(own)
        for own in scores.values()
        if len(own) >= ENOUGH
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Mutation testing, and the branches that no test reaches."
    )
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="as _http/retry; a sample of all by default"
    )
    parser.add_argument(
        "--count", type=int, help="mutants of each module (12 by default), or of all (60)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(10**6),
        help="of the sample; another each time by default",
    )
    parser.add_argument(
        "--longest",
        type=float,
        default=240,
        help="measured seconds of tests asked about one (%(default)s)",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="processes at once (default %(default)s)"
    )
    parser.add_argument(
        "--measure", nargs="*", metavar="PATH", help="measure all tests again, or these in addition"
    )
    parser.add_argument("--branches", action="store_true", help="only show what no test reaches")
    parser.add_argument("--list", action="store_true", help="only show the sample")
    options = parser.parse_args()
    modules = options.modules or list(MODULES)
    if unknown := set(modules) - MODULES.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    if options.measure is not None or not SECONDS.exists():
        measure(options.measure or [], options.jobs)
    reached = Reached()
    if options.branches:
        reached.print_branches(modules)
        return 0
    counts = dict.fromkeys(modules, options.count or 12)
    if not options.modules:
        weights = [path_of(module).stat().st_size for module in modules]
        counts = dict(
            Counter(random.Random(options.seed).choices(modules, weights, k=options.count or 60))
        )
    print(f"--seed {options.seed}", flush=True)
    runs: list[Run] = []
    for module, count in counts.items():
        for one, tests in islice(reached.tests(module, chosen(module, options.seed)), count):
            before = accumulate((reached.seconds[test] for test in tests), initial=0.0)
            asked = [
                test
                for test, seconds in zip(tests, before, strict=False)
                if seconds < options.longest
            ]
            limit = 2 * TEST_SECONDS + 2 * sum(reached.seconds[test] for test in asked)
            runs.append(Run(asked, module, one, others=len(tests) - len(asked), limit=limit))
    if options.list:
        print(*map(str, runs), sep="\n")
        return 0
    done: list[Run] = []
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as copies:
        for run in ended(runs, options.jobs, Path(copies)):
            if not run.noticed and run.first + STEP < len(run.tests):
                runs.insert(0, replace(run, first=run.first + STEP))
            else:
                done.append(run)
                print("" if run.noticed else f"not noticed: {run}\n", end="", flush=True)
    return 0 if summary(done) else 1


if __name__ == "__main__":
    sys.exit(main())
