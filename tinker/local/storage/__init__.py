"""The data of a server: sessions, futures and accounts in memory, checkpoints and snapshots on disk."""

from __future__ import annotations

from tinker.local.storage.accounts import OWNER, USER_EMAIL, USER_NAME, Accounts
from tinker.local.storage.audit import AuditLog
from tinker.local.storage.checkpoint_records import (
    CHECKPOINT_KINDS,
    CheckpointKind,
    CheckpointRecord,
    check_name,
    checkpoint_path,
    folder_name,
    name_conflict,
)
from tinker.local.storage.checkpoints import LEFTOVERS, RECORD_FILE, Checkpoints
from tinker.local.storage.completions import Completion, CompletionLog
from tinker.local.storage.exports import TraceExports
from tinker.local.storage.folders import make_data_folder
from tinker.local.storage.history import HistoryPoint, RunHistory
from tinker.local.storage.journal import Journal, JournalRequest, JournalResult, JournalRun
from tinker.local.storage.kept_runs import KeptRuns
from tinker.local.storage.ledger import FormerRun, Ledger
from tinker.local.storage.links import FILES_PATH, Links
from tinker.local.storage.notifier import Notifier
from tinker.local.storage.owners import FOLDER, Owner
from tinker.local.storage.recorded import RecordedSequence, RecordedSequences
from tinker.local.storage.results import (
    FutureStore,
    RequestFailure,
    RequestOutcome,
    RequestResult,
    ServerFuture,
    request_key,
    split_request_key,
)
from tinker.local.storage.sessions import MAX_CLIENTS, LoadWeights, ModelRecord, SamplerRecord, SessionEnd, SessionRecord
from tinker.local.storage.signing import InvalidToken, Signer
from tinker.local.storage.snapshots import Snapshots
from tinker.local.storage.store import Store
from tinker.local.storage.trace import TRACE_MEDIA_TYPE, in_trace
from tinker.local.storage.uploads import AdapterUpload, Uploads
from tinker.local.storage.usage import GIGABYTE, HOUR, UsageKey, UsageMeter, to_utc

__all__ = [
    "HistoryPoint",
    "RunHistory",
    "Accounts",
    "AdapterUpload",
    "AuditLog",
    "CHECKPOINT_KINDS",
    "CheckpointKind",
    "CheckpointRecord",
    "Checkpoints",
    "Completion",
    "CompletionLog",
    "FILES_PATH",
    "FOLDER",
    "FormerRun",
    "FutureStore",
    "GIGABYTE",
    "HOUR",
    "InvalidToken",
    "Journal",
    "JournalRequest",
    "JournalResult",
    "JournalRun",
    "KeptRuns",
    "LEFTOVERS",
    "Ledger",
    "Links",
    "LoadWeights",
    "MAX_CLIENTS",
    "ModelRecord",
    "Notifier",
    "OWNER",
    "Owner",
    "RECORD_FILE",
    "RecordedSequence",
    "RecordedSequences",
    "RequestFailure",
    "RequestOutcome",
    "RequestResult",
    "SamplerRecord",
    "ServerFuture",
    "SessionEnd",
    "SessionRecord",
    "Signer",
    "Snapshots",
    "Store",
    "TRACE_MEDIA_TYPE",
    "TraceExports",
    "USER_EMAIL",
    "USER_NAME",
    "Uploads",
    "UsageKey",
    "UsageMeter",
    "check_name",
    "checkpoint_path",
    "folder_name",
    "in_trace",
    "make_data_folder",
    "name_conflict",
    "request_key",
    "split_request_key",
    "to_utc",
]
