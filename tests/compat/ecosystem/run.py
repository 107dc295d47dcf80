"""Packages that use the SDK, with the official client and with this one: `nox -s
compat -- ecosystem`.

python run.py --wheel WHEEL --folder FOLDER [NAME ...], in an environment that has this package with
its local server.

For each package in packages.toml and each client: an environment of its own, a server of ours with
the packaged model, the package's own tests where its source has some, and the script in steps/.
Fails where a step passes with the official client and not with this one, unless packages.toml says
why, and where it says why without need. Writes docs/ecosystem.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import page

import tinker
from tinker.local import Settings, running_server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
COOKBOOK = HERE.parent / "cookbook"
RECORDED = HERE / "recorded"
PACKAGES: dict[str, dict[str, Any]] = tomllib.loads((HERE / "packages.toml").read_text())
TORCH = "torch==2.13.0"
EXTRAS = "[torch,tokenizers,hub,zstd,proto]"
TOKENIZER = Path(tinker.__file__).parent / "local" / "base_model"
CLIENTS = ("official", "ours")
LONGEST_SECONDS = 1800
Results = dict[str, dict[str, Any]]


def main() -> int:
    """Return the number of packages with something unexplained."""
    arguments = parse_arguments()
    results = {name: run_package(name, arguments) for name in arguments.names or PACKAGES}
    for name, result in results.items():
        (RECORDED / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(page.table(results))
    kept = {name: RECORDED / f"{name}.json" for name in PACKAGES}
    every = {name: json.loads(path.read_text()) for name, path in kept.items() if path.exists()}
    (ROOT / "docs" / "ecosystem.md").write_text(page.whole(every))
    problems = [line for name, result in results.items() for line in page.problems(name, result)]
    print("\n".join(problems), file=sys.stderr)
    return len(problems)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for environments")
    parser.add_argument("names", nargs="*", help="packages; all by default")
    arguments = parser.parse_args()
    arguments.folder = arguments.folder.absolute()
    return arguments


def run_package(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the package's entry, and the steps that each client passed and failed."""
    package = PACKAGES[name]
    steps: dict[str, Results] = {}
    for client in CLIENTS:
        home = arguments.folder / f"{name}-{package['version']}-{client}"
        python = make_environment(home, package, name, client, arguments.wheel)
        steps[client] = run_steps(name, package, home, python)
        print(f"{name} {package['version']} {client}: {page.count(steps[client])}", flush=True)
    return {
        **package,
        "steps": steps,
        "client": tinker.__version__,
        "open_version": tinker.OPEN_VERSION,
    }


def make_environment(
    home: Path, package: dict[str, Any], name: str, client: str, wheel: Path
) -> Path:
    """Make an environment with PyTorch, one client and the package; return its Python."""
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    chosen = f"{wheel}{EXTRAS}" if client == "ours" else package["official"]
    lock = (ROOT / "locks" / f"{name}.txt").as_uri()
    pip(python, lock, TORCH)
    pip(python, lock, chosen, "-r", str(COOKBOOK / "requirements.txt"), *package["requirements"])
    if client == "ours":
        pip(python, lock, "--force-reinstall", "--no-deps", str(wheel))
    versions = {"tinker-cookbook": package["cookbook"], name: package["version"]}
    exact = (f"{one}=={version}" for one, version in versions.items())
    # a script adds features of a newer Python that a package needs
    pip(python, lock, "--no-deps", "--ignore-requires-python", *exact)
    if (found := requirement_of(python, name)) != package["requires"]:
        raise SystemExit(
            f"{name} requires {found!r}, and packages.toml says {package['requires']!r}"
        )
    return python


def requirement_of(python: Path, name: str) -> str:
    """Return what a package's metadata requires of the client, without conditions, or nothing."""
    program = (
        "import importlib.metadata, sys; "
        "print(*importlib.metadata.requires(sys.argv[1]) or (), sep='\\n')"
    )
    listed = subprocess.run(
        [str(python), "-c", program, name], capture_output=True, text=True, check=True
    ).stdout
    return next(
        (
            line.partition(";")[0].strip()
            for line in listed.splitlines()
            if re.match(r"tinker(?![\w-])", line)
        ),
        "",
    )


def pip(python: Path, lock: str, *what: str) -> None:
    """Install packages into the environment of that Python, limited by the lock."""
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "-q", "--no-compile", *what],
        env=clean(PIP_CONSTRAINT=lock, PIP_BUILD_CONSTRAINT=lock),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"pip install {' '.join(what)} failed:\n{done.stdout}{done.stderr}")


def clean(**more: str) -> dict[str, str]:
    """Return the variables of this process except those of Python and this package."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "TINKER", "VIRTUAL_ENV"))
    }
    return {**kept, **more}


def run_steps(name: str, package: dict[str, Any], home: Path, python: Path) -> Results:
    """Everything there is to run of this package, against a fresh server."""
    folder = home / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with (
        tempfile.TemporaryDirectory() as data,
        running_server(Settings(data_dir=Path(data), any_base_model=True), "torch") as url,
    ):
        variables = clean(
            TINKER_BASE_URL=url, TINKER_API_KEY="tml-ecosystem", TOKENIZER_FOLDER=str(TOKENIZER), HF_HUB_OFFLINE="1",
            HF_DATASETS_OFFLINE="1", HOME=str(folder), TINKER_TELEMETRY="0", PATH=f"{python.parent}:{os.environ['PATH']}",
        )  # fmt: skip
        found: Results = {}
        if "tests" in package or "tests_listed" in package:
            found |= run_own_tests(name, package, folder, python, variables)
        if "script" in package:
            found |= run_script(package["script"], folder, python, variables)
        if "loops" in package:
            found |= run_loops(url, folder, python, variables)
    return found


def run_script(script: str, folder: Path, python: Path, variables: dict[str, str]) -> Results:
    """Return the steps of our script; one that ends before its last step has failed as a whole."""
    done = follow([str(python), str(HERE / "steps" / script)], folder, variables)
    whole = {"the script": {"passed": False, "why": done.stderr[-2000:]}} if done.returncode else {}
    lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"'))
    return {
        line["step"].replace("_", " "): {"passed": line["passed"], "why": line["why"]}
        for line in lines
    } | whole


def run_own_tests(
    name: str, package: dict[str, Any], folder: Path, python: Path, variables: dict[str, str]
) -> Results:
    """Run pytest on the source distribution; failing tests are repeated alone."""
    source = unpack(name, package["version"], folder)
    listed = package.get("tests") or (COOKBOOK / package["tests_listed"]).read_text().split()
    found: Results = {}
    for chosen in ([], ["--last-failed", "--last-failed-no-failures=none"]):
        report = folder / "junit.xml"
        report.unlink(missing_ok=True)
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-W",
            "ignore",
            f"--junitxml={report}",
            *chosen,
            *listed,
        ]
        done = follow(command, source, variables)
        if not report.exists():
            raise SystemExit(f"{name}: its tests did not run:\n{done.stdout}{done.stderr}")
        cases = ElementTree.parse(report).iter("testcase")
        found |= dict(read_case(case) for case in cases if case.find("skipped") is None)
    return found


def read_case(case: ElementTree.Element) -> tuple[str, dict[str, Any]]:
    """Return the name of a test, and how it ended."""
    wrong = next(
        (case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None
    )
    name = f"{case.get('classname', '')}.{case.get('name', '')}".lstrip(".")
    return name, {"passed": wrong is None, "why": "" if wrong is None else wrong.get("message", "")}


def unpack(name: str, version: str, folder: Path) -> Path:
    """Return the source distribution, which has the tests."""
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name]
    subprocess.run([*download, "-d", str(folder), f"{name}=={version}"], env=clean(), check=True)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def run_loops(url: str, folder: Path, python: Path, variables: dict[str, str]) -> Results:
    """Return the cookbook's training loops, as `nox -s compat -- cookbook` runs them."""
    script = COOKBOOK / "loops.py"
    names = subprocess.run(
        [str(python), str(script), "--list"],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    done = follow(
        [str(python), str(script), url, str(folder), *names.stdout.split()], folder, variables
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    ends = {f"loop {row[0]}": row[1] == "passed" for row in rows if len(row) == 4}
    return {
        name: {"passed": passed, "why": "" if passed else done.stderr[-2000:]}
        for name, passed in ends.items()
    }


def follow(
    command: list[str], folder: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and keep its output with its results."""
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS
    )  # fmt: skip
    (folder / "log.txt").write_text(done.stdout + done.stderr)
    return done


if __name__ == "__main__":
    sys.exit(main())
