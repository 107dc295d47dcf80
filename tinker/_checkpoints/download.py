"""One file from a signed URL to the disk: in pieces, resumed where it broke off, compared with the checksum that is given.

Nothing here carries a credential. The query of a signed URL is one, so no error shows it. Used on the loop; the disk is
used in other threads.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import zlib
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import attrs
import msgspec

from tinker._http import (
    DOWNLOAD,
    ExchangeFailed,
    PreparedRequest,
    RawResponse,
    Transport,
    connection_error,
    explain_handshake,
    hide_signature,
    open_files,
    status_error,
    statuses,
)
from tinker._runtime import Runtime, run
from tinker.errors import APIConnectionError, APIError, TinkerError
from tinker.futures import APIFuture

if TYPE_CHECKING:
    import httpx

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
    """What is on disk of a file: which version (``validator``, an ETag or a date), and whether it is all of it."""

    validator: str
    complete: bool = False


@attrs.frozen(kw_only=True)
class FileSource:
    """Where files come from. ``url`` gives a file's address, another one than that which was refused (None: any)."""

    client: httpx.AsyncClient
    transport: Transport
    url: Callable[[str, str | None], Awaitable[str]]


#: Told how many bytes of the file are there, and how many there will be, None while that is not known.
Watch = Callable[[int, int | None], None]


async def fetch(source: FileSource, name: str, place: Path, watch: Watch) -> None:
    """Bring the file ``name`` to ``place``.

    What an earlier call left at ``place`` is used where the server says that it is of the same version. Raises the last
    APIError when the policy gives up, TinkerError when the content differs from its checksum.
    """
    retries, clock = source.transport.open_retries(DOWNLOAD), source.transport.clock
    refused: str | None = None
    while True:
        before = await asyncio.to_thread(_length, place)
        url = await source.url(name, refused)
        try:
            return await _attempt(source, url, place, watch)
        except APIError as error:
            if _length(place) > before:
                retries.reset(clock.monotonic())
                refused = None
            if statuses.is_expired_url(error) and refused is None:
                refused = url
                continue
            step = retries.after(error, clock.monotonic())
        await source.transport.wait_to_retry("download", step)


def save_url(runtime: Runtime, url: str, place: Path, watch: Watch) -> APIFuture[int]:
    """Save what one signed URL leads to as the file ``place``, which is replaced when all of it is there; its length."""
    return run(runtime, "save_url", _save, runtime, url, place, watch)


async def _save(_: APIFuture[int], runtime: Runtime, url: str, place: Path, watch: Watch) -> int:
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
                failure = RawResponse(_prepare(url), response.status_code, response.headers, response.content)
                raise status_error(failure, source.transport.clock)


@contextmanager
def explain_failures(request: PreparedRequest, silence: str) -> Generator[None]:
    """Raise the failures of httpx as errors of this client; ``silence`` says what a timeout means."""
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        raise connection_error(request, ExchangeFailed(silence, timed_out=True)) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        failure = explain_handshake(error, request.url) or ExchangeFailed(type(error).__name__)
        raise connection_error(request, failure) from error


def _prepare(url: str) -> PreparedRequest:
    """Return the request as errors show it, without the signature."""
    return PreparedRequest(method="GET", url=hide_signature(url), headers={})


def _conditions(part: PartialFile | None, place: Path) -> Mapping[str, str]:
    if part is None:
        return {}
    if part.complete:
        return {"If-None-Match": part.validator} if '"' in part.validator else {"If-Modified-Since": part.validator}
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
            raise TinkerError(f"{_prepare(self._url).url} was sent compressed, although the client asked for it uncompressed")
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
            _part_file(self._place).write_bytes(msgspec.json.encode(PartialFile(validator, complete)))

    def _compare(self, checks: _Checks) -> None:
        failed = checks.find_mismatch()
        if failed is not None:
            _forget(self._place)
            raise TinkerError(
                f"{_prepare(self._url).url}: the content differs from its {failed} checksum; the download was removed"
            )

    def _truncation_error(self, what: str) -> APIConnectionError:
        return connection_error(_prepare(self._url), ExchangeFailed(f"the server sent {what}"))


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
        """Return the name of the checksum that does not fit; None when it does, or there is none."""
        return self._name if self._digest is not None and self._digest.digest() != self._expected else None


def read_checksums(headers: Mapping[str, str], *, whole: bool) -> dict[str, bytes]:
    """Return checksums by algorithm. Those of the content sent are used only where that is the whole file."""
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
