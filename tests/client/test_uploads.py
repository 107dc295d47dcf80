"""Uploads of local adapters: refused files, resuming, retries, and continued training."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import tinker
from tinker import checkpoints

Connect = Callable[..., tinker.ServiceClient]
FILE = "toy_adapter.npz"
LORA = tinker.LoraConfig(rank=4)
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 32,
    "bias": "none",
    "base_model_name_or_path": "some/model",
}
NAMES = (
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    "base_model.model.lm_head.lora_B.weight",
)


class Door(httpx.AsyncBaseTransport):
    """A transport that records requests to signed URLs, and answers some of them itself."""

    def __init__(self, wire: httpx.AsyncBaseTransport) -> None:
        self.wire = wire
        self.puts: list[httpx.Request] = []
        self.answers: list[httpx.Response | None] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT" and "/files/" in request.url.path:
            self.puts.append(request)
            if self.answers and (answer := self.answers.pop(0)) is not None:
                await request.aread()
                return answer
        return await self.wire.handle_async_request(request)


@pytest.fixture
def door(wire: Any) -> Door:
    """Return the transport to the server."""
    return Door(wire)


@pytest.fixture
def service(door: Door, connect: Connect) -> tinker.ServiceClient:
    """Return a service client on that transport."""
    return connect(transport=door)


def trained(service: tinker.ServiceClient, datum: tinker.Datum) -> tinker.TrainingClient:
    """Return a run that has made one step."""
    training = service.create_lora_training_client("tinker/toy", rank=4, seed=1)
    training.forward_backward([datum], "cross_entropy")
    training.optim_step(tinker.AdamParams(learning_rate=0.1))
    return training


@pytest.fixture
def adapter(
    service: tinker.ServiceClient, tmp_path: Path, datum: Callable[..., tinker.Datum]
) -> Path:
    """Return a folder with an adapter that was trained one step."""
    training = trained(service, datum())
    saved = training.save_weights_external("e", ttl_seconds=3600).result(10)
    return checkpoints.download(saved.path, tmp_path, service=service).result(10).destination


def bring(
    adapter: Path, service: tinker.ServiceClient, **options: Any
) -> checkpoints.UploadedCheckpoint:
    given = {"base_model": "tinker/toy", "lora_config": LORA, **options}
    return checkpoints.upload(adapter, service=service, **given).result(10)


def note_of(adapter: Path) -> Path:
    return adapter.with_name(f".{adapter.name}.tinker-upload.json")


def test_an_uploaded_adapter_continues_training(
    adapter: Path, service: tinker.ServiceClient, door: Door, datum: Callable[..., tinker.Datum]
) -> None:
    """An uploaded adapter trains on with equal losses; files carry a checksum, no credential."""
    seen: list[checkpoints.Progress] = []
    brought = bring(adapter, service, progress=seen.append)
    content = (adapter / FILE).read_bytes()
    size = len(content)
    assert (brought.files, brought.nbytes, brought.base_model) == ((FILE,), size, "tinker/toy")
    assert (seen[0].done_nbytes, seen[-1].done_nbytes, seen[-1].total_nbytes) == (0, size, size)
    (put,) = door.puts
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    assert put.headers["content-digest"] == f"sha-256=:{digest}:"
    assert put.headers["content-length"] == str(size)
    assert not {"x-api-key", "authorization"} & put.headers.keys()
    assert not note_of(adapter).exists()
    there = service.create_training_client_from_state(brought.checkpoint_path)
    here = trained(service, datum())
    one, same = (
        client.forward([datum()], "cross_entropy").result(10).loss for client in (here, there)
    )
    assert one == same


def test_a_file_is_sent_again(adapter: Path, service: tinker.ServiceClient, door: Door) -> None:
    """After a failure of the store or another checksum, the whole file is sent again."""
    wrong = base64.b64encode(bytes(32)).decode()
    door.answers = [
        httpx.Response(503),
        httpx.Response(400, headers={"x-should-retry": "true"}, json={"detail": "digest"}),
        httpx.Response(200, headers={"repr-digest": f"sha-256=:{wrong}:"}),
    ]
    assert bring(adapter, service).checkpoint_path.startswith("tinker://")
    assert len(door.puts) == 4


def test_a_refusal_of_the_store_is_the_error(
    adapter: Path, service: tinker.ServiceClient, door: Door
) -> None:
    """A refused file fails the upload with the store's response; no error shows the signed URL."""
    door.answers = [httpx.Response(413, json={"detail": "too large"})]
    with pytest.raises(tinker.APIStatusError) as caught:
        bring(adapter, service)
    assert caught.value.status_code == 413
    assert door.puts[0].url.path.split("/")[2][:40] not in note_of(adapter).name


def test_an_upload_without_a_resume_file(
    adapter: Path, service: tinker.ServiceClient, door: Door
) -> None:
    """Where the resume file cannot be written, an upload succeeds all the same."""
    note_of(adapter).with_suffix(".draft").mkdir()
    assert bring(adapter, service).checkpoint_path.startswith("tinker://")
    assert len(door.puts) == 1


def test_a_broken_upload_is_resumed(
    adapter: Path, service: tinker.ServiceClient, door: Door, wire: Any
) -> None:
    """A later call resumes a broken upload without finished files; its note is private."""
    wire.fail("external_weights_upload_finish", 403)
    with pytest.raises(tinker.PermissionDeniedError):
        bring(adapter, service)
    assert not note_of(adapter).exists()  # a refused upload is not resumed
    wire.fail("external_weights_upload_finish", 503, times=100)
    with pytest.raises(tinker.InternalServerError):
        bring(adapter, service)
    wire.faults.clear()
    assert stat.S_IMODE(note_of(adapter).stat().st_mode) == 0o600
    assert len(door.puts) == 2
    assert bring(adapter, service).checkpoint_path.startswith("tinker://")
    assert len(door.puts) == 2
    assert len(wire.requests("external_weights_upload_start")) == 2
    assert not note_of(adapter).exists()


@pytest.mark.parametrize(
    "other",
    [{"upload_id": "forgotten"}, {"announced": "another"}, {"expires": "1970-01-01T00:00:00Z"}, {}],
    ids=["lost", "another", "expired", "changed file"],
)
def test_an_upload_that_cannot_be_resumed_starts_again(
    other: dict[str, str], adapter: Path, service: tinker.ServiceClient, door: Door, wire: Any
) -> None:
    """What the server lost, was of other files or expired is uploaded again."""
    wire.fail("external_weights_upload_finish", 503, times=100)
    with pytest.raises(tinker.InternalServerError):
        bring(adapter, service)
    wire.faults.clear()
    note = json.loads(note_of(adapter).read_text())
    note_of(adapter).write_text(json.dumps({**note, **other}))
    if not other:
        with (adapter / FILE).open("ab") as file:
            file.write(b"\0")
    assert bring(adapter, service).checkpoint_path.startswith("tinker://")
    assert len(door.puts) == 2


def test_a_missing_file(service: tinker.ServiceClient, tmp_path: Path, door: Door) -> None:
    """A missing file in the folder raises an error that names it, and nothing is sent."""
    with pytest.raises(tinker.TinkerError, match=f"is missing {FILE}, which"):
        bring(tmp_path, service)
    assert door.puts == []


def safetensors(*names: str, cut: int = 0) -> bytes:
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(4 * len(names))
    return content[: len(content) - cut]


def write(folder: Path, config: object = CONFIG, weights: bytes | None = None) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        config if isinstance(config, str) else json.dumps(config)
    )
    if weights is None:
        weights = safetensors(*NAMES)
    if weights:
        (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no JSON": ({"config": "{"}, "adapter_config.json is not JSON"),
    "a list": ({"config": "[]"}, "JSON object"),
    "another method": ({"config": {**CONFIG, "peft_type": "IA3"}}, "peft_type is 'IA3'"),
    "no rank": ({"config": {**CONFIG, "r": "4"}}, "r is '4'"),
    "no scale": ({"config": {**CONFIG, "lora_alpha": None}}, "lora_alpha is None"),
    "DoRA": ({"config": {**CONFIG, "use_dora": True}}, "use_dora"),
    "whole modules": ({"config": {**CONFIG, "modules_to_save": ["lm_head"]}}, "modules_to_save"),
    "biases": ({"config": {**CONFIG, "bias": "all"}}, "bias is 'all'"),
    "no base": ({"config": {**CONFIG, "base_model_name_or_path": None}}, "pass base_model"),
    "no weights": ({"weights": b""}, "contains no adapter_model.safetensors"),
    "no safetensors": ({"weights": b"PK\3\4 something"}, "not a safetensors file"),
    "cut off": ({"weights": safetensors(*NAMES, cut=3)}, "is incomplete"),
    "empty": ({"weights": safetensors()}, "contains no weights"),
    "other weights": ({"weights": safetensors(*NAMES, "model.embed.weight")}, "model.embed.weight"),
}


@pytest.mark.parametrize(("files", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_files_are_refused_at_once(
    tmp_path: Path, files: dict[str, Any], reason: str
) -> None:
    """Files that no server can accept are refused on the caller's line, with file and field."""
    with pytest.raises((ValueError, FileNotFoundError), match=reason):
        checkpoints.upload(write(tmp_path / "adapter", **files))


def test_paths_that_are_no_folder(tmp_path: Path) -> None:
    """A missing path, a file, a pickled adapter and another rank are errors that say so."""
    with pytest.raises(FileNotFoundError, match="does not exist"):
        checkpoints.upload(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="pass base_model and lora_config"):
        checkpoints.upload(tmp_path)
    folder = write(tmp_path / "adapter", weights=b"")
    (folder / "adapter_model.bin").touch()
    with pytest.raises(ValueError, match="pickled"):
        checkpoints.upload(folder)
    with pytest.raises(NotADirectoryError, match="not a folder"):
        checkpoints.upload(folder / "adapter_config.json")
    words = r"lora_config.rank is 8, but r is 4 in adapter_config.json"
    with pytest.raises(ValueError, match=words):
        checkpoints.upload(write(tmp_path / "other"), lora_config=tinker.LoraConfig(rank=8))


def test_adapter_files_are_described(
    service: tinker.ServiceClient, tmp_path: Path, wire: Any
) -> None:
    """Rank, base model and kinds of modules are read from PEFT's files and sent."""
    with pytest.raises(tinker.BadRequestError, match="some/model"):
        checkpoints.upload(write(tmp_path / "adapter"), service=service, project_id="p").result(10)
    (start,) = wire.requests("external_weights_upload_start")
    trains = {"train_attn": True, "train_mlp": False, "train_unembed": True}
    assert start.json["lora_config"] == {"rank": 4, **trains}
    assert (start.json["base_model"], start.json["destination_project_id"]) == ("some/model", "p")
