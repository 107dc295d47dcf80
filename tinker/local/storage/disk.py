"""Files below the data folder: durable writes, complete folders, and which server a leftover
belongs to.

Every server that writes below a data folder holds a lock on a file of its own there. The system
releases the lock when the process ends, however it ends, so a file that can be locked belongs to a
dead server. Unlike process ids, locks also tell containers apart that share the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Generator
from pathlib import Path


def sync_tree(folder: Path) -> None:
    """Write everything below a folder through to the disk, the folder itself last."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(path, name))
        sync_folder(Path(path))


def sync_folder(folder: Path) -> None:
    """Write the names in a folder through to the disk, where the system does that for folders."""
    if os.name == "posix":
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_data_folder(folder: Path) -> None:
    """Make the folder where it is missing, and try to write there. OSError names it
    and the reason.
    """
    with _explain("data folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextlib.contextmanager
def _explain(kind: str, folder: Path) -> Generator[None]:
    """Raise an OSError of the block as a sentence that names the folder and the reason."""
    try:
        yield
    except OSError as error:
        is_file = isinstance(error, (FileExistsError, NotADirectoryError)) and folder.is_file()
        reason = "it is a file; move it away" if is_file else error.strerror or type(error).__name__
        raise OSError(f"nothing can be written to the {kind} {folder}: {reason}") from error


@contextlib.contextmanager
def new_folder(folder: Path) -> Generator[None]:
    """Replace a folder by an empty one for the block to fill; it is removed if the block fails."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


try:
    import fcntl
except ImportError:  # Windows: there is no way to tell, so nothing of another server is removed
    fcntl = None  # type: ignore[assignment]
FOLDER = ".servers"


class Owner:
    """One server below one data folder. ``tag`` is a part of the names of its temporary files."""

    def __init__(self, root: Path) -> None:
        self.tag: str = uuid.uuid4().hex
        self._folder = root / FOLDER
        self._lock = threading.Lock()
        self._held: int | None = None

    def claim(self) -> str:
        """Return the tag, once other servers can see that its owner lives."""
        with self._lock:
            if self._held is None and fcntl is not None:
                with _explain("folder", self._folder):
                    self._folder.mkdir(parents=True, exist_ok=True)
                    self._held = _lock_file(self._folder / self.tag)
        return self.tag

    def release(self) -> None:
        """Release the claim; files left under this tag then belong to a dead server."""
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                (self._folder / self.tag).unlink(missing_ok=True)
                os.close(held)

    def is_dead(self, tag: str) -> bool:
        """Return whether the server of a tag has ended; False where the system cannot tell. An
        unclaimed tag is dead.
        """
        return tag != self.tag and fcntl is not None and not _is_locked(self._folder / tag)

    def has_company(self) -> bool:
        """Claim the root, and return whether another server that lives has done so."""
        tags = (
            [file.name for file in self._folder.iterdir()]
            if self.claim() and self._folder.is_dir()
            else []
        )
        return any(tag != self.tag and not self.is_dead(tag) for tag in tags)

    def forget_dead(self) -> None:
        """Remove the lock files of servers that have ended."""
        for file in list(self._folder.iterdir()) if self._folder.is_dir() else []:
            if self.is_dead(file.name):
                with contextlib.suppress(OSError):
                    file.unlink()


class ServerFolder:
    """A folder of one server below ``root``, made on first use; those of dead servers are removed
    at the start and then.

    With ``keep``, the folder is that one instead, and outlives the server.
    """

    def __init__(self, root: Path, owner: Owner, keep: Path | None = None) -> None:
        self._root, self._owner, self._keep = root, owner, keep
        self._mine = keep
        self._remove_dead()

    @property
    def is_made(self) -> bool:
        """Return whether anything may be in it."""
        return self._mine is not None

    def path(self) -> Path:
        """Return the folder."""
        if self._mine is None:
            self._mine = self._root / self._owner.claim()
            self._remove_dead()
        self._mine.mkdir(parents=True, exist_ok=True)
        return self._mine

    def _remove_dead(self) -> None:
        with _explain("folder", self._root):
            for folder in self._root.iterdir() if self._root.exists() else ():
                if self._owner.is_dead(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)

    def clear(self) -> None:
        """Remove the folder unless it is kept."""
        if self._mine is not None and self._keep is None:
            shutil.rmtree(self._mine, ignore_errors=True)
            self._mine = None


def _lock_file(file: Path) -> int:
    """Lock a file and return its descriptor. The file is made again when another server has removed
    it.
    """
    assert fcntl is not None
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if file.exists() and os.path.samestat(os.fstat(descriptor), file.stat()):
            return descriptor
        os.close(descriptor)


def _is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file; True if the file system has no locks."""
    assert fcntl is not None
    try:
        descriptor = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
