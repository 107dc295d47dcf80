"""The server of examples/server, and one that shares no code with this package, against the
conformance kit.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tinker_wire.operations import OPERATIONS

import tinker
from tinker import types
from tinker.testing import Outcome, Report, run
from tinker.testing.conformance import all_checks

ROOT = Path(__file__).resolve().parents[2]
PLAIN = Path(__file__).with_name("plain")
SCRIPTS = {
    "example": ROOT / "examples" / "server" / "minimal_server.py",
    "plain": PLAIN / "plain_server.py",
}
MANDATORY = frozenset(name for name, operation in OPERATIONS.items() if not operation.optional)


@pytest.fixture(scope="module", params=SCRIPTS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a server in a process; yield its URL."""
    script = SCRIPTS[request.param]
    paths = os.pathsep.join([str(script.parent), *filter(None, sys.path)])
    command = [sys.executable, "-P", str(script), "--port", "0", "--hold", "2", "--gap", "1"]
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        try:
            found = (re.search(r"running on (http://[\d.:]+)", line) for line in server.stderr)
            yield next(match[1] for match in found if match)
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def report(url: str) -> Report:
    """Return the report of `tinker conformance`, including the slow checks."""
    return run(url, slow=True)


def test_nothing_is_other_than_the_contract_says(report: Report) -> None:
    """Everything that the server has fits the document, also by the kit's strict checks."""
    found = {
        row.check: row.how
        for row in report.checks
        if row.outcome not in (Outcome.SUPPORTED, Outcome.ABSENT)
    }
    assert found == {}


def test_the_mandatory_part_is_there(report: Report) -> None:
    """Every mandatory check passes, and each mandatory operation works."""
    core = {check.name for check in all_checks() if check.core}
    assert {
        row.check
        for row in report.checks
        if row.check in core and row.outcome is not Outcome.SUPPORTED
    } == set()
    assert {name for name in MANDATORY if report.operations[name] is not Outcome.SUPPORTED} == set()


def test_a_client_trains_and_samples(url: str) -> None:
    """A generic client lowers a loss, saves, and samples from its checkpoint."""
    with tinker.ServiceClient(base_url=url) as service:
        training = service.create_lora_training_client(base_model="toy/bigram", rank=4)
        datum = types.Datum(types.ModelInput.from_ints([1, 2, 3]), {"target_tokens": [2, 3, 4]})
        losses = []
        for _ in range(12):
            losses.append(training.forward_backward([datum], "cross_entropy").result().loss)
            training.optim_step(types.AdamParams(learning_rate=0.5)).result()
        sampler = training.save_weights_and_get_sampling_client()
        answer = sampler.sample(
            types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=3, temperature=0)
        ).result()
    assert losses[-1] < losses[0] / 10
    assert answer.sequences[0].tokens == [2, 3, 4]


def test_the_plain_server_stands_alone() -> None:
    """The second server imports nothing but numpy and the standard library."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PLAIN.glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    assert others == {"numpy", "plain_model"}


def test_the_example_has_the_mandatory_operations_only() -> None:
    """The example has a method for each of them, and none for another operation."""
    tree = ast.parse(SCRIPTS["example"].read_text(encoding="utf-8"))
    (server,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Server"
    ]
    methods = {
        node.name
        for node in server.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert methods & OPERATIONS.keys() == MANDATORY


def test_the_page_lists_the_mandatory_operations() -> None:
    """The page's table has each operation, its address, and whether it is a future."""
    page = (ROOT / "docs" / "contract" / "servers.md").read_text(encoding="utf-8")
    for name in MANDATORY:
        operation = OPERATIONS[name]
        at_once = "the result" if name == "retrieve_future" else "at once"
        address = f"{operation.method} {operation.path.removeprefix('/api/v1')}"
        answer = "future" if operation.result else at_once
        assert f"| `{name}` | `{address}` | {answer} |\n" in page
    table = page.split("## Serve the mandatory operations")[1].split("\n## ")[0]
    assert table.count("\n| `") == len(MANDATORY)
