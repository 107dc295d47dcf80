"""What a server must know again after it was killed, in one SQLite file: requests, results, and how far each run is kept.

A request is written down before it is queued, a result before anybody can see it, and the number of the last step of a run
together with the result of that step. So whatever a client was told is here. Survives the death of the process, not that of
the machine: nothing waits for the disk.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import attrs
import msgspec
from tinker_wire import models

from tinker._wire import json, proto
from tinker.local.storage.futures import RequestFailure, RequestOutcome, ServerFuture
from tinker.types.results import ForwardBackwardOutput, SampleResponse

FOLDER = ".journal"
FILE = "journal.sqlite"
log: logging.Logger = logging.getLogger("tinker.local")
Row = TypeVar("Row", bound=msgspec.Struct)
_Statement: TypeAlias = tuple[str, tuple[object, ...]]
LOSS, SAMPLE, FAILURE = "loss", "sample", "failure"  # kinds of results; every other one is the name of a record
_SCHEMA = """
create table if not exists meta (name text primary key, value blob not null);
create table if not exists requests (
    position integer primary key, subject text not null, operation text not null, path blob not null,
    content_type text not null, content blob not null, created_at real not null, request_id text unique, number integer);
create index if not exists requests_by_subject on requests (subject);
create table if not exists results (
    request_id text primary key, fingerprint blob not null, kind text not null, content blob not null, completion integer);
create table if not exists runs (model_id text primary key, number integer not null, optimizer text not null);
create table if not exists completions (log text primary key, count integer not null);
"""
_ADD_KNOWN_FAILURE = "alter table requests add column known_failure integer"  # to a file of an earlier version
_ADD_REQUEST = """
insert or ignore into requests
(subject, operation, path, content_type, content, created_at, request_id, number, known_failure)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_REQUESTS = """
select subject, operation, path, content_type, content, created_at, request_id, number, known_failure
from requests order by position
"""


class JournalInUseError(OSError):
    """Another server keeps its runs in this folder."""


class JournalRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that was accepted, as its row is. ``subject`` is the run, sampler or session that it belongs to.

    ``path`` is the JSON of the parts of the path. ``number`` is that of a request of a run or sampler, which has an id, too;
    ``known_failure`` is the last failure of its run that its client knew of, where the client said so.
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


@attrs.frozen
class JournalResult:
    """A result; ``completion`` is its place in the log of the client that sampled."""

    request_id: str
    fingerprint: bytes
    outcome: RequestOutcome = attrs.field(repr=False)
    completion: int | None


class JournalRun(msgspec.Struct, frozen=True, array_like=True):
    """A run whose weights are kept as they were after the request ``number``."""

    model_id: str
    number: int
    optimizer: str


class _ResultRow(msgspec.Struct, frozen=True, array_like=True):
    request_id: str
    fingerprint: bytes
    kind: str
    content: bytes
    completion: int | None


class _Count(msgspec.Struct, frozen=True, array_like=True):
    log: str
    count: int


class _Notes(threading.local):
    """What a thread has noted, and not yet written down: statements and their values."""

    def __init__(self) -> None:
        self.mine: list[_Statement] = []


class Journal:
    """The journal below a data folder. Used from any thread. Raises JournalInUseError when another server has it open."""

    def __init__(self, root: Path) -> None:
        folder = root / FOLDER
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.RLock()
        self._notes = _Notes()
        self._overdue: list[_Statement] = []  # what there was no room for, written before anything else
        self._unkept: dict[str, dict[str, list[_Statement]]] = {}  # by run and request
        self._database = sqlite3.connect(folder / FILE, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            self._database.execute("pragma locking_mode = exclusive")
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = normal")
            self._database.executescript(_SCHEMA)
            if not any(column[1] == "known_failure" for column in self._database.execute("pragma table_info(requests)")):
                self._database.execute(_ADD_KNOWN_FAILURE)
        except sqlite3.OperationalError as error:
            self._database.close()
            raise JournalInUseError(f"another server keeps its runs in {root}; choose another data folder ({error})") from error

    def close(self) -> None:
        """Close the file; nothing is written any more."""
        with self._lock:
            self._database.close()

    def add_tables(self, schema: str) -> None:
        """Make tables of another kind in the same file, where they are not there yet."""
        with self._lock:
            self._database.executescript(schema)

    # What happens

    def note(self, statement: str, *values: object) -> None:
        """Let this thread's next transaction begin with a statement."""
        self._notes.mine.append((statement, values))

    def flush(self) -> None:
        """Write down what this thread has noted."""
        if self._notes.mine:
            self._attempt()

    def add_request(self, request: JournalRequest) -> None:
        """Write down a request, once. Raises sqlite3.Error when that fails; then nothing of it is written."""
        with self._transaction() as database:
            database.execute(_ADD_REQUEST, msgspec.structs.astuple(request))

    def add_result(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Write down a result, unless it is written with the weights of its run. A sample needs its request no longer."""
        if any(future.request_id in held for held in self._unkept.values()):
            return
        forget = [("delete from requests where request_id = ?", (future.request_id,))] if future.is_sample else []
        self._attempt(_result_row(future, outcome), *forget)

    def hold_result(self, model_id: str, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Hold back a result that changes a run, with what this thread has noted, until :meth:`add_run`.

        A server that is killed before does the request again.
        """
        with self._lock:
            held = self._unkept.setdefault(model_id, {})
            held[future.request_id] = [*self._notes.mine, _result_row(future, outcome)]
            self._notes.mine.clear()

    def add_run(self, run: JournalRun, droppable: Iterable[str]) -> None:
        """Write down that a run is kept up to a request, with the results that were held back.

        Requests up to it are needed no longer if they are ``droppable``, the names of operations.
        """
        with self._lock:
            with self._transaction() as database:
                database.execute("insert or replace into runs values (?, ?, ?)", (run.model_id, run.number, run.optimizer))
                for statement in self._find_held(run.model_id):
                    database.execute(*statement)
                database.executemany(
                    "delete from requests where subject = ? and number between 1 and ? and operation = ?",
                    [(run.model_id, run.number, name) for name in droppable],
                )
            self._unkept.pop(run.model_id, None)

    def release_results(self, model_id: str) -> None:
        """Hold back nothing more of a run, which ends or was never made."""
        with self._lock:
            self._notes.mine += self._find_held(model_id)
            self._unkept.pop(model_id, None)

    def _find_held(self, model_id: str) -> list[_Statement]:
        return [statement for statements in self._unkept.get(model_id, {}).values() for statement in statements]

    def note_completion(self, log: str, request_id: str, number: int) -> None:
        """Write down that a sample is the completion ``number`` of a log."""
        self._attempt(
            ("insert or replace into completions values (?, ?)", (log, number)),
            ("update results set completion = ? where request_id = ?", (number, request_id)),
        )

    def drop_result(self, request_id: str) -> None:
        """Forget a result that nobody can ask for any more."""
        self._attempt(("delete from results where request_id = ?", (request_id,)))

    def drop_session(self, session_id: str) -> None:
        """Forget a session that has ended, and everything in it."""
        within = (f"{session_id}:", f"{session_id};")
        self._attempt(
            ("delete from requests where subject = ?", (session_id,)),
            ("delete from requests where subject >= ? and subject < ?", within),
            ("delete from results where request_id >= ? and request_id < ?", within),
            ("delete from runs where model_id >= ? and model_id < ?", within),
            ("delete from completions where log >= ? and log < ?", within),
        )

    # What happened

    def secret(self) -> bytes:
        """Return the secret of this server, which signs what clients hold."""
        with self._transaction() as database:
            database.execute("insert or ignore into meta values ('secret', ?)", (secrets.token_bytes(32),))
            return bytes(database.execute("select value from meta where name = 'secret'").fetchone()[0])

    def requests(self) -> list[JournalRequest]:
        """Return every request in the order of arrival."""
        return self.read(_REQUESTS, JournalRequest)

    def results(self) -> list[JournalResult]:
        """Return every result that is still kept."""
        rows = self.read("select request_id, fingerprint, kind, content, completion from results", _ResultRow)
        return [JournalResult(row.request_id, row.fingerprint, _decode(row.kind, row.content), row.completion) for row in rows]

    def runs(self) -> dict[str, JournalRun]:
        """Return every run by its id."""
        return {run.model_id: run for run in self.read("select model_id, number, optimizer from runs", JournalRun)}

    def completion_counts(self) -> dict[str, int]:
        """Return how many samples of each log are complete, also those that nobody asks for any more."""
        return {row.log: row.count for row in self.read("select log, count from completions", _Count)}

    # SQLite

    def read(self, query: str, kind: type[Row], *values: object) -> list[Row]:
        """Return the rows that a query finds."""
        with self._lock:
            return [msgspec.convert(row, kind) for row in self._database.execute(query, values)]

    def _attempt(self, *statements: _Statement) -> None:
        """Write what must not stop the work that is written down. What there is no room for is written once there is."""
        with self._lock:
            try:
                with self._transaction() as database:
                    for statement in statements:
                        database.execute(*statement)
            except sqlite3.Error as error:
                log.error("cannot write the journal: %s; until it can be written, a killed server loses results", error)
                if isinstance(error, sqlite3.OperationalError):
                    self._overdue += [*self._notes.mine, *statements]
                    self._notes.mine.clear()

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("begin")
            try:
                for statement in (*self._overdue, *self._notes.mine):
                    self._database.execute(*statement)
                yield self._database
                self._database.execute("commit")
            except BaseException:
                if self._database.in_transaction:  # SQLite may have ended it, as on a full disk
                    self._database.execute("rollback")
                raise
            self._overdue.clear()
            self._notes.mine.clear()


def _result_row(future: ServerFuture, outcome: RequestOutcome) -> _Statement:
    values = (future.request_id, future.fingerprint, *_encode(outcome))
    return "insert or ignore into results (request_id, fingerprint, kind, content) values (?, ?, ?, ?)", values


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
