"""What runs the tests of other people's servers: which of them, in which Python, and how they
ended.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import own_tests
import pytest
from servers import Source

from tinker.proto.response_conv import (
    deserialize_forward_backward_output,
    deserialize_sample_response,
)


@pytest.mark.parametrize(
    ("asked", "run"),
    [
        (None, ("tests/a.py", "tests/b.py")),
        (["b.py"], ("tests/b.py",)),
        (["a.py::test_one", "a.py::test_two"], ("tests/a.py::test_one", "tests/a.py::test_two")),
        (["of_another_server.py"], ()),
    ],
)
def test_some_of_the_tests_are_run(asked: list[str] | None, run: tuple[str, ...]) -> None:
    """Files and single tests are chosen by their names; those of another server choose nothing."""
    assert own_tests.OwnTests(("tests/a.py", "tests/b.py")).limited(asked).files == run


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("", {"status": "passed"}),
        ("<properties/>", {"status": "passed"}),
        (
            "<failure message='first line&#10;second'/>",
            {"status": "failed", "message": "first line"},
        ),
        ("<error message='in a fixture'/>", {"status": "failed", "message": "in a fixture"}),
        ("<skipped/>", {"status": "skipped", "message": ""}),
    ],
)
def test_how_a_test_ended(inside: str, expected: dict[str, str]) -> None:
    """A row of pytest's report becomes the name of a test, how it ended, and why."""
    case = ElementTree.fromstring(
        f"<testcase classname='tests.tinker.test_api' name='test_it'>{inside}</testcase>"
    )
    assert own_tests.read_case(case) == ("test_api.test_it", expected)


def test_skipped_tests_do_not_count() -> None:
    """The count is of tests that were run."""
    ended = {
        str(number): {"status": status}
        for number, status in enumerate(("passed", "failed", "skipped", "passed"))
    }
    assert own_tests.count(ended) == "2 of 3"


@pytest.mark.parametrize("cloned", [False, True])
def test_a_commit_is_unpacked(tmp_path: Path, cloned: bool) -> None:
    """The named paths are as they were at the commit, with a clone at hand or without."""
    repository, home = tmp_path / "repository", tmp_path / "home"
    git = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=e"]
    (repository / "src").mkdir(parents=True)
    home.mkdir()
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    for text in ("then", "now"):
        (repository / "src" / "a.py").write_text(text)
        (repository / "b.py").write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", text], check=True)
    then = subprocess.run(
        [*git, "rev-parse", "HEAD~"], check=True, capture_output=True, text=True
    ).stdout.strip()
    source = Source(repository.as_uri(), then, ("src",)).unpack(
        home, repository if cloned else None
    )
    assert {path.name: path.read_text() for path in source.rglob("*.py")} == {"a.py": "then"}


def test_a_module_runs_in_the_environment_of_the_client(tmp_path: Path) -> None:
    """The substitute for `uv run` runs the module in its Python and returns its status."""
    (tmp_path / "told.py").write_text(
        "import sys; print(__name__, sys.argv[1:], sys.executable); sys.exit(3)"
    )
    own_tests.write_uv(tmp_path / "bin", sys.executable)
    command = [tmp_path / "bin" / "uv", "run", "--extra", "tinker", "-m", "told", "--port", "8000"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == (f"__main__ ['--port', '8000'] {sys.executable}\n", 3)


SAMPLE = {
    "sequences": [{"stop_reason": "stop", "tokens": [5], "logprobs": [-0.5]}],
    "topk_prompt_logprobs": [None],
}
LOSS = {
    "loss_fn_outputs": [{"logprobs": {"data": [-1.0], "dtype": "float32", "shape": [1]}}],
    "metrics": {"loss:sum": 1.0},
}


@pytest.mark.parametrize(
    ("module", "sample", "loss"),
    [
        (
            own_tests.OWN_TESTS["skyrl"].module,
            "serialize_result('sample', SAMPLE)",
            "serialize_result('forward', LOSS)",
        ),
        (
            "arctic_platform/integrations/tinker/proto_wire.py",
            "encode_sample_response(SAMPLE)",
            "encode_forward_backward_output(LOSS)",
        ),
    ],
)
def test_the_lines_for_a_module_are_all_of_it(module: str, sample: str, loss: str) -> None:
    """What the page on the codec writes for a module runs alone, and clients read its bytes."""
    names = {"SAMPLE": SAMPLE, "LOSS": {"loss_fn_output_type": "ArrayRecord", **LOSS}}
    exec(own_tests.lines_for(module), names)
    read = deserialize_sample_response(eval(sample, names))
    assert (read.sequences[0].tokens, read.topk_prompt_logprobs) == ([5], [None])
    assert deserialize_forward_backward_output(eval(loss, names)).metrics == {"loss:sum": 1.0}
