"""Checkpoints: names, kinds, overwriting, expiry, a restart, and hostile names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.api import Api, Clock, MakeApi, datum, sampler_body

from tinker.local.engines.toy import ToyEngine
from tinker.local.storage import FOLDER

TEXT = list(b"abcabcabc")
PHRASE = datum(TEXT[:-1], TEXT[1:])


def train(api: Api, model: str, first: int, steps: int = 3) -> int:
    """Train some steps on one phrase; return the next free number."""
    for index in range(steps):
        api.loss(model, first + 2 * index, data=[PHRASE])
        api.step(model, first + 2 * index + 1, learning_rate=0.01)
    return first + 2 * steps


def loss_of(api: Api, model: str, seq_id: int) -> float:
    what = {"data": [PHRASE], "loss_fn": "cross_entropy"}
    body = {"forward_input": what, "model_id": model, "seq_id": seq_id}
    return api.metrics(api.ok("forward", body))["loss:sum"]


def into(session: str, number: int) -> dict[str, Any]:
    """Return the target of a load that makes a model."""
    return {"session_id": session, "model_seq_id": number}


def test_training_goes_on_from_a_checkpoint_after_a_restart(make_api: MakeApi) -> None:
    """A new server over the same folder goes on from a checkpoint with exactly the same losses."""
    first = make_api()
    model = first.model()
    number = train(first, model, 1)
    path = first.saved(model, number, "half way")
    assert path == f"tinker://{model}/weights/half way"
    expected = loss_of(first, model, train(first, model, number + 1))

    second = make_api()
    session = second.session()
    loaded = f"{session}:train:5"
    answer = second.result(second.load(path, **into(session, 5)))
    assert answer == {"path": path, "model_id": loaded, "type": "load_weights"}
    assert loss_of(second, loaded, train(second, loaded, 1)) == expected
    assert second.ok("get_info", {"model_id": loaded})["lora_rank"] == 4


def test_a_load_needs_a_checkpoint_and_a_target(api: Api) -> None:
    """Requests after a failed load say why; a load with neither form of its target is 422."""
    session = api.session()
    missing = api.load(f"tinker://{api.model(session)}/weights/missing", **into(session, 2))
    assert "there is no checkpoint" in api.failure(missing)[1]
    assert "was not created" in api.failure(api.step(f"{session}:train:2", 1))[1]
    body = {"path": "tinker://a/weights/b", "optimizer": False}
    for half in (body, {**body, "session_id": session}):
        assert api.refused("load_weights", half)[0] == 422


def test_a_name_is_taken_once(api: Api) -> None:
    """A second save under a name is 409 at once and holds nothing up; ``overwrite`` replaces it."""
    session, model = api.begin()
    saved = api.save(model, 1, "a")
    before = loss_of(api, model, 2)
    for _ in range(2):
        body = {"model_id": model, "seq_id": 3, "path": "a"}
        api.refuses(409, "exists", "save_weights", body)
    assert api.save(model, 1, "a") == saved
    number = train(api, model, 4)
    after = loss_of(api, model, number)
    path = api.saved(model, number + 1, "a", overwrite=True)
    api.result(api.load(path, **into(session, 1)))
    assert loss_of(api, f"{session}:train:1", 1) == after != before


def test_a_name_is_reserved_from_the_moment_of_the_request(make_api: MakeApi) -> None:
    """The second of two pipelined saves under one name is 409 although the first has not run."""
    api = make_api(hold_seconds=0)
    model = api.create_model(api.session())["model_id"]
    api.save(model, 2, "a")
    assert api.refused("save_weights", {"model_id": model, "seq_id": 3, "path": "a"})[0] == 409


def listed(api: Api) -> set[str]:
    """Return the paths of all checkpoints, without what is the same in all."""
    found = api.ok("list_user_checkpoints")["checkpoints"]
    return {one["tinker_path"].removeprefix("tinker://") for one in found}


def test_a_save_deletes_the_oldest_beyond_a_number(api: Api) -> None:
    """Once a save is there, the oldest unpublished ones of its run and kind beyond so many go."""
    session, model = api.begin()
    other = api.model(session, 1)
    for number, name in enumerate("abcd", start=1):
        api.saved(model, number, name)
    api.saved(other, 1, "other")
    api.result(api.save_sampler(model, 5, path="sampler"))
    api.ok("publish_checkpoint", training_run_id=model, checkpoint_id="weights/b")
    api.saved(model, 6, "e", keep_last=2)
    api.saved(model, 7, "d", keep_last=2, overwrite=True)
    kept = {f"{other}/weights/other", *(f"{model}/weights/{name}" for name in "bed")}
    assert listed(api) == {f"{model}/sampler_weights/sampler", *kept}
    api.result(api.save_sampler(model, 8, path="sampler-2", keep_last=1))
    assert listed(api) == {f"{model}/sampler_weights/sampler-2", *kept}
    body = {"model_id": model, "seq_id": 9, "path": "z", "keep_last": 0}
    assert api.refused("save_weights", body) == (400, "keep_last is 0; it must be at least 1")


def test_a_save_succeeds_where_an_older_one_cannot_be_deleted(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was to be saved is saved, and the log names the checkpoint that is still there."""
    model = api.model()

    def hold(source: Any, target: Any, replace: Any = os.replace) -> None:
        if "/weights/old-" in str(source):
            raise PermissionError(f"{source} is held")
        replace(source, target)

    api.result(api.save(model, 1, "old"))
    monkeypatch.setattr(os, "replace", hold)
    saved = api.saved(model, 2, "new", keep_last=1)
    assert saved == f"tinker://{model}/weights/new"
    assert f"cannot delete tinker://{model}/weights/old, which keep_last leaves out" in caplog.text
    assert len(listed(api)) == 2


def test_saves_without_a_name_are_numbered(api: Api) -> None:
    """A save without a name is named after its request's number."""
    model = api.model()
    assert api.saved(model, 1, None) == f"tinker://{model}/weights/000001"


@pytest.mark.parametrize(
    "name",
    [
        "../../../escaped",
        "..",
        ".",
        "/etc/passwd",
        "a/b",
        "a\\..\\b",
        "nul\x00",
        "",
        "   ",
        "x" * 300,
        "\ud800",
    ],
)
def test_no_name_reaches_outside_the_folder(api: Api, tmp_path: Path, name: str) -> None:
    """Whatever a checkpoint's name, files are below the data folder, or it is a user error."""
    spelled = "".join(f"\\u{ord(character):04x}" for character in name)
    body = f'{{"model_id": "{api.model()}", "seq_id": 1, "path": "{spelled}"}}'.encode()
    answer = api.call("save_weights", content=body)
    assert answer.status_code in (200, 422)
    if answer.status_code == 200:
        result = api.result(answer.json())
        assert "path" in result or result["category"] == "user"
    assert {path.name for path in tmp_path.iterdir()} <= {"data"}


@pytest.mark.parametrize(
    "path",
    [
        *("tinker://../../weights/x", "tinker://a/weights/..", "tinker:///weights/a", ""),
        *(
            "tinker://a/secrets/b",
            "/etc/passwd",
            "http://elsewhere/weights/a",
            "tinker://a/weights/b/c",
        ),
    ],
)
def test_no_path_reads_outside_the_folder(api: Api, path: str) -> None:
    """A path that is not one of this server's checkpoints is a user error."""
    assert api.failure(api.load(path, **into(api.session(), 0)))[0] == "user"
    body = sampler_body(api.session(), model_path=path)
    assert api.refused("create_sampling_session", body)[0] == 404


def test_kinds_are_not_mixed_up(api: Api) -> None:
    """Training checkpoints are not sampled nor others trained; the error names what can."""
    session, model = api.begin()
    training = api.saved(model, 1, "a")
    sampling = api.result(api.save_sampler(model, 2, path="a"))["path"]
    assert sampling == f"tinker://{model}/sampler_weights/a"
    body = sampler_body(session, model_path=training)
    assert "save_weights_for_sampler" in api.refused("create_sampling_session", body)[1]
    assert "save_state" in api.failure(api.load(sampling, **into(session, 1)))[1]


def test_an_expired_checkpoint_is_gone(make_api: MakeApi, clock: Clock) -> None:
    """After ``ttl_seconds`` a checkpoint is unknown, and its name is free."""
    api = make_api(clock=clock, idle_session_seconds=1e6)
    session, model = api.begin()
    path = api.saved(model, 1, "a", ttl_seconds=3600)
    clock.seconds += 3601
    assert "there is no checkpoint" in api.failure(api.load(path, **into(session, 1)))[1]
    assert api.saved(model, 2, "a") == path


def test_another_models_checkpoint_is_refused(make_api: MakeApi) -> None:
    """The error for a checkpoint of another base model names both models."""
    one, two = make_api(), make_api(ToyEngine(vocabulary=512, base_model="tinker/other"))
    model = one.model()
    path = one.saved(model, 1, "a")
    error = two.failure(two.load(path, **into(two.session(), 0)))[1]
    assert "'tinker/toy'" in error
    assert "'tinker/other'" in error


def test_a_damaged_checkpoint_is_reported(api: Api, tmp_path: Path) -> None:
    """A truncated or overwritten file is an error, not a crash, and nothing in it is executed."""
    session, model = api.begin()
    path = api.saved(model, 1, "a")
    for number, name in enumerate(("toy_adapter.npz", "checkpoint.json"), 1):
        (file,) = (tmp_path / "data").rglob(name)
        file.write_bytes(b"\x80\x04broken")
        category, error = api.failure(api.load(path, **into(session, number)))
        assert category == "user"
        assert "engine" in error or "damaged" in error
    assert api.refused("save_weights", {"model_id": model, "seq_id": 2, "path": "a"})[0] == 409
    assert "path" in api.result(api.save(model, 3, "a", overwrite=True))


def test_a_failed_save_leaves_nothing_behind(make_api: MakeApi, tmp_path: Path) -> None:
    """When the engine fails while writing, no file remains, and the name is free."""

    class Failing(ToyEngine):
        broken = True

        def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
            super().save(adapter_id, directory, optimizer=optimizer)
            if self.broken:
                raise OSError("disk full")

    engine = Failing(vocabulary=512)
    api = make_api(engine)
    model = api.model()
    assert api.failure(api.save(model, 1, "a")) == ("server", "OSError: disk full")
    assert not [
        path
        for path in (tmp_path / "data").rglob("*")
        if path.is_file() and FOLDER not in path.parts
    ]
    engine.broken = False
    assert "path" in api.result(api.save(model, 2, "a"))


def test_the_disk_of_an_expired_checkpoint_is_freed_unasked(
    make_api: MakeApi, clock: Clock
) -> None:
    """Files of an expired checkpoint go without a request; their storage until then counts."""
    api = make_api(clock=clock)
    model = api.model()
    future = api.save(model, 1, "a", ttl_seconds=3600)
    api.wait(future)
    (folder,) = api.state.settings.data_dir.glob("*/weights/*")
    clock.seconds += 3600
    while not api.shared.usage._deleted:
        clock.seconds += 60
        api.state.notify()
    assert not folder.exists()
    assert [(one.since, one.until) for one in api.shared.usage._deleted] == [(1000.0, 4600.0)]


def test_the_sweep_ends_where_nothing_expires(api: Api) -> None:
    """Without expiring checkpoints the sweep stops until one is saved or given a time to live."""
    model = api.model()
    api.wait(api.save(model, 1, "a"))
    api.state.checkpoints.remove_expired()
    assert not api.state.checkpoints.may_expire
    where = {"training_run_id": model, "checkpoint_id": "weights/a"}
    api.ok("set_checkpoint_ttl", {"ttl_seconds": 3600}, **where)
    assert api.state.checkpoints.may_expire
    api.state.checkpoints.remove_expired()
    assert api.state.checkpoints.may_expire
