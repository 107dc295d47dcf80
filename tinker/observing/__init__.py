"""Observe a client: events for its attempts, retries, queue states and futures, and metrics
computed from them.

    service = tinker.ServiceClient(observers=[print])

An observer is called with one event at a time, on the client's I/O thread (for a cancelled future,
on the thread that cancels it), so it must not block. The first exception of an observer is logged;
later ones are ignored. A client without observers has no overhead.

All times come from the client's monotonic clock, in seconds.
"""

from typing import TYPE_CHECKING

from tinker._basics.lazy import LazyNames, find_made_modules

if TYPE_CHECKING:
    from tinker._basics.events import AttemptStarted as AttemptStarted
    from tinker._basics.events import CircuitChange as CircuitChange
    from tinker._basics.events import CircuitState as CircuitState
    from tinker._basics.events import ClientEvent as ClientEvent
    from tinker._basics.events import CustomLossEvaluated as CustomLossEvaluated
    from tinker._basics.events import CustomLossStarted as CustomLossStarted
    from tinker._basics.events import Event as Event
    from tinker._basics.events import FutureSettled as FutureSettled
    from tinker._basics.events import FutureStarted as FutureStarted
    from tinker._basics.events import LossTerm as LossTerm
    from tinker._basics.events import ModelLoading as ModelLoading
    from tinker._basics.events import Observer as Observer
    from tinker._basics.events import QueueCallback as QueueCallback
    from tinker._basics.events import QueueChange as QueueChange
    from tinker._basics.events import QueueObserver as QueueObserver
    from tinker._basics.events import QueueStateObserver as QueueStateObserver
    from tinker._basics.events import RecoveryChange as RecoveryChange
    from tinker._basics.events import RecoveryStage as RecoveryStage
    from tinker._basics.events import RequestAttempt as RequestAttempt
    from tinker._basics.events import RequestRetry as RequestRetry
    from tinker._basics.events import ServerFact as ServerFact
    from tinker._basics.events import ServerInfo as ServerInfo
    from tinker._basics.events import SessionLost as SessionLost
    from tinker._basics.events import Timings as Timings
    from tinker._basics.events import TokensUsed as TokensUsed
    from tinker.observing.logs import ExchangeLog as ExchangeLog
    from tinker.observing.logs import ExchangeRecord as ExchangeRecord
    from tinker.observing.logs import ExchangeSink as ExchangeSink
    from tinker.observing.logs import LogObserver as LogObserver
    from tinker.observing.logs import exchange_sinks as exchange_sinks
    from tinker.observing.logs import log_exchanges as log_exchanges
    from tinker.observing.logs import open_log as open_log
    from tinker.observing.metrics import HistogramSummary as HistogramSummary
    from tinker.observing.metrics import Metrics as Metrics
    from tinker.observing.metrics import Snapshot as Snapshot
    from tinker.observing.metrics import Summary as Summary
else:
    _names = LazyNames(__name__)
    __getattr__, __dir__ = _names.load, _names.list
    __path__ += find_made_modules(__name__)
