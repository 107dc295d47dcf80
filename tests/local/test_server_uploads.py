"""Uploads of adapters: links that take one file each, and valid and hostile files."""

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


BEGIN = {"base_model": "tinker/toy", "lora_config": LORA}


def start(api: Api, **fields: Any) -> Any:
    return api.ok("external_weights_upload_start", {**BEGIN, **fields})


def send(api: Api, url: str, content: Any, method: str = "PUT", **headers: str) -> httpx.Response:
    return api.get(url, method, content=content, headers=headers)


def finish(api: Api, upload: Any) -> Any:
    body = {"upload_id": upload["upload_id"]}
    return api.ok("external_weights_upload_finish", body)["tinker_path"]


def refuse(api: Api, upload: Any, status: int, words: str = "") -> Any:
    """Finish an upload, which must be refused; return the detail."""
    body = {"upload_id": upload["upload_id"]}
    return api.refuses(status, words, "external_weights_upload_finish", body)


def exported(api: Api) -> tuple[dict[str, str], bytes]:
    """Return where the exported file of a model is, and its content."""
    model = api.model()
    api.result(api.ok("save_weights_external", {"model_id": model, "seq_id": 1, "path": "e"}))
    where = {"training_run_id": model, "checkpoint_id": "external_weights/e"}
    return where, api.get(api.ok("get_external_weights_urls", **where)["urls"][ADAPTER]).content


def stray_files(root: Path) -> list[Path]:
    return [file for file in (root / ".uploads").rglob("*") if file.is_file()]


def test_a_finished_upload_is_one_checkpoint(api: Api) -> None:
    """It is listed once, as one to train from; files that come later are refused, and none stay."""
    _, content = exported(api)
    upload = start(api, destination_project_id="p")
    assert set(upload["urls"]) == {ADAPTER}
    assert send(api, upload["urls"][ADAPTER], content).status_code == 200
    path = finish(api, upload)
    assert finish(api, upload) == path
    assert send(api, upload["urls"][ADAPTER], content).status_code == 409
    found = [
        one for one in api.ok("list_user_checkpoints")["checkpoints"] if one["tinker_path"] == path
    ]
    assert [(one["checkpoint_type"], one["base_model"]) for one in found] == [
        ("training", "tinker/toy")
    ]
    assert stray_files(api.state.settings.data_dir) == []


def test_a_checksum_that_differs_refuses_the_file(api: Api) -> None:
    """A file whose checksum differs is not kept; the same file with the right checksum is."""
    _, content = exported(api)
    upload = start(api)
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"
    url, headers = upload["urls"][ADAPTER], {"content-digest": digest}
    assert send(api, url, content + b"x", **headers).status_code == 400
    refuse(api, upload, 400, ADAPTER)
    answer = send(api, url, content, **headers)
    assert (answer.status_code, answer.headers["repr-digest"]) == (200, digest)
    assert finish(api, upload)


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_that_is_too_large_is_refused(make_api: MakeApi, announced: bool) -> None:
    """A file above ``max_upload_bytes`` is 413, announced or not, and leaves nothing on the disk."""
    api = make_api(max_upload_bytes=1000)

    async def pieces() -> Any:
        for _ in range(11):
            yield bytes(100)

    answer = send(api, start(api)["urls"][ADAPTER], bytes(1100) if announced else pieces())
    assert (answer.status_code, "max_upload_bytes" in answer.json()["detail"]) == (413, True)
    assert stray_files(api.state.settings.data_dir) == []


def test_a_link_takes_its_file_only_and_ends(make_api: MakeApi, clock: Clock) -> None:
    """A changed, foreign or expired link is 403; the last part of its URL has no effect."""
    api = make_api(clock=clock, link_seconds=60.0)
    where, content = exported(api)
    upload = start(api)
    url = upload["urls"][ADAPTER]
    _, _, token, _ = httpx.URL(url).path.split("/")
    foreign = api.ok("get_external_weights_urls", **where)["urls"][ADAPTER]
    for wrong in (f"/files/{token[:-2]}xx/{ADAPTER}", foreign):
        assert send(api, wrong, content).status_code == 403
    assert send(api, f"/files/{token}/..%2f..%2fescaped", content).status_code == 200
    assert [file.name for file in stray_files(api.state.settings.data_dir)] == [ADAPTER]
    assert api.get(url).status_code == 404
    clock.seconds += 61
    assert send(api, url, content).status_code == 403
    assert finish(api, upload)


def test_an_upload_is_forgotten_after_its_time(make_api: MakeApi, clock: Clock) -> None:
    """An unfinished upload expires and frees its place and files; too many at once are 429."""
    api = make_api(clock=clock, link_seconds=60.0, max_uploads=1)
    upload = start(api)
    send(api, upload["urls"][ADAPTER], b"bytes")
    api.refuses(429, "max_uploads", "external_weights_upload_start", BEGIN)
    clock.seconds += 3600
    later = start(api)
    assert later["upload_id"] != upload["upload_id"]
    assert stray_files(api.state.settings.data_dir) == []
    refuse(api, upload, 404)
    clock.seconds += 3600
    refuse(api, later, 404)


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.npy", bytes(1 << 27))
    return out.getvalue()


EMPTY = {name: np.zeros(1) for name in ("a0", "b0", "a1", "b1")}


HOSTILE = {
    "no archive": b"nothing of the kind",
    "an archive that fills the memory": bomb(),
    "pickled objects": npz(about=np.array({"spec": {}}, dtype=object)),
    "a description that is none": npz(about=np.array("[]"), **EMPTY),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_files_are_checked_before_they_are_a_checkpoint(api: Api, content: bytes) -> None:
    """Files that hold no adapter are refused for a reason, and their upload is over."""
    upload = start(api)
    send(api, upload["urls"][ADAPTER], content)
    assert len(refuse(api, upload, 400)) > 10
    assert api.ok("list_user_checkpoints")["checkpoints"] == []
    assert stray_files(api.state.settings.data_dir) == []
    refuse(api, upload, 404)
    assert send(api, upload["urls"][ADAPTER], b"more").status_code == 404


def test_an_adapter_of_another_rank_is_refused(api: Api) -> None:
    """An adapter whose rank differs from the announced one is refused."""
    upload = start(api, lora_config={"rank": 8})
    send(api, upload["urls"][ADAPTER], exported(api)[1])
    refuse(api, upload, 400, "rank 8")


NOTHING = {"rank": 4, "train_attn": False, "train_mlp": False, "train_unembed": False}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"base_model": "some/other"}, "some/other"),
        ({"lora_config": {"rank": 0}}, "rank"),
        ({"lora_config": {"rank": 99999}}, "ranks from 1 to"),
        ({"lora_config": NOTHING}, "trains nothing"),
    ],
)
def test_an_impossible_upload_is_refused_at_its_start(
    api: Api, fields: dict[str, Any], reason: str
) -> None:
    """An unknown base model or an impossible adapter is 400 before anything is sent."""
    api.refuses(400, reason, "external_weights_upload_start", {**BEGIN, **fields})


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
    """After an upload whose files the engine refuses, others can begin at once."""
    api = make_api(max_uploads=1)
    for _ in range(3):
        upload = start(api)
        send(api, upload["urls"][ADAPTER], b"not a file of arrays")
        refuse(api, upload, 400)


def test_silent_uploads_make_room(make_api: MakeApi, clock: Clock) -> None:
    """An upload that is silent for a minute is dropped when another needs its place."""
    api = make_api(max_uploads=2, clock=clock)
    silent, busy = start(api), start(api)
    clock.seconds += 59
    assert api.refused("external_weights_upload_start", BEGIN)[0] == 429
    with api.shared.uploads._uploads[busy["upload_id"]].receiving(api.state.now):
        clock.seconds += 1
        start(api)
        refuse(api, silent, 404)
        refuse(api, busy, 400)
