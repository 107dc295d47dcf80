"""Journals that were written by other versions, or that something has damaged: read, or refused by name, and never a traceback."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import tinker
from tinker.local import Settings, State, serve_in_thread
from tinker.local.engines.toy import ToyEngine
from tinker.local.storage.journal import FILE, FOLDER, FORMAT, Journal, JournalUnreadableError

ARCHIVES = Path(__file__).parents[1] / "golden" / "journals"
COMMITS = sorted(file.name.partition(".")[0] for file in ARCHIVES.iterdir())
PROMPT = tinker.ModelInput.from_ints([5, 6, 7])
DATUM = tinker.Datum(PROMPT, {"target_tokens": [6, 7, 8], "weights": [1.0] * 3})  # type: ignore[dict-item]
NEXT_NUMBER = 7  # of the run, after a gradient, a step, two saves, a gradient and a forward pass
PARAMS = tinker.SamplingParams(max_tokens=4, seed=1, stop=[])


class Kept:
    """What a server of a commit left when it was killed; ``facts`` is what its client had seen."""

    def __init__(self, commit: str, folder: Path) -> None:
        with tarfile.open(ARCHIVES / f"{commit}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        self.folder = folder / "data"
        self.pickle = (folder / "sampler.pickle").read_bytes()
        self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())

    @property
    def journal(self) -> Path:
        return self.folder / FOLDER / FILE

    def change(self, statement: str, *values: object) -> None:
        """Change the file as nobody should."""
        database = sqlite3.connect(self.journal)
        assert database.execute(statement, values).rowcount != 0
        database.commit()
        database.close()

    def open(self) -> State:
        """Open a server on the folder."""
        return State(ToyEngine, Settings(data_dir=self.folder, durability="step"))


@pytest.fixture(params=COMMITS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    """Return what a server of each commit left."""
    return Kept(request.param, tmp_path)


def continue_run(url: str, kept: Kept) -> tinker.TrainingClient:
    """Return a client of the checkpoint that the older server saved."""
    return tinker.ServiceClient(base_url=url, api_key="tml-x").create_training_client_from_state(kept.facts["path"])


def test_a_server_goes_on_with_what_an_older_one_left(kept: Kept) -> None:
    """Runs, samplers in pickles and checkpoints of older versions work, and the file has a format number from now on."""
    with serve_in_thread(kept.open()) as url:
        facts = kept.facts
        forward = continue_run(url, kept).forward([DATUM], "cross_entropy").result(30)
        assert forward.loss_fn_outputs[0]["logprobs"].tolist() == facts["logprobs"]
        promise = ask(url, "optim_step", {"model_id": facts["run"], "seq_id": NEXT_NUMBER, "adam_params": {}})
        step = ask(url, "retrieve_future", {"request_id": promise["request_id"]})
        assert step["metrics"]["grad_norm:mean"] > 0  # the gradient that no step had taken
    database = sqlite3.connect(kept.journal)
    assert database.execute("pragma user_version").fetchone() == (FORMAT,)
    database.close()


def ask(url: str, operation: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{url}/api/v1/{operation}", json=body, headers={"x-api-key": "tml-x"})
    return {"status": answer.status_code, **answer.json()}


def test_a_pickle_of_an_older_version(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that an older version has pickled samples the same tokens."""
    with serve_in_thread(kept.open()) as url:
        content = kept.pickle.replace(kept.facts["url"].encode(), url.encode())
        assert len(kept.facts["url"]) == len(url)
        monkeypatch.setenv("TINKER_API_KEY", "tml-x")
        sampler = pickle.loads(content)
        response = sampler.sample(tinker.ModelInput.from_ints([5, 6]), 1, PARAMS).result(30)
        assert list(response.sequences[0].tokens) == kept.facts["tokens"]


def spoil(statement: str, *values: object) -> Callable[[Kept], None]:
    return lambda kept: kept.change(statement, *values)


@pytest.mark.parametrize(
    "damage",
    [
        spoil("update results set kind = 'OfTomorrow' where kind = 'OptimStepResponse'"),
        spoil("update results set content = x'ff' where kind = 'loss'"),
        spoil("update results set kind = cast(x'ff' as text) where kind = 'OptimStepResponse'"),
        spoil("update requests set number = 'two' where operation = 'forward_backward'"),
        spoil("update requests set operation = cast(x'ff' as text) where operation = 'forward_backward'"),
        spoil("update runs set number = 'two'"),
    ],
    ids=["kind", "content", "text of a result", "number", "text of a request", "run"],
)
def test_a_row_that_cannot_be_read_costs_its_run(kept: Kept, damage: Callable[[Kept], None], caplog: Any) -> None:
    """The server starts; the run of the row refuses requests in a sentence, and everything else goes on."""
    damage(kept)
    with serve_in_thread(kept.open()) as url:
        body = {"model_id": kept.facts["run"], "seq_id": 9, "adam_params": {}}
        refusal = ask(url, "optim_step", body)
        assert refusal["status"] == 400
        assert "is lost, because a" in refusal["detail"]
        assert "go on from a checkpoint" in refusal["detail"]
        forward = continue_run(url, kept).forward([DATUM], "cross_entropy").result(30)
        assert forward.loss_fn_outputs[0]["logprobs"].tolist() == kept.facts["logprobs"]
    assert kept.facts["run"] in caplog.text
    with serve_in_thread(kept.open()) as url:
        assert ask(url, "optim_step", body)["status"] == 400


def test_a_newer_format_is_refused_by_name(kept: Kept) -> None:
    """A journal of a newer version is refused, with its format and both ways out, and is left as it is."""
    kept.change(f"pragma user_version = {FORMAT + 1}")
    before = kept.journal.read_bytes()
    with pytest.raises(JournalUnreadableError, match=rf"has the format {FORMAT + 1}, and this version reads up to {FORMAT}"):
        kept.open()
    assert kept.journal.read_bytes() == before


def random_bytes(file: Path) -> None:
    file.write_bytes(os.urandom(5000))


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = bytes(byte ^ 0x55 for byte in content[4096:])
    file.write_bytes(content)


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def no_folder(file: Path) -> None:
    for one in sorted(file.parent.rglob("*"), reverse=True):
        one.rmdir() if one.is_dir() else one.unlink()
    file.parent.rmdir()
    file.parent.write_text("")


@pytest.mark.parametrize("damage", [random_bytes, flipped, a_folder, no_folder])
def test_a_file_that_cannot_be_read(kept: Kept, damage: Callable[[Path], None]) -> None:
    """`tinker serve` ends with one sentence, which names the file and what to do, and makes no traceback."""
    damage(kept.journal)
    command = [sys.executable, "-m", "tinker.cli", "serve", "--engine", "toy", "--durability", "step", "--port", "0"]
    done = subprocess.run([*command, "--data", str(kept.folder)], capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert str(kept.journal.parent) in said.replace("\n", "")
    assert "Traceback" not in said
    assert "bug" not in said
    assert "move the file away" in " ".join(said.split()) or "choose another data folder" in " ".join(said.split())


def test_a_path_too_long(tmp_path: Path) -> None:
    """A path that SQLite cannot open is refused in a sentence that names it."""
    root = tmp_path / ("a" * 200) / ("b" * 200) / ("c" * 200)
    with pytest.raises(OSError, match=r"cannot be opened: .*; choose another data folder"):
        Journal(root)
