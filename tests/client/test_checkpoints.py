"""Checkpoints as files: downloading, resuming, checksums, refused paths, and uploads to a hub."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from starlette.requests import Request
from starlette.responses import Response

import tinker
from tinker import _checkpoints, checkpoints
from tinker._checkpoints import merging
from tinker.cli import main
from tinker.testing import FaultyServer

Connect = Callable[..., tinker.ServiceClient]
FOREVER = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)
PATH = "tinker://run/external_weights/e"
FILE = "http://store/a"
URLS = "training_runs/run/checkpoints/external_weights/e/external_weights_urls"


class Broken(httpx.AsyncByteStream):
    """A body that breaks off after its first part."""

    def __init__(self, part: bytes) -> None:
        self.part = part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.part
        raise httpx.ReadError("the connection broke")


class Store(httpx.AsyncBaseTransport):
    """A separate object store: queued responses by URL. A queued response that is never fetched
    fails the test.
    """

    def __init__(self, wire: httpx.AsyncBaseTransport) -> None:
        self.wire = wire
        self.answers: list[tuple[str, httpx.Response]] = []
        self.requests: list[httpx.Request] = []

    def give(
        self,
        content: bytes | httpx.AsyncByteStream = b"",
        status: int = 200,
        url: str = FILE,
        **headers: str,
    ) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body: dict[str, Any] = (
            {"content": content} if isinstance(content, bytes) else {"stream": content}
        )
        self.answers.append((url, httpx.Response(status, headers=named, **body)))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.host != "store":
            return await self.wire.handle_async_request(request)
        self.requests.append(request)
        for index, (url, response) in enumerate(self.answers):
            if url == str(request.url):
                del self.answers[index]
                return response
        raise AssertionError(f"nothing to answer to {request.url}")


@pytest.fixture
def store(wire: Any) -> Iterator[Store]:
    """Yield the object store."""
    store = Store(wire)
    yield store
    assert not store.answers


@pytest.fixture
def fetch(
    store: Store, wire: Any, connect: Connect, tmp_path: Path
) -> Callable[..., checkpoints.Download]:
    """Download an external checkpoint whose files are at these URLs, by default one file."""

    def fetch(
        *answers: dict[str, str], expires: datetime.datetime = FOREVER, **arguments: Any
    ) -> checkpoints.Download:
        for urls in answers or [{"a": FILE}]:
            outside = None if expires.tzinfo else "a time without a zone"
            wire.fail(
                URLS, 200, body={"urls": urls, "expires": expires.isoformat()}, outside=outside
            )
        service = connect(transport=store)
        return checkpoints.download(PATH, tmp_path / "out", service=service, **arguments).result(10)

    return fetch


def digest(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


# Forms of checkpoints, on our own server


@pytest.mark.parametrize("kind", ["external", "training", "sampler"])
def test_every_kind(
    kind: str, service: tinker.ServiceClient, training: tinker.TrainingClient, tmp_path: Path
) -> None:
    """External checkpoints arrive as files, trainable ones exported, sampler ones as archives."""
    saves: dict[str, Callable[[str], Any]] = {
        "external": training.save_weights_external,
        "training": training.save_state,
        "sampler": training.save_weights_for_sampler,
    }
    saved = saves[kind]("final").result(10)
    assert kind == "external" or saved.type == saves[kind].__name__.replace("state", "weights")
    path = saved.path
    done = checkpoints.download(path, tmp_path, service=service).result(10)
    assert done.destination == tmp_path / path.removeprefix("tinker://").replace("/", "_").replace(
        ":", "_"
    )
    assert done.files == ("toy_adapter.npz",)
    assert done.nbytes == (done.destination / "toy_adapter.npz").stat().st_size
    assert [file.name for file in tmp_path.iterdir() if file.name.endswith(".partial")] == []


def test_the_export_is_deleted(
    service: tinker.ServiceClient, training: tinker.TrainingClient, tmp_path: Path, wire: Any
) -> None:
    """Neither the checkpoint nor the run of an export stays on the server."""
    path = training.save_state("final").result(10).path
    checkpoints.download(path, tmp_path, service=service).result(10)
    rest = service.create_rest_client()
    assert [one.tinker_path for one in rest.list_user_checkpoints().result(10).checkpoints] == [
        path
    ]
    assert [one.training_run_id for one in rest.list_training_runs().result(10).training_runs] == [
        training.model_id
    ]
    assert len(wire.requests("unload_model")) == 1


def test_server_without_exports(
    service: tinker.ServiceClient, training: tinker.TrainingClient, tmp_path: Path, wire: Any
) -> None:
    """Without exports there is the archive, or the refusal if an export was asked for."""
    path = training.save_state("final").result(10).path
    wire.fail("save_weights_external", 404, times=2)
    done = checkpoints.download(path, tmp_path, service=service).result(10)
    assert "toy_optimizer.npz" in done.files
    with pytest.raises(tinker.NotFoundError):
        checkpoints.download(path, tmp_path / "x", form="external", service=service).result(10)


def test_download_without_a_client(
    service: tinker.ServiceClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a client one is created, here for the server in this process, and closed."""
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path / "data"))
    made = tinker.ServiceClient(base_url="local://toy")
    path = (
        made.create_lora_training_client("tinker/toy", rank=2)
        .save_weights_external("e")
        .result(10)
        .path
    )
    assert checkpoints.download(path, tmp_path, base_url="local://toy").result(10).nbytes > 0
    assert "may be lost" not in caplog.text


# Arguments refused at once


def test_refused_at_once(service: tinker.ServiceClient, tmp_path: Path) -> None:
    """A path of no checkpoint, an unsuitable form and an existing folder are refused unsent."""
    with pytest.raises(ValueError, match="is not the path of a checkpoint"):
        checkpoints.download("run/weights/x", tmp_path)
    with pytest.raises(ValueError, match="cannot be exported"):
        checkpoints.download("tinker://run/sampler_weights/x", tmp_path, form="external")
    with pytest.raises(ValueError, match="not an archive"):
        checkpoints.download(PATH, tmp_path, form="archive")
    (tmp_path / "run_external_weights_e").mkdir()
    with pytest.raises(FileExistsError, match="already exists"):
        checkpoints.download(PATH, tmp_path)
    with pytest.raises(ValueError, match="pass neither"):
        checkpoints.download(PATH, tmp_path / "x", service=service, base_url="http://x")


# Files from a store


def test_files_in_folders(fetch: Any, store: Store) -> None:
    """Files get their names and are fetched without credentials; the progress adds up."""
    store.give(b"abc", url="http://store/a?sig=1")
    store.give(b"defgh", url="http://store/b?sig=2")
    told: list[checkpoints.Progress] = []
    done = fetch(
        {"config.json": "http://store/a?sig=1", "sub/x.bin": "http://store/b?sig=2"},
        progress=told.append,
    )
    assert done.files == ("config.json", "sub/x.bin")
    assert (done.destination / "sub" / "x.bin").read_bytes() == b"defgh"
    assert done.nbytes == 8
    assert (told[-1].done_nbytes, told[-1].total_nbytes, told[-1].files) == (8, 8, 2)
    assert all("x-api-key" not in request.headers for request in store.requests)


def test_a_broken_download_is_resumed(fetch: Any, store: Store) -> None:
    """After a break only the rest of the same version is fetched; the checksum is of the whole."""
    content = b"0123456789"
    store.give(
        Broken(content[:4]),
        etag='"v1"',
        content_length="10",
        repr_digest=digest(content),
    )
    store.give(
        content[4:],
        206,
        etag='"v1"',
        content_range="bytes 4-9/10",
        repr_digest=digest(content),
    )
    done = fetch()
    assert (done.destination / "a").read_bytes() == content
    assert store.requests[1].headers["range"] == "bytes=4-"
    assert store.requests[1].headers["if-range"] == '"v1"'


def test_another_version_starts_over(fetch: Any, store: Store) -> None:
    """If the file has changed meanwhile, all of it is sent and the old part is discarded."""
    store.give(Broken(b"old!"), etag='"v1"', content_length="10")
    store.give(b"new", etag='"v2"')
    assert (fetch().destination / "a").read_bytes() == b"new"


def test_without_a_version_nothing_is_resumed(fetch: Any, store: Store) -> None:
    """If the server sends no version, the whole file is requested again."""
    store.give(Broken(b"0123"), content_length="10")
    store.give(b"0123456789")
    fetch()
    assert "range" not in store.requests[1].headers


def test_an_unsatisfiable_range_starts_over(fetch: Any, store: Store) -> None:
    """If the requested range does not exist, the file is downloaded again from the start."""
    store.give(Broken(b"0123"), etag='"v1"', content_length="10")
    store.give(status=416)
    store.give(b"01", etag='"v2"')
    assert (fetch().destination / "a").read_bytes() == b"01"


def test_the_next_call_uses_existing_files(
    fetch: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call after a failed download fetches only the missing files."""
    monkeypatch.setattr(checkpoints, "FILES_AT_ONCE", 1)
    urls = {"a": "http://store/a", "b": "http://store/b"}
    store.give(b"abc", etag='"v1"')
    store.give(status=404, url="http://store/b")
    with pytest.raises(tinker.NotFoundError):
        fetch(urls)
    store.give(status=304)
    store.give(b"de", url="http://store/b")
    done = fetch(urls)
    assert done.nbytes == 5
    assert store.requests[2].headers["if-none-match"] == '"v1"'


@pytest.mark.parametrize(
    "header",
    [
        {"repr_digest": digest(b"other")},
        {"content_md5": base64.b64encode(hashlib.md5(b"other").digest()).decode()},
        {
            "x_goog_hash": f"crc32c=AAAAAA==,md5={base64.b64encode(hashlib.md5(b'other').digest()).decode()}"
        },
        {"x_amz_checksum_crc32": "AAAAAA=="},
    ],
)
def test_a_wrong_checksum(header: dict[str, str], fetch: Any, store: Store, tmp_path: Path) -> None:
    """Content that differs from its checksum, in any header, is neither stored nor resumed."""
    store.give(b"abc", etag='"v1"', **header, url="http://store/a?sig=secret")
    with pytest.raises(tinker.TinkerError, match=r"differs from its .* checksum") as caught:
        fetch({"a": "http://store/a?sig=secret"})
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "out" / "run_external_weights_e").exists()
    store.give(b"other")
    fetch()
    assert "range" not in store.requests[1].headers


def test_a_right_checksum(fetch: Any, store: Store) -> None:
    """The strongest checksum decides; one of several parts, not of the file, is ignored."""
    store.give(
        b"abc",
        repr_digest=digest(b"abc"),
        x_amz_checksum_crc32="AAAAAA==-2",
        etag='W/"x"',
    )
    assert fetch().nbytes == 3


@pytest.mark.parametrize("status", [400, 401, 403])
def test_an_expired_url_is_renewed(fetch: Any, store: Store, status: int) -> None:
    """A refused URL is renewed once; the error of the second refusal hides the signature."""
    store.give(status=status, url="http://store/a?sig=1")
    store.give(b"abc", url="http://store/a?sig=2")
    assert fetch({"a": "http://store/a?sig=1"}, {"a": "http://store/a?sig=2"}).nbytes == 3
    store.give(status=403, url="http://store/a?sig=3")
    store.give(status=403, url="http://store/a?sig=4")
    with pytest.raises(tinker.PermissionDeniedError) as caught:
        fetch({"a": "http://store/a?sig=3"}, {"a": "http://store/a?sig=4"}, overwrite=True)
    assert "sig" not in f"{caught.value} {caught.value.request.url}"


@pytest.mark.parametrize(
    "zone", [datetime.UTC, datetime.timezone(datetime.timedelta(hours=5)), None], ids=str
)
def test_urls_are_renewed_before_they_expire(
    fetch: Any, store: Store, clock: Any, zone: datetime.tzinfo | None
) -> None:
    """A URL that expires in less than five minutes is not used; a time without a zone is in UTC."""
    soon = datetime.datetime.fromtimestamp(clock.now + 299, datetime.UTC)
    soon = soon.replace(tzinfo=None) if zone is None else soon.astimezone(zone)
    store.give(b"abc", url="http://store/a?sig=2")
    assert (
        fetch({"a": "http://store/a?sig=1"}, {"a": "http://store/a?sig=2"}, expires=soon).nbytes
        == 3
    )


def test_a_busy_store(fetch: Any, store: Store) -> None:
    """Requests to an overloaded store are retried, as are truncated responses."""
    store.give(status=503)
    store.give(b"ab", content_length="4", etag='"1"')
    store.give(b"c", 206, etag='"1"', content_range="bytes 2-3/4")
    store.give(b"d", 206, etag='"1"', content_range="bytes 3-3/*")
    assert (fetch().destination / "a").read_bytes() == b"abcd"


def test_progress_that_raises(fetch: Any, store: Store) -> None:
    """An exception from the progress function ends the download."""
    store.give(b"abc")

    def stop(_: checkpoints.Progress) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        fetch(progress=stop)


def test_overwrite_replaces_the_folder(fetch: Any, store: Store, tmp_path: Path) -> None:
    """The previous content of a replaced folder is deleted."""
    folder = tmp_path / "out" / "run_external_weights_e"
    folder.mkdir(parents=True)
    (folder / "old").write_text("old")
    store.give(b"abc")
    fetch(overwrite=True)
    assert [file.name for file in folder.iterdir()] == ["a"]
    assert [file.name for file in folder.parent.iterdir()] == [folder.name]


def test_parts_that_cannot_be_removed(fetch: Any, store: Store, tmp_path: Path) -> None:
    """A complete download does not fail where its folder of parts, such as a link, must stay."""
    for name in ("elsewhere", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "run_external_weights_e.partial").symlink_to(tmp_path / "elsewhere")
    store.give(b"abc")
    assert (fetch().destination / "a").read_bytes() == b"abc"


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "..", "a\\b", "c:x", "a//../b", "", "x\0y"]
)
def test_names_outside_the_folder(name: str, fetch: Any) -> None:
    """A server cannot choose a path outside the folder; nothing is downloaded if it tries."""
    with pytest.raises(tinker.TinkerError, match="nothing was saved"):
        fetch({name: "http://store/a"})


@pytest.mark.parametrize("names", [("a", "A"), ("a", "a/b"), ("a/b", "a")])
def test_colliding_names(names: tuple[str, str], fetch: Any) -> None:
    """Names that are equal on some file systems are refused on all."""
    with pytest.raises(tinker.TinkerError, match="two files"):
        fetch(dict.fromkeys(names, "http://store/a"))


def test_a_checkpoint_without_files(fetch: Any) -> None:
    """A checkpoint without files raises an error."""
    with pytest.raises(tinker.TinkerError, match="no files"):
        fetch({})


# Archives


def tar(*members: tarfile.TarInfo, content: bytes = b"abc") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def unpack(content: bytes, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    archive, place = folder / "archive", folder / "place"
    archive.write_bytes(content)
    place.mkdir()
    _checkpoints.unpack(archive, place)
    return place


def pack_zip(name: str, content: str, attributes: int = 0) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("folder/", "")
        info = zipfile.ZipInfo(name)
        info.external_attr = attributes << 16
        archive.writestr(info, content)
    return packed.getvalue()


def pack_bomb() -> bytes:
    """Return the head of an archive whose file is declared to be large."""
    info = member("bomb")
    info.size = 1 << 40
    return info.tobuf() + b"\0" * 1024


def test_archives(tmp_path: Path) -> None:
    """Tar and zip archives are recognised by their content."""
    place = unpack(tar(member("./a"), member("d", tarfile.DIRTYPE), member("d/b")), tmp_path)
    names = sorted(file.relative_to(place).as_posix() for file in place.rglob("*"))
    assert names == ["a", "d", "d/b"]
    place = unpack(pack_zip("d/c", "abc"), tmp_path / "zip")
    assert (place / "d" / "c").read_bytes() == b"abc"


STRANGE = {
    "a file above": member("../x"),
    "a file elsewhere": member("/x"),
    "a symbolic link": member("link", tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": member("link", tarfile.LNKTYPE, "a"),
    "a device": member("device", tarfile.CHRTYPE),
    "a pipe": member("pipe", tarfile.FIFOTYPE),
}
REFUSED_ARCHIVES = {
    name: (tar(member("a"), one), "not unpacked|nothing was saved") for name, one in STRANGE.items()
} | {
    "a link in a zip": (pack_zip("link", "/etc/passwd", 0o120777), "neither a file nor a folder"),
    "a file that fills the disk": (pack_bomb(), "contains more than"),
    "nothing": (b"", "cannot be unpacked"),
    "a text": (b"no archive", "cannot be unpacked"),
    "a part of an archive": (tar(member("a"))[:-12], "cannot be unpacked"),
}


@pytest.mark.parametrize(
    ("content", "said"), REFUSED_ARCHIVES.values(), ids=REFUSED_ARCHIVES.keys()
)
def test_archives_that_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    """Strange members, what would fill the disk, what is damaged and no archive are refused."""
    with pytest.raises(tinker.TinkerError, match=said):
        unpack(content, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"archive", "place"}


def test_archive_with_too_many_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An archive may have as many files as the limit says, and not one more."""
    monkeypatch.setattr(_checkpoints, "MAX_MEMBERS", 2)
    assert len(list(unpack(tar(member("a"), member("b")), tmp_path).iterdir())) == 2
    with pytest.raises(tinker.TinkerError, match=r"contains more than .* or 2 files"):
        unpack(tar(member("a"), member("b"), member("c")), tmp_path / "more")


# A hub


@attrs.define(eq=False)
class FakeHub:
    """The part of a model hub that an upload needs, over HTTP."""

    card: str | None = None
    branches: list[str] = attrs.field(factory=list)
    address: str = ""
    made: dict[str, Any] | None = None
    files: dict[str, bytes] = attrs.field(factory=dict)
    message: str = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        status, value, headers = self.answer(scope["path"], await request.body())
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        if scope["method"] == "HEAD":
            headers, content = {"content-length": str(len(content)), **headers}, b""
        await Response(content, status, headers)(scope, receive, send)

    def answer(self, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        plain = {"content-type": "application/json"}
        if path == "/api/whoami-v2":
            return 200, {"name": "me", "type": "user"}, plain
        if path == "/api/repos/create":
            self.made = json.loads(body)
            return 200, {"url": f"{self.address}/me/x", "name": "me/x"}, plain
        if "/branch/" in path:
            status = 409 if (branch := path.rpartition("/")[2]) in self.branches else 200
            self.branches.append(branch)
            return status, {}, plain
        if path.endswith("/README.md"):
            if self.card is None:
                return 404, {}, {"x-error-code": "EntryNotFound"}
            return 200, self.card.encode(), {"x-repo-commit": "0" * 40, "etag": '"e"'}
        if "/preupload/" in path:
            mode = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            files = [{"path": one["path"], **mode} for one in json.loads(body)["files"]]
            return 200, {"files": files}, plain
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header":
                    self.message = line["value"]["summary"]
                else:
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"{self.address}/me/x/commit/1"
            return 200, {"commitUrl": url, "commitOid": "1", "pullRequestUrl": None}, plain
        return 200, {"id": "me/x", "sha": "0" * 40, "siblings": []}, plain


@pytest.fixture
def push(
    store: Store,
    wire: Any,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Any]]:
    """Push files to a hub that runs here, without anything of the user's hub account."""
    oldest = "1.4"  # that takes `endpoint`
    pytest.importorskip("huggingface_hub", minversion=oldest)
    monkeypatch.setattr("huggingface_hub.__version__", f"{oldest}.0")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    with contextlib.ExitStack() as stack:

        def push(hub: FakeHub, files: Iterable[str] = ADAPTER_FILES, **arguments: Any) -> Any:
            hub.address = stack.enter_context(FaultyServer(hub).on_port())
            urls = {name: f"http://store/{name}" for name in files}
            wire.fail(URLS, 200, body={"urls": urls, "expires": FOREVER.isoformat()})
            for url in urls.values():
                store.give(b'{"base_model_name_or_path": "org/Base-1"}', url=url)
            target = {"service": connect(transport=store), "endpoint": hub.address, "token": "hf_x"}
            return checkpoints.push_to_hub(PATH, **target, **arguments)

        yield push


ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def test_push_to_hub(push: Callable[..., Any]) -> None:
    """An adapter goes to a private repository named after model and run, with a card."""
    hub = FakeHub()
    pushed = push(hub)
    assert (pushed.repo_id, pushed.public, pushed.revision) == ("me/tinker-Base-1-run", False, None)
    assert pushed.url == f"{hub.address}/me/x/commit/1"
    assert hub.made is not None
    assert hub.made.get("private") is True or hub.made.get("visibility") == "private"
    assert sorted(hub.files) == ["README.md", *ADAPTER_FILES]
    assert PATH in hub.files["README.md"].decode()
    assert PATH in hub.message


def test_push_with_choices(push: Callable[..., Any]) -> None:
    """Branch, files and message are the given ones; an existing card or branch is kept."""
    hub = FakeHub(card=f"mine, of {PATH}", branches=["dev"])
    choices = {"ignore_patterns": ["*.json"], "commit_message": "words"}
    assert push(hub, repo_id="me/x", revision="dev", **choices).revision == "dev"
    assert hub.branches == ["dev"] * 2
    assert (list(hub.files), hub.message) == (["adapter_model.safetensors"], "words")


def test_an_endpoint_that_an_older_hub_package_fails_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint on which the upload would fail late is refused before any request or download."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.__version__", "0.36.0")
    with pytest.raises(ImportError, match="endpoint needs huggingface_hub"):
        tinker.checkpoints.push_to_hub(PATH, endpoint="http://127.0.0.1:9", base_url="local://toy")


def test_push_over_another_checkpoint(push: Callable[..., Any]) -> None:
    """A repository whose card names another checkpoint is not changed."""
    hub = FakeHub(card="this is `tinker://other/weights/x`")
    said = "contains another checkpoint, tinker://other/weights/x"
    with pytest.raises(tinker.TinkerError, match=said):
        push(hub, repo_id="me/y")
    assert hub.files == {}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("adapter_model.safetensors.age", "encrypted"), ("adapter_config.json", "safetensors$")],
)
def test_push_of_files_that_are_no_adapter(
    name: str, reason: str, push: Callable[..., Any]
) -> None:
    """Files of no adapter, or encrypted ones, are refused before anything is created."""
    hub = FakeHub()
    with pytest.raises(tinker.TinkerError, match=f"not a PEFT adapter.*{reason}"):
        push(hub, [name])
    assert hub.made is None


# Merged models, from files that are written here: ``tests/local/test_torch_families.py`` compares
# whole models with PEFT.

A, B = "lora_A.weight", "lora_B.weight"
LAYER = "base_model.model.model.layers.0."
Tensors = dict[str, np.ndarray[Any, Any]]


def write_tensors(file: Path, tensors: Tensors, dtype: str = "F32") -> None:
    """Write a safetensors file, of the upper halves of the numbers for bfloat16."""
    header, content = dict[str, Any](), b""
    for name, one in tensors.items():
        bits = one.astype("<f4").view("<u4")
        data = ((bits >> 16).astype("<u2") if dtype == "BF16" else bits).tobytes()
        places = (len(content), len(content) + len(data))
        header[name] = {"dtype": dtype, "shape": one.shape, "data_offsets": places}
        content += data
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content)


def read_tensors(folder: Path) -> Tensors:
    """Read a merged model as float32, and check that its index names each tensor."""
    found: Tensors = {}
    for file in folder.glob("*.safetensors"):
        content = file.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        for name, entry in json.loads(content[8:start]).items():
            if name != "__metadata__":
                data = content[slice(*(start + offset for offset in entry["data_offsets"]))]
                bits = np.frombuffer(data, "<u2" if entry["dtype"] == "BF16" else "<u4")
                bits = bits.astype("<u4") << (16 if entry["dtype"] == "BF16" else 0)
                found[name] = bits.view("<f4").reshape(entry["shape"])
    if (index := folder / "model.safetensors.index.json").exists():
        assert json.loads(index.read_text())["weight_map"].keys() == found.keys()
    return found


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return small whole numbers, whose products and sums are exact, also in bfloat16."""
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(np.float32)


def write_adapter(folder: Path, factors: Tensors, **config: object) -> Path:
    """Write the files of an adapter of rank 2, scaled by 1."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2, **config})
    )
    write_tensors(folder / "adapter_model.safetensors", factors)
    return folder


def factors_of(name: str, outputs: int, inputs: int, experts: int = 1) -> Tensors:
    """Return the factors of a module, or of a stack of experts."""
    return {
        f"{name}.{A}": numbers(2 * experts, inputs, seed=1),
        f"{name}.{B}": numbers(outputs, 2 * experts, seed=2),
    }


def merge(
    base: Path, factors: Tensors, **config: object
) -> tuple[checkpoints.MergedModel, Tensors]:
    """Merge an adapter of these factors, and return the tensors of the merged model too."""
    adapter, out = write_adapter(base.parent / "adapter", factors, **config), base.parent / "out"
    done = checkpoints.merge(adapter, base, out)
    return done, read_tensors(out)


BASE: Tensors = {
    "model.embed_tokens.weight": numbers(7, 4),
    "model.layers.0.self_attn.q_proj.weight": numbers(6, 4),
    "model.norm.weight": numbers(4),
}
ADAPTER = {
    **factors_of(f"{LAYER}self_attn.q_proj", 6, 4),
    **factors_of("base_model.model.lm_head", 7, 4),
}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a base model in two files, whose head is its embedding. A matrix is merged two rows at
    a time.
    """
    monkeypatch.setattr(merging, "PIECE_NBYTES", 2 * 4 * 4)
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"tie_word_embeddings": true, "text_config": {"hidden_size": 4}}'
    )
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_text("not these")
    (folder / "adapter_config.json").write_text("nor this")
    parts = {
        "one.safetensors": dict(list(BASE.items())[:1]),
        "two.safetensors": dict(list(BASE.items())[1:]),
    }
    for name, tensors in parts.items():
        write_tensors(folder / name, tensors, "BF16")
    places = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def test_merge_unties_the_head(base: Path, tmp_path: Path) -> None:
    """Matrices get their update, the head becomes its own tensor, and all else stays the same."""
    seen = list[checkpoints.Progress]()
    adapter, out = write_adapter(tmp_path / "adapter", ADAPTER), tmp_path / "out"
    done = checkpoints.merge(adapter, base, out, progress=seen.append)
    query = "model.layers.0.self_attn.q_proj.weight"
    expected = {
        **BASE,
        query: BASE[query] + update_of(f"{LAYER}self_attn.q_proj"),
        "lm_head.weight": BASE["model.embed_tokens.weight"] + update_of("base_model.model.lm_head"),
    }
    found = {name: one.tolist() for name, one in read_tensors(out).items()}
    assert found == {name: one.tolist() for name, one in expected.items()}
    assert json.loads((out / "config.json").read_text()) == {
        "tie_word_embeddings": False,
        "text_config": {"hidden_size": 4, "tie_word_embeddings": False},
    }
    files = ["config.json", "model.safetensors.index.json", "one.safetensors", "tokenizer.json"]
    assert sorted(file.name for file in out.iterdir()) == [*files, "two.safetensors"]
    nbytes = 2 * sum(one.size for one in expected.values())
    assert (done.nbytes, done.has_new_head) == (nbytes, True)
    assert seen[-1] == checkpoints.Progress(done_nbytes=nbytes, total_nbytes=nbytes, files=2)


def update_of(name: str) -> np.ndarray[Any, Any]:
    return ADAPTER[f"{name}.{B}"] @ ADAPTER[f"{name}.{A}"]


def test_merge_rounds_to_the_nearest(base: Path, tmp_path: Path) -> None:
    """A sum that bfloat16 does not have is rounded once, to the nearest, of two to the even one."""
    name = "model.layers.0.self_attn.q_proj.weight"
    write_tensors(
        base / "two.safetensors", {name: np.ones((6, 4)), "model.norm.weight": numbers(4)}, "BF16"
    )
    # half steps of bfloat16 above 1
    steps = np.array([1.0, 3.0, 0.75, 1.25, -1.0, 0.25], np.float32) / 256
    up = np.stack([steps, np.zeros(6, np.float32)], axis=1)
    factors = {
        f"{LAYER}self_attn.q_proj.{A}": np.ones((2, 4), np.float32),
        f"{LAYER}self_attn.q_proj.{B}": up,
    }
    expected = [1.0, 1 + 4 / 256, 1.0, 1 + 2 / 256, 1 - 1 / 256, 1.0]
    assert merge(base, factors)[1][name][:, 0].tolist() == expected


@pytest.mark.parametrize(
    "config", [{"lora_alpha": 4}, {"lora_alpha": 4, "r": 4, "use_rslora": True}]
)
def test_merge_scales_as_the_adapter_says(base: Path, config: dict[str, Any]) -> None:
    """The update is scaled by alpha over the rank, with rsLoRA by alpha over its root: 2."""
    rank = config.get("r", 2)
    a, b = numbers(rank, 4, seed=1), numbers(6, rank, seed=2)
    name = "model.layers.0.self_attn.q_proj"
    factors = {f"base_model.model.{name}.{A}": a, f"base_model.model.{name}.{B}": b}
    done, merged = merge(base, factors, **config)
    assert (merged[f"{name}.weight"] == BASE[f"{name}.weight"] + 2 * b @ a).all()
    assert not done.has_new_head
    config = json.loads((base.parent / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is True


def test_merge_finds_a_matrix_by_its_layer(base: Path, tmp_path: Path) -> None:
    """In the files, names in front of a layer, and within it, may differ; a vision tower or two of
    a name are no place.
    """
    layer = "base_model.model.model.language_model.layers.3.mlp"
    there = {
        "language_model.model.layers.3.moe.shared_mlp.up_proj.weight": numbers(6, 4),
        "vision.layers.3.mlp.up_proj.weight": numbers(6, 4),
    }
    write_tensors(base / "two.safetensors", there)
    factors = factors_of(f"{layer}.shared_experts.up_proj", 6, 4)
    _, merged = merge(base, factors)
    assert [name for name, one in there.items() if (merged[name] != one).any()] == list(there)[:1]
    (tmp_path / "out").rename(tmp_path / "other")
    said = r"no place for model.language_model.layers.3.mlp.shared_experts.up_proj"
    with pytest.raises(ValueError, match=said + r" \(2x4 and 6x2\)$"):
        merge(base, {**factors, **factors_of(f"{layer}.experts.up_proj", 6, 4)})
    there["language_model.model.layers.3.mlp.up_proj.weight"] = numbers(6, 4)
    write_tensors(base / "two.safetensors", there)
    with pytest.raises(ValueError, match=said):
        merge(base, factors)


EXPERTS, SIZE, INNER = 3, 4, 6
GATED = (2 * INNER, SIZE)
STACKS = {f"{LAYER}mlp.experts.base_layer": GATED, f"{LAYER}mlp.experts": (SIZE, INNER)}


def one_by_one(prefix: str, gate: str, up: str, down: str) -> dict[str, tuple[int, ...]]:
    shapes = {gate: (INNER, SIZE), up: (INNER, SIZE), down: (SIZE, INNER)}
    return {
        f"{prefix}.{expert}.{name}.weight": shape
        for expert in range(EXPERTS)
        for name, shape in shapes.items()
    }


FORMS: dict[str, dict[str, tuple[int, ...]]] = {
    "one by one": one_by_one("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    "under another name": one_by_one("block_sparse_moe.experts", "w1", "w3", "w2"),
    "stacked": {
        "mlp.experts.gate_up_proj": (EXPERTS, *GATED),
        "mlp.experts.down_proj": (EXPERTS, SIZE, INNER),
    },
    "transposed": {
        "mlp.experts.gate_up_proj": (EXPERTS, *GATED[::-1]),
        "mlp.experts.down_proj": (EXPERTS, INNER, SIZE),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_merge_of_experts(base: Path, form: str) -> None:
    """The update of a stack of experts reaches each of them, in any form of the files."""
    prefix = "language_model.model.layers.0."  # the module is model.layers.0
    tower = {"vision.layers.0.mlp.experts.gate_up_proj": numbers(EXPERTS, *GATED)}
    tensors = {f"{prefix}{name}": numbers(*shape) for name, shape in FORMS[form].items()}
    write_tensors(base / "two.safetensors", {**tensors, **tower})
    factors: Tensors = {}
    for name, shape in STACKS.items():
        factors |= factors_of(name, *shape, experts=EXPERTS)
    _, merged = merge(base, factors)
    gated, down = (
        np.einsum(
            "ore,eri->eoi",
            factors[f"{name}.{B}"].reshape(-1, 2, EXPERTS),
            factors[f"{name}.{A}"].reshape(EXPERTS, 2, -1),
        )
        for name in STACKS
    )
    gate, up = gated[:, :INNER], gated[:, INNER:]
    updates = {
        "gate_proj": gate,
        "up_proj": up,
        "down_proj": down,
        "w1": gate,
        "w3": up,
        "w2": down,
    }
    for name, one in tensors.items():
        *_, expert, leaf = name.removesuffix(".weight").split(".")
        if "stacked" in form or "transposed" in form:
            wanted = down if leaf == "down_proj" else gated
            wanted = wanted.swapaxes(1, 2) if form == "transposed" else wanted
        else:
            wanted = updates[leaf][int(expert)]
        assert (merged[name] - one).tolist() == wanted.tolist()
    assert all((merged[name] == one).all() for name, one in tower.items())


def spoil(file: str, **changes: object) -> Callable[[Path, Path], None]:
    """Return what changes fields of a JSON file of the base model or the adapter."""

    def change(base: Path, adapter: Path) -> None:
        place = (adapter if file.startswith("adapter") else base) / file
        place.write_text(json.dumps({**json.loads(place.read_text()), **changes}))

    return change


REFUSED_MERGES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "quantized": (
        spoil("config.json", quantization_config={"quant_method": "gptq"}),
        r"is quantized \(gptq\); merge into",
    ),
    "quantized language model": (
        spoil("config.json", text_config={"quantization_config": {"quant_method": "fp8"}}),
        r"\(fp8\)",
    ),
    "another rank": (
        spoil("adapter_config.json", r=3),
        r"rank 3.* no place for lm_head \(2x4 and 7x2\), model\.layers\.0\.self",
    ),
    "another model": (
        lambda base, adapter: write_adapter(
            adapter, {**ADAPTER, **factors_of(f"{LAYER}mlp.up_proj", 6, 4)}
        ),
        r"no place for model\.layers\.0\.mlp\.up_proj \(2x4 and 6x2\)$",
    ),
    "other shapes": (
        lambda base, adapter: write_adapter(
            adapter,
            {k: v for i in range(5) for k, v in factors_of(f"{LAYER}{i}.q_proj", 8, 4).items()},
        ),
        r"no place for model\.layers\.0\.0\.q_proj .*, .*1\.q_proj .*, .*2\.q_proj .* and 2 more",
    ),
    "half of a pair": (
        lambda base, adapter: write_adapter(
            adapter, {k: v for k, v in ADAPTER.items() if B not in k or "head" not in k}
        ),
        r"no place for lm_head \(2x4\)$",
    ),
    "kernels of a convolution": (
        lambda base, adapter: write_adapter(
            adapter, {name: one[..., None, None] for name, one in ADAPTER.items()}
        ),
        r"no place for lm_head \(2x4x1x1 and 7x2x1x1\), model",
    ),
    "another kind": (spoil("adapter_config.json", use_dora=True), "use_dora is True"),
    "no shard": (
        lambda base, adapter: (base / "two.safetensors").unlink(),
        r"contains no two\.safetensors",
    ),
    "a shard elsewhere": (
        lambda base, adapter: point_elsewhere(base, adapter),
        r"contains no \.\./elsewhere",
    ),
    "a cut shard": (
        lambda base, adapter: write_cut(base / "two.safetensors"),
        "two.safetensors is incomplete",
    ),
    "no model": (
        lambda base, adapter: (base / "config.json").unlink(),
        r"contains no config\.json",
    ),
    "no adapter": (
        lambda base, adapter: (adapter / "adapter_model.safetensors").unlink(),
        "contains no adapter_model",
    ),
    "not empty": (
        lambda base, adapter: ((base.parent / "out").mkdir(), (base.parent / "out" / "x").touch()),
        "is not empty",
    ),
    "a file": (lambda base, adapter: (base.parent / "out").touch(), "is not a folder"),
}


def point_elsewhere(base: Path, adapter: Path) -> None:
    (base / "two.safetensors").rename(base.parent / "elsewhere")
    spoil("model.safetensors.index.json", weight_map={"model.norm.weight": "../elsewhere"})(
        base, adapter
    )


def write_cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(("change", "reason"), REFUSED_MERGES.values(), ids=REFUSED_MERGES.keys())
def test_merge_refuses_before_it_writes(
    base: Path, tmp_path: Path, change: Any, reason: str
) -> None:
    """What cannot be merged is refused in one sentence, and nothing is written."""
    adapter = write_adapter(tmp_path / "adapter", ADAPTER)
    change(base, adapter)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((ValueError, OSError), match=reason):
        checkpoints.merge(adapter, base, tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupted_merge_leaves_no_model(base: Path, tmp_path: Path) -> None:
    """A merge that fails leaves no file; one that was killed leaves files that no program takes for
    a model, and the next one replaces them.
    """

    def interrupt(now: checkpoints.Progress) -> None:
        raise KeyboardInterrupt

    adapter, out = write_adapter(tmp_path / "adapter", ADAPTER), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        checkpoints.merge(adapter, base, out, progress=interrupt)
    assert list(out.iterdir()) == []

    def obstruct(now: checkpoints.Progress) -> None:
        (out / "two.safetensors" / "in the way").mkdir(parents=True, exist_ok=True)

    with pytest.raises(OSError, match=r"two\.safetensors"):
        checkpoints.merge(adapter, base, out, progress=obstruct)
    assert not (out / "config.json").exists()
    shutil.rmtree(out)
    (out / ".partial").mkdir(parents=True)
    (out / ".partial" / "one.safetensors").write_text("half")
    checkpoints.merge(adapter, base, out)
    assert not (out / ".partial").exists()
    assert (out / "config.json").exists()


def test_a_merge_that_overflows_is_refused(base: Path, tmp_path: Path) -> None:
    """A sum that is not finite in the base model's precision is an error, and leaves no model."""
    with pytest.raises(ValueError, match="not finite in BF16"):
        merge(base, {name: one * np.float32(1e30) for name, one in ADAPTER.items()})
    assert list((tmp_path / "out").iterdir()) == []


def test_merge_of_an_archive(base: Path, tmp_path: Path) -> None:
    """The adapter may be an archive."""
    adapter, packed = write_adapter(tmp_path / "adapter", ADAPTER), tmp_path / "adapter.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for file in adapter.iterdir():
            archive.add(file, file.name)
    made = []
    for source, out in ((adapter, tmp_path / "one"), (packed, tmp_path / "other")):
        checkpoints.merge(source, base, out)
        made.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert made[0] == made[1]


def test_the_command_merges_without_a_server(base: Path, tmp_path: Path) -> None:
    """`tinker checkpoint merge` asks no server, and refuses in one line without a traceback."""
    adapter, out = write_adapter(tmp_path / "adapter", ADAPTER), tmp_path / "out"
    words = ["--base-url", "http://127.0.0.1:1", "checkpoint", "merge", str(adapter)]
    words += ["--base", str(base), "--out", str(out)]
    done = CliRunner().invoke(main, ["-f", "json", *words])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "checkpoint_path": str(adapter),
        "destination": str(out),
        "file_size_bytes": sum(2 * one.size for one in read_tensors(out).values()),
        "has_new_head": True,
    }
    again = CliRunner().invoke(main, words)
    said = f"Error: {out} is not empty; choose a new folder"
    assert (again.exit_code, again.stderr.splitlines()[1:]) == (1, [said])
