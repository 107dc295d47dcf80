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
from support.api import Api, Clock, FullEngine, MakeApi, occupied

from tinker.local.app import create_app
from tinker.local.engines.toy import ToyEngine
from tinker.local.settings import Settings
from tinker.local.state import State


@pytest.fixture
def api(make_api: MakeApi, clock: Clock) -> Api:
    """Return a server whose clock the test moves."""
    return make_api(clock=clock)


def saved(api: Api, model: str, *names: str, **fields: Any) -> list[str]:
    """Save training checkpoints under these names, one second apart."""
    paths: list[str] = []
    for name in names:
        assert isinstance(api.state.now, Clock)
        api.state.now.seconds += 1
        body = {"model_id": model, "path": name, **fields}
        paths.append(api.result(api.ok("save_weights", body))["path"])
    return paths


def at(model: str, checkpoint_id: str) -> dict[str, str]:
    return {"training_run_id": model, "checkpoint_id": checkpoint_id}


def listed(api: Api, model: str) -> list[str]:
    found = api.ok("list_checkpoints", training_run_id=model)["checkpoints"]
    return [one["checkpoint_id"] for one in found]


# Lists


def test_checkpoints_of_a_run_are_listed(api: Api) -> None:
    """Checkpoints of a run are listed newest first, with kind, path, size, time and metadata."""
    session = api.session()
    model, other, empty = (api.model(session, number) for number in range(3))
    saved(api, model, "a")
    saved(api, other, "elsewhere")
    (path,) = saved(api, model, "b", user_metadata={"k": "v"}, ttl_seconds=3600)
    api.result(api.save_sampler(model, path="s"))
    answer = api.ok("list_checkpoints", training_run_id=model)
    assert "cursor" not in answer
    assert listed(api, model) == ["weights/b", "sampler_weights/s", "weights/a"]
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
    assert listed(api, empty) == []
    assert api.refused("list_checkpoints", training_run_id="nobody")[0] == 404


def test_checkpoints_of_the_user_come_in_pages(api: Api) -> None:
    """Pages have the total; one beyond the end is empty, and an invalid number is 422."""
    for _ in range(3):
        saved(api, api.model(), "a")
    queries = ({"limit": "2", "offset": str(offset)} for offset in (0, 2, 9))
    pages = [api.ok("list_user_checkpoints", query=query) for query in queries]
    assert [len(page["checkpoints"]) for page in pages] == [2, 1, 0]
    assert pages[1]["cursor"] == {"offset": 2, "limit": 2, "total_count": 3}
    assert api.ok("list_user_checkpoints")["cursor"]["limit"] == 100
    for wrong in ("-1", "x", "1.5", ""):
        status, detail = api.refused("list_user_checkpoints", query={"limit": wrong})
        assert (status, detail[0]["loc"]) == (422, ["query", "limit"])


def test_damaged_and_half_written_folders_are_left_out(api: Api, tmp_path: Path) -> None:
    """Lists contain only checkpoints that can be loaded."""
    model = api.model()
    saved(api, model, "good", "bad")
    files = (tmp_path / "data").rglob("checkpoint.json")
    (bad,) = [file for file in files if b'"bad"' in file.read_bytes()]
    draft = bad.parent.parent / ".draft-x"
    draft.mkdir()
    (draft / "checkpoint.json").write_bytes(bad.read_bytes())
    bad.write_bytes(b"{")
    assert listed(api, model) == ["weights/good"]
    assert api.refused("delete_checkpoint", **at(model, "weights/bad"))[0] == 404


def test_a_search_for_checkpoints(api: Api) -> None:
    """Every condition must hold, and pages have each checkpoint once, also of the same second."""
    model, red = api.model(), {"team": "red"}
    saved(api, model, "a", user_metadata={**red, "stage": "1"})
    saved(api, model, "b", user_metadata=red)
    api.state.now.seconds += 1  # type: ignore[attr-defined]
    api.result(api.save_sampler(model, path="c"))
    api.result(api.ok("save_weights_external", {"model_id": model, "path": "d"}))

    def find(**request: Any) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            answer = api.ok("search_checkpoints", {**request, "cursor": cursor})
            assert len(answer["checkpoints"]) <= request.get("limit", 100)
            found += [one["checkpoint_id"] for one in answer["checkpoints"]]
            if (cursor := answer.get("next_cursor")) is None:
                return found

    both, everything = ["weights/b", "weights/a"], find()
    assert set(everything[:2]) == {"sampler_weights/c", "external_weights/d"}
    assert everything[2:] == find(user_metadata=red) == both
    for conditions, expected in (
        ({"user_metadata": {**red, "stage": "1"}}, ["weights/a"]),
        ({"checkpoint_type": "sampler"}, ["sampler_weights/c"]),
        ({"base_models": ["tinker/toy", "x"]}, everything),
        ({"base_models": ["x"]}, []),
        ({"project_ids": ["nobody's"]}, []),
        ({"project_ids": []}, []),
        ({"owner": {"type": "accessible"}}, everything),
        ({"owner": {"type": "user", "owner_urns": ["somebody"]}}, []),
        *(({"limit": limit}, everything) for limit in range(1, 6)),
    ):
        assert find(**conditions) == expected
    for limit in (0, 201):
        assert api.refused("search_checkpoints", {"limit": limit})[0] == 422


# Runs


def test_a_run_is_described(api: Api) -> None:
    """A run has its model, newest checkpoint of each kind, metadata and time of last use."""
    model = api.model(user_metadata={"name": "x", "deep": {"a": 1}})
    saved(api, model, "a", "b")
    api.result(api.save_sampler(model, path="s"))
    run = api.ok("get_training_run", training_run_id=model, query={"access_scope": "owned"})
    about = {"base_model": "tinker/toy", "lora_rank": 4, "is_lora": True, "corrupted": False}
    metadata = {"name": "x", "deep": '{"a":1}'}
    assert run.items() >= {**about, "user_metadata": metadata}.items()
    assert run["last_checkpoint"]["checkpoint_id"] == "weights/b"
    assert run["last_sampler_checkpoint"]["checkpoint_id"] == "sampler_weights/s"
    assert run["last_request_time"] == "1970-01-01T00:16:42Z"
    assert api.refused("get_training_run", training_run_id="nobody")[0] == 404
    query = {"access_scope": "theirs"}
    assert api.refused("get_training_run", training_run_id=model, query=query)[0] == 422


def test_runs_come_in_pages_the_last_used_first(api: Api, clock: Clock) -> None:
    """Using a run moves it to the front; a project lists only its runs."""

    def page(**query: str) -> Any:
        found = api.ok("list_training_runs", query=query)
        return [run["training_run_id"] for run in found["training_runs"]], found["cursor"]

    session = api.session()
    runs = [api.model(session, number) for number in range(3)]
    for model in (runs[2], runs[0]):
        clock.seconds += 1
        api.result(api.step(model, 1))
    cursor = {"offset": 0, "limit": 2, "total_count": 3}
    assert page(limit="2", access_scope="accessible") == ([runs[0], runs[2]], cursor)
    assert page()[1] == {**cursor, "limit": 20}
    api.ok("set_session_project", {"project_id": "p"}, session_id=session)
    other = api.model()
    for project, expected in (("p", set(runs)), ("default", {other}), ("q", set())):
        assert set(page(project_id=project)[0]) == expected


def test_a_run_whose_creation_failed_is_corrupted(make_api: MakeApi) -> None:
    """A run whose creation failed is listed as corrupted, so that the user sees the failure."""
    api = make_api(FullEngine())
    future = api.create_model(api.session(), lora_config={"rank": 13})
    api.failure(future)
    assert api.ok("get_training_run", training_run_id=future["model_id"])["corrupted"] is True


def test_runs_outlive_the_server_in_their_checkpoints(
    api: Api, make_api: MakeApi, clock: Clock
) -> None:
    """A new server on the folder lists the runs that have checkpoints, with their metadata."""
    session, model = api.begin(user_metadata={"name": "x"})
    api.ok("set_session_project", {"project_id": "p"}, session_id=session)
    saved(api, model, "a")
    second = make_api(clock=clock)
    (run,) = second.ok("list_training_runs", query={"project_id": "p"})["training_runs"]
    assert run == second.ok("get_training_run", training_run_id=model)
    about = {"training_run_id": model, "lora_rank": 4, "user_metadata": {"name": "x"}}
    assert run.items() >= about.items()
    assert run["last_checkpoint"]["checkpoint_id"] == "weights/a"


# Changes


@pytest.mark.parametrize("name", ["publish", "ttl", "archive", "a b", "..."])
def test_names_that_look_like_operations_are_names(api: Api, name: str) -> None:
    """Everything after the kind is the name, even where an operation has the same name."""
    model = api.model()
    saved(api, model, name)
    for operation in ("publish_checkpoint", "unpublish_checkpoint", "delete_checkpoint"):
        api.ok(operation, **at(model, f"weights/{name}"))
    assert listed(api, model) == []


def test_a_checkpoint_needs_its_kind(api: Api) -> None:
    """A bare name or an unknown kind is 400 with the expected form, an unknown name 404."""
    model = api.model()
    saved(api, model, "a")
    named = ("delete_checkpoint", "publish_checkpoint", "unpublish_checkpoint")
    for operation in (*named, "get_external_weights_urls"):
        for wrong in ("a", "wrong/a"):
            api.refuses(400, "<name>", operation, **at(model, wrong))
    for operation in named:
        assert api.refused(operation, **at(model, "weights/missing"))[0] == 404
    assert api.refused("get_external_weights_urls", **at(model, "weights/a"))[0] == 400


def test_what_is_being_written_comes_too_early(make_api: MakeApi) -> None:
    """A checkpoint whose save is accepted and has not run is 425."""
    api, engine, loss = occupied(make_api)
    model = loss["request_id"].rpartition(":request:")[0]
    saving = api.save(model, 2, "a")
    refusal = api.call("delete_checkpoint", **at(model, "weights/a"))
    assert (refusal.status_code, refusal.headers["retry-after"]) == (425, "1")
    engine.gate.set()
    api.result(saving)
    api.ok("delete_checkpoint", **at(model, "weights/a"))


@pytest.mark.parametrize("seconds", [-1, 0, 3599, 315_360_001])
def test_a_time_to_live_has_limits(api: Api, seconds: int) -> None:
    """A time to live is an hour to ten years; a save refused for it does not hold up the model."""
    model = api.model()
    saved(api, model, "a")
    body = {"ttl_seconds": seconds}
    assert api.refused("set_checkpoint_ttl", body, **at(model, "weights/a"))[0] == 400
    save = {"model_id": model, "seq_id": 2, "path": "b", **body}
    assert "ttl_seconds" in api.refused("save_weights", save)[1]
    assert api.metrics(api.step(model, 3)) is not None


def test_weights_say_what_they_are(api: Api) -> None:
    """A checkpoint of any kind says base model, adapter and optimizer; an invalid path is 400."""
    config = {"rank": 3, "seed": 1, "train_unembed": False}
    model = api.model(lora_config=config, optimizer_config={"type": "dimuon"})
    sampler = api.result(api.save_sampler(model, path="s"))["path"]
    for path in (*saved(api, model, "a"), sampler):
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
    """A copy is a run that cannot be trained, and stays when its source goes."""
    session, model = api.begin()
    (path,) = saved(api, model, "a")
    body = {"source_path": path, "destination_project_id": "p", "ttl_seconds": 3600}
    copied = api.ok("copy_weights", body)["tinker_path"]
    run = copied.removeprefix("tinker://").partition("/")[0]
    assert copied.endswith("/weights/a")
    assert run != model
    api.ok("delete_checkpoint", **at(model, "weights/a"))
    loaded = api.load(copied, session_id=session, model_seq_id=7)
    assert api.result(loaded)["path"] == copied
    (found,) = api.ok("list_training_runs", query={"project_id": "p"})["training_runs"]
    assert (found["training_run_id"], found["last_checkpoint"]["tinker_path"]) == (run, copied)
    assert found["last_checkpoint"]["expires_at"]
    assert api.refused("optim_step", {"model_id": run})[0] == 404


def test_a_copy_may_be_numbered_by_the_client(api: Api) -> None:
    """With a session and a number a copy has the id that clients compute; a used number is 409."""
    session = api.session()
    (path,) = saved(api, api.model(session), "a")
    body = {"source_path": path, "session_id": session, "model_seq_id": 4}
    assert api.ok("copy_weights", body)["tinker_path"] == f"tinker://{session}:train:4/weights/a"
    unknown = {"source_path": "tinker://a/weights/b"}
    for wrong, status in ((body, 409), ({**body, "model_seq_id": 0}, 409), (unknown, 404)):
        assert api.refused("copy_weights", wrong)[0] == status


# Optimizers in checkpoints


def test_a_checkpoint_keeps_its_optimizer(api: Api) -> None:
    """A load has the checkpoint's optimizer; without its state AdamW, or what is asked for."""
    session, dimuon = api.session(), {"type": "dimuon"}
    (path,) = saved(api, api.model(session, optimizer_config=dimuon), "a")
    asked: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": True}, "dimuon"),
        ({"optimizer": False}, "adamw"),
        ({"optimizer": False, "optimizer_config": dimuon}, "dimuon"),
    ]
    for number, (fields, family) in enumerate(asked, 1):
        api.result(api.load(path, session_id=session, model_seq_id=number, **fields))
        info = api.ok("get_info", {"model_id": f"{session}:train:{number}"})
        assert info["optimizer_config"]["type"] == family
    adamw = {"session_id": session, "model_seq_id": 8, "optimizer_config": {"type": "adamw"}}
    assert "'dimuon'" in api.failure(api.load(path, **adamw))[1]
    into = api.load(path, model_id=api.model(session, 9))
    assert "load it without the optimizer" in api.failure(into)[1]


# Files


def fetched(api: Api, url: str) -> httpx.Response:
    """Fetch the file of a link, without credentials."""
    address = urlsplit(url)
    assert address.netloc == "server"
    assert not address.path.startswith("/api/v1")
    return api.get(url)


def exported(api: Api) -> tuple[str, Any]:
    """Save a model as files; return it and the result."""
    model = api.model()
    body = {"model_id": model, "path": "e", "ttl_seconds": 3600}
    return model, api.result(api.ok("save_weights_external", body))


def link(api: Api, model: str) -> str:
    urls: dict[str, str] = api.ok("get_external_weights_urls", **at(model, "external_weights/e"))[
        "urls"
    ]
    assert list(urls) == ["toy_adapter.npz"]
    return urls["toy_adapter.npz"]


def test_external_weights_are_files_behind_links(api: Api) -> None:
    """The files behind the links, which need no key, are those that the engine wrote."""
    model, result = exported(api)
    answer = api.ok("get_external_weights_urls", **at(model, "external_weights/e"))
    assert answer["expires"] == "1970-01-01T01:16:40Z"
    content = fetched(api, link(api, model)).content
    assert (len(content), content[:2]) == (result["size_bytes"], b"PK")
    (one,) = api.ok("list_checkpoints", training_run_id=model)["checkpoints"]
    assert one["checkpoint_type"] == "external"


def test_links_end_and_cannot_be_made_up(api: Api, clock: Clock) -> None:
    """An expired or changed link is 403, one to a deleted file or with a client's token 404."""
    model, _ = exported(api)
    url = link(api, model)
    head, token, name = url.rsplit("/", 2)
    assert fetched(api, f"{head}/{token[:-4]}AAAA/{name}").status_code == 403
    stranger = api.ok("auth_token", {}, headers={"x-api-key": "k"})["jwt"]
    assert fetched(api, f"{head}/{stranger}/{name}").status_code == 404
    clock.seconds += 3599
    newer = link(api, model)
    api.ok("delete_checkpoint", **at(model, "external_weights/e"))
    assert fetched(api, newer).status_code == 404
    clock.seconds += 1
    assert fetched(api, url).status_code == 403


def test_a_public_address_goes_into_links(make_api: MakeApi) -> None:
    """Behind a proxy that adds a path, links begin with the configured public URL."""
    api = make_api(public_url="https://proxy.example/tinker/")
    url = link(api, exported(api)[0])
    assert url.startswith("https://proxy.example/tinker/files/")


def test_encryption_is_refused(api: Api) -> None:
    """Encryption is refused with the field's name, and the model continues."""
    model = api.model()
    body = {"model_id": model, "seq_id": 1, "path": "e", "age_encryption_recipients": ["age1abc"]}
    api.refuses(400, "age_encryption_recipients", "save_weights_external", body)
    assert api.metrics(api.step(model, 2)) is not None


def test_an_archive_is_a_redirect_to_a_tar(api: Api) -> None:
    """An archive is a 302 with location and expiry; a bare name is that of sampler weights."""
    model = api.model()
    saved(api, model, "a")
    api.result(api.save_sampler(model, path="s"))
    adapter = ["toy_adapter.npz"]
    for checkpoint_id, names in (
        ("weights/a", [*adapter, "toy_optimizer.npz"]),
        ("sampler_weights/s", adapter),
        ("s", adapter),
    ):
        answer = api.call("get_checkpoint_archive", **at(model, checkpoint_id))
        assert (answer.status_code, answer.content) == (302, b"")
        assert answer.headers["expires"] == "Thu, 01 Jan 1970 01:16:41 GMT"
        archive = fetched(api, answer.headers["location"])
        with tarfile.open(fileobj=io.BytesIO(archive.content), mode="r:gz") as files:
            assert sorted(files.getnames()) == names
    assert api.refused("get_checkpoint_archive", **at(model, "a"))[0] == 404


def archived(api: Api) -> str:
    """Return the URL of the archive of a checkpoint."""
    model = api.model()
    saved(api, model, "a")
    return api.call("get_checkpoint_archive", **at(model, "weights/a")).headers["location"]


RANGES = ("bytes=0-9", "bytes=SIZE-", "bytes=5-1", "abc", "bytes=0-1,4-5")


@pytest.mark.parametrize("asked", [None, *RANGES])
def test_a_packed_checkpoint_goes_with_its_download(api: Api, asked: str | None) -> None:
    """An archive that was sent, in part, or whose range was refused, leaves no packed file."""
    url = archived(api)
    size = str(len(fetched(api, url).content) + 1000)
    headers = {} if asked is None else {"range": asked.replace("SIZE", size)}
    answer = api.get(url, headers=headers)
    assert (answer.status_code in (200, 206)) == (asked in (None, RANGES[0], RANGES[4]))
    assert list(api.state.archives.path().iterdir()) == []


def test_an_aborted_download_leaves_no_packed_file(api: Api) -> None:
    """A client that disconnects in the middle of an archive leaves nothing."""
    path = urlsplit(archived(api)).path

    async def abort() -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                raise OSError("the client has disconnected")

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}
        rest = {"query_string": b"", "headers": [], "asgi": {"spec_version": "2.4"}}
        with contextlib.suppress(OSError):
            await create_app(api.state)({**scope, **rest}, receive, send)

    api.runner.run(abort())
    assert list(api.state.archives.path().iterdir()) == []


def test_a_killed_servers_packed_files_go_at_the_next_start(tmp_path: Path) -> None:
    """What a killed server was sending, receiving or keeping is removed by the next one."""
    folders = (".archives", ".uploads", ".unnamed")
    left = [tmp_path / folder / "0123456789abcdef" / "file" for folder in folders]
    for file in left:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x")
    state = State(ToyEngine, Settings(data_dir=tmp_path))
    assert not any(file.exists() for file in left)
    state.close()


def test_an_unloaded_model_keeps_its_checkpoints(make_api: MakeApi) -> None:
    """What was submitted before the unload runs, later requests are refused, and room is made."""
    engine = ToyEngine(vocabulary=512)
    api = make_api(engine, max_models=1)
    session, model = api.begin()
    saving = api.save(model, 1, "a")
    unloading = api.ok("unload_model", {"model_id": model})
    assert api.result(unloading) == {"model_id": model, "type": "unload_model"}
    assert "path" in api.result(saving)
    for operation in ("optim_step", "get_info"):
        assert "was unloaded" in api.refused(operation, {"model_id": model})[1]
    assert listed(api, model) == ["weights/a"]
    assert not engine._adapters
    assert api.ok("get_training_run", training_run_id=model)["corrupted"] is False
    assert api.model(session, 1)
