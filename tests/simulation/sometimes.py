"""States that a million operations must reach: a simulation that never gets there says nothing
about them.
"""

from __future__ import annotations

from collections import Counter

from simulation.network import FAULTS

_ERRORS = {
    "G": "APIStatusError APITimeoutError AuthenticationError BadRequestError CircuitOpenError "
    "ConflictError InternalServerError "
    "NotFoundError PrecedingRequestFailed RateLimitError RefusedResultError RequestFailedError "
    "SessionLostError",
    "S": "APIStatusError AuthenticationError BadRequestError InternalServerError "
    "PrecedingRequestFailed RateLimitError "
    "RefusedResultError RequestFailedError SessionLostError",
    "V": (
        "APIStatusError BadRequestError PrecedingRequestFailed RefusedResultError SessionLostError"
    ),
    "L": "APIStatusError PrecedingRequestFailed",
}
_EXCHANGES = {
    "create_session": "reset silent twice status",
    "create_model": "reset cut late twice status",
    "forward_backward": "reset silent late twice garbage cut status",
    "optim_step": "reset silent late twice garbage cut status",
    "save_weights": "reset silent late twice status",
    "load_weights": "status",
    "retrieve_future": "reset silent late garbage cut status",
    "asample": "reset silent late twice",
    "session_heartbeat": "lost status",
}
#: A fault of any exchange, what the program did and received, and what happened to the server.
SOMETIMES: tuple[str, ...] = (
    *FAULTS,
    *(f"{kind} {operation}" for operation, kinds in _EXCHANGES.items() for kind in kinds.split()),
    *(f"received {kind} {name}" for kind, names in _ERRORS.items() for name in names.split()),
    *(f"cancelled while {when}" for when in ("queued", "sending", "waiting", "done")),
    *(
        "not sent",
        "not run",
        "looked too early",
        "awaited with a timeout",
        "call on a closed client",
    ),
    *(
        "restart, durability save",
        "restart, durability step",
        "killed while it answers",
        "no server",
    ),
    *(
        "session ended",
        "storm of 402",
        "storm of 429",
        "storm of 503",
        "clock jump",
        "disk full",
        "a response is emptied",
        "a result is shortened",
        "a stream breaks",
        "a stream fails",
        "a stream ends",
        "judged by effects",
        "a loop begins anew",
        "a loop continues from a save",
        "a loop ends",
        "a loop ends with RecoveryFailedError",
        "a sampler is copied",
        "a sampler joins from elsewhere",
        "interrupted in a call",
        "interrupted in a look",
        "nothing arrives for a while",
        "nothing comes back for a while",
        "clock jump of the client",
    ),
)


def list_unreached(reached: Counter[str]) -> list[str]:
    """Return the states that no episode has reached."""
    return [name for name in SOMETIMES if not reached[name]]
