"""The data of a server on disk: checkpoints and uploads, and who may see them."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import os
import re
import secrets
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import quote

import attrs
import msgspec
from tinker_wire import models

from tinker._basics.shown import clean
from tinker.local.call import APIProblem
from tinker.local.engines.protocol import AdapterSpec, Engine, EngineError
from tinker.local.settings import Settings
from tinker.types.params import SCHEME, ParsedCheckpointTinkerPath
from tinker_records import prepare


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


CheckpointKind: TypeAlias = Literal["weights", "sampler_weights", "external_weights"]
CHECKPOINT_KINDS: tuple[CheckpointKind, ...] = get_args(CheckpointKind)
MAX_NAME = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a checkpoint. Times are seconds since 1970.

    ``session_id``, ``project_id`` and ``run_metadata`` are those of the run when it was saved (or
    moved, or copied), and ``steps`` are the steps that it had taken.
    """

    path: str
    training_run_id: str
    kind: CheckpointKind
    name: str
    base_model: str
    engine_model: str
    lora_config: models.LoraConfig
    created_at: float
    optimizer: str = "adamw"
    steps: int = 0
    expires_at: float | None = None
    nbytes: int = 0
    public: bool = False
    user_metadata: models.Metadata | None = None
    session_id: str | None = None
    project_id: str | None = None
    run_metadata: models.Metadata | None = None

    @property
    def checkpoint_id(self) -> str:
        """Return its id within its run."""
        return f"{self.kind}/{self.name}"


def checkpoint_path(run: str, kind: CheckpointKind, name: str) -> str:
    """Return the path by which clients name a checkpoint."""
    return f"{SCHEME}{run}/{kind}/{name}"


def check_name(name: str) -> str:
    """Return the name. Raises EngineError for one that is not possible in a path."""
    if (
        not name.strip()
        or name in (".", "..")
        or len(name) > MAX_NAME
        or "/" in name
        or clean(name) != name
    ):
        shown = name if len(name) <= MAX_NAME else f"{name[:40]}..."
        rule = f"1 to {MAX_NAME} characters without '/' and control characters, and not '.' or '..'"
        raise EngineError(f"{shown!r} cannot name a checkpoint; a name has {rule}")
    return name


def name_conflict(path: str) -> str:
    """Return the error message for a name that is in use."""
    return (
        f"the checkpoint {path} exists; choose another name, or replace "
        "it with save_state(name, overwrite=True)"
    )


def folder_name(text: str) -> str:
    """Return a folder name that is safe on every file system and differs for every text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{_UNSAFE.sub('_', text)[:64]}-{digest}"


def to_utc(seconds: float) -> datetime.datetime:
    """Return seconds since 1970 as a time in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


#: What is said of a checkpoint that is not of the one kind that a request takes.
OTHER_KINDS = {
    "weights": "from which training cannot continue; save_state makes one from which it can",
    "sampler_weights": "which cannot be sampled; save_weights_for_sampler makes one that can",
}
RECORD_FILE = "checkpoint.json"
# Folders that are not checkpoints: one that is being written, one that is being replaced, one that
# is being deleted.
DRAFT, OLD, GONE = LEFTOVERS = (".draft-", ".old-", ".gone-")


class Checkpoints:
    """The checkpoints below one folder, which this server shares with others. ``now`` is seconds
    since 1970.

    ``on_expiry`` is called after the removal of one that has expired.
    """

    def __init__(
        self,
        root: Path,
        now: Callable[[], float],
        owner: Owner,
        on_expiry: Callable[[CheckpointRecord], None],
    ) -> None:
        self._root, self._now, self._owner, self._on_expiry = root, now, owner, on_expiry
        self._lock = threading.Lock()  # for what replaces folders and records
        self.may_expire: bool = True
        self._recover()

    def exists(self, run: str, kind: CheckpointKind, name: str) -> bool:
        """Return whether a checkpoint of that name is there and has not expired; a damaged one is
        there.
        """
        try:
            return self._read(self._folder(run, kind, name)) is not None
        except EngineError:
            return True

    def get(self, run: str, kind: CheckpointKind, name: str) -> CheckpointRecord | None:
        """Return the record; None when there is none or it has expired. Raises EngineError for a
        damaged one.
        """
        return self._read(self._folder(run, kind, name))

    def find(self, path: str, *kinds: CheckpointKind) -> tuple[CheckpointRecord, Path]:
        """Return record and folder of ``tinker://<run>/<kind>/<name>``. Raises EngineError when
        unknown or of another kind.
        """
        try:
            parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
        except ValueError as error:
            raise EngineError(str(error)) from error
        found, _, name = parsed.checkpoint_id.partition("/")
        if found not in kinds:
            article = "an" if found == "external_weights" else "a"
            raise EngineError(
                f"{path} is {article} {parsed.checkpoint_type} checkpoint, {OTHER_KINDS[kinds[0]]}"
            )
        folder = self._folder(parsed.training_run_id, found, name)
        record = self._read(folder)
        if record is None:
            raise EngineError(f"there is no checkpoint {path} on this server")
        return record, folder

    def list(self, run: str | None = None) -> list[CheckpointRecord]:
        """Return those of one run, or all, the newest first, without damaged ones; expired ones are
        removed.
        """
        pattern = f"{'*' if run is None else folder_name(run)}/*/*/{RECORD_FILE}"
        records = (
            self._read_or_remove(file.parent)
            for file in self._root.glob(pattern)
            # in place: not one that is being written or removed
            if file.parent.name[0] != "." and file.parent.parent.name in CHECKPOINT_KINDS
        )
        found = [record for record in records if record is not None]
        return sorted(found, key=lambda record: (record.created_at, record.path), reverse=True)

    def remove_expired(self) -> None:
        """Delete expired checkpoints, and record whether any of the others can expire."""
        self.may_expire = False
        if any(record.expires_at is not None for record in self.list()):
            self.may_expire = True

    def describe_last_save(self, run: str) -> str:
        """Return a hint for an error about an unknown run: where it was last saved; empty without a
        save.
        """
        saved = next((record for record in self.list(run) if record.kind == "weights"), None)
        return "" if saved is None else f"; its last save is {saved.path}"

    def folder(self, record: CheckpointRecord) -> Path:
        """Return the folder of a checkpoint's files."""
        return self._folder(record.training_run_id, record.kind, record.name)

    def files(self, record: CheckpointRecord) -> dict[str, Path]:
        """Return the engine's files by relative name."""
        folder = self.folder(record)
        return {
            file.relative_to(folder).as_posix(): file
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file != folder / RECORD_FILE
        }

    # Changes

    def write(
        self, record: CheckpointRecord, save: Callable[[Path], None], *, overwrite: bool
    ) -> CheckpointRecord:
        """Let ``save`` fill a folder and put it in place with its record. EngineError when the name
        is taken.
        """
        place = self.folder(record)
        if not overwrite and self._read(place) is not None:
            raise EngineError(name_conflict(record.path))
        draft = self._temporary_path(place, DRAFT)
        with new_folder(draft):
            save(draft)
            nbytes = sum(file.stat().st_size for file in draft.rglob("*") if file.is_file())
            record = msgspec.structs.replace(record, nbytes=nbytes)
            (draft / RECORD_FILE).write_bytes(msgspec.json.encode(record))
            sync_tree(draft)
            self._replace(draft, place)
        self.may_expire |= record.expires_at is not None
        return record

    def copy(self, source: CheckpointRecord, record: CheckpointRecord) -> CheckpointRecord:
        """Make a checkpoint with the files of ``source``, which are shared on disk where the system
        can.
        """
        return self.write(
            record, lambda draft: _link_files(self.files(source), draft), overwrite=False
        )

    def update(self, record: CheckpointRecord, **changes: Any) -> CheckpointRecord:
        """Change the record of an existing checkpoint."""
        record = msgspec.structs.replace(record, **changes)
        self.may_expire |= record.expires_at is not None
        folder = self.folder(record)
        draft = folder / f".{RECORD_FILE}-{uuid.uuid4().hex}"
        with self._lock:
            draft.write_bytes(msgspec.json.encode(record))
            sync_tree(folder)
            os.replace(draft, folder / RECORD_FILE)
            sync_folder(folder)
        return record

    def delete(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint."""
        self._remove(self.folder(record))

    def _remove(self, folder: Path) -> bool:
        """Move a folder out of the way before it is deleted, so that half of it is never seen;
        False when it was gone.
        """
        gone, found = self._temporary_path(folder, GONE), False
        with self._lock, contextlib.suppress(FileNotFoundError):
            os.replace(folder, gone)
            found = True
            sync_folder(folder.parent)
        shutil.rmtree(gone, ignore_errors=True)
        return found

    def _folder(self, run: str, kind: CheckpointKind, name: str) -> Path:
        return self._root / folder_name(run) / kind / folder_name(name)

    def _read_or_remove(self, folder: Path) -> CheckpointRecord | None:
        try:
            record = self._decode(folder)
        except EngineError:
            return None
        if record is not None and self._is_expired(record):
            if self._remove(folder):
                self._on_expiry(record)
            return None
        return record

    def _read(self, folder: Path) -> CheckpointRecord | None:
        record = self._decode(folder)
        return None if record is None or self._is_expired(record) else record

    def _is_expired(self, record: CheckpointRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= self._now()

    def _decode(self, folder: Path) -> CheckpointRecord | None:
        try:
            with self._lock:
                content = (folder / RECORD_FILE).read_bytes()
            return msgspec.json.decode(content, type=prepare(CheckpointRecord))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (msgspec.DecodeError, OSError) as error:
            raise EngineError(f"the checkpoint in {folder.name} is damaged: {error}") from error

    def _replace(self, draft: Path, place: Path) -> None:
        """Put the draft where an older checkpoint may be; that one is moved aside first and deleted
        last.
        """
        old = self._temporary_path(place, OLD)
        with self._lock:
            if place.exists():
                os.replace(place, old)
            try:
                os.replace(draft, place)
            except OSError:
                if old.exists():
                    os.replace(old, place)
                raise
            for folder in (place.parent, place.parent.parent, self._root):
                sync_folder(folder)
        shutil.rmtree(old, ignore_errors=True)

    # What killed servers left

    def _temporary_path(self, place: Path, prefix: str) -> Path:
        """Return a new name in the same folder, which contains the owner's tag."""
        return place.with_name(f"{prefix}{self._owner.claim()}-{uuid.uuid4().hex}")

    def _recover(self) -> None:
        """Restore checkpoints that were moved aside and not replaced, and remove leftovers."""
        for leftover in sorted(
            self._root.glob("*/*/.*-*"), key=lambda path: path.name, reverse=True
        ):
            prefix, _, rest = leftover.name.partition("-")
            if f"{prefix}-" in LEFTOVERS and self._owner.is_dead(rest.partition("-")[0]):
                self._clear(leftover)
        self._owner.forget_dead()

    def _clear(self, leftover: Path) -> None:
        place = self._original_folder(leftover)
        if place is not None and not place.exists():
            with contextlib.suppress(OSError):  # another server does the same
                os.replace(leftover, place)
                sync_folder(place.parent)
                return
        shutil.rmtree(leftover, ignore_errors=True)

    def _original_folder(self, leftover: Path) -> Path | None:
        """Return where a checkpoint was before it was moved aside to be replaced; None for
        everything else.
        """
        try:
            record = self._decode(leftover) if leftover.name.startswith(OLD) else None
        except EngineError:
            return None
        place = None if record is None else self.folder(record)
        return place if place is not None and place.parent == leftover.parent else None


def _link_files(files: dict[str, Path], folder: Path) -> None:
    """Share files between two checkpoints; they are never written again."""
    for name, file in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        link_file(file, place)


def link_file(file: Path, place: Path) -> None:
    """Share a file, or copy it to another file system, or on one without links."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)


FOLDER_NAME = ".uploads"
#: Seconds after the end of its links in which an upload can still be finished, by a client whose
#: request was lost.
GRACE_SECONDS = 600.0
#: Seconds without a byte after which an upload makes room for others that need it.
SILENT_SECONDS = 60.0


@attrs.define(eq=False, kw_only=True)
class AdapterUpload:
    """One upload: the announced adapter and its files. ``tinker_path`` is set once it is a
    checkpoint.

    ``arriving`` counts the files that are arriving now, ``last_seen`` is when the last one ended.
    """

    upload_id: str
    base_model: str
    engine_model: str
    spec: AdapterSpec
    project_id: str | None
    names: frozenset[str]
    folder: Path
    expires_at: float
    last_seen: float
    arriving: int = 0
    tinker_path: str | None = None

    @property
    def missing(self) -> Sequence[str]:
        """Return the files that have not arrived."""
        return sorted(name for name in self.names if not (self.folder / name).is_file())

    @contextlib.contextmanager
    def receiving(self, now: Callable[[], float]) -> Generator[Path]:
        """Yield where a file is written while it arrives; it is removed unless it was put in its
        place.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".part-{uuid.uuid4().hex}"
        self.arriving += 1
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)
            self.arriving, self.last_seen = self.arriving - 1, now()

    def put(self, part: Path, name: str) -> None:
        """Move a file that has arrived to its place."""
        assert name in self.names
        os.replace(part, self.folder / name)


class Uploads:
    """The uploads of one server. ``now`` is seconds since 1970."""

    def __init__(self, root: Path, owner: Owner, now: Callable[[], float]) -> None:
        self._place, self._now = ServerFolder(root / FOLDER_NAME, owner), now
        self._uploads: dict[str, AdapterUpload] = {}

    def has_room(self, limit: int) -> bool:
        """Return whether fewer than ``limit`` are not finished, without those that have been silent
        for long.
        """
        self._forget_expired()
        if self._count_open() >= limit:
            silent = self._now() - SILENT_SECONDS
            for upload in [
                one
                for one in self._uploads.values()
                if not one.arriving and one.last_seen <= silent and one.tinker_path is None
            ]:
                self.drop(upload)
        return self._count_open() < limit

    def _count_open(self) -> int:
        return sum(upload.tinker_path is None for upload in self._uploads.values())

    def open(
        self,
        base_model: str,
        engine: Engine,
        spec: AdapterSpec,
        project_id: str | None,
        seconds: float,
    ) -> AdapterUpload:
        """Begin an upload of the files that the engine asks for; its links end in ``seconds``."""
        upload_id = str(uuid.uuid4())
        upload = self._uploads[upload_id] = AdapterUpload(
            upload_id=upload_id,
            base_model=base_model,
            engine_model=engine.base_model,
            spec=spec,
            project_id=project_id,
            names=engine.adapter_files,
            folder=self._place.path() / upload_id,
            expires_at=self._now() + seconds + GRACE_SECONDS,
            last_seen=self._now(),
        )
        return upload

    def find(self, upload_id: str) -> AdapterUpload | None:
        """Return an upload; None when it is unknown or forgotten."""
        self._forget_expired()
        return self._uploads.get(upload_id)

    def drop(self, upload: AdapterUpload) -> None:
        """Forget an upload and its files."""
        self._uploads.pop(upload.upload_id, None)
        shutil.rmtree(upload.folder, ignore_errors=True)

    def finish(self, upload: AdapterUpload, tinker_path: str) -> None:
        """Record the resulting checkpoint, and delete the uploaded files."""
        upload.tinker_path = tinker_path
        shutil.rmtree(upload.folder, ignore_errors=True)

    def clear(self) -> None:
        """Drop everything."""
        self._uploads.clear()
        self._place.clear()

    def _forget_expired(self) -> None:
        for upload in [
            upload for upload in self._uploads.values() if upload.expires_at <= self._now()
        ]:
            self.drop(upload)


_HEADER = {"alg": "HS256", "typ": "JWT"}


class InvalidToken(Exception):
    """A token that this server did not sign, or that has expired; the message says which."""


class Signer:
    """Signs claims and reads them back. ``now`` is the time of day in seconds since 1970."""

    def __init__(self, now: Callable[[], float], secret: bytes | None = None) -> None:
        self._now = now
        self._secret = secret or secrets.token_bytes(32)

    def sign(self, claims: Mapping[str, object], seconds: float) -> str:
        """Sign the claims, with ``iat`` and an ``exp`` that many seconds later (both integers)."""
        issued = int(self._now())
        content = {**claims, "iat": issued, "exp": issued + int(seconds)}
        body = f"{_encode(_HEADER)}.{_encode(content)}"
        return f"{body}.{self._signature(body)}"

    def read(self, token: str) -> dict[str, Any]:
        """Return the claims of a token. Raises InvalidToken."""
        body, _, signature = token.rpartition(".")
        if "." not in body or not hmac.compare_digest(
            self._signature(body).encode(), signature.encode("utf-8", "replace")
        ):
            raise InvalidToken("it was not signed by this server")
        claims = msgspec.json.decode(_decode(body.partition(".")[2]), type=dict[str, Any])
        if claims["exp"] <= self._now():
            raise InvalidToken("it has expired")
        return claims

    def _signature(self, body: str) -> str:
        digest = hmac.new(self._secret, body.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _encode(value: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


USER_ID, USER_NAME, USER_EMAIL = "local", "local user", "user@localhost"
OWNER = f"tml:organization_user:{USER_ID}"
PUBLIC_OPERATIONS = frozenset({"healthz"})
#: Asked with the key itself, also where every other request needs a token.
KEY_OPERATIONS = frozenset({"client_config", "auth_token", "get_api_key", "delete_api_key"})


def _number_of(key: bytes) -> int:
    return int.from_bytes(hashlib.sha256(key).digest()[:4], "big")


class Accounts:
    """The credentials of one server. Tokens are always given; ``pjwt_auth_enabled`` makes them
    necessary.
    """

    def __init__(self, settings: Settings, signer: Signer) -> None:
        self._settings, self._signer = settings, signer
        self._revoked: set[int] = set()

    def admit(self, operation: str, given: bytes) -> None:
        """Raise APIProblem 401 unless this credential permits the operation."""
        if operation in PUBLIC_OPERATIONS:
            return
        try:
            key_id = self._key_of_token(given)
            what = "the key that the token in X-API-Key was given for"
        except InvalidToken as error:
            if self._settings.client_config.pjwt_auth_enabled and operation not in KEY_OPERATIONS:
                detail = (
                    f"X-API-Key does not contain a valid token: {error}; exchange the key for one"
                )
                raise _refuse(detail, 'Bearer error="invalid_token"') from error
            self._check_key(given)
            key_id, what = _number_of(given), "the key in X-API-Key"
        if key_id in self._revoked:
            raise _refuse(f"{what} was revoked")

    def token(self, given: bytes) -> str:
        """Make a token for the holder of this credential."""
        claims = {
            "iss": "tinker-local",
            "sub": OWNER,
            "org_id": USER_ID,
            "email": USER_EMAIL,
            "key_id": self.key_id(given),
        }
        return self._signer.sign(claims, self._settings.token_seconds)

    def revoke(self, given: bytes) -> None:
        """Refuse the key and its tokens from now on."""
        self._revoked.add(self.key_id(given))

    def key_id(self, given: bytes) -> int:
        """Return the number of a key, or of the key that a token was given for."""
        try:
            return self._key_of_token(given)
        except InvalidToken:
            return _number_of(given)

    def _check_key(self, given: bytes) -> None:
        expected = self._settings.api_key
        if expected is not None and not hmac.compare_digest(given, expected.encode()):
            absent = "the request has no API key (header X-API-Key; below /v1 also Authorization)"
            raise _refuse("this is not the API key of the server" if given else absent)

    def _key_of_token(self, given: bytes) -> int:
        """Return the number of a token's key. Raises InvalidToken for anything else, such as the
        token of a link.
        """
        key_id = self._signer.read(given.decode("utf-8", "replace")).get("key_id")
        if not isinstance(key_id, int):
            raise InvalidToken("it is the token of a link")
        return key_id


def _refuse(detail: str, challenge: str = "Bearer") -> APIProblem:
    """Make a 401, which says in a header what to send."""
    return APIProblem(401, detail, {"www-authenticate": challenge})


FILES_PATH = "/files"


class Links:
    """Makes links. ``now`` is the time of day in seconds since 1970; ``base_url`` is where the
    client found the server.
    """

    def __init__(self, settings: Settings, signer: Signer, now: Callable[[], float]) -> None:
        self._settings, self._signer, self._now = settings, signer, now

    def expires_at(self) -> datetime.datetime:
        """Return the end of a link that is made now."""
        return to_utc(int(self._now()) + int(self._settings.link_seconds))

    def checkpoint_url(self, base_url: str, what: str, record: CheckpointRecord, name: str) -> str:
        """Return a link to one ``file`` of a checkpoint, or to an ``archive`` of all."""
        run, kind = record.training_run_id, record.kind
        claims = {"what": what, "run": run, "kind": kind, "name": record.name, "file": name}
        return self.url(base_url, claims, name)

    def url(self, base_url: str, claims: Mapping[str, object], name: str) -> str:
        """Return a link that is read as these claims, and ends in a name."""
        base = self._settings.public_url or base_url
        token = self._signer.sign(claims, self._settings.link_seconds)
        return f"{base.rstrip('/')}{FILES_PATH}/{token}/{quote(name)}"
