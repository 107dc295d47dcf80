"""Uploads of adapters: links that take one file each, and the handling of valid and
hostile files.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.api import Api, Clock, MakeApi

from tinker.local.engines.toy import ToyEngine
from tinker.local.storage import FOLDER

ADAPTER = "toy_adapter.npz"
LORA = {"rank": 4, "train_attn": True}


def start(api: Api, **fields: Any) -> Any:
    return api.ok(
        "external_weights_upload_start", {"base_model": "tinker/toy", "lora_config": LORA, **fields}
    )


def send(api: Api, url: str, content: bytes, method: str = "PUT", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.runner.run(api.client.request(method, url, content=content, headers=named))


def finish(api: Api, upload: Any) -> Any:
    return api.ok("external_weights_upload_finish", {"upload_id": upload["upload_id"]})[
        "tinker_path"
    ]


def exported(api: Api, session: str, number: int = 0) -> tuple[str, bytes]:
    """Return a briefly trained model and its exported file."""
    model = api.model(session, number)
    api.loss(model, 1)
    api.step(model, 2, learning_rate=0.1)
    api.result(api.ok("save_weights_external", {"model_id": model, "seq_id": 3, "path": "e"}))
    answer = api.ok(
        "get_external_weights_urls", training_run_id=model, checkpoint_id="external_weights/e"
    )
    return model, api.get(answer["urls"][ADAPTER]).content


def stray_files(root: Path) -> list[Path]:
    return [file for file in (root / ".uploads").rglob("*") if file.is_file()]


def test_an_uploaded_adapter_is_a_checkpoint_to_train_from(api: Api) -> None:
    """An exported file that is uploaded and finished loads as weights that give the same losses."""
    session = api.session()
    model, content = exported(api, session)
    upload = start(api, destination_project_id="p")
    assert set(upload["urls"]) == {ADAPTER}
    assert send(api, upload["urls"][ADAPTER], content).status_code == 200
    path = finish(api, upload)
    body = {"session_id": session, "model_seq_id": 1, "path": path, "optimizer": False}
    loaded = api.result(api.ok("load_weights", body))["model_id"]
    expected = api.metrics(api.loss(model, 4))
    assert api.metrics(api.loss(loaded, 1)) == expected
    (listed,) = [
        one for one in api.ok("list_user_checkpoints")["checkpoints"] if one["tinker_path"] == path
    ]
    assert (listed["checkpoint_type"], listed["base_model"]) == ("training", "tinker/toy")
    assert stray_files(api.state.settings.data_dir) == []


def test_finishing_again_gives_the_same_checkpoint(api: Api) -> None:
    """A repeated finish, as after a lost response, makes no second checkpoint; later files are
    refused.
    """
    _, content = exported(api, api.session())
    upload = start(api)
    send(api, upload["urls"][ADAPTER], content)
    path = finish(api, upload)
    assert finish(api, upload) == path
    assert send(api, upload["urls"][ADAPTER], content).status_code == 409
    paths = [one["tinker_path"] for one in api.ok("list_user_checkpoints")["checkpoints"]]
    assert paths.count(path) == 1


def test_a_checksum_that_differs_refuses_the_file(api: Api) -> None:
    """A file whose checksum differs is not kept; the same file with the right checksum is."""
    _, content = exported(api, api.session())
    upload = start(api)
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    url = upload["urls"][ADAPTER]
    assert send(api, url, content + b"x", content_digest=f"sha-256=:{digest}:").status_code == 400
    api.refuses(400, ADAPTER, "external_weights_upload_finish", {"upload_id": upload["upload_id"]})
    answer = send(api, url, content, content_digest=f"sha-256=:{digest}:")
    assert (answer.status_code, answer.headers["repr-digest"]) == (200, f"sha-256=:{digest}:")
    assert finish(api, upload)


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_that_is_too_large_is_refused(make_api: MakeApi, announced: bool) -> None:
    """A file above ``max_upload_bytes`` is 413, with its length announced or not, and leaves
    nothing on the disk.
    """
    api = make_api(max_upload_bytes=1000)
    upload = start(api)

    async def pieces() -> Any:
        for _ in range(11):
            yield bytes(100)

    url = upload["urls"][ADAPTER]
    content: Any = bytes(1100) if announced else pieces()
    answer = send(api, url, content)
    assert (answer.status_code, "max_upload_bytes" in answer.json()["detail"]) == (413, True)
    assert stray_files(api.state.settings.data_dir) == []


def test_a_link_takes_its_file_only_and_ends(make_api: MakeApi) -> None:
    """A changed, foreign or expired link is 403; the last part of its URL has no effect."""
    clock = Clock()
    api = make_api(clock=clock, link_seconds=60.0)
    model, content = exported(api, api.session())
    upload = start(api)
    url = httpx.URL(upload["urls"][ADAPTER])
    _, _, token, _ = url.path.split("/")
    assert send(api, f"/files/{token[:-2]}xx/{ADAPTER}", content).status_code == 403
    download = api.ok(
        "get_external_weights_urls", training_run_id=model, checkpoint_id="external_weights/e"
    )
    assert send(api, download["urls"][ADAPTER], content).status_code == 403
    assert send(api, f"/files/{token}/..%2f..%2fescaped", content).status_code == 200
    assert [file.name for file in stray_files(api.state.settings.data_dir)] == [ADAPTER]
    assert send(api, str(url), b"", method="GET").status_code == 404
    clock.seconds += 61
    assert send(api, str(url), content).status_code == 403
    assert finish(api, upload)


def test_an_upload_is_forgotten_after_its_time(make_api: MakeApi) -> None:
    """An unfinished upload expires and frees its place and files; too many at once are 429."""
    clock = Clock()
    api = make_api(clock=clock, link_seconds=60.0, max_uploads=1)
    upload = start(api)
    send(api, upload["urls"][ADAPTER], b"bytes")
    api.refuses(
        429,
        "max_uploads",
        "external_weights_upload_start",
        {"base_model": "tinker/toy", "lora_config": LORA},
    )
    clock.seconds += 3600
    later = start(api)
    assert later["upload_id"] != upload["upload_id"]
    assert stray_files(api.state.settings.data_dir) == []
    assert (
        api.refused("external_weights_upload_finish", {"upload_id": upload["upload_id"]})[0] == 404
    )
    clock.seconds += 3600
    assert (
        api.refused("external_weights_upload_finish", {"upload_id": later["upload_id"]})[0] == 404
    )


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.npy", bytes(1 << 27))
    return out.getvalue()


HOSTILE = {
    "no archive": b"nothing of the kind",
    "an archive that fills the memory": bomb(),
    "pickled objects": npz(about=np.array({"spec": {}}, dtype=object)),
    "a description that is none": npz(
        about=np.array("[]"), **{name: np.zeros(1) for name in ("a0", "b0", "a1", "b1")}
    ),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_files_are_checked_before_they_are_a_checkpoint(api: Api, content: bytes) -> None:
    """Files that hold no adapter are refused with a reason and make no checkpoint; valid ones need
    another upload.
    """
    upload = start(api)
    send(api, upload["urls"][ADAPTER], content)
    status, detail = api.refused(
        "external_weights_upload_finish", {"upload_id": upload["upload_id"]}
    )
    assert (status, len(detail) > 10) == (400, True)
    assert api.ok("list_user_checkpoints")["checkpoints"] == []
    another = start(api)
    send(api, another["urls"][ADAPTER], exported(api, api.session())[1])
    assert finish(api, another)


def test_an_adapter_of_another_rank_is_refused(api: Api) -> None:
    """An adapter whose rank differs from the announced one is refused."""
    _, content = exported(api, api.session())
    upload = start(api, lora_config={"rank": 8})
    send(api, upload["urls"][ADAPTER], content)
    api.refuses(400, "rank 8", "external_weights_upload_finish", {"upload_id": upload["upload_id"]})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"base_model": "some/other"}, "some/other"),
        ({"lora_config": {"rank": 0}}, "rank"),
        ({"lora_config": {"rank": 99999}}, "ranks from 1 to"),
        (
            {
                "lora_config": {
                    "rank": 4,
                    "train_attn": False,
                    "train_mlp": False,
                    "train_unembed": False,
                }
            },
            "trains nothing",
        ),
    ],
)
def test_an_impossible_upload_is_refused_at_its_start(
    api: Api, fields: dict[str, Any], reason: str
) -> None:
    """An unknown base model or an impossible adapter is 400 before anything is sent."""
    body = {"base_model": "tinker/toy", "lora_config": LORA, **fields}
    api.refuses(400, reason, "external_weights_upload_start", body)


def test_uploads_go_with_the_server(tmp_path: Path, make_api: MakeApi) -> None:
    """A server that stops deletes unfinished files; after a kill the next server deletes them."""
    engine = ToyEngine(vocabulary=512)
    root = tmp_path / "shared"
    killed = root / ".uploads" / "0123" / "upload"
    killed.mkdir(parents=True)
    (killed / ADAPTER).write_bytes(b"left over")
    (root / FOLDER).mkdir()
    api = make_api(engine, data_dir=root)
    send(api, start(api)["urls"][ADAPTER], b"bytes")
    assert [file.read_bytes() for file in stray_files(root)] == [b"bytes"]
    api.state.close()
    assert stray_files(root) == []


def test_a_refused_upload_frees_its_place(make_api: MakeApi) -> None:
    """Files that the engine refuses are deleted with their upload, so that others can begin at
    once.
    """
    api = make_api(max_uploads=1)
    for _ in range(3):
        upload = start(api)
        assert send(api, upload["urls"][ADAPTER], b"not a file of arrays").status_code == 200
        body = {"upload_id": upload["upload_id"]}
        assert api.refused("external_weights_upload_finish", body)[0] == 400
        assert stray_files(api.state.settings.data_dir) == []
        assert api.refused("external_weights_upload_finish", body)[0] == 404
        assert send(api, upload["urls"][ADAPTER], b"more").status_code == 404


def test_silent_uploads_make_room(make_api: MakeApi) -> None:
    """An upload without data for a minute is dropped when another needs its place; an active one
    stays.
    """
    clock = Clock()
    api = make_api(max_uploads=2, clock=clock)
    silent, busy = start(api), start(api)
    clock.seconds += 59
    body = {"base_model": "tinker/toy", "lora_config": LORA}
    assert api.refused("external_weights_upload_start", body)[0] == 429
    with api.shared.uploads._uploads[busy["upload_id"]].receiving(api.state.now):
        clock.seconds += 1
        start(api)
        assert (
            api.refused("external_weights_upload_finish", {"upload_id": silent["upload_id"]})[0]
            == 404
        )
        assert (
            api.refused("external_weights_upload_finish", {"upload_id": busy["upload_id"]})[0]
            == 400
        )
