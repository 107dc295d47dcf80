"""An observer that writes to the log."""

from __future__ import annotations

import logging

from tinker._shown import clean
from tinker.observing import events


class LogObserver:
    """Observer that writes a line to your logger for each important event.

    Outcomes, retries and queue changes are logged at ``level``, failures at WARNING, single
    exchanges at DEBUG. Each record has the attributes ``session_id``, ``training_run_id``,
    ``sampling_session_id``, ``request_id`` and ``user_metadata``, for JSON formatters.

    Args:
        logger: The logger, or its name.
        level: The level of events that are not failures.

    >>> import logging, tinker
    >>> from tinker.observing import LogObserver
    >>> service = tinker.ServiceClient(
    ...     base_url="local://toy", observers=[LogObserver("my.run", level=logging.DEBUG)]
    ... )
    """

    def __init__(
        self, logger: logging.Logger | str = "tinker.events", *, level: int = logging.INFO
    ) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level

    def __call__(self, event: events.Event) -> None:
        """Log one event, if it is one that is logged."""
        level, text = self._describe(event)
        if text is not None and self._logger.isEnabledFor(level):
            about = {
                name: getattr(event, name)
                for name in events.ClientEvent.__struct_fields__
                if name != "operation"
            }
            about["user_metadata"] = dict(event.user_metadata)
            self._logger.log(level, "%s %s", event.operation, clean(text), extra=about)

    def _describe(self, event: events.Event) -> tuple[int, str | None]:
        match event:
            case events.FutureSettled(error=None, cancelled=False):
                return self._level, f"took {event.seconds:.3f} s"
            case events.FutureSettled():
                return (
                    logging.WARNING,
                    f"failed after {event.seconds:.3f} s: {event.error or 'cancelled'}",
                )
            case events.RequestRetry():
                return (
                    self._level,
                    (
                        f"failed {event.failures} times, retrying "
                        f"in {event.delay_seconds:.1f} s: {event.error}"
                    ),
                )
            case events.QueueChange():
                return self._level, f"is {event.state}" + (
                    f": {event.reason}" if event.reason else ""
                )
            case events.SessionLost():
                return (
                    logging.WARNING,
                    f"lost its session, silent for {event.silent_seconds:.0f} s: {event.error}",
                )
            case events.CircuitChange():
                return (
                    logging.WARNING,
                    f"{event.circuit} is {event.state} after {event.failures} failures in a row",
                )
            case events.RecoveryChange():
                return logging.WARNING, f"of {event.run_id} {event.stage}" + (
                    f": {event.error}" if event.error else ""
                )
            case events.ModelLoading():
                return self._level, event.what + (
                    " began" if event.seconds is None else f" took {event.seconds:.1f} s"
                )
            case events.CustomLossEvaluated():
                outcome = (
                    f"loss {event.loss:g}" if event.loss is not None else f"failed: {event.error}"
                )
                return logging.DEBUG, f"{outcome}, {event.seconds:.3f} s in your function"
            case events.TokensUsed():
                counts = {
                    name: getattr(event, name)
                    for name in ("trained", "prefilled", "cached", "sampled")
                }
                return logging.DEBUG, "used " + ", ".join(
                    f"{name} {count}" for name, count in counts.items() if count
                )
            case events.RequestAttempt():
                return (
                    logging.DEBUG,
                    f"returned {event.status or 'no response'} in {event.seconds:.3f} s",
                )
            case _:
                return logging.DEBUG, None
