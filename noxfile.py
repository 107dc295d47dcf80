"""One session for each promise of this project. CI calls exactly these; `python -m nox -l` lists
them. Most are data: `tests/sessions.toml`, and `tests/compat/sessions.toml` for `compat`.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["tests", "lint", "types", "generate"]
nox.options.reuse_existing_virtualenvs = True
# uv where it is there: it installs PyTorch in a second
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_external_run = True
# a test starts many processes, each of which would compile every module again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
COMPAT = ROOT / "tests" / "compat"
LOCKS = ROOT / "locks"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCH = "torch==2.13.0"  # the tests run on the CPU, for which this release has a build
EXTRAS = ("torch", "tokenizers", "zstd", "proto", "hub", "models", "quantize", "ray")
LOWEST_EXTRAS = ("server", "zstd", "hub", "tokenizers")
CODEGEN = ("-r", "codegen/requirements.txt")
WITHOUT_TORCH = [f"tests/{name}" for name in ("unit", "client", "codec", "local", "testing", "cli")]
#: Of pytest, one more than there are cores, since tests also wait; `-- -n 0` for none.
WORKERS = str((os.cpu_count() or 1) + 1)
#: pip 26.2 and newer read the second where they build a wheel; the others are those of uv.
LOCK_VARIABLES = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT")
#: The settings of pip that say where packages come from, and the variables from which uv, which
#: reads none of them, takes them.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "cert": "SSL_CERT_FILE",
}
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")


def lock_variables(name: str) -> dict[str, str | None]:
    """The variables that limit installations to a lock, all dependencies included; "" is none."""
    return dict.fromkeys(LOCK_VARIABLES, (LOCKS / f"{name}.txt").as_uri() if name else None)


def prepare_uv() -> None:
    """Let uv find what pip finds, choose as pip does, and make environments that have pip."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(pip, capture_output=True, text=True).stdout.splitlines()
    found = {}
    # the environment comes last, and wins
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):
        setting, _, value = line.partition("=")
        if name := UV_VARIABLES.get(setting.rpartition(".")[2]):
            separator = "," if name == "UV_FIND_LINKS" else " "
            found[name] = separator.join(ast.literal_eval(value).split())
    os.environ.update({**found, **os.environ})
    # the newest release of any index
    os.environ.update(UV_INDEX_STRATEGY="unsafe-best-match", UV_VENV_SEED="1")


os.environ.update(lock_variables("project"))
if HAS_UV := shutil.which("uv") is not None:
    prepare_uv()


@functools.cache
def torch_source(session: nox.Session) -> tuple[str, ...]:
    """The option that adds PyTorch's index of builds for the CPU, on Linux and if it answers."""
    text = (ROOT / "tinker" / "_basics" / "installation.py").read_text()
    found = re.search(r"https://\S+/whl/cpu", text)
    if sys.platform != "linux" or found is None:
        return ()
    question = f"import urllib.request; urllib.request.urlopen('{found[0]}/torch/')"
    try:  # in a process, because looking up a name has no limit of time
        subprocess.run([sys.executable, "-c", question], timeout=2, check=True, capture_output=True)
    except subprocess.SubprocessError:
        session.log("PyTorch comes from the index at hand: that of builds for the CPU is silent")
        return ()
    session.log(f"PyTorch comes from {found[0]}")
    return ("--extra-index-url", found[0])


def install(session: nox.Session, *what: str) -> None:
    """Install; PyTorch first, so that nothing else can pull another build of it. Where `.ci/run`
    has linked the environment to that of `tests`, all is there.
    """
    if Path(session.virtualenv.location).is_symlink():
        return
    if any("models" in item or "torch" in item for item in what):
        session.install(TORCH, *torch_source(session))
    session.install(*what)


def dependencies(group: str) -> list[str]:
    """The packages of a dependency group."""
    return list(nox.project.dependency_groups(PROJECT, group))


def ranges(*extras: str) -> list[str]:
    """The requirements of the core and of these extras."""
    known = PROJECT["project"]
    adds = [one for extra in extras for one in known["optional-dependencies"][extra]]
    return known["dependencies"] + adds


def lowest_requirements() -> list[str]:
    """The dependencies but for torch, each at its lower bound, and what the tests need."""
    bounds = [one.partition(",")[0].replace(">=", "==") for one in ranges(*LOWEST_EXTRAS)]
    return bounds + [one for one in dependencies("test") if not one.startswith("schemathesis")]


def scratch(session: nox.Session) -> Path:
    """A folder of the session's own, kept between runs."""
    folder = Path(session.virtualenv.location).resolve() / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def built_wheel(session: nox.Session) -> Path:
    """The wheel of this tree, as users install it; `TINKER_WHEEL` is one that was built before."""
    if built := os.environ.get("TINKER_WHEEL"):
        return Path(built)
    session.install("build")
    folder = scratch(session) / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    command = ("python", "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT))
    session.run_install(*command, silent=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_wheel(session: nox.Session, extras: str = "", *packages: str) -> Path:
    """Install the wheel of this tree, also where one of the same version is, and packages."""
    wheel = built_wheel(session)
    install(session, f"{wheel}[{extras}]" if extras else str(wheel), *packages)
    install(session, "--force-reinstall", "--no-deps", str(wheel))
    return wheel


def install_into(session: nox.Session, python: str, *what: str) -> None:
    """Install into the environment of that Python."""
    uv = ("uv", "pip", "install", "--python", python)
    pip = uv if HAS_UV else (python, "-m", "pip", "install")
    source = torch_source(session) if TORCH in what else ()
    session.run(*pip, "-q", *what, *source, external=True)


def environment(session: nox.Session, name: str, *packages: str, lock: str = "project") -> str:
    """The Python of another environment, made anew when its packages or their lock change."""
    home = scratch(session) / name
    own = str(home / ("Scripts" if os.name == "nt" else "bin") / "python")
    wanted = "\n".join([*packages, (LOCKS / f"{lock}.txt").read_text() if lock else ""])
    if not (home / "ready").exists() or (home / "ready").read_text() != wanted:
        session.run("python", "-m", "venv", "--clear", str(home))
        session.env.update(lock_variables(lock))
        for package in packages:
            install_into(session, own, package)
        session.env.update(lock_variables("project"))
        (home / "ready").write_text(wanted)
    for package in packages:
        if ".whl" in package:  # of the same version, perhaps
            install_into(session, own, "--force-reinstall", "--no-deps", package.partition("[")[0])
    return own


def run_tests(session: nox.Session, *arguments: str) -> None:
    """Run pytest in several processes."""
    variables = {"OMP_NUM_THREADS": "1", "TINKER_LOCAL_DIR": str(scratch(session) / "local")}
    session.run("pytest", "-n", WORKERS, "--dist", "worksteal", *arguments, env=variables)


@nox.session
def lowest(session: nox.Session) -> None:
    """The tests that need no torch, with the lowest supported version of every dependency."""
    wheel = built_wheel(session)
    session.env.update(lock_variables("lowest"))
    session.install(*lowest_requirements(), f"{wheel}[{','.join(LOWEST_EXTRAS)}]")
    session.install("--force-reinstall", "--no-deps", str(wheel))
    run_tests(session, *(session.posargs or WITHOUT_TORCH))


@nox.session(venv_backend="virtualenv")  # pip has the strategy `eager`
def newest(session: nox.Session) -> None:
    """Every test and the quickstart, with the newest release of everything instead of the lock."""
    wheel = built_wheel(session)
    session.env.update(lock_variables(""))
    torch = torch_for(session, "torch") or [TORCH]
    session.install("--upgrade", *torch, *torch_source(session))
    newest = ("--upgrade", "--upgrade-strategy", "eager")
    # the extra `models` has an upper bound for torch
    models = (*torch, "peft", "pillow", f"{wheel}[local,quantize,zstd]")
    session.install(*newest, *models, *dependencies("test"), *CODEGEN)
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.run("pip", "list", "--format", "freeze")
    session.run("python", "examples/quickstart.py")
    run_tests(session, *session.posargs)


def torch_for(session: nox.Session, wanted: str = TORCH) -> list[str]:
    """PyTorch, where its build for this Python is one for the CPU; others bring gigabytes."""
    question = f"pip install -q --dry-run --no-deps --ignore-installed --report - {wanted}"
    command = (*question.split(), *torch_source(session))
    answer = session.run(*command, silent=True, success_codes=(0, 1)) or ""
    return [wanted] if "%2Bcpu" in answer or (sys.platform != "linux" and '"url"' in answer) else []


def interpreter(version: str) -> str | None:
    """A Python of this version that runs: nox's own, on PATH, or pyenv's behind its shims."""
    kept = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = [sys.executable, shutil.which(f"python{version}")]
    question = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
    for path in (*found, *map(str, sorted(kept.glob(f"{version}.*/bin/python")))):
        if path and not subprocess.run([path, "-c", question], capture_output=True).returncode:
            return path
    return None


def tests_with(version: str, python: str) -> None:
    """Register the tests with a Python: without PyTorch's, where that has no build for it."""

    @nox.session(name=f"tests-{version}", python=python)
    def run(session: nox.Session) -> None:
        """The tests with this Python (`-- PATH ...` for some of them)."""
        torch = torch_for(session)
        session.log(f"{python}, {'with' if torch else 'without'} PyTorch")
        extras = "models,zstd" if torch else "server,zstd"
        install_wheel(session, extras, *torch, *dependencies("test"), *CODEGEN)
        run_tests(session, *(session.posargs or ([] if torch else WITHOUT_TORCH)))


THERE = {version: found for version in PYTHONS if (found := interpreter(version))}
for _version in THERE:
    tests_with(_version, THERE[_version])
tests_with("latest", list(THERE.values())[-1])


@nox.session
def follow(session: nox.Session) -> None:
    """The edits that the newest release of the official SDK asks of the contract (`-- 0.36.0`)."""
    session.install(*CODEGEN, "protobuf")
    session.env.update(lock_variables(""))  # which pins that SDK
    folder = scratch(session) / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    options = ("-q", "--no-deps", "--only-binary", "tinker", "-d", str(folder))
    session.run("pip", "download", *options, "==".join(("tinker", *session.posargs)))
    session.run("python", "-m", "codegen", "follow", *map(str, folder.glob("*.whl")))


def locked_environments() -> dict[str, list[str]]:
    """What goes into our environments, and into those of other clients, servers and packages."""
    groups = [one for group in PROJECT["dependency-groups"] for one in dependencies(group)]
    cookbook = f"-r {COMPAT / 'cookbook' / 'requirements.txt'}"
    files = [f"-r {ROOT / CODEGEN[1]}", cookbook]
    interop = nox.project.load_toml(COMPAT / "sessions.toml")["interop"]["packages"][1:]
    tools = ("build", "hatchling", "editables", "nox", "uv", "tinker==0.38.0", *interop)
    found = {"project": [*ranges(*EXTRAS), *groups, *files, *tools]}
    found["lowest"] = lowest_requirements()
    for path in LOCKS.glob("official-*.txt"):
        found[path.stem] = [path.stem.replace("official-", "tinker==")]
    for path in (COMPAT / "servers" / "requirements").glob("*.txt"):
        own_tests = path.parents[1] / "own_tests.txt"
        found[path.stem] = [f"-r {path}", f"-r {own_tests}", *ranges("proto", "zstd")]
    for name, one in nox.project.load_toml(COMPAT / "ecosystem" / "packages.toml").items():
        ours = ranges("torch", "tokenizers", "hub", "zstd", "proto")
        found[name] = [*ours, cookbook, one["official"], *one["requirements"]]
    return found


@nox.session
def lock(session: nox.Session) -> None:
    """Renew locks/, which has the versions that the other sessions install (`-- NAME ...`)."""
    session.env.update(lock_variables(""))  # which is what is renewed
    session.install("uv")
    inputs = locked_environments()
    options = f"--universal --python-version {PYTHONS[0]} --upgrade --strip-extras"
    bare = "--no-emit-package tinker --no-annotate --no-header --quiet"
    for name in session.posargs or inputs:
        wanted = scratch(session) / f"{name}.in"
        wanted.write_text("\n".join([TORCH, *inputs[name], ""]))
        files = (str(wanted), "--output-file", str(LOCKS / f"{name}.txt"))
        session.run("uv", "pip", "compile", *options.split(), *bare.split(), *files)


def run_from_table(session: nox.Session, entry: dict[str, Any]) -> None:
    """Install what an entry of sessions.toml asks for, and run its commands."""
    packages = [one for group in entry.get("groups", ()) for one in dependencies(group)]
    packages += entry.get("packages", ())
    known = {"python": f"{session.bin}/python", "workers": WORKERS, "root": str(ROOT)}
    known["scratch"] = str(scratch(session))
    if "wheel" in entry:
        known["wheel"] = str(install_wheel(session, entry["wheel"], *packages))
    elif packages:
        install(session, *packages)
    if "alone" in entry:
        session.install("--no-deps", *entry["alone"])
    path = os.environ["PATH"]
    for name, other in entry.get("environments", {}).items():
        wanted = [one.format_map(known) for one in other["packages"]]
        try:
            known[name] = environment(session, name, *wanted, lock=other.get("lock", "project"))
        except nox.command.CommandFailed:
            if "without" not in other:
                raise
            session.skip(other["without"])
        path = os.pathsep.join((str(Path(known[name]).parent), path))
    variables = {**entry.get("variables", {}), "PATH": path}
    commands = [*entry["commands"], *(() if session.posargs else entry.get("unless_given", ()))]
    filled = [[word.format_map(known) for word in words] for words in commands]
    filled[len(entry["commands"]) - 1] += session.posargs or entry.get("arguments", ())
    env = {name: value.format_map(known) for name, value in variables.items()}
    for words in filled:
        session.run(*words, env=env, external=os.path.isabs(words[0]))


def register(name: str, entry: dict[str, Any]) -> None:
    """Register an entry of sessions.toml."""

    def run(session: nox.Session) -> None:
        run_from_table(session, entry)

    run.__doc__ = entry["about"]
    nox.session(run, name=name)


for _prefix, _folder in (("", ROOT / "tests"), ("compat-", COMPAT)):
    for _name, _entry in nox.project.load_toml(_folder / "sessions.toml").items():
        register(_prefix + _name, _entry)


@nox.session(venv_backend="none")
def compat(session: nox.Session) -> None:
    """Compare with software of others: `-- NAME ARGUMENT ...` is the session `compat-NAME`."""
    if not session.posargs:
        session.error("which one? `nox -l` lists each NAME as compat-NAME")
    session.notify(f"compat-{session.posargs[0]}", session.posargs[1:])
