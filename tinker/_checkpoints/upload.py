"""The files of an adapter on their way into the service: each by HTTP PUT to a signed URL, resumed where it broke off.

A note beside the folder says which files an unfinished upload has received, and where the others go. It holds signed URLs, so
that only its user may read it, and is removed when the upload is finished. Used on the loop; the disk is used in other threads.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import msgspec

from tinker._checkpoints.adapter import LocalAdapter
from tinker._checkpoints.download import PIECE_NBYTES, explain_failures, read_checksums
from tinker._http import (
    FILE_UPLOAD,
    ExchangeFailed,
    PreparedRequest,
    RawResponse,
    Transport,
    connection_error,
    hide_signature,
    open_files,
    status_error,
    statuses,
)
from tinker._loop import run_together
from tinker.errors import APIError, TinkerError

if TYPE_CHECKING:
    import httpx
    from tinker_wire.clients import RestOperations

# An upload with less than this left is not gone on with.
FRESH_SECONDS = 60.0
FILES_AT_ONCE = 4
_DIGEST_HEADER = "Content-Digest"

#: Told the file, how many of its bytes have been taken for sending, and how many it has.
UploadWatch: TypeAlias = Callable[[str, int, int], None]


class UploadNote(msgspec.Struct):
    """What is known of an unfinished upload. ``sent`` holds the SHA-256 of each file that the server has."""

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
    _client: httpx.AsyncClient = attrs.field(init=False, repr=False)

    async def run(self) -> tuple[str, dict[str, int]]:
        """Send every file that the server asks for and finish; the checkpoint's path, and the files' lengths."""
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
        started = await self.operations.external_weights_upload_start(adapter.base_model, adapter.lora_config, self.project_id)
        return UploadNote(self._announcement(), started.upload_id, dict(started.urls), in_utc(started.expires), {})

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
            self._client = client
            await run_together({name: one(name, file) for name, file in files.items()})
        path = await self._finish(note)
        await asyncio.to_thread(self._forget_note)
        return path, sizes

    async def _finish(self, note: UploadNote) -> str:
        try:
            return (await self.operations.external_weights_upload_finish(note.upload_id)).tinker_path
        except APIError as error:
            if statuses.judge(error) is statuses.Verdict.FATAL:
                await asyncio.to_thread(self._forget_note)
            if statuses.is_lost(error):
                raise _Expired(error) from error
            raise

    def _find_files(self, urls: Mapping[str, str]) -> dict[str, Path]:
        found = {name: self.adapter.find(name) for name in sorted(urls)}
        if missing := [name for name, file in found.items() if file is None]:
            raise TinkerError(f"{self.adapter.folder} is missing {', '.join(missing)}, which the server requires")
        if not found:
            raise TinkerError("the server requested no files, so there is nothing to upload")
        return {name: file for name, file in found.items() if file is not None}

    # ----------------------------------------------------------------------------------------------------------- one file

    async def _send(self, note: UploadNote, name: str, file: Path, size: int) -> None:
        """Send a file, unless the server has it; raises the last APIError when the policy gives up."""
        digest = await asyncio.to_thread(_hash, file)
        if note.sent.get(name) == digest:
            self.watch(name, size, size)
            return
        retries, clock = self.transport.open_retries(FILE_UPLOAD), self.transport.clock
        while True:
            try:
                await self._put(note.urls[name], name, file, size, digest)
                break
            except APIError as error:
                if statuses.is_expired_url(error) and self._is_over(note):
                    await asyncio.to_thread(self._forget_note)
                    raise _Expired(error) from error
                step = retries.after(error, clock.monotonic())
            await self.transport.wait_to_retry("upload", step)
        note.sent[name] = digest
        await asyncio.to_thread(self._write_note, note)

    def _is_over(self, note: UploadNote) -> bool:
        return note.expires.timestamp() - self.transport.clock.wall() < FRESH_SECONDS

    async def _put(self, url: str, name: str, file: Path, size: int, digest: str) -> None:
        request = PreparedRequest(method="PUT", operation="upload", url=hide_signature(url), headers={})
        headers = {"Content-Length": str(size), _DIGEST_HEADER: f"sha-256=:{digest}:"}
        with explain_failures(request, "the server stopped responding"):
            response = await self._client.put(
                url, content=self._pieces(name, file, size), headers=headers, follow_redirects=False
            )
        if not response.is_success:
            raise status_error(
                RawResponse(request, response.status_code, response.headers, response.content), self.transport.clock
            )
        kept = read_checksums(response.headers, whole=False).get("sha-256")
        if kept is not None and base64.b64encode(kept).decode() != digest:
            raise connection_error(request, ExchangeFailed("the server stored different content than was sent"))

    async def _pieces(self, name: str, file: Path, size: int) -> AsyncIterator[bytes]:
        sent = 0
        opened = await asyncio.to_thread(file.open, "rb")
        with opened:
            while piece := await asyncio.to_thread(opened.read, PIECE_NBYTES):
                yield piece
                sent += len(piece)
                self.watch(name, sent, size)

    # ----------------------------------------------------------------------------------------------------------- the note

    @property
    def _note_file(self) -> Path:
        folder = self.adapter.folder.resolve()
        return folder.with_name(f".{folder.name}.tinker-upload.json")

    def _announcement(self) -> str:
        """Return what tells this upload from one of another adapter, to another server, or into another project."""
        adapter = self.adapter
        return repr((self.transport.config.base_url, adapter.base_model, adapter.lora_config, self.project_id))

    def _read_note(self) -> UploadNote | None:
        """Read what an earlier call left; None when there is nothing to continue with."""
        try:
            note = msgspec.json.decode(self._note_file.read_bytes(), type=UploadNote)
        except (OSError, msgspec.DecodeError):
            return None
        return None if note.announced != self._announcement() or self._is_over(note) else note

    def _write_note(self, note: UploadNote) -> None:
        """Write the note for this user alone; where that cannot be done, a later call begins afresh."""
        draft = self._note_file.with_suffix(".draft")
        with suppress(OSError):
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(msgspec.json.encode(note))
            os.replace(draft, self._note_file)

    def _forget_note(self) -> None:
        self._note_file.unlink(missing_ok=True)


def in_utc(moment: datetime.datetime) -> datetime.datetime:
    """Return a time with a time zone: UTC where it has none."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def _hash(file: Path) -> str:
    """Return the SHA-256 in base64."""
    with file.open("rb") as opened:
        return base64.b64encode(hashlib.file_digest(opened, "sha256").digest()).decode()
