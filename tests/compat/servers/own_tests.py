"""The tests that come with other people's servers, with the official client beneath and with this
package in its place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servers import HERE, MODEL, Server, Source, locked

RECORDED = HERE / "own_tests.json"
CLIENTS = ("official", "ours")
CODEC = "codec"  # this package, and the lines of the page in place of the server's own module
PAGE = HERE.parents[2] / "docs" / "contract" / "codec.md"
WHOLE_SECONDS = 3600.0
LONGEST_TEST_SECONDS = 400
LONGEST_MESSAGE = 300
#: pydantic wants the `TypedDict` of typing_extensions where the Python is 3.11, and SkyRL that of
#: typing.
START = """import sys, typing, typing_extensions
if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict
"""
NEEDED = ("-r", str(HERE / "own_tests.txt"))


@dataclass(frozen=True)
class OwnTests:
    """The tests of a server: where they are, which are run, and their name of the model."""

    files: tuple[str, ...]
    source: Source | None = None  # None: they are in the source distribution
    model: str = MODEL
    module: str = ""  # the module that the page on the codec replaces

    @property
    def clients(self) -> tuple[str, ...]:
        """What they are run with."""
        return (*CLIENTS, CODEC) if self.module else CLIENTS

    def limited(self, files: list[str] | None) -> OwnTests:
        """These tests, those of some of their files, or single ones: `test_api.py::test_it`."""
        paths = {Path(path).name: path for path in self.files}
        chosen = [name.partition("::") for name in files or () if name.partition("::")[0] in paths]
        return (
            replace(self, files=tuple(paths[file] + mark + test for file, mark, test in chosen))
            if files
            else self
        )


OWN_TESTS = {
    "skyrl": OwnTests(
        files=(
            "tests/tinker/test_api.py",
            "tests/tinker/test_proto_serialization.py",
            "tests/tinker/test_future_waiting.py",
        ),
        source=Source(
            "https://github.com/NovaSky-AI/SkyRL",
            "a9564572eb8e91076be43c1bd5e4615e3de17265",
            ("tests/__init__.py", "tests/tinker"),
        ),
        model="trl-internal-testing/tiny-Qwen3ForCausalLM",
        module="skyrl/tinker/proto_serialization.py",
    ),
    "tuft": OwnTests(files=("tests/test_server.py", "tests/test_tinker_compat.py")),
}


def run_own_tests(
    server: Server,
    tests: OwnTests,
    python: str,
    scratch: Path,
    wheel: Path,
    clone: Path | None,
    clients: list[str] | None,
) -> None:
    """Run the tests of a server with each client, or with these, and write down how they ended."""
    folder = scratch / "own-tests" / server.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = fetched(server, tests, folder, clone)
    shutil.copytree(scratch / "run" / MODEL, source / tests.model, dirs_exist_ok=True)
    (source / "sitecustomize.py").write_text(START)
    found = {
        client: run_with(
            client, python_of(client, python, server.name, wheel, tests.module), tests, source
        )
        for client in tests.clients
        if client in (clients or tests.clients)
    }
    record(server, tests, found, scratch)
    for client, results in found.items():
        print(f"{server.title}, {client}: {count(results)}", flush=True)


def count(results: dict[str, Any]) -> str:
    """How many tests passed, of how many that were not skipped."""
    run = [one for one in results.values() if one["status"] != "skipped"]
    return f"{sum(one['status'] == 'passed' for one in run)} of {len(run)}"


def fetched(server: Server, tests: OwnTests, folder: Path, clone: Path | None) -> Path:
    """Return a folder with the tests: of the source distribution, or of the repository."""
    if tests.source:
        return tests.source.unpack(folder, clone)
    name = server.package.partition("==")[0]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        name,
        "-d",
        str(folder),
    ]
    subprocess.run([*pip, server.package], check=True)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    return source


def python_of(client: str, python: str, name: str, wheel: Path, module: str) -> str:
    """Return the Python of the server's environment, or of a copy with this package in it."""
    home = Path(python).parent.parent
    if client != "official":
        other = home.with_name(f"{home.name}-with-{client}")
        shutil.rmtree(other, ignore_errors=True)
        # pip rewrites the files that it replaces
        shutil.copytree(home, other, symlinks=True, copy_function=os.link)
        home = other
    python = str(home / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q"]
    subprocess.run([*install, *NEEDED], env=locked(name), check=True)
    if client != "official":
        subprocess.run([*install, f"{wheel}[proto,zstd]"], env=locked(name), check=True)
        subprocess.run(
            [*install, "--force-reinstall", "--no-deps", str(wheel)], env=locked(name), check=True
        )
    if client == CODEC:
        (replaced,) = home.glob(f"lib/python*/site-packages/{module}")
        replaced.unlink()  # and not the file that it is a link to
        replaced.write_text(lines_for(module))
    return python


def lines_for(module: str) -> str:
    """Return what the page says to write in place of a module: the common block and its own."""
    blocks = re.findall(
        r"^```python\n# (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return "".join(text for name, text in blocks if name in ("codec.py", module))


def run_with(client: str, python: str, tests: OwnTests, source: Path) -> dict[str, Any]:
    """How each test ended, by its name."""
    report = source.parent / f"{client}.xml"
    options = [
        "-q",
        "-W",
        "ignore",
        "-o",
        "asyncio_mode=auto",
        f"--timeout={LONGEST_TEST_SECONDS}",
        f"--junitxml={report}",
    ]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TINKER_", "PYTHON"))
    }
    binaries = source.parent / f"{client}-bin"
    write_uv(binaries, python)
    variables = {
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{binaries}:{environment['PATH']}",
        **jax_settings(source.parents[2] / "jax-cache"),
    }
    with (source.parent / f"{client}.log").open("w") as log:
        subprocess.run(
            [python, "-m", "pytest", *options, *tests.files],
            cwd=source,
            env={**environment, **variables, "PYTHONPATH": str(source)},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=WHOLE_SECONDS,
            check=False,
        )
    return dict(read_case(case) for case in ElementTree.parse(report).iter("testcase"))


def jax_settings(cache: Path) -> dict[str, str]:
    """Return settings for JAX on the CPU that keep compiled code for the next server."""
    kept = {"MIN_COMPILE_TIME_SECS": "0", "MIN_ENTRY_SIZE_BYTES": "-1"}
    settings = {f"JAX_PERSISTENT_CACHE_{name}": value for name, value in kept.items()}
    return {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache), **settings}


def write_uv(binaries: Path, python: str) -> None:
    """A command `uv` that runs modules in the environment of that Python."""
    binaries.mkdir(exist_ok=True)
    text = (HERE / "hosts" / "uv").read_text().partition("\n")[2]
    (binaries / "uv").write_text(f"#!{python}\n{text}")
    (binaries / "uv").chmod(0o755)


def read_case(case: ElementTree.Element) -> tuple[str, dict[str, str]]:
    """Return the name of a test and how it ended."""
    kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    ended = next((one for one in case if one.tag in kinds), None)
    name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name', '')}"
    if ended is None:
        return name, {"status": "passed"}
    return name, {
        "status": kinds[ended.tag],
        "message": (ended.get("message") or "").split("\n")[0][:LONGEST_MESSAGE],
    }


def record(
    server: Server, tests: OwnTests, found: dict[str, dict[str, Any]], scratch: Path
) -> None:
    """Write down the results of a server; those of the others stay."""
    kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    found = {**kept.get(server.name, {}).get("results", {}), **found}
    entry = {
        "version": server.version,
        "official": server.own_client,
        "files": list(tests.files),
        "results": found,
    }
    text = json.dumps({**kept, server.name: entry}, indent=1, sort_keys=True) + "\n"
    RECORDED.write_text(text.replace(str(scratch), "<scratch>"))


def section(servers: tuple[Server, ...]) -> Iterator[str]:
    """Yield the table of these tests for the page, and what differs."""
    if not RECORDED.exists():
        return
    kept = json.loads(RECORDED.read_text())
    yield from (
        "## The servers' own tests",
        "",
        (
            "These tests come with the servers. They run with the official client that the server "
            "requires, and with this package in its"
        ),
        "place.",
        "",
        "| server | tests | official client | passed with it | passed with this package |",
        "|---|---|---|--:|--:|",
    )
    for server in servers:
        if (entry := kept.get(server.name)) is not None:
            files = ", ".join(f"<code>{name}</code>" for name in entry["files"])
            counts = " | ".join(count(entry["results"][client]) for client in CLIENTS)
            yield (
                f"| {server.title} {entry['version']} | {files} | {entry['official']} | {counts} |"
            )
    yield ""
    lines = [
        line
        for server in servers
        if server.name in kept
        for line in unlike(server, kept[server.name]["results"])
    ]
    yield from lines or ["Every test has the same result with both."]
    yield ""
    for server in servers:
        results = kept.get(server.name, {}).get("results", {})
        if CODEC in results:
            differing = [
                *unlike(
                    server,
                    {"official": results["ours"], "ours": results[CODEC]},
                    "this package",
                    "the codec",
                )
            ]
            yield (
                "With the lines of [Use our codec](../contract/codec.md) in place of "
                f"`{OWN_TESTS[server.name].module}`,"
            )
            yield f"{server.title} passes {count(results[CODEC])} of them" + (
                ":" if differing else "."
            )
            yield from ("", *differing, *[""] * bool(differing))


def unlike(
    server: Server,
    results: dict[str, dict[str, Any]],
    official: str = "the official client",
    ours: str = "this one",
) -> Iterator[str]:
    """Yield the tests that one client passes and the other fails."""
    known = tomllib.loads((HERE / "notes.toml").read_text()).get("own tests", {})
    for name, one in results["official"].items():
        other = results["ours"].get(name, {"status": "missing"})
        if one["status"] != other["status"]:
            said = next(
                (f"`{ended['message']}`" for ended in (other, one) if ended.get("message")), ""
            )
            why = known.get(f"{server.name}: {name}", {}).get("because", said)
            yield (
                f"- {server.title}, `{name}`: {one['status']} with {official}, {other['status']} "
                f"with {ours}. {why}"
            )
