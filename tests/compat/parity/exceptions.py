"""Where this client says or finds something else than the official one, each with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Headers that say something about a request. The others are about connections and about who asks;
#: and which of protobuf and JSON the answer may be is negotiated.
HEADERS = frozenset(
    {
        "x-api-key",
        "x-tinker-request-type",
        "x-tinker-sampling-backpressure",
        "x-tinker-weights-access-token",
    }
)

#: Operations of which it is no matter how often the same is asked.
COUNTED_ONCE = {
    "retrieve_future": "how many polls a result takes is a matter of time",
    "client_config": "asked for each session here, and for each client there",
    "client_dynamic_config": "likewise",
}

#: Operations that are not part of the work.
NOT_COMPARED = {
    "session_heartbeat": "every ten seconds",
    "telemetry": "none is sent",
}


def _sample(body: dict[str, Any]) -> dict[str, Any]:
    """One stop text is a list of one, and the numbers of a clone begin anywhere."""
    params = body["sampling_params"]
    stop = [params["stop"]] if isinstance(params.get("stop"), str) else params.get("stop")
    return {**body, "seq_id": body["seq_id"] % 1e9, "sampling_params": {**params, "stop": stop}}


def _poll(body: dict[str, Any]) -> dict[str, Any]:
    """Clients of 2025 cannot take the announcement of a large result."""
    return {**body, "allow_metadata_only": True}


def _session(body: dict[str, Any]) -> dict[str, Any]:
    """Each client says its version."""
    return {**body, "sdk_version": ""}


#: Queries that say what holds without them.
DEFAULT_QUERIES = frozenset({("access_scope", "owned")})

#: What makes bodies alike that are meant to differ.
ALIKE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "asample": _sample,
    "create_session": _session,
    "retrieve_future": _poll,
}

OLD = ("old_sampling", "old_states", "old_training")

#: (script, operation or name of a result) -> why they differ there. One that does not differ any
#: more fails the session.
EXCEPTIONS = {
    **{
        (script, name): "0.7.0 knows no settings"
        for script in OLD
        for name in ("client_config", "client_dynamic_config")
    },
    **{
        (
            script,
            "get_info",
        ): "asked once, when the run is there; 0.7.0 asks whenever somebody wants to know"
        for script in OLD
    },
    **{
        (
            "old_states",
            name,
        ): "one request begins a run from a state, as 0.38.0 does; 0.7.0 asks what the state is "
        "of, begins a run, "
        "and loads the state with the run's first number"
        for name in (
            "weights_info",
            "create_model",
            "load_weights",
            "forward",
            "forward_backward",
            "optim_step",
            "retrieve_future",
        )
    },
    (
        "listing",
        "sampler",
    ): "the answer tells the tokenizer, which the official record has no field for",
    (
        "quickstart",
        "get_sampler",
    ): "the base model is asked for when somebody wants to know it, not for each sampler",
    ("sampling", "get_sampler"): "likewise",
    (
        "training",
        "no layers",
    ): "a wrong argument is a ValueError, no assertion that `python -O` would remove",
}
