"""Files between signed URLs and the disk, resumed where they broke off; adapters and archives."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import json
import lzma
import math
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import attrs
import msgspec
from tinker_wire import models

from tinker._basics.shown import hide_signature
from tinker._http import responses, retry
from tinker._http.messages import ExchangeFailed, PreparedRequest, RawResponse, explain_handshake
from tinker._http.submission import Fail, Next, Retries
from tinker._http.transport import Transport, open_files
from tinker._loop import run_together
from tinker._runtime import Runtime, run
from tinker.errors import APIConnectionError, APIError, TinkerError
from tinker.futures import APIFuture

if TYPE_CHECKING:
    import httpx
    from tinker_wire.clients import RestOperations

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
_PICKLED = "adapter_model.bin"
_MAX_CONFIG_NBYTES = 1 << 20
_MAX_HEADER_NBYTES = 100 << 20
#: What of PEFT's LoRA no server takes; absent or empty is fine.
_REFUSED = (
    *(
        "use_dora",
        "modules_to_save",
        "rank_pattern",
        "alpha_pattern",
        "lora_bias",
        "trainable_token_indices",
    ),
    *("fan_in_fan_out", "megatron_config"),
)
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
HEADS = frozenset({"lm_head", "embed_out", "output_layer"})


@attrs.frozen(kw_only=True)
class LocalAdapter:
    """A folder with the files of an adapter, and what it is announced as."""

    folder: Path
    base_model: str
    lora_config: models.LoraConfig

    def find(self, name: str) -> Path | None:
        """Return the file of a name that the server asks for; None when it is not in the folder."""
        place = self.folder / name
        return (
            place
            if place.is_file() and place.resolve().is_relative_to(self.folder.resolve())
            else None
        )


def read_adapter(
    folder: Path, base_model: str | None, lora_config: models.LoraConfig | None
) -> LocalAdapter:
    """Read what a folder holds. Without PEFT's files both other arguments must say it, and nothing
    is checked.

    FileNotFoundError, NotADirectoryError or ValueError, naming the file and the field, for what
    cannot be uploaded.
    """
    if not folder.exists():
        raise FileNotFoundError(f"the folder {folder} does not exist")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder; pass the one that contains {CONFIG}")
    if not (folder / CONFIG).is_file():
        if base_model is None or lora_config is None:
            raise FileNotFoundError(
                f"{folder} contains no {CONFIG}; add the file, or pass base_model and lora_config"
            )
        return LocalAdapter(folder=folder, base_model=base_model, lora_config=lora_config)
    config = read_json(folder / CONFIG)
    rank, _ = check_config(config)
    found = _to_lora_config(rank, read_modules(folder))
    if lora_config is not None and lora_config.rank != rank:
        raise ValueError(f"lora_config.rank is {lora_config.rank}, but r is {rank} in {CONFIG}")
    return LocalAdapter(
        folder=folder, base_model=base_model or _read_base(config), lora_config=lora_config or found
    )


def read_json(file: Path, most_nbytes: int = _MAX_CONFIG_NBYTES) -> dict[str, Any]:
    """Read an object. ValueError, with the file's name, for what is none, or larger than a file of
    its kind is.
    """
    if file.stat().st_size > most_nbytes:
        raise ValueError(f"{file.name} is larger than {most_nbytes} bytes")
    try:
        config: object = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file.name} does not contain a JSON object")
    return cast("dict[str, Any]", config)


def check_config(config: Mapping[str, Any]) -> tuple[int, float]:
    """Return the rank, and by what PEFT scales updates. ValueError for an adapter
    of another kind.
    """
    if config.get("peft_type") != "LORA":
        raise ValueError(
            f"{CONFIG}: peft_type is {config.get('peft_type')!r}; only LORA adapters are supported"
        )
    for name in _REFUSED:
        if config.get(name):
            raise ValueError(
                f"{CONFIG}: {name} is {config[name]!r}; adapters with this "
                "setting are not supported"
            )
    if config.get("bias", "none") != "none":
        raise ValueError(f"{CONFIG}: bias is {config['bias']!r}; only 'none' is supported")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ValueError(f"{CONFIG}: r is {rank!r}; it must be an integer of at least 1")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise ValueError(f"{CONFIG}: lora_alpha is {alpha!r}; it must be a number")
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _read_base(config: Mapping[str, Any]) -> str:
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{CONFIG} does not name the base model; pass base_model")
    return name


def _to_lora_config(rank: int, modules: Iterable[str]) -> models.LoraConfig:
    """Return what kinds of modules are adapted: attention, the output layer, or others, which count
    as MLP.
    """
    kinds = {_find_kind(module) for module in modules}
    return models.LoraConfig(
        rank=rank,
        train_attn="attn" in kinds,
        train_mlp="mlp" in kinds,
        train_unembed="unembed" in kinds,
    )


def _find_kind(module: str) -> str:
    parent, _, leaf = module.rpartition(".")
    return "unembed" if leaf in HEADS else "attn" if _ATTENTION.search(parent) else "mlp"


def read_modules(folder: Path) -> dict[str, dict[str, TensorEntry]]:
    """Return the entries of the weights by the adapted module and what follows it. ValueError for a
    file that is damaged.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        if (folder / _PICKLED).is_file():
            raise ValueError(
                f"{folder} contains {_PICKLED}, which is pickled; save the adapter with "
                "safe_serialization=True"
            )
        raise FileNotFoundError(f"{folder} contains no {WEIGHTS}")
    modules = dict[str, dict[str, TensorEntry]]()
    for name, entry in sorted(read_header(file).items()):
        module, found, factor = name.partition(".lora_")
        if not found:
            advice = (
                "save the adapter with save_embedding_layers=False, which omits "
                "weights of the base model"
            )
            raise ValueError(
                f"{WEIGHTS} contains {name}, which is not part of a LoRA adapter; {advice}"
            )
        modules.setdefault(module, {})[factor] = entry
    if not modules:
        raise ValueError(f"{WEIGHTS} contains no weights")
    return modules


class TensorEntry(msgspec.Struct, frozen=True):
    """What the header of a safetensors file says about a tensor; the offsets are
    those in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor."""
        return self.data_offsets[1] - self.data_offsets[0]


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file, all of which it has the bytes of,
    in their order.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER_NBYTES, size - 8):
            raise ValueError(f"{file.name} is damaged or not a safetensors file")
        try:
            header = msgspec.json.decode(opened.read(length), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            entries = {
                name: msgspec.json.decode(entry, type=TensorEntry) for name, entry in header.items()
            }
        except (ValueError, RecursionError):
            raise ValueError(f"{file.name} is damaged or not a safetensors file") from None
    found = sorted(
        ((name, _move(entry, 8 + length)) for name, entry in entries.items()),
        key=lambda one: one[1].data_offsets,
    )
    end = max((entry.data_offsets[1] for _, entry in found), default=8 + length)
    if end != size:
        raise ValueError(f"{file.name} is incomplete: it has {size} bytes instead of {end}")
    return dict(found)


def _move(entry: TensorEntry, by: int) -> TensorEntry:
    start, end = entry.data_offsets
    return msgspec.structs.replace(entry, data_offsets=(start + by, end + by))


MAX_MEMBERS = 100_000
# A new adapter is half zeros, and optimizer state is zeros at first; beyond this an archive is made
# to fill a disk.
MAX_EXPANSION = 200
ALWAYS_ALLOWED_NBYTES = 1 << 30
_PIECE_NBYTES = 1 << 20
_DAMAGES = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)
_RESERVED = frozenset({"", ".", ".."})


def unpack(archive: Path, folder: Path) -> int:
    """Unpack a tar (plain or compressed) or zip archive into ``folder``, which must be empty, and
    return the bytes written.

    TinkerError, with ``folder`` half full, for a file that is not an archive or is damaged; for a
    member that would leave the folder, is a link or a device, or would replace another one; and for
    an archive that is made to fill the disk.
    """
    allowed = max(ALWAYS_ALLOWED_NBYTES, MAX_EXPANSION * archive.stat().st_size)
    written = 0
    names = SafeNames()
    try:
        with closing(_open_members(archive)) as members:
            for count, (name, nbytes, content) in enumerate(members, start=1):
                written += nbytes
                if written > allowed or count > MAX_MEMBERS:
                    raise TinkerError(
                        f"the archive contains more than {allowed} bytes or {MAX_MEMBERS} files; "
                        "it is not unpacked"
                    )
                _write(name, nbytes, content, folder / names.check(name))
    except _DAMAGES as error:
        raise TinkerError(
            f"the archive cannot be unpacked: {type(error).__name__}: {error}"
        ) from error
    return written


def _write(name: str, nbytes: int, content: IO[bytes], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    left = nbytes
    with place.open("xb") as target:
        while piece := content.read(min(_PIECE_NBYTES, left + 1)):
            left -= len(piece)
            if left < 0:  # sizes in archives are claims
                raise ValueError(f"{name!r} is larger than its header says")
            target.write(piece)


def _open_members(archive: Path) -> Generator[tuple[str, int, IO[bytes]]]:
    """Open the files of an archive one after the other: the name, the size that the archive states,
    and the content.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                # the top bits of a Unix file mode; 0 where the archive knows none
                kind = entry.external_attr >> 28
                if kind not in (0, 0o4, 0o10):
                    raise _strange(entry.filename)
                if not entry.is_dir():
                    with zipped.open(entry) as content:
                        yield entry.filename, entry.file_size, content
        return
    with tarfile.open(archive, "r:*") as tarred:
        for member in tarred:
            file = tarred.extractfile(member) if member.isreg() else None
            if file is not None:
                yield member.name, member.size, file
            elif not member.isdir():
                raise _strange(member.name)
        _read_rest(tarred)


def _read_rest(archive: tarfile.TarFile) -> None:
    """Read to the end: a compressed archive has its checksum there."""
    left = ALWAYS_ALLOWED_NBYTES
    while piece := archive.fileobj.read(_PIECE_NBYTES):
        left -= len(piece)
        if left < 0:
            raise ValueError("its compressed data never ends")


def _strange(name: str) -> TinkerError:
    return TinkerError(
        f"the archive contains {name!r}, which is neither a file nor a folder; it is not unpacked"
    )


class SafeNames:
    """Checks names of files that come from elsewhere, each against the rules and against those
    before it.
    """

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def check(self, name: str) -> PurePosixPath:
        """Return the name as a relative path; TinkerError when it leaves the folder or meets
        another name, in either case.
        """
        path = PurePosixPath(name.removeprefix("./"))
        parts = path.parts
        if (
            "\\" in name
            or ":" in name
            or "\0" in name
            or path.is_absolute()
            or not parts
            or not _RESERVED.isdisjoint(parts)
        ):
            raise TinkerError(
                f"the file name {name!r} is not a valid name within a folder; nothing was saved"
            )
        key = str(path).casefold()
        folders = {str(folder).casefold() for folder in path.parents if folder.parts}
        if key in self._files or key in self._folders or not self._files.isdisjoint(folders):
            raise TinkerError(f"two files have the name {name!r}; nothing was saved")
        self._files.add(key)
        self._folders |= folders
        return path


PIECE_NBYTES = 1 << 20
_WHOLE, _PART, _UNCHANGED, _BEYOND = 200, 206, 304, 416
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_QUOTED_DIGEST = re.compile(r"([A-Za-z0-9-]+)=:?([A-Za-z0-9+/=_-]+?):?(?:,|$)")


class _Digest(Protocol):
    def update(self, data: bytes | bytearray, /) -> object: ...

    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | bytearray, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


# Strongest first.
_DIGESTS: Mapping[str, Callable[[], _Digest]] = {
    "sha-512": hashlib.sha512,
    "sha-256": hashlib.sha256,
    "md5": partial(hashlib.md5, usedforsecurity=False),
    "crc32": _Crc32,
}
_OBJECT_STORE_HEADERS = {"x-amz-checksum-sha256": "sha-256", "x-amz-checksum-crc32": "crc32"}


class PartialFile(msgspec.Struct, frozen=True):
    """What is on disk of a file: which version (``validator``, an ETag or a date), and whether it
    is all of it.
    """

    validator: str
    complete: bool = False


@attrs.frozen(kw_only=True)
class FileSource:
    """Where files come from. ``url`` gives a file's address, another one than that which was
    refused (None: any).
    """

    client: httpx.AsyncClient
    transport: Transport
    url: Callable[[str, str | None], Awaitable[str]]


#: Told how many bytes of the file are there, and how many there will be, None while that is not
#: known.
Watch = Callable[[int, int | None], None]


async def fetch(source: FileSource, name: str, place: Path, watch: Watch) -> None:
    """Bring the file ``name`` to ``place``.

    What an earlier call left at ``place`` is used where the server says that it is of the same
    version. Raises the last APIError when the policy gives up, TinkerError when the content differs
    from its checksum.
    """
    retries = source.transport.open_retries(retry.DOWNLOAD)
    await source.transport.drive(_FileFetching(source, name, place, watch, retries))


class _FileFetching(msgspec.Struct, eq=False):
    """One file on its way to its place."""

    source: FileSource
    name: str
    place: Path
    watch: Watch
    retries: Retries
    before: int = 0  # bytes at the place when the last attempt began
    url: str | None = None  # of the last attempt
    refused: str | None = None
    operation: str = "download"

    async def attempt(self, step: Next) -> None:
        """Receive what is missing."""
        self.url = None
        self.before = await asyncio.to_thread(_length, self.place)
        self.url = await self.source.url(self.name, self.refused)
        await _attempt(self.source, self.url, self.place, self.watch)

    async def fail(self, error: Exception) -> Next:
        if not isinstance(error, APIError) or self.url is None:
            return Fail(error)
        now = self.source.transport.clock.monotonic()
        if _length(self.place) > self.before:
            self.retries.reset(now)
            self.refused = None
        if retry.is_expired_url(error) and self.refused is None:
            self.refused = self.url
            return Next()
        return self.retries.after(error, now)


def save_url(runtime: Runtime, url: str, place: Path, watch: Watch) -> APIFuture[int]:
    """Save what one signed URL leads to as the file ``place``, which is replaced when all of it is
    there; its length.
    """
    return run(runtime, "save_url", lambda _: _save(runtime, url, place, watch))


async def _save(runtime: Runtime, url: str, place: Path, watch: Watch) -> int:
    draft = place.with_name(f".{place.name}.partial")

    async def only(_: str, __: str | None) -> str:
        return url

    async with open_files(runtime.transport.engine, runtime.config) as client:
        source = FileSource(client=client, transport=runtime.transport, url=only)
        await fetch(source, place.name, draft, watch)
    await asyncio.to_thread(os.replace, draft, place)
    await asyncio.to_thread(_forget, draft)
    return await asyncio.to_thread(_length, place)


async def _attempt(source: FileSource, url: str, place: Path, watch: Watch) -> None:
    part = await asyncio.to_thread(_read_part, place)
    headers = {"Accept-Encoding": "identity", **_conditions(part, place)}
    with explain_failures(_prepare(url), "the server stopped sending data"):
        async with source.client.stream("GET", url, headers=headers) as response:
            if response.status_code == _UNCHANGED and part is not None:
                watch(_length(place), _length(place))
            elif response.status_code == _BEYOND:
                await asyncio.to_thread(_forget, place)
                await _attempt(source, url, place, watch)
            elif response.status_code in (_WHOLE, _PART):
                await _Receiving(response, url, place, watch).run()
            else:
                await response.aread()
                failure = RawResponse(
                    _prepare(url), response.status_code, response.headers, response.content
                )
                raise responses.status_error(failure, source.transport.clock)


@contextmanager
def explain_failures(request: PreparedRequest, silence: str) -> Generator[None]:
    """Raise the failures of httpx as errors of this client; ``silence`` says what a
    timeout means.
    """
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        raise responses.connection_error(
            request, ExchangeFailed(silence, timed_out=True)
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        failure = explain_handshake(error, request.url) or ExchangeFailed(type(error).__name__)
        raise responses.connection_error(request, failure) from error


def _prepare(url: str) -> PreparedRequest:
    """Return the request as errors show it, without the signature."""
    return PreparedRequest(method="GET", url=hide_signature(url), headers={})


def _conditions(part: PartialFile | None, place: Path) -> Mapping[str, str]:
    if part is None:
        return {}
    if part.complete:
        return (
            {"If-None-Match": part.validator}
            if '"' in part.validator
            else {"If-Modified-Since": part.validator}
        )
    return {"Range": f"bytes={_length(place)}-", "If-Range": part.validator}


class _Receiving:
    """The body of one response on its way to the disk."""

    def __init__(self, response: httpx.Response, url: str, place: Path, watch: Watch) -> None:
        self._response, self._url, self._place, self._watch = response, url, place, watch
        self._start, self._total = _extent(response)

    async def run(self) -> None:
        """Receive all of it."""
        response = self._response
        if response.headers.get("content-encoding", "identity") != "identity":
            raise TinkerError(
                f"{_prepare(self._url).url} was sent compressed, although the client "
                "asked for it uncompressed"
            )
        if self._start not in (0, await asyncio.to_thread(_length, self._place)):
            raise self._truncation_error("a different range than requested")
        checks = _Checks(response.headers, whole=response.status_code == _WHOLE)
        if self._start:
            await asyncio.to_thread(checks.read, self._place)
        await asyncio.to_thread(self._begin)
        length = await self._receive(checks)
        if self._total is not None and length != self._total:
            raise self._truncation_error(f"{length} bytes of {self._total}")
        self._compare(checks)
        self._note(complete=True)

    async def _receive(self, checks: _Checks) -> int:
        """Receive the content; what came before an error is stored, too."""
        length, held = self._start, bytearray()
        self._watch(length, self._total)
        file = await asyncio.to_thread(self._place.open, "ab" if self._start else "wb")
        try:
            async for piece in self._response.aiter_bytes():
                held += piece
                length += len(piece)
                if len(held) >= PIECE_NBYTES:
                    await asyncio.to_thread(_store, file, checks, held)
                    held = bytearray()
                self._watch(length, self._total)
        finally:
            await asyncio.shield(asyncio.to_thread(_store_last, file, checks, held))
        return length

    def _begin(self) -> None:
        self._place.parent.mkdir(parents=True, exist_ok=True)
        if self._start == 0:
            _forget(self._place)
        self._note(complete=False)

    def _note(self, *, complete: bool) -> None:
        """Note the response's validator; a weak one does not tell versions apart byte by byte."""
        headers = self._response.headers
        validator = headers.get("etag") or headers.get("last-modified")
        if validator is not None and not validator.startswith("W/"):
            _part_file(self._place).write_bytes(
                msgspec.json.encode(PartialFile(validator, complete))
            )

    def _compare(self, checks: _Checks) -> None:
        failed = checks.find_mismatch()
        if failed is not None:
            _forget(self._place)
            raise TinkerError(
                f"{_prepare(self._url).url}: the content differs from its {failed} checksum; the "
                "download was removed"
            )

    def _truncation_error(self, what: str) -> APIConnectionError:
        return responses.connection_error(
            _prepare(self._url), ExchangeFailed(f"the server sent {what}")
        )


class _Checks:
    """The checksum that the server gives for the whole file, and what came so far."""

    def __init__(self, headers: Mapping[str, str], *, whole: bool) -> None:
        given = read_checksums(headers, whole=whole)
        self._name = next((name for name in _DIGESTS if name in given), None)
        self._expected = b"" if self._name is None else given[self._name]
        self._digest = None if self._name is None else _DIGESTS[self._name]()

    def update(self, data: bytes | bytearray) -> None:
        """Add one more piece."""
        if self._digest is not None:
            self._digest.update(data)

    def read(self, place: Path) -> None:
        """Read the content that an earlier response brought."""
        if self._digest is not None:
            with place.open("rb") as file:
                while piece := file.read(PIECE_NBYTES):
                    self._digest.update(piece)

    def find_mismatch(self) -> str | None:
        """Return the name of the checksum that does not fit; None when it does, or
        there is none.
        """
        return (
            self._name
            if self._digest is not None and self._digest.digest() != self._expected
            else None
        )


def read_checksums(headers: Mapping[str, str], *, whole: bool) -> dict[str, bytes]:
    """Return checksums by algorithm. Those of the content sent are used only where that is the
    whole file.
    """
    found: dict[str, str] = {}
    for header in ("x-goog-hash", "digest", "repr-digest", *(("content-digest",) if whole else ())):
        for name, value in _QUOTED_DIGEST.findall(headers.get(header, "").replace(" ", "")):
            found[name.lower()] = value
    for header, name in _OBJECT_STORE_HEADERS.items():
        if (value := headers.get(header)) is not None:
            found[name] = value
    if whole and (value := headers.get("content-md5")) is not None:
        found["md5"] = value
    return {name: data for name, value in found.items() if (data := _decode(value)) is not None}


def _decode(value: str) -> bytes | None:
    """Decode base64; None for other text, such as checksums of checksums (``...-2``)."""
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        return None


def _extent(response: httpx.Response) -> tuple[int, int | None]:
    """Return where the response's content begins in the file, and how long the file is."""
    if response.status_code == _PART:
        match = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is None:
            return -1, None
        return int(match[1]), None if match[2] == "*" else int(match[2])
    length = response.headers.get("content-length", "")
    return 0, int(length) if length.isascii() and length.isdigit() else None


def _store(file: IO[bytes], checks: _Checks, piece: bytearray) -> None:
    file.write(piece)
    checks.update(piece)


def _store_last(file: IO[bytes], checks: _Checks, piece: bytearray) -> None:
    with file:
        _store(file, checks, piece)


def _length(place: Path) -> int:
    try:
        return place.stat().st_size
    except FileNotFoundError:
        return 0


def _part_file(place: Path) -> Path:
    return place.with_name(f"{place.name}.part.json")


def _read_part(place: Path) -> PartialFile | None:
    """Read what an earlier call left; None when there is nothing to build on."""
    try:
        part = msgspec.json.decode(_part_file(place).read_bytes(), type=PartialFile)
    except (OSError, msgspec.DecodeError):
        return None
    return part if place.exists() and (part.complete or _length(place) > 0) else None


def _forget(place: Path) -> None:
    for file in (place, _part_file(place)):
        file.unlink(missing_ok=True)


# An upload with less than this left is not gone on with.
FRESH_SECONDS = 60.0
FILES_AT_ONCE = 4
_DIGEST_HEADER = "Content-Digest"

#: Told the file, how many of its bytes have been taken for sending, and how many it has.
UploadWatch: TypeAlias = Callable[[str, int, int], None]


class UploadNote(msgspec.Struct):
    """What is known of an unfinished upload. ``sent`` holds the SHA-256 of each file that the
    server has.
    """

    announced: str
    upload_id: str
    urls: dict[str, str]
    expires: datetime.datetime
    sent: dict[str, str]


class _Expired(Exception):
    """The server knows the upload no more, or its URLs have ended: it has to begin again."""

    def __init__(self, error: APIError) -> None:
        super().__init__(str(error))
        self.error = error


@attrs.define(kw_only=True)
class Uploading:
    """One upload, until it is finished."""

    adapter: LocalAdapter
    project_id: str | None
    transport: Transport
    operations: RestOperations
    watch: UploadWatch
    client: httpx.AsyncClient = attrs.field(init=False, repr=False)

    async def run(self) -> tuple[str, dict[str, int]]:
        """Send every file that the server asks for and finish; the checkpoint's path, and the
        files' lengths.
        """
        note = await asyncio.to_thread(self._read_note)
        if note is not None:
            with suppress(_Expired):
                return await self._complete(note)
        try:
            return await self._complete(await self._begin())
        except _Expired as expired:
            expired.error.add_note("The upload ended before every file was sent. Upload again.")
            raise expired.error from None

    async def _begin(self) -> UploadNote:
        adapter = self.adapter
        started = await self.operations.external_weights_upload_start(
            adapter.base_model, adapter.lora_config, self.project_id
        )
        return UploadNote(
            self._announcement(), started.upload_id, dict(started.urls), in_utc(started.expires), {}
        )

    async def _complete(self, note: UploadNote) -> tuple[str, dict[str, int]]:
        files = self._find_files(note.urls)
        sizes = {name: file.stat().st_size for name, file in files.items()}
        for name, size in sizes.items():
            self.watch(name, 0, size)
        room = asyncio.Semaphore(FILES_AT_ONCE)

        async def one(name: str, file: Path) -> None:
            async with room:
                await self._send(note, name, file, sizes[name])

        async with open_files(self.transport.engine, self.transport.config) as client:
            self.client = client
            await run_together({name: one(name, file) for name, file in files.items()})
        path = await self._finish(note)
        await asyncio.to_thread(self.forget_note)
        return path, sizes

    async def _finish(self, note: UploadNote) -> str:
        try:
            return (
                await self.operations.external_weights_upload_finish(note.upload_id)
            ).tinker_path
        except APIError as error:
            if retry.judge(error) is retry.Verdict.FATAL:
                await asyncio.to_thread(self.forget_note)
            if retry.is_lost(error):
                raise _Expired(error) from error
            raise

    def _find_files(self, urls: Mapping[str, str]) -> dict[str, Path]:
        found = {name: self.adapter.find(name) for name in sorted(urls)}
        if missing := [name for name, file in found.items() if file is None]:
            raise TinkerError(
                f"{self.adapter.folder} is missing {', '.join(missing)}, which the server requires"
            )
        if not found:
            raise TinkerError("the server requested no files, so there is nothing to upload")
        return {name: file for name, file in found.items() if file is not None}

    # ------------------------------------------------------------------------------------- one file

    async def _send(self, note: UploadNote, name: str, file: Path, size: int) -> None:
        """Send a file, unless the server has it; raises the last APIError when the
        policy gives up.
        """
        digest = await asyncio.to_thread(_hash, file)
        if note.sent.get(name) == digest:
            self.watch(name, size, size)
            return
        retries = self.transport.open_retries(retry.FILE_UPLOAD)
        await self.transport.drive(_Sending(self, note, name, file, size, digest, retries))
        note.sent[name] = digest
        await asyncio.to_thread(self._write_note, note)

    def is_over(self, note: UploadNote) -> bool:
        """Return whether its URLs have ended, or soon will."""
        return note.expires.timestamp() - self.transport.clock.wall() < FRESH_SECONDS

    # ------------------------------------------------------------------------------------- the note

    @property
    def _note_file(self) -> Path:
        folder = self.adapter.folder.resolve()
        return folder.with_name(f".{folder.name}.tinker-upload.json")

    def _announcement(self) -> str:
        """Return what tells this upload from one of another adapter, to another server, or into
        another project.
        """
        adapter = self.adapter
        return repr(
            (
                self.transport.config.base_url,
                adapter.base_model,
                adapter.lora_config,
                self.project_id,
            )
        )

    def _read_note(self) -> UploadNote | None:
        """Read what an earlier call left; None when there is nothing to continue with."""
        try:
            note = msgspec.json.decode(self._note_file.read_bytes(), type=UploadNote)
        except (OSError, msgspec.DecodeError):
            return None
        return None if note.announced != self._announcement() or self.is_over(note) else note

    def _write_note(self, note: UploadNote) -> None:
        """Write the note for this user alone; where that cannot be done, a later call begins
        afresh.
        """
        draft = self._note_file.with_suffix(".draft")
        with suppress(OSError):
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(msgspec.json.encode(note))
            os.replace(draft, self._note_file)

    def forget_note(self) -> None:
        """Forget the upload."""
        self._note_file.unlink(missing_ok=True)


class _Sending(msgspec.Struct, eq=False):
    """One file on its way to the server."""

    upload: Uploading
    note: UploadNote
    name: str
    file: Path
    size: int
    digest: str
    retries: Retries
    operation: str = "upload"

    async def attempt(self, step: Next) -> None:
        """Send all of it."""
        url = self.note.urls[self.name]
        request = PreparedRequest(
            method="PUT", operation="upload", url=hide_signature(url), headers={}
        )
        headers = {"Content-Length": str(self.size), _DIGEST_HEADER: f"sha-256=:{self.digest}:"}
        with explain_failures(request, "the server stopped responding"):
            response = await self.upload.client.put(
                url, content=self._pieces(), headers=headers, follow_redirects=False
            )
        if not response.is_success:
            raise responses.status_error(
                RawResponse(request, response.status_code, response.headers, response.content),
                self.upload.transport.clock,
            )
        kept = read_checksums(response.headers, whole=False).get("sha-256")
        if kept is not None and base64.b64encode(kept).decode() != self.digest:
            raise responses.connection_error(
                request, ExchangeFailed("the server stored different content than was sent")
            )

    async def _pieces(self) -> AsyncIterator[bytes]:
        sent = 0
        opened = await asyncio.to_thread(self.file.open, "rb")
        with opened:
            while piece := await asyncio.to_thread(opened.read, PIECE_NBYTES):
                yield piece
                sent += len(piece)
                self.upload.watch(self.name, sent, self.size)

    async def fail(self, error: Exception) -> Next:
        if not isinstance(error, APIError):
            return Fail(error)
        if retry.is_expired_url(error) and self.upload.is_over(self.note):
            await asyncio.to_thread(self.upload.forget_note)
            expired = _Expired(error)
            expired.__cause__ = error
            return Fail(expired)
        return self.retries.after(error, self.upload.transport.clock.monotonic())


def in_utc(moment: datetime.datetime) -> datetime.datetime:
    """Return a time with a time zone: UTC where it has none."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def _hash(file: Path) -> str:
    """Return the SHA-256 in base64."""
    with file.open("rb") as opened:
        return base64.b64encode(hashlib.file_digest(opened, "sha256").digest()).decode()
