"""What commands and the pytest plugin say about an installation mixed with another's."""

from __future__ import annotations

import importlib.metadata
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli.conftest import Ask, Call
from unit.test_installation import installed

from tinker._basics.installation import PATCHING_PACKAGES
from tinker._version import DISTRIBUTION_VERSION
from tinker.cli.commands.doctor import list_untested


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return a package that two distributions claim."""
    for name, version in (("tinker", DISTRIBUTION_VERSION), ("another-tinker", "0.38.0")):
        installed(tmp_path / "site", name, version, ["__init__.py"])
    return tmp_path / "site" / "tinker"


def assert_names_both(text: str) -> None:
    """Both distributions and the repair are in the text, wherever its lines are broken."""
    text = " ".join(text.split())
    assert f"tinker {DISTRIBUTION_VERSION}" in text
    assert "another-tinker 0.38.0" in text
    assert "pip uninstall -y another-tinker" in text


def test_doctor(call: Call, mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row "installation" fails, and the doctor says that it must be repaired."""
    monkeypatch.setattr("tinker._basics.installation.PACKAGE", mixed)
    result = call("-f json doctor", code=1)
    (row,) = [one for one in json.loads(result.stdout)["checks"] if one["name"] == "installation"]
    assert row["status"] == "FAIL"
    assert_names_both(row["detail"])
    assert "installation" in result.stderr


def test_doctor_of_a_sound_installation(ask: Ask) -> None:
    """The row "installation" says which installation this is, the row "versions" which version."""
    rows = {one["name"]: one for one in ask("doctor")["checks"]}
    assert rows["installation"]["status"] == "ok"
    assert f"tinker {DISTRIBUTION_VERSION}," in rows["versions"]["detail"]


def test_doctor_waits_for_a_local_server(call: Call) -> None:
    """A server in this process has the time that its model needs, whatever the patience."""
    call("--patience 0.0001 -f json doctor", base_url="local://toy", code=0)


def test_doctor_names_the_extra_of_each_absent_package(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is not installed is named with its extra, and its row does not fail."""
    monkeypatch.setattr("tinker.cli.commands.installation.find_version", {"ray": "2.40"}.get)
    (row,) = [one for one in ask("doctor")["checks"] if one["name"] == "versions"]
    assert row["status"] == "ok"
    assert (
        "torch not installed (extra models), transformers not installed (extra local)"
        in row["detail"]
    )
    assert "starlette not installed (extra local), ray 2.40" in row["detail"]


def test_doctor_names_packages_that_patch_the_official_client(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package whose patch has no effect is named, with what to do instead."""
    monkeypatch.setitem(PATCHING_PACKAGES, "click", PATCHING_PACKAGES["twinkle-kit"])
    (row,) = [one for one in ask("doctor")["checks"] if one["name"] == "installation"]
    assert row["status"] == "note"
    assert (
        "click "
        f"{importlib.metadata.version('click')}: "
        "twinkle_client.init_tinker_client() has no effect"
    ) in row["detail"]
    assert "default_headers_overrides" in row["detail"]


def test_doctor_of_a_local_server_that_cannot_start(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of the connection says why it does not start; the other rows are there too."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = call("-f json doctor", base_url="local://nosuch")
    rows = {one["name"]: one for one in json.loads(result.stdout)["checks"]}
    assert (result.exit_code, rows["connection"]["status"], "versions" in rows) == (1, "FAIL", True)
    assert "nosuch" in rows["connection"]["detail"]


def test_doctor_names_untested_releases() -> None:
    """A package above the bound of the extra `tested` is named with both versions."""
    here = importlib.metadata.version("click")
    requirements = [
        "click<=1.0; extra == 'tested'",
        "httpx<=99; extra == 'tested'",
        "rich<=1.0",
        "no-such<=1; extra == 'tested'",
    ]
    assert list_untested(requirements) == [
        f"click {here} is newer than 1.0, the newest release that was tested"
    ]


def test_serve(call: Call, mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server warns before it starts."""
    monkeypatch.setattr("tinker._basics.installation.PACKAGE", mixed)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = call("serve --engine toy --port", str(taken.getsockname()[1]))
    assert result.stderr.startswith("Warning: ")
    assert_names_both(result.stderr)


def run_pytest(folder: Path, conftest: str) -> str:
    """Return the output of a run of pytest with the plugin."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text("def test_nothing():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plugin(mixed: Path, tmp_path: Path) -> None:
    """A run of pytest has one warning about it, and goes on."""
    output = run_pytest(
        tmp_path,
        "import pathlib\nimport tinker._basics.installation\ntinker._basics.installation.PACKAGE = "
        f"pathlib.Path({str(mixed)!r})\n",
    )
    assert "1 passed, 1 warning" in output
    assert_names_both(output)


def test_plugin_in_a_sound_installation(tmp_path: Path) -> None:
    """Without a problem there is no warning."""
    assert "warning" not in run_pytest(tmp_path, "")
