"""Observe a client: its attempts, retries, queue states and futures, as values for programs, and counts made of them.

    service = tinker.ServiceClient(observers=[print])

An observer is called with one value after the other, on the thread of this package that does all I/O (for a cancelled future,
on the thread that cancels it), so it must not block. An exception of an observer is logged once and otherwise ignored. A client
without observers pays nothing.

Times are those of the client's monotonic clock, in seconds.
"""

from __future__ import annotations

from tinker.observing.events import (
    AttemptStarted,
    CircuitChange,
    CircuitState,
    ClientEvent,
    CustomLossEvaluated,
    CustomLossStarted,
    Event,
    FutureSettled,
    FutureStarted,
    LossTerm,
    Observer,
    QueueCallback,
    QueueChange,
    QueueObserver,
    QueueStateObserver,
    RecoveryChange,
    RecoveryStage,
    RequestAttempt,
    RequestRetry,
    SessionLost,
    Timings,
    TokensUsed,
)
from tinker.observing.exchanges import ExchangeLog, ExchangeRecord, ExchangeSink, exchange_sinks, log_exchanges, open_log
from tinker.observing.logs import LogObserver
from tinker.observing.metrics import HistogramSummary, Metrics, Snapshot, Summary
from tinker.observing.server_info import ServerFact, ServerInfo

__all__ = [
    "ExchangeLog",
    "ExchangeRecord",
    "ExchangeSink",
    "exchange_sinks",
    "log_exchanges",
    "open_log",
    "HistogramSummary",
    "LogObserver",
    "LossTerm",
    "ServerFact",
    "ServerInfo",
    "TokensUsed",
    "SessionLost",
    "FutureStarted",
    "CircuitChange",
    "CircuitState",
    "RecoveryChange",
    "RecoveryStage",
    "CustomLossStarted",
    "CustomLossEvaluated",
    "ClientEvent",
    "AttemptStarted",
    "Event",
    "FutureSettled",
    "Metrics",
    "Observer",
    "QueueCallback",
    "QueueChange",
    "QueueObserver",
    "QueueStateObserver",
    "RequestAttempt",
    "RequestRetry",
    "Snapshot",
    "Summary",
    "Timings",
]
