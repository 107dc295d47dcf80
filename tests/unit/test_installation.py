"""Installation: names, versions and extras of the distribution, and mixed installations."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import tinker
from tinker._basics.installation import EXTRAS, PACKAGE, inspect_installation, install_command
from tinker._version import DISTRIBUTION_VERSION

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OFFICIAL = "tinker-official"


# Identity


def test_versions() -> None:
    """Code compares the surface's version; the distribution's has ours too."""
    assert (tinker.__version__, tinker.OPEN_VERSION) == ("0.38.0", "1.0.0")
    assert DISTRIBUTION_VERSION == "0.38.0+open.1.0.0"


@pytest.mark.parametrize(
    "wanted", ["tinker", "tinker>=0.38", "tinker>=0.38.0", "tinker==0.38.0", "tinker<0.39"]
)
def test_dependents_are_satisfied(wanted: str) -> None:
    """Requirements of the official SDK's version accept this distribution."""
    assert Requirement(wanted).specifier.contains(DISTRIBUTION_VERSION)


def test_one_place_has_the_version() -> None:
    """The build reads the version from its module, and an installed wheel reports the same."""
    assert PROJECT["project"]["dynamic"] == ["version"]
    where = PROJECT["tool"]["hatch"]["version"]
    assert (where["path"], where["expression"]) == ("tinker/_version.py", "DISTRIBUTION_VERSION")
    if inspect_installation().owners:
        assert importlib.metadata.version("tinker") == DISTRIBUTION_VERSION


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is not a checkout")
def test_source_distribution() -> None:
    """The source distribution has every file of the repository, so the tests run from it."""
    command = ["git", "ls-files"]
    tracked = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    included = {
        name.removeprefix("/")
        for name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    }
    always = {".gitignore", "pyproject.toml"}
    assert {name.partition("/")[0] for name in tracked} - always == included


# Extras


def test_extras_are_those_of_the_project() -> None:
    """The packages that the error messages list for an extra are those that installing it adds."""
    declared = PROJECT["project"]["optional-dependencies"]
    assert {name: list(adds) for name, adds in EXTRAS.items()} == {
        name: declared[name] for name in declared if name != "tested"
    }


def test_tested_releases_are_the_locked_ones() -> None:
    """The extra `tested` pins the releases of the lock, so a renewed lock changes both."""
    locked = (ROOT / "locks" / "project.txt").read_text().splitlines()
    extras = PROJECT["project"]["optional-dependencies"]
    for requirement in extras["tested"]:
        assert requirement.replace("<=", "==") in locked
    (bound,) = [one for one in extras["tested"] if one.startswith("torch<=")]
    assert bound.replace("torch", "torch>=2.4,") in extras["models"]


def test_the_packaged_model_needs_no_torch() -> None:
    """The extra `local` brings nothing that is of use with torch only; `models` adds that."""
    named = {
        extra: {Requirement(one).name for one in EXTRAS[extra]} for extra in ("local", "models")
    }
    assert named["models"] - named["local"] == {"torch", "peft", "pillow"}
    assert named["local"] < named["models"]


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "locks").glob("*.txt"))])
def test_locks_are_exact(name: str) -> None:
    """Every line of a lock is one version, and the lock has every required package."""
    lines = (ROOT / "locks" / f"{name}.txt").read_text().splitlines()
    assert [line for line in lines if not re.match(r"[\w.-]+==[\w.+]+( ;|$)", line)] == []
    if name == "project":
        groups = [
            one
            for group in PROJECT["dependency-groups"].values()
            for one in group
            if isinstance(one, str)
        ]
        extras = [
            one for adds in PROJECT["project"]["optional-dependencies"].values() for one in adds
        ]
        wanted = {
            Requirement(one).name.lower().replace("_", "-").replace(".", "-")
            for one in [*PROJECT["project"]["dependencies"], *groups, *extras]
        }
        assert wanted <= {line.partition("==")[0] for line in lines}


@pytest.mark.parametrize("extra", [name for name, adds in EXTRAS.items() if adds])
def test_commands(extra: str) -> None:
    """The command names packages, and never the official SDK's name on the index."""
    command = install_command(extra)
    assert command.startswith("pip install ")
    assert not re.search(r"\btinker\b", command)


def test_commands_leave_out_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only missing packages are named, or all that are needed if none is missing."""
    monkeypatch.setattr(
        "tinker._basics.installation.find_spec",
        lambda name: None if name in ("torch", "peft") else object(),
    )
    assert install_command("models").startswith("pip install 'torch>=2.4,<=2.13.0' 'peft>=0.17'")
    assert (
        install_command("server")
        == "pip install 'starlette>=0.40' 'uvicorn>=0.30' 'prometheus_client>=0.20'"
    )
    assert install_command("tokenizers") == "pip install 'transformers>=4.45' 'jinja2>=3.1.6'"


def test_commands_name_the_builds_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the index has torch for CUDA, the command says where the build for CPUs is."""
    advice = " (without a GPU, add --extra-index-url https://download.pytorch.org/whl/cpu)"
    monkeypatch.setattr("tinker._basics.installation.find_spec", lambda name: None)
    for platform, told in (("linux", advice), ("darwin", "")):
        monkeypatch.setattr("sys.platform", platform)
        assert install_command("torch") == f"pip install 'torch>=2.4'{told}"
        assert install_command("hub") == "pip install 'huggingface_hub>=0.25'"


def test_no_text_advises_the_official_package() -> None:
    """No text has a requirement that the package index resolves to the official SDK."""
    files = [*(ROOT / "tinker").rglob("*.py"), ROOT / "README.md"]
    advice = re.compile(rf"tinker\[({'|'.join(EXTRAS)})\]")
    assert [path.name for path in files if advice.search(path.read_text())] == []


# Mixed installations


def installed(
    folder: Path, name: str, version: str, files: list[str], source: Path | None = None
) -> None:
    """Write a distribution into a folder, as an installer does."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    for file in files:
        path = folder / "tinker" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(
        "".join(f"tinker/{file},sha256=x,9\n" for file in files) + f"{info.name}/METADATA,,\n"
    )
    if source is not None:
        (info / "direct_url.json").write_text(
            json.dumps({"url": source.as_uri(), "archive_info": {}})
        )


OURS = ["__init__.py", "_installation.py", "types/__init__.py"]
THEIRS = ["__init__.py", "_models.py", "types/__init__.py"]


def test_sound_installation(tmp_path: Path) -> None:
    """All of our files and no others are no problem, whatever else is installed."""
    installed(tmp_path, "tinker", DISTRIBUTION_VERSION, OURS)
    installed(tmp_path, "tinker-cookbook", "0.6.1", [])
    found = inspect_installation(tmp_path / "tinker")
    assert found.problem is None
    assert str(found) == f"tinker {DISTRIBUTION_VERSION} in {tmp_path / 'tinker'}"


def test_source_tree() -> None:
    """A package without a distribution beside it has no problem and reports its place."""
    found = inspect_installation(ROOT / "tinker")
    assert found.problem is None
    assert str(ROOT) in str(found)


def test_two_distributions(tmp_path: Path) -> None:
    """Two distributions of one package are both named, with a command that repairs it."""
    wheel = tmp_path / "tinker-0.38.0+open.1.0.0-py3-none-any.whl"
    wheel.touch()
    installed(tmp_path, "tinker", DISTRIBUTION_VERSION, OURS, wheel)
    installed(tmp_path, OFFICIAL, "0.38.0", THEIRS)
    problem = str(inspect_installation(tmp_path / "tinker").problem)
    assert f"tinker {DISTRIBUTION_VERSION}" in problem
    assert f"{OFFICIAL} 0.38.0" in problem
    assert "pip uninstall -y tinker && pip uninstall -y tinker-official" in problem
    assert f"pip install {wheel}" in problem


def test_two_versions_of_one_name(tmp_path: Path) -> None:
    """Two distributions with the same name are reported as two."""
    installed(tmp_path, "tinker", DISTRIBUTION_VERSION, OURS)
    installed(tmp_path, "tinker", "0.38.0", THEIRS)
    problem = str(inspect_installation(tmp_path / "tinker").problem)
    assert f"tinker {DISTRIBUTION_VERSION} and tinker 0.38.0" in problem
    assert "install this client again" in problem


FOUR = [f"types/_{number}.py" for number in range(4)]


@pytest.mark.parametrize(
    ("version", "files", "added", "removed", "words"),
    [
        ("0.38.0", THEIRS, ["_installation.py"], [], "tinker 0.38.0 owns"),
        (DISTRIBUTION_VERSION, OURS, ["_models.py"], [], "tinker/_models.py"),
        (DISTRIBUTION_VERSION, OURS, ["resources/weights.py"], [], "tinker/resources/weights.py"),
        (DISTRIBUTION_VERSION, OURS, [], ["types/__init__.py"], "tinker/types/__init__.py"),
        (DISTRIBUTION_VERSION, OURS + FOUR, [], FOUR, "types/_2.py and 1 more)"),
    ],
    ids=["overwritten", "left behind", "left behind below", "missing", "many missing"],
)
def test_files_that_do_not_belong_together(
    tmp_path: Path,
    version: str,
    files: list[str],
    added: list[str],
    removed: list[str],
    words: str,
) -> None:
    """Files of ours in a foreign package, files of nobody and missing ones are named."""
    installed(tmp_path, "tinker", version, files)
    for name in added:
        (tmp_path / "tinker" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tinker" / name).touch()
    for name in removed:
        (tmp_path / "tinker" / name).unlink()
    assert words in str(inspect_installation(tmp_path / "tinker").problem)


def test_this_installation() -> None:
    """The installation that runs these tests has no problem."""
    assert (PACKAGE / "__init__.py").exists()
    assert inspect_installation().problem is None
