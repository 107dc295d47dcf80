"""Observe a client: events for its attempts, retries, queue states and futures, and metrics computed from them.

    service = tinker.ServiceClient(observers=[print])

An observer is called with one event at a time, on the client's I/O thread (for a cancelled future, on the thread that cancels
it), so it must not block. The first exception of an observer is logged; later ones are ignored. A client without observers has
no overhead.

All times come from the client's monotonic clock, in seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    ModelLoading,
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
from tinker.observing.server_info import ServerFact, ServerInfo

if TYPE_CHECKING:
    from tinker.observing.logs import LogObserver
    from tinker.observing.metrics import HistogramSummary, Metrics, Snapshot, Summary

#: Imported on use: no client needs them.
_HOMES = {"LogObserver": "logs", **dict.fromkeys(("HistogramSummary", "Metrics", "Snapshot", "Summary"), "metrics")}

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
    "ModelLoading",
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


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # type checkers know the names above; with this function they would believe in every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
