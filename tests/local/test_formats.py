"""Files and pickles of other versions: those of earlier ones are read, newer ones are refused by
name, damaged ones cost little.

``earlier`` has what servers of two earlier commits left when they were killed, and what their
clients had pickled.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import pickle
import random
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.api import Api, MakeApi, datum, loss_body, sample_body
from support.full_disk import FullDisk

import tinker
from tinker.local.app import HANDLERS
from tinker.local.engines import PACKAGED_MODEL, open_engine
from tinker.local.engines.protocol import AdapterSpec, EngineError
from tinker.local.engines.toy import ToyEngine
from tinker.local.state import recover
from tinker.local.storage.futures import FORMAT, Journal, JournalInUseError

EARLIER = Path(__file__).parent / "earlier"
COMMITS = ["c4beb41", "643b3370"]
DATA = [datum([104, 101], [101, 108]), datum([105, 101], [101, 109])]
WAYS_OUT = (
    r"start .* of tinker.*, or move the file away: checkpoints stay, and the runs in it are lost"
)


def unpack(name: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(EARLIER / name) as archive:
        archive.extractall(folder, filter="data")
    return folder


def facts(commit: str, engine: str = "toy") -> Any:
    return json.loads((EARLIER / f"{commit}.json").read_text())[engine]


def journal_file(folder: Path) -> Path:
    return folder / ".journal" / "journal.sqlite"


def change(folder: Path, *statements: str) -> None:
    """Change a journal as another version, or bad luck, might."""
    with contextlib.closing(
        sqlite3.connect(journal_file(folder), isolation_level=None)
    ) as database:
        for statement in statements:
            database.execute(statement)


def start(make_api: MakeApi, folder: Path) -> Api:
    """Start a server on a folder of an earlier one."""
    api = make_api(ToyEngine(), durability="step", data_dir=folder)
    api.runner.run(recover(api.state, HANDLERS))
    return api


def forward(api: Api, run: str, number: int) -> Any:
    body = loss_body(run, number, data=DATA)
    future = api.ok("forward", {"forward_input": body.pop("forward_backward_input"), **body})
    return [
        [float(x) for x in one["logprobs"]["data"]] for one in api.result(future)["loss_fn_outputs"]
    ]


@pytest.mark.parametrize("commit", COMMITS)
def test_a_run_of_an_earlier_version_goes_on(
    commit: str, make_api: MakeApi, tmp_path: Path
) -> None:
    """The run has the weights it had, its gradient can be stepped, and its checkpoint and sampler
    are there.
    """
    api = start(make_api, unpack(f"{commit}-toy.tar.gz", tmp_path / "data"))
    run = facts(commit)["run"]
    assert forward(api, run, 9) == facts(commit)["logprobs"]
    assert api.metrics(api.step(run, 10, learning_rate=0.01))["grad_norm:mean"] > 0
    sampler = run.replace(":train:0", ":sample:0")
    params = {"max_tokens": 8, "seed": 7, "temperature": 1.0}
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [104]}]}
    sample = api.ok("asample", sample_body(sampler, 10**6, sampling_params=params, prompt=prompt))
    assert api.result(sample)["sequences"][0]["tokens"] == facts(commit)["tokens"]
    load = api.load(f"tinker://{run}/weights/a", model_id=run, seq_id=11)
    assert "error" not in api.result(load)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_checkpoint_of_an_earlier_version_is_loaded(
    commit: str, kind: str, tmp_path: Path
) -> None:
    """Weights and optimizer of a file of an earlier version can be loaded, saved and loaded again,
    bit by bit, by both engines.
    """
    for needed in ("transformers", "safetensors", *["torch"] * (kind == "torch")):
        pytest.importorskip(needed)
    engine: Any = open_engine(kind, PACKAGED_MODEL)
    given = unpack(f"{commit}-torch-checkpoint.tar.xz", tmp_path / "given")
    engine.load("a", given, optimizer=True)
    (tmp_path / "again").mkdir()
    engine.save("a", tmp_path / "again", optimizer=True)
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (given / name).read_bytes()
    about = json.loads((given / "adapter.json").read_text())
    (given / "adapter.json").write_text(json.dumps({**about, "format": 2, "spec": {"new": 1}}))
    with pytest.raises(
        EngineError,
        match=r"^adapter.json has format 2, and this version of tinker, \S+, reads formats up to 1",
    ):
        engine.load("a", given, optimizer=True)


def test_a_newer_toy_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    """A file of a later format is not called damaged: the message has both formats and says what to
    do.
    """
    engine = ToyEngine()
    engine.create_adapter("a", AdapterSpec(rank=1, seed=1))
    engine.save("a", tmp_path, optimizer=True)
    file = tmp_path / "toy_adapter.npz"
    with np.load(file) as archive:
        arrays = dict(archive)
    arrays["about"] = np.array(json.dumps({"format": 2, "spec": {"new": 1}}))
    np.savez(file, **arrays)
    with pytest.raises(
        EngineError,
        match=r"has format 2, and .* reads formats up to 1; use the version that wrote it",
    ):
        engine.load("a", tmp_path, optimizer=True)


@pytest.mark.parametrize("commit", COMMITS)
def test_a_pickled_sampler_of_an_earlier_version_is_read(commit: str) -> None:
    """A pickle of an earlier version is a sampler of the same session."""
    sampler = pickle.loads((EARLIER / f"{commit}.sampler.pickle").read_bytes())
    assert isinstance(sampler, tinker.SamplingClient)
    assert json.loads(base64.urlsafe_b64decode(sampler.get_sampler_handle()))["format"] == 1


def test_a_newer_pickled_sampler_is_refused_by_name() -> None:
    """A pickle or a handle of a later format, whatever fields it has, says both formats."""
    sampler = pickle.loads((EARLIER / "643b3370.sampler.pickle").read_bytes())
    state = json.loads(base64.urlsafe_b64decode(sampler.get_sampler_handle()))
    newer = base64.urlsafe_b64encode(json.dumps({"format": 2, "new": state}).encode()).decode()
    assert sampler.get_sampler_handle().encode() in pickle.dumps(sampler)
    with pytest.raises(
        ValueError,
        match=r"^the sampler has format 2, and this version of tinker, \S+, reads formats up to 1",
    ):
        tinker.SamplingClient.from_sampler_handle(newer)


def test_a_newer_journal_is_refused_by_name(tmp_path: Path) -> None:
    """The sentence has both formats, the version that wrote the file, and both ways out; the file
    stays as it is.
    """
    Journal(tmp_path).close()
    change(
        tmp_path,
        f"pragma user_version = {FORMAT + 1}",
        "update meta set value = x'392E30' where name = 'writer'",
    )
    before = journal_file(tmp_path).read_bytes()
    with pytest.raises(
        OSError,
        match=(
            rf"has format {FORMAT + 1}, and .* reads formats up to "
            rf"{FORMAT}; start version 9.0 of"
        ),
    ) as error:
        Journal(tmp_path)
    assert str(journal_file(tmp_path)) in str(error.value)
    assert journal_file(tmp_path).read_bytes() == before


def _spoil_with_bytes(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(8192))


def _spoil_pages(file: Path) -> None:
    Journal(file.parent.parent).close()
    content = bytearray(file.read_bytes())
    content[4096:] = bytes(255 - byte for byte in content[4096:])
    file.write_bytes(content)


def _spoil_schema(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("create table requests (position, subject unique, primary key (subject))")
        database.execute("create view results as select 1")


@pytest.mark.parametrize("spoil", [_spoil_with_bytes, Path.mkdir, _spoil_pages, _spoil_schema])
def test_a_journal_that_cannot_be_read_is_one_sentence(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    """Whatever is in its place: an OSError that names the file and both ways out, and is not about
    another server.
    """
    journal_file(tmp_path).parent.mkdir()
    spoil(journal_file(tmp_path))
    with pytest.raises(OSError, match=WAYS_OUT) as error:
        Journal(tmp_path)
    assert not isinstance(error.value, JournalInUseError)
    assert str(journal_file(tmp_path)) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_path_that_sqlite_does_not_take_is_one_sentence(tmp_path: Path) -> None:
    """SQLite takes shorter paths than the system does."""
    folder = tmp_path.joinpath(*["x" * 100] * 6)
    folder.mkdir(parents=True)
    with pytest.raises(OSError, match=WAYS_OUT):
        Journal(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        "update results set kind = 'NewKindOfResult' where request_id like '%:train:0:request:5'",
        "update results set content = x'FF00FF' where request_id like '%:train:0:request:4'",
        "update results set fingerprint = null where request_id like '%:train:0:request:5'",
        "update requests set operation = 'new_operation' where number = 7",
        "update requests set path = x'FF' where number = 7",
        "update requests set content = null where number = 7",
        "update runs set number = 'many'",
    ],
)
def test_a_row_that_cannot_be_read_costs_its_run_alone(
    spoil: str, make_api: MakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server starts, the log names the run, its requests are refused as those of an unknown
    one, and another run goes on.
    """
    first = make_api(ToyEngine(), durability="step")
    runs = [first.model(), first.model(first.session())]
    for run in runs:
        for number in (1, 3, 5):
            first.wait(first.ok("forward_backward", loss_body(run, number, data=DATA)))
            first.wait(first.step(run, number + 1, learning_rate=0.01))
        first.wait(first.ok("forward_backward", loss_body(run, 7, data=DATA)))
    expected = forward(first, runs[1], 8)
    first.state.journal.close()
    folder = tmp_path / "data"
    where = "where" if " where " not in spoil else "and"
    column = {"results": "request_id", "requests": "subject", "runs": "model_id"}[spoil.split()[1]]
    change(folder, f"{spoil} {where} {column} >= '{runs[0]}' and {column} < '{runs[0]}~'")
    caplog.set_level(logging.ERROR, "tinker.local")
    again = start(make_api, folder)
    assert f"the run {runs[0]} is lost" in caplog.text, spoil
    assert again.call("get_info", {"model_id": runs[0]}).status_code == 404
    assert forward(again, runs[1], 9) == expected


def test_a_write_that_fails_at_the_start_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write of a server's start fails: an OSError, after which a server starts as if
    nothing had happened.
    """
    disk = FullDisk(tmp_path, monkeypatch)
    Journal(tmp_path / "quiet").close()
    count = disk.writes
    assert count > 3
    for index in range(count):
        disk.first = disk.writes + index
        with pytest.raises(OSError, match=r"full|No space left"):
            Journal(tmp_path / str(index))
        disk.free()
        Journal(tmp_path / str(index)).close()
