"""Names of the model and its tokenizer: which ones clients may use, and which they receive."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api import Api, FolderEngine, MakeApi
from tinker_wire.operations import OPERATIONS

import tinker
from tinker.local import Settings, running_server
from tinker.local.app import create_app
from tinker.local.engines import PACKAGED_FOLDER
from tinker.local.engines.toy import ToyEngine

FAR = {"x-forwarded-for": "203.0.113.7"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def api(make_api: MakeApi, folder: Path) -> Api:
    """Return a server whose model is a directory."""
    return make_api(FolderEngine(folder))


def told(api: Api, name: str, **options: Any) -> dict[str, Any]:
    """Return the names that the server gives for a model and a sampler requested under a name."""
    session, model = api.begin(base_model=name)
    saved = api.save_sampler(model, 1, sampling_session_seq_id=7)
    info = api.ok("get_info", {"model_id": model}, **options)
    asked = {
        "model": info["model_name"],
        "model's tokenizer": info["model_data"]["tokenizer_id"],
        "run": api.ok("get_training_run", training_run_id=model, **options)["base_model"],
    }
    for sampler in (
        api.sampler(session, base_model=name),
        api.result(saved)["sampling_session_id"],
    ):
        found = api.ok("get_sampler", sampler_id=sampler, **options)
        asked |= {
            sampler.rpartition(":")[2]: found["base_model"],
            f"tokenizer {sampler[-1]}": found["tokenizer_id"],
        }
    return asked


def test_a_client_on_this_machine_gets_the_directory(api: Api, folder: Path) -> None:
    """A local client gets the directory, and the requested name; lists use the model's name."""
    path = str(folder)
    own = {
        "model": "mine",
        "model's tokenizer": path,
        "run": "mine",
        "0": "mine",
        "tokenizer 0": path,
    }
    assert told(api, "mine") == {**own, "7": "mine", "tokenizer 7": path}
    assert told(api, path) == {**own, "model": path, "0": path, "7": path, "tokenizer 7": path}


def test_a_client_on_another_machine_never_gets_the_directory(api: Api, folder: Path) -> None:
    """Through a proxy or from elsewhere a client gets a text that is not a hub name."""
    for name in ("mine", str(folder)):
        answers = told(api, name, headers=FAR)
        assert (
            answers["model's tokenizer"]
            == answers["tokenizer 0"]
            == "mine (a folder of the server)"
        )
        assert str(folder) not in repr(answers)
    transport = httpx.ASGITransport(create_app(api.state), client=("203.0.113.7", 1))
    api.client = httpx.AsyncClient(transport=transport, base_url="http://server")
    assert str(folder) not in repr(told(api, str(folder)))
    runs = api.ok("list_training_runs")
    assert str(folder) not in repr(runs)


def test_the_packaged_tokenizer_has_a_name(make_api: MakeApi) -> None:
    """The packaged tokenizer is its folder for a local client, and a name for others."""
    api = make_api()
    assert told(api, "tinker/toy")["tokenizer 0"] == str(PACKAGED_FOLDER)
    assert told(api, "tinker/toy", headers=FAR)["tokenizer 0"] == "tinker/babble"


def test_a_directory_with_a_colon_is_not_sent(make_api: MakeApi, tmp_path: Path) -> None:
    """A directory with a colon, where clients would cut it, is not sent."""
    (tmp_path / "a:b").mkdir()
    answers = told(make_api(FolderEngine(tmp_path / "a:b")), "a:b")
    assert answers["tokenizer 0"] == answers["model's tokenizer"] == "a_b (a folder of the server)"


def test_checkpoints_belong_to_the_model_under_either_name(api: Api, folder: Path) -> None:
    """A checkpoint saved under the path loads under the name, and the path is not stored."""
    session = api.session()
    path = api.saved(api.model(session, base_model=str(folder)), 1, "a")
    assert api.ok("weights_info", {"tinker_path": path})["base_model"] == "mine"
    body = {
        "session_id": session,
        "model_seq_id": 1,
        "path": path,
        "optimizer": True,
        "base_model": "mine",
    }
    assert "model_id" in api.result(api.ok("load_weights", body))


def test_other_names_are_refused_without_the_path(api: Api, folder: Path) -> None:
    """The refusal lists the available models without their paths."""
    body = {"session_id": api.session(), "model_seq_id": 0, "base_model": str(folder.parent)}
    detail = api.refuses(400, "'mine'", "create_model", body)
    assert str(folder.parent) not in detail.replace(repr(str(folder.parent)), "", 1)


def test_one_model_under_every_name_says_so(
    make_api: MakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients are warned when their session begins, and the log has each foreign name once."""
    api = make_api(ToyEngine(base_model="tinker/other"), any_base_model=True)
    created = api.ok("create_session", {"tags": [], "sdk_version": "1"})
    assert "get_tokenizer" in created["warning_message"]
    with caplog.at_level(logging.WARNING, "tinker.local"):
        for number, name in enumerate(["Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "tinker/other"]):
            api.model(created["session_id"], number, base_model=name)
    (message,) = caplog.messages
    assert "'Qwen/Qwen3-8B'" in message
    caplog.clear()
    for quiet, name in (
        (make_api(), "tinker/toy"),
        (make_api(any_base_model=True), "Qwen/Qwen3-8B"),
    ):
        created = quiet.ok("create_session", {"tags": [], "sdk_version": "1"})
        quiet.model(created["session_id"], 0, base_model=name)
        assert created.get("warning_message") is None
    assert not caplog.messages


def _check_tokenizers(url: str, name: str) -> None:
    with tinker.ServiceClient(base_url=url, api_key="k") as service:
        training = service.create_lora_training_client(name, rank=4)
        samplers = [
            training.save_weights_and_get_sampling_client(),
            service.create_sampling_client(base_model=name),
        ]
        for sampler in samplers:
            assert sampler.get_tokenizer() is training.get_tokenizer()


def test_a_directory_goes_by_its_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied model and its tokenizer are found by its last part and by its paths."""
    pytest.importorskip("torch")
    shutil.copytree(PACKAGED_FOLDER, tmp_path / "copied")
    monkeypatch.chdir(tmp_path)
    with running_server(Settings(data_dir=tmp_path / "data"), "torch", model="./copied/") as url:
        for name in ("copied", "./copied/", str(tmp_path / "copied")):
            _check_tokenizers(url, name)
        refused = httpx.get(url + OPERATIONS["get_server_capabilities"].path).json()
    assert [model["model_name"] for model in refused["supported_models"]] == ["copied"]


@pytest.mark.parametrize(
    ("name", "advice"),
    [("tinker/toi", ""), ("org/other", "; to serve it: tinker serve --model org/other, .*")],
)
def test_a_misspelt_model_is_refused_with_the_one_that_is_there(
    tmp_path: Path, name: str, advice: str
) -> None:
    """The refusal of a model names the server's, and of another owner's how to serve it."""
    config = tinker.Config.load(base_url="local://toy", local_dir=tmp_path)
    with tinker.ServiceClient(config=config) as service:
        refused = service.create_lora_training_client(name, rank=1).exception(10)
    assert isinstance(refused, tinker.BadRequestError)
    assert str(refused).count("tinker/toy") == 1
    assert re.search(
        rf"base model {name!r} is not offered; this server has 'tinker/toy'{advice} \(",
        str(refused),
    )
