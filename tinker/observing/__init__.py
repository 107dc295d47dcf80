"""Observe a client: events for its attempts, retries, queue states and futures, and metrics
computed from them.

    service = tinker.ServiceClient(observers=[print])

An observer is called with one event at a time, on the client's I/O thread (for a cancelled future,
on the thread that cancels it), so it must not block. The first exception of an observer is logged;
later ones are ignored. A client without observers has no overhead.

All times come from the client's monotonic clock, in seconds.
"""

from typing import TYPE_CHECKING

from tinker._basics.lazy import LazyNames

if TYPE_CHECKING:
    from tinker.observing.events import AttemptStarted as AttemptStarted
    from tinker.observing.events import CircuitChange as CircuitChange
    from tinker.observing.events import CircuitState as CircuitState
    from tinker.observing.events import ClientEvent as ClientEvent
    from tinker.observing.events import CustomLossEvaluated as CustomLossEvaluated
    from tinker.observing.events import CustomLossStarted as CustomLossStarted
    from tinker.observing.events import Event as Event
    from tinker.observing.events import ExchangeLog as ExchangeLog
    from tinker.observing.events import ExchangeRecord as ExchangeRecord
    from tinker.observing.events import ExchangeSink as ExchangeSink
    from tinker.observing.events import FutureSettled as FutureSettled
    from tinker.observing.events import FutureStarted as FutureStarted
    from tinker.observing.events import LogObserver as LogObserver
    from tinker.observing.events import LossTerm as LossTerm
    from tinker.observing.events import ModelLoading as ModelLoading
    from tinker.observing.events import Observer as Observer
    from tinker.observing.events import QueueCallback as QueueCallback
    from tinker.observing.events import QueueChange as QueueChange
    from tinker.observing.events import QueueObserver as QueueObserver
    from tinker.observing.events import QueueStateObserver as QueueStateObserver
    from tinker.observing.events import RecoveryChange as RecoveryChange
    from tinker.observing.events import RecoveryStage as RecoveryStage
    from tinker.observing.events import RequestAttempt as RequestAttempt
    from tinker.observing.events import RequestRetry as RequestRetry
    from tinker.observing.events import ServerFact as ServerFact
    from tinker.observing.events import ServerInfo as ServerInfo
    from tinker.observing.events import SessionLost as SessionLost
    from tinker.observing.events import Timings as Timings
    from tinker.observing.events import TokensUsed as TokensUsed
    from tinker.observing.events import exchange_sinks as exchange_sinks
    from tinker.observing.events import log_exchanges as log_exchanges
    from tinker.observing.events import open_log as open_log
    from tinker.observing.metrics import HistogramSummary as HistogramSummary
    from tinker.observing.metrics import Metrics as Metrics
    from tinker.observing.metrics import Snapshot as Snapshot
    from tinker.observing.metrics import Summary as Summary
else:
    _names = LazyNames(__name__)
    __getattr__, __dir__ = _names.load, _names.list
