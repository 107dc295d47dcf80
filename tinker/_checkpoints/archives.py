"""Unpacking of archives that come from elsewhere, and names of files that do. Blocks; not for the
loop thread.
"""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Generator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO

from tinker.errors import TinkerError

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
