"""Stored checkpoints: lists, runs, publishing, times to live, copies and downloads."""

from __future__ import annotations

import contextlib
import io
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.api import Api, Clock, FullEngine, GatedEngine, MakeApi

from tinker.local.app import create_app
from tinker.local.engines.toy import ToyEngine
from tinker.local.settings import Settings
from tinker.local.state import State

DAY = 86_400


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(make_api: MakeApi, clock: Clock) -> Api:
    """Return a server whose clock the test moves."""
    return make_api(clock=clock)


def saved(api: Api, model: str, *names: str, **fields: Any) -> list[str]:
    """Save training checkpoints under these names, one second apart."""
    paths: list[str] = []
    for name in names:
        clock = api.state.now
        assert isinstance(clock, Clock)
        clock.seconds += 1
        paths.append(
            api.result(api.ok("save_weights", {"model_id": model, "path": name, **fields}))["path"]
        )
    return paths


def sampler_saved(api: Api, model: str, name: str) -> str:
    return api.result(api.save_sampler(model, path=name))["path"]


def at(model: str, checkpoint_id: str) -> dict[str, str]:
    return {"training_run_id": model, "checkpoint_id": checkpoint_id}


def listed(api: Api, model: str) -> list[str]:
    return [
        one["checkpoint_id"]
        for one in api.ok("list_checkpoints", training_run_id=model)["checkpoints"]
    ]


# Lists


def test_checkpoints_of_a_run_are_listed(api: Api) -> None:
    """Checkpoints are listed newest first, with kind, path, size, time and metadata, without those
    of other runs.
    """
    session = api.session()
    model, other = api.model(session), api.model(session, 1)
    saved(api, model, "a")
    saved(api, other, "elsewhere")
    (path,) = saved(api, model, "b", user_metadata={"k": "v"}, ttl_seconds=3600)
    sampler_saved(api, model, "s")
    answer = api.ok("list_checkpoints", training_run_id=model)
    assert "cursor" not in answer
    assert [one["checkpoint_id"] for one in answer["checkpoints"]] == [
        "weights/b",
        "sampler_weights/s",
        "weights/a",
    ]
    newest = answer["checkpoints"][0]
    assert newest.pop("size_bytes") > 1000
    assert newest == {
        "checkpoint_id": "weights/b",
        "checkpoint_type": "training",
        "time": "1970-01-01T00:16:43Z",
        "tinker_path": path,
        "public": False,
        "user_metadata": {"k": "v"},
        "expires_at": "1970-01-01T01:16:43Z",
        "base_model": "tinker/toy",
    }
    assert answer["checkpoints"][1]["checkpoint_type"] == "sampler"


def test_a_run_without_checkpoints_has_an_empty_list(api: Api) -> None:
    """A run without checkpoints has an empty list and is not unknown."""
    assert listed(api, api.model()) == []
    assert api.refused("list_checkpoints", training_run_id="nobody")[0] == 404


def test_checkpoints_of_the_user_come_in_pages(api: Api) -> None:
    """Pages over all runs have the total; a page beyond the end is empty, and an invalid number is
    422.
    """
    session = api.session()
    for number in range(3):
        saved(api, api.model(session, number), "a")
    pages = [
        api.ok("list_user_checkpoints", query={"limit": "2", "offset": str(offset)})
        for offset in (0, 2, 9)
    ]
    assert [len(page["checkpoints"]) for page in pages] == [2, 1, 0]
    assert pages[1]["cursor"] == {"offset": 2, "limit": 2, "total_count": 3}
    assert pages[0]["checkpoints"][0]["tinker_path"] == f"tinker://{session}:train:2/weights/a"
    assert api.ok("list_user_checkpoints")["cursor"]["limit"] == 100
    for wrong in ("-1", "x", "1.5", ""):
        status, detail = api.refused("list_user_checkpoints", query={"limit": wrong})
        assert (status, detail[0]["loc"]) == (422, ["query", "limit"])


def test_damaged_and_half_written_folders_are_left_out(api: Api, tmp_path: Path) -> None:
    """Lists contain only checkpoints that can be loaded."""
    model = api.model()
    saved(api, model, "good", "bad")
    (bad,) = [
        file
        for file in (tmp_path / "data").rglob("checkpoint.json")
        if b'"bad"' in file.read_bytes()
    ]
    (bad.parent.parent / ".draft-x").mkdir()
    (bad.parent.parent / ".draft-x" / "checkpoint.json").write_bytes(bad.read_bytes())
    bad.write_bytes(b"{")
    assert listed(api, model) == ["weights/good"]
    assert api.refused("delete_checkpoint", **at(model, "weights/bad"))[0] == 404


# Runs


def test_a_run_is_described(api: Api) -> None:
    """A run has its base model, rank, newest checkpoint of each kind, metadata and time of last
    use.
    """
    model = api.model(user_metadata={"name": "x", "deep": {"a": 1}})
    saved(api, model, "a", "b")
    sampler_saved(api, model, "s")
    run = api.ok("get_training_run", training_run_id=model, query={"access_scope": "owned"})
    assert (run["base_model"], run["lora_rank"], run["is_lora"], run["corrupted"]) == (
        "tinker/toy",
        4,
        True,
        False,
    )
    assert run["last_checkpoint"]["checkpoint_id"] == "weights/b"
    assert run["last_sampler_checkpoint"]["checkpoint_id"] == "sampler_weights/s"
    assert run["user_metadata"] == {"name": "x", "deep": '{"a":1}'}
    assert run["last_request_time"] == "1970-01-01T00:16:42Z"
    assert api.refused("get_training_run", training_run_id="nobody")[0] == 404
    assert (
        api.refused("get_training_run", training_run_id=model, query={"access_scope": "theirs"})[0]
        == 422
    )


def test_runs_come_in_pages_the_last_used_first(api: Api, clock: Clock) -> None:
    """Using a run moves it to the front; a project lists only its runs."""
    session = api.session()
    runs = [api.model(session, number) for number in range(3)]
    for model in (runs[2], runs[0]):
        clock.seconds += 1
        api.result(api.step(model, 1))
    page = api.ok("list_training_runs", query={"limit": "2", "access_scope": "accessible"})
    assert [run["training_run_id"] for run in page["training_runs"]] == [runs[0], runs[2]]
    assert page["cursor"] == {"offset": 0, "limit": 2, "total_count": 3}
    assert api.ok("list_training_runs")["cursor"] == {"offset": 0, "limit": 20, "total_count": 3}
    api.ok("set_session_project", {"project_id": "p"}, session_id=session)
    other = api.model()
    for project, expected in (("p", set(runs)), ("default", {other}), ("q", set())):
        page = api.ok("list_training_runs", query={"project_id": project})
        assert {run["training_run_id"] for run in page["training_runs"]} == expected


def test_a_run_whose_creation_failed_is_corrupted(make_api: MakeApi) -> None:
    """A run whose creation failed is listed as corrupted, so that the user sees the failure."""
    api = make_api(FullEngine())
    future = api.create_model(api.session(), lora_config={"rank": 13})
    api.failure(future)
    assert api.ok("get_training_run", training_run_id=future["model_id"])["corrupted"] is True


def test_runs_outlive_the_server_in_their_checkpoints(make_api: MakeApi) -> None:
    """A new server on the same folder lists the runs that have saved checkpoints, with their
    metadata.
    """
    clock = Clock()
    first = make_api(clock=clock)
    session = first.session()
    model = first.model(session, user_metadata={"name": "x"})
    first.ok("set_session_project", {"project_id": "p"}, session_id=session)
    saved(first, model, "a")
    second = make_api(clock=clock)
    (run,) = second.ok("list_training_runs", query={"project_id": "p"})["training_runs"]
    assert run == second.ok("get_training_run", training_run_id=model)
    assert (run["training_run_id"], run["lora_rank"], run["user_metadata"]) == (
        model,
        4,
        {"name": "x"},
    )
    assert run["last_checkpoint"]["checkpoint_id"] == "weights/a"


# Changes


def test_a_deleted_checkpoint_is_gone(api: Api) -> None:
    """A deleted checkpoint is not listed, cannot be loaded, and frees its name; deleting it again
    is 404.
    """
    model = api.model()
    (path,) = saved(api, model, "a")
    assert api.call("delete_checkpoint", **at(model, "weights/a")).status_code == 204
    assert listed(api, model) == []
    assert api.refused("delete_checkpoint", **at(model, "weights/a"))[0] == 404
    assert api.refused("weights_info", {"tinker_path": path})[0] == 404
    assert saved(api, model, "a") == [path]


@pytest.mark.parametrize("name", ["publish", "ttl", "archive", "a b", "..."])
def test_names_that_look_like_operations_are_names(api: Api, name: str) -> None:
    """Everything after the kind is the name, even where an operation has the same name."""
    model = api.model()
    saved(api, model, name)
    api.ok("publish_checkpoint", **at(model, f"weights/{name}"))
    api.ok("unpublish_checkpoint", **at(model, f"weights/{name}"))
    api.ok("delete_checkpoint", **at(model, f"weights/{name}"))
    assert listed(api, model) == []


def test_a_checkpoint_needs_its_kind(api: Api) -> None:
    """A bare name or an unknown kind is 400 with the expected form."""
    model = api.model()
    saved(api, model, "a")
    for operation in (
        "delete_checkpoint",
        "publish_checkpoint",
        "unpublish_checkpoint",
        "get_external_weights_urls",
    ):
        for wrong in ("a", "wrong/a"):
            api.refuses(400, "<name>", operation, **at(model, wrong))
    assert api.refused("get_external_weights_urls", **at(model, "weights/a"))[0] == 400


def test_what_is_being_written_comes_too_early(make_api: MakeApi) -> None:
    """A checkpoint whose save is accepted and has not run is 425."""
    engine = GatedEngine()
    api = make_api(engine)
    model = api.model()
    api.loss(model, 1)
    saving = api.save(model, 2, "a")
    refusal = api.call("delete_checkpoint", **at(model, "weights/a"))
    assert (refusal.status_code, refusal.headers["retry-after"]) == (425, "1")
    engine.gate.set()
    api.result(saving)
    api.ok("delete_checkpoint", **at(model, "weights/a"))


def test_publishing_is_noted_once(api: Api) -> None:
    """A public checkpoint is shown as public; publishing it again is 409 without a retry, and so is
    the reverse.
    """
    model = api.model()
    saved(api, model, "a")
    for operation, public in (("publish_checkpoint", True), ("unpublish_checkpoint", False)):
        assert api.call(operation, **at(model, "weights/a")).status_code == 204
        answer = api.call(operation, **at(model, "weights/a"))
        assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
        assert (
            api.ok("list_checkpoints", training_run_id=model)["checkpoints"][0]["public"] is public
        )
        assert api.refused(operation, **at(model, "weights/missing"))[0] == 404


def test_a_time_to_live_counts_from_now(api: Api, clock: Clock) -> None:
    """A time to live can be set, renewed and removed; when it is over the checkpoint and its files
    are deleted.
    """
    model = api.model()
    (path,) = saved(api, model, "a")
    where = at(model, "weights/a")

    def expires() -> Any:
        return api.ok("list_checkpoints", training_run_id=model)["checkpoints"][0].get("expires_at")

    clock.seconds = 2 * DAY
    assert api.call("set_checkpoint_ttl", {"ttl_seconds": DAY}, **where).status_code == 204
    assert expires() == "1970-01-04T00:00:00Z"
    api.ok("set_checkpoint_ttl", {"ttl_seconds": None}, **where)
    assert expires() is None
    api.ok("set_checkpoint_ttl", {"ttl_seconds": 3600}, **where)
    clock.seconds += 3600
    assert api.refused("weights_info", {"tinker_path": path})[0] == 404
    assert listed(api, model) == []
    assert not list(api.state.settings.data_dir.rglob("*.npz"))


@pytest.mark.parametrize("seconds", [-1, 0, 3599, 315_360_001])
def test_a_time_to_live_has_limits(api: Api, seconds: int) -> None:
    """A time to live is an hour to ten years; a save that is refused for it does not hold up the
    model.
    """
    model = api.model()
    saved(api, model, "a")
    assert (
        api.refused("set_checkpoint_ttl", {"ttl_seconds": seconds}, **at(model, "weights/a"))[0]
        == 400
    )
    save = {"model_id": model, "seq_id": 2, "path": "b", "ttl_seconds": seconds}
    assert "ttl_seconds" in api.refused("save_weights", save)[1]
    assert "metrics" in api.result(api.step(model, 3))


def test_weights_say_what_they_are(api: Api) -> None:
    """The information about a checkpoint has base model, adapter and optimizer, for any kind; an
    invalid path is 400.
    """
    config = {"rank": 3, "seed": 1, "train_unembed": False}
    model = api.model(lora_config=config, optimizer_config={"type": "dimuon"})
    paths = [*saved(api, model, "a"), sampler_saved(api, model, "s")]
    for path in paths:
        assert api.ok("weights_info", {"tinker_path": path}) == {
            "base_model": "tinker/toy",
            "optimizer_config": {"type": "dimuon", "version": 1},
            "is_lora": True,
            "lora_rank": 3,
            "train_unembed": False,
            "train_mlp": True,
            "train_attn": True,
        }
    assert api.refused("weights_info", {"tinker_path": "nonsense"})[0] == 400


# Copies


def test_a_copy_is_a_run_of_its_own(api: Api) -> None:
    """A copy has the same kind, name and weights in a separate run, which cannot be trained; it
    stays when the source goes.
    """
    session = api.session()
    model = api.model(session)
    (path,) = saved(api, model, "a")
    body = {"source_path": path, "destination_project_id": "p", "ttl_seconds": 3600}
    copied = api.ok("copy_weights", body)["tinker_path"]
    run = copied.removeprefix("tinker://").partition("/")[0]
    assert copied.endswith("/weights/a")
    assert run != model
    api.ok("delete_checkpoint", **at(model, "weights/a"))
    load = {"session_id": session, "model_seq_id": 7, "path": copied, "optimizer": True}
    assert api.result(api.ok("load_weights", load))["path"] == copied
    (found,) = api.ok("list_training_runs", query={"project_id": "p"})["training_runs"]
    assert (found["training_run_id"], found["last_checkpoint"]["tinker_path"]) == (run, copied)
    assert found["last_checkpoint"]["expires_at"]
    assert api.refused("optim_step", {"model_id": run})[0] == 404


def test_a_copy_may_be_numbered_by_the_client(api: Api) -> None:
    """With a session and a number, the run of a copy has the id that the client computes; a used
    number is 409.
    """
    session = api.session()
    model = api.model(session)
    body = {"source_path": saved(api, model, "a")[0], "session_id": session, "model_seq_id": 4}
    assert api.ok("copy_weights", body)["tinker_path"] == f"tinker://{session}:train:4/weights/a"
    assert api.refused("copy_weights", body)[0] == 409
    assert api.refused("copy_weights", {**body, "model_seq_id": 0})[0] == 409
    assert api.refused("copy_weights", {"source_path": "tinker://a/weights/b"})[0] == 404


# Optimizers in checkpoints


def test_a_checkpoint_keeps_its_optimizer(api: Api) -> None:
    """A load with optimizer state has the checkpoint's optimizer; weights alone start with AdamW,
    or the requested one.
    """
    session = api.session()
    model = api.model(session, optimizer_config={"type": "dimuon"})
    (path,) = saved(api, model, "a")
    asked: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": True}, "dimuon"),
        ({"optimizer": False}, "adamw"),
        ({"optimizer": False, "optimizer_config": {"type": "dimuon"}}, "dimuon"),
    ]
    for number, (fields, family) in enumerate(asked, 1):
        api.result(
            api.ok(
                "load_weights",
                {"session_id": session, "model_seq_id": number, "path": path, **fields},
            )
        )
        info = api.ok("get_info", {"model_id": f"{session}:train:{number}"})
        assert info["optimizer_config"]["type"] == family
    wrong = {
        "session_id": session,
        "model_seq_id": 8,
        "path": path,
        "optimizer_config": {"type": "adamw"},
    }
    assert "'dimuon'" in api.failure(api.ok("load_weights", {**wrong, "optimizer": True}))[1]
    into = {"model_id": api.model(session, 9), "path": path, "optimizer": True}
    assert "load it without the optimizer" in api.failure(api.ok("load_weights", into))[1]


# Files


def fetched(api: Api, url: str) -> httpx.Response:
    """Fetch the file of a link, without credentials."""
    address = urlsplit(url)
    assert address.netloc == "server"
    assert not address.path.startswith("/api/v1")
    return api.get(url)


def external(api: Api, model: str, name: str = "e", **fields: Any) -> Any:
    return api.ok("save_weights_external", {"model_id": model, "path": name, **fields})


def test_external_weights_are_files_behind_links(api: Api) -> None:
    """Each file has a link that needs no key, and the files are those that the engine wrote."""
    model = api.model()
    result = api.result(external(api, model, ttl_seconds=3600))
    assert result["path"] == f"tinker://{model}/external_weights/e"
    answer = api.ok("get_external_weights_urls", **at(model, "external_weights/e"))
    assert answer["expires"] == "1970-01-01T01:16:40Z"
    assert list(answer["urls"]) == ["toy_adapter.npz"]
    content = fetched(api, answer["urls"]["toy_adapter.npz"]).content
    assert len(content) == result["size_bytes"]
    assert content[:2] == b"PK"
    (one,) = api.ok("list_checkpoints", training_run_id=model)["checkpoints"]
    assert one["checkpoint_type"] == "external"


def test_links_end_and_cannot_be_made_up(api: Api, clock: Clock) -> None:
    """An expired or changed link is 403, a link to a deleted file or with a client's token 404."""
    model = api.model()
    api.result(external(api, model))
    url = api.ok("get_external_weights_urls", **at(model, "external_weights/e"))["urls"][
        "toy_adapter.npz"
    ]
    head, token, name = url.rsplit("/", 2)
    assert fetched(api, f"{head}/{token[:-4]}AAAA/{name}").status_code == 403
    stranger = api.ok("auth_token", {}, headers={"x-api-key": "k"})["jwt"]
    assert fetched(api, f"{head}/{stranger}/{name}").status_code == 404
    clock.seconds += 3600
    assert fetched(api, url).status_code == 403
    url = api.ok("get_external_weights_urls", **at(model, "external_weights/e"))["urls"][
        "toy_adapter.npz"
    ]
    api.ok("delete_checkpoint", **at(model, "external_weights/e"))
    assert fetched(api, url).status_code == 404


def test_a_public_address_goes_into_links(make_api: MakeApi) -> None:
    """Behind a proxy that adds a path, links begin with the configured public URL."""
    api = make_api(public_url="https://proxy.example/tinker/")
    model = api.model()
    api.result(external(api, model))
    urls = api.ok("get_external_weights_urls", **at(model, "external_weights/e"))["urls"]
    assert urls["toy_adapter.npz"].startswith("https://proxy.example/tinker/files/")


def test_encryption_is_refused(api: Api) -> None:
    """Encryption is refused with the field's name, and the model continues."""
    model = api.model()
    body = {"model_id": model, "seq_id": 1, "path": "e", "age_encryption_recipients": ["age1abc"]}
    api.refuses(400, "age_encryption_recipients", "save_weights_external", body)
    assert "metrics" in api.result(api.step(model, 2))


def test_an_archive_is_a_redirect_to_a_tar(api: Api, clock: Clock) -> None:
    """An archive is a 302 with location and expiry, as clients of 2025 read it; a bare name is that
    of sampler weights.
    """
    model = api.model()
    saved(api, model, "a")
    sampler_saved(api, model, "s")
    for checkpoint_id, names in (
        ("weights/a", ["toy_adapter.npz", "toy_optimizer.npz"]),
        ("sampler_weights/s", ["toy_adapter.npz"]),
        ("s", ["toy_adapter.npz"]),
    ):
        answer = api.call("get_checkpoint_archive", **at(model, checkpoint_id))
        assert (answer.status_code, answer.content) == (302, b"")
        assert answer.headers["expires"] == "Thu, 01 Jan 1970 01:16:41 GMT"
        archive = fetched(api, answer.headers["location"])
        with tarfile.open(fileobj=io.BytesIO(archive.content), mode="r:gz") as files:
            assert sorted(files.getnames()) == names
    assert api.refused("get_checkpoint_archive", **at(model, "a"))[0] == 404
    assert clock.seconds == 1001


RANGES = ("bytes=0-9", "bytes=SIZE-", "bytes=5-1", "abc", "bytes=0-1,4-5")


@pytest.mark.parametrize("asked", [None, *RANGES])
def test_a_packed_checkpoint_goes_with_its_download(api: Api, asked: str | None) -> None:
    """An archive that was sent, as a whole or in part, or whose range was refused, leaves no packed
    file behind.
    """
    model = api.model()
    saved(api, model, "a")
    url = api.call("get_checkpoint_archive", **at(model, "weights/a")).headers["location"]
    size = str(len(fetched(api, url).content) + 1000)
    answer = api.get(url, headers={} if asked is None else {"range": asked.replace("SIZE", size)})
    assert (answer.status_code in (200, 206)) == (asked in (None, RANGES[0], RANGES[4]))
    assert list(api.state.archives.path().iterdir()) == []


def test_an_aborted_download_leaves_no_packed_file(api: Api) -> None:
    """A client that disconnects in the middle of an archive leaves nothing, nor does a checkpoint
    that cannot be packed.
    """
    model = api.model()
    saved(api, model, "a")
    url = api.call("get_checkpoint_archive", **at(model, "weights/a")).headers["location"]

    async def abort() -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                raise OSError("the client has disconnected")

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        path = urlsplit(url).path
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
        }
        with contextlib.suppress(OSError):
            await create_app(api.state)({**scope, "asgi": {"spec_version": "2.4"}}, receive, send)

    api.runner.run(abort())
    assert list(api.state.archives.path().iterdir()) == []


def test_a_killed_servers_packed_files_go_at_the_next_start(tmp_path: Path) -> None:
    """What a killed server was sending, receiving or keeping for samplers is removed when the next
    one starts.
    """
    left = [
        tmp_path / folder / "0123456789abcdef" / "file"
        for folder in (".archives", ".uploads", ".unnamed")
    ]
    for file in left:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x")
    state = State(ToyEngine, Settings(data_dir=tmp_path))
    assert not any(file.exists() for file in left)
    state.close()


def test_an_unloaded_model_keeps_its_checkpoints(api: Api) -> None:
    """Requests submitted before the unload run, later ones are refused, and the memory is freed."""
    session = api.session()
    model = api.model(session)
    saving = api.save(model, 1, "a")
    unloading = api.ok("unload_model", {"model_id": model})
    assert api.result(unloading) == {"model_id": model, "type": "unload_model"}
    assert "path" in api.result(saving)
    assert "was unloaded" in api.refused("optim_step", {"model_id": model, "seq_id": 3})[1]
    assert listed(api, model) == ["weights/a"]
    assert "was unloaded" in api.refused("get_info", {"model_id": model})[1]
    engine = api.state.served.models[0].engine
    assert isinstance(engine, ToyEngine)
    assert not engine._adapters
    assert api.ok("get_training_run", training_run_id=model)["corrupted"] is False


def test_an_unloaded_model_makes_room(make_api: MakeApi) -> None:
    """An unloaded model does not count towards the limit."""
    api = make_api(max_models=1)
    session = api.session()
    api.result(api.ok("unload_model", {"model_id": api.model(session)}))
    assert api.model(session, 1)
