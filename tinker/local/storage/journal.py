"""The journal: everything a killed server must recover, in one SQLite file. A journal without a
file keeps nothing.

A request is written before it is queued, a result before anybody can see it, and the number of the
last step of a run together with the result of that step. So whatever a client was told is here.
Survives the death of the process, not that of the machine: nothing waits for the disk.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import attrs
import msgspec
from tinker_wire import models

from tinker._version import __version__
from tinker._wire import json, proto
from tinker.local.storage.futures import RequestFailure, RequestOutcome, ServerFuture
from tinker.types.results import ForwardBackwardOutput, SampleResponse

FOLDER = ".journal"
FILE = "journal.sqlite"
# of the file, in its user_version; a file of an earlier version of this package has 0, and is the
# same
FORMAT = 1
log: logging.Logger = logging.getLogger("tinker.local")
Row = TypeVar("Row", bound=msgspec.Struct)
Statement: TypeAlias = tuple[str, tuple[object, ...]]
Execute: TypeAlias = Callable[[str, tuple[object, ...]], object]
# kinds of results; every other one is the name of a record
LOSS, SAMPLE, FAILURE = "loss", "sample", "failure"
_SECRET, _STARTS, _WRITER = "secret", "starts", "writer"


class Table(Generic[Row]):
    """A table of one kind of record, whose fields are the columns. ``keys`` form the primary key.

    ``conflict`` is the policy for an existing key: ignore the row, replace it, or add to its last
    column.
    """

    def __init__(
        self,
        name: str,
        row: type[Row],
        *keys: str,
        conflict: Literal["ignore", "replace", "sum"] = "replace",
    ) -> None:
        self.name = name
        self.row = row
        self.columns: tuple[str, ...] = row.__struct_fields__
        listed, marks, last = (
            ", ".join(self.columns),
            ", ".join("?" for _ in self.columns),
            self.columns[-1],
        )
        primary = f", primary key ({', '.join(keys)})" if keys else ""
        self.schema: str = f"create table if not exists {name} ({listed}{primary})"
        verb = "insert" if conflict == "sum" else f"insert or {conflict}"
        total = (
            f" on conflict do update set {last} = {last} + excluded.{last}"
            if conflict == "sum"
            else ""
        )
        self._insert = f"{verb} into {name} ({listed}) values ({marks}){total}"

    def add(self, row: Row) -> Statement:
        """Return the statement that adds a row."""
        return self._insert, msgspec.structs.astuple(row)

    def delete(self, condition: str, *values: object) -> Statement:
        """Return the statement that deletes the rows that meet a condition."""
        return f"delete from {self.name} where {condition}", values  # noqa: S608 - conditions are constants

    def trim(self, count: int) -> Statement:
        """Return the statement that deletes all rows but the newest."""
        return self.delete(f"rowid <= (select max(rowid) from {self.name}) - ?", count)  # noqa: S608 - no value of a client


class JournalInUseError(OSError):
    """Another server keeps its runs in this folder."""


class JournalRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that was accepted. ``subject`` is the run, sampler or session that it belongs to.

    ``path`` is the JSON of the parts of the path. ``number`` is that of a request of a run or
    sampler, which has an id, too; ``known_failure`` is the last failure of its run that its client
    knew of, where the client said so.
    """

    subject: str
    operation: str
    path: bytes
    content_type: str
    content: bytes
    created_at: float
    request_id: str | None
    number: int | None
    known_failure: int | None


class JournalResult(msgspec.Struct, frozen=True, array_like=True):
    """A result, encoded."""

    request_id: str
    fingerprint: bytes
    kind: str
    content: bytes

    @property
    def is_failure(self) -> bool:
        """Return whether the request failed."""
        return self.kind == FAILURE

    @property
    def outcome(self) -> RequestOutcome:
        """Return the result, decoded."""
        return _decode(self.kind, self.content)


class JournalRun(msgspec.Struct, frozen=True, array_like=True):
    """A run whose weights are kept as they were after the request ``number``."""

    model_id: str
    number: int
    optimizer: str


class _Meta(msgspec.Struct, frozen=True, array_like=True):
    name: str
    value: bytes


REQUESTS = Table("requests", JournalRequest, "request_id", conflict="ignore")
RESULTS = Table("results", JournalResult, "request_id", conflict="ignore")
RUNS = Table("runs", JournalRun, "model_id")
_META = Table("meta", _Meta, "name")


class _Notes(threading.local):
    """Statements of a thread that are not written yet."""

    def __init__(self) -> None:
        self.mine: list[Statement] = []


class Journal:
    """The journal below a data folder, or of a server that keeps nothing (``root`` None). Used from
    any thread.

    ``unreadable`` has the first column, the subject or the id, of each row that could not be read.
    Raises JournalInUseError when another server has the file open, OSError for a file that cannot
    be read, or that a newer version has written.
    """

    def __init__(self, root: Path | None) -> None:
        self._lock = threading.RLock()
        self._notes = _Notes()
        # statements that failed on a full disk, written before anything else
        self._overdue: list[Statement] = []
        self._held: dict[str, dict[str, list[Statement]]] = {}  # by run and request
        self.unreadable: set[str] = set()
        self._file = Path() if root is None else root / FOLDER / FILE
        self._database: sqlite3.Connection | None = None if root is None else _open(self._file)
        try:
            with _explain(self._file):
                self.add_tables(_META, REQUESTS, RESULTS, RUNS)
                self.starts: int = self._count_start()
                self._set_meta(_WRITER, __version__.encode())
        except BaseException:
            self.close()
            raise

    @property
    def is_kept(self) -> bool:
        """Return whether anything is written."""
        return self._database is not None

    def close(self) -> None:
        """Close the file; nothing is written any more."""
        with self._lock:
            if self._database is not None:
                self._database.close()

    def add_tables(self, *tables: Table[Any]) -> None:
        """Create the tables, and in those of an earlier version the columns that are new."""
        if self._database is None:
            return
        with self._lock, _explain(self._file):
            for table in tables:
                self._database.execute(table.schema)
                there = {
                    column[1]
                    for column in self._database.execute(f"pragma table_info({table.name})")
                }
                for column in table.columns:
                    if column not in there:
                        self._database.execute(f"alter table {table.name} add column {column}")

    # Writing

    def note(self, *statements: Statement) -> None:
        """Add statements to this thread's next transaction."""
        if self._database is not None:
            self._notes.mine += statements

    def flush(self) -> None:
        """Write the pending statements of this thread."""
        if self._notes.mine:
            self._attempt()

    def add_request(self, request: JournalRequest) -> None:
        """Write a request, once. Raises sqlite3.Error when that fails; then nothing of it is
        written.
        """
        with self._transaction() as execute:
            execute(*REQUESTS.add(request))

    def add_result(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Write a result, unless it is written with the weights of its run. A sample needs its
        request no longer.
        """
        if not self.is_kept or any(future.request_id in held for held in self._held.values()):
            return
        forget = [REQUESTS.delete("request_id = ?", future.request_id)] if future.is_sample else []
        self._attempt(_to_row(future, outcome), *forget)

    def hold_result(self, model_id: str, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Hold back the result of a request that changes a run, and this thread's statements, until
        :meth:`add_run`.

        A server that is killed before repeats the request.
        """
        with self._lock:
            held = self._held.setdefault(model_id, {})
            held[future.request_id] = [*self._notes.mine, _to_row(future, outcome)]
            self._notes.mine.clear()  # they come with the run

    def add_run(self, run: JournalRun, droppable: Iterable[str]) -> None:
        """Write that a run is kept up to a request, with the results that were held back.

        Requests up to it are needed no longer if they are ``droppable``, the names of operations.
        """
        with self._lock:
            with self._transaction() as execute:
                for statement in (RUNS.add(run), *self._find_held(run.model_id)):
                    execute(*statement)
                for name in droppable:
                    condition = "subject = ? and number between 1 and ? and operation = ?"
                    execute(*REQUESTS.delete(condition, run.model_id, run.number, name))
            self._held.pop(run.model_id, None)

    def release_results(self, model_id: str) -> None:
        """Release the held results of a run that ends or was never made."""
        with self._lock:
            self._notes.mine += self._find_held(model_id)
            self._held.pop(model_id, None)

    def _find_held(self, model_id: str) -> list[Statement]:
        return [
            statement
            for statements in self._held.get(model_id, {}).values()
            for statement in statements
        ]

    def drop_result(self, request_id: str) -> None:
        """Delete a result that can no longer be requested."""
        self._attempt(RESULTS.delete("request_id = ?", request_id))

    def drop_superseded_result(self, request_id: str, droppable: Iterable[str]) -> None:
        """Delete a result as :meth:`drop_result` does, unless it says that the server has made a
        run or a sampler.

        A restarted server must know that: it is the result of a request that is still here,
        numbered 0 or not ``droppable``.
        """
        names = ", ".join(f"'{name}'" for name in droppable)
        made = (
            "select 1 from requests where request_id = ? and (number = 0 or "  # noqa: S608
            f"operation not in ({names}))"
        )
        self._attempt(
            RESULTS.delete(f"request_id = ? and not exists ({made})", request_id, request_id)
        )

    def drop_session(self, session_id: str) -> None:
        """Forget a session that has ended, and everything in it."""
        columns = ((REQUESTS, "subject"), (RESULTS, "request_id"), (RUNS, "model_id"))
        self._attempt(
            REQUESTS.delete("subject = ?", session_id),
            *(
                table.delete(f"{name} >= ? and {name} < ?", f"{session_id}:", f"{session_id};")
                for table, name in columns
            ),
        )

    # Reading

    def read(self, table: Table[Row], rest: str = "", *values: object) -> list[Row]:
        """Return the rows of a table in the order in which they came; ``rest`` may be a condition
        and another order.

        A row that cannot be read is left out, with a line in the log. Raises OSError for a table
        that cannot be read.
        """
        if self._database is None:
            return []
        query = f"select {', '.join(table.columns)} from {table.name} {rest or 'order by rowid'}"  # noqa: S608
        found: list[Row] = []
        with self._lock, _explain(self._file):
            for row in self._database.execute(query, values):
                try:
                    found.append(msgspec.convert(row, table.row))
                except msgspec.ValidationError as error:
                    log.error(
                        "%s: a row of %s, of %r, cannot be read: %s",
                        self._file,
                        table.name,
                        row[0],
                        error,
                    )
                    self.unreadable.add(str(row[0]))
        return found

    def secret(self) -> bytes:
        """Return the signing secret of this server; a new one if nothing is kept."""
        return self._find_meta(_SECRET) or self._set_meta(_SECRET, secrets.token_bytes(32))

    def _count_start(self) -> int:
        """Return how many servers have used this file before, and count this one."""
        count = int.from_bytes(self._find_meta(_STARTS) or b"")
        self._set_meta(_STARTS, (count + 1).to_bytes(8))
        return count

    def _find_meta(self, name: str) -> bytes | None:
        return next((row.value for row in self.read(_META, "where name = ?", name)), None)

    def _set_meta(self, name: str, value: bytes) -> bytes:
        with self._transaction() as execute:
            execute(*_META.add(_Meta(name, value)))
        return value

    # Transactions

    def _attempt(self, *statements: Statement) -> None:
        """Write, but log a failure instead of raising it. If the disk is full, write again when
        there is room.
        """
        with self._lock:
            try:
                with self._transaction() as execute:
                    for statement in statements:
                        execute(*statement)
            except sqlite3.Error as error:
                log.error(
                    "cannot write the journal: %s; until it can be written, a "
                    "killed server loses results",
                    error,
                )
                if isinstance(error, sqlite3.OperationalError):
                    self._overdue += [*self._notes.mine, *statements]
                    self._notes.mine.clear()

    @contextlib.contextmanager
    def _transaction(self) -> Generator[Execute]:
        database = self._database
        if database is None:
            yield _execute_nothing
            return
        with self._lock:
            database.execute("begin")
            try:
                for statement in (*self._overdue, *self._notes.mine):
                    database.execute(*statement)
                yield database.execute
                database.execute("commit")
            except BaseException:
                if database.in_transaction:  # SQLite may have ended it, as on a full disk
                    database.execute("rollback")
                raise
            self._overdue.clear()
            self._notes.mine.clear()


def _open(file: Path) -> sqlite3.Connection:
    with _explain(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = sqlite3.connect(file, timeout=0.0, isolation_level=None, check_same_thread=False)
        # bytes that are no text spoil their row alone
        database.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            for setting in (
                "locking_mode = exclusive",
                "journal_mode = wal",
                "synchronous = normal",
            ):
                database.execute(f"pragma {setting}")
            _require_format(database, file)
            database.execute(_META.schema)  # takes the lock
            (fault,) = database.execute("pragma quick_check(1)").fetchone()
            if fault != "ok":
                raise sqlite3.DatabaseError("it is damaged")
            database.execute(f"pragma user_version = {FORMAT}")
        except BaseException:
            database.close()
            raise
    return database


def _require_format(database: sqlite3.Connection, file: Path) -> None:
    """Raise OSError for a file of a format that a newer version of this package has written."""
    (found,) = database.execute("pragma user_version").fetchone()
    if found > FORMAT:
        (writer,) = database.execute(
            "select max(value) from meta where name = ?", (_WRITER,)
        ).fetchone() or (None,)
        newer = (
            f"version {writer.decode(errors='replace')}"
            if isinstance(writer, bytes)
            else "the version that wrote it"
        )
        known = f"this one, {__version__}, reads formats up to {FORMAT}"
        raise OSError(
            f"the journal {file} has format {found}, and {known}; start {newer} "
            f"of tinker, or {_MOVE}"
        )


_MOVE = "move the file away: checkpoints stay, and the runs in it are lost"


@contextlib.contextmanager
def _explain(file: Path) -> Generator[None]:
    """Turn an error of SQLite into an OSError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            other = (
                f"another server keeps its runs in {file.parent.parent}; choose another data "
                f"folder ({error})"
            )
            raise JournalInUseError(other) from error
        advice = f"start the version of tinker that wrote it, or {_MOVE}"
        raise OSError(f"the journal {file} cannot be used ({error}); {advice}") from error


def _execute_nothing(statement: str, values: tuple[object, ...]) -> None:
    return None


def _to_row(future: ServerFuture, outcome: RequestOutcome) -> Statement:
    return RESULTS.add(JournalResult(future.request_id, future.fingerprint, *_encode(outcome)))


def _encode(outcome: RequestOutcome) -> tuple[str, bytes]:
    if isinstance(outcome, RequestFailure):
        return FAILURE, msgspec.json.encode(attrs.astuple(outcome))
    if isinstance(outcome, ForwardBackwardOutput):
        return LOSS, proto.encode_loss_output(outcome)
    if isinstance(outcome, SampleResponse):
        ids = [one.sequence_id for one in outcome.sequences]
        return SAMPLE, msgspec.msgpack.encode((ids, proto.encode_sample(outcome)))
    return type(outcome).__name__, json.encode(outcome)


def _decode(kind: str, content: bytes) -> RequestOutcome:
    if kind == FAILURE:
        return RequestFailure(*msgspec.json.decode(content, type=list[Any]))
    if kind == LOSS:
        return proto.decode_loss_output(content)
    if kind == SAMPLE:
        ids, body = msgspec.msgpack.decode(content, type=tuple[list[str], bytes])
        return proto.decode_sample(body, ids)
    record: type[msgspec.Struct] = getattr(models, kind)
    return msgspec.json.decode(content, type=record)
