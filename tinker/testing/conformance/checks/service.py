"""What a server says about itself, and what clients report to it."""

from __future__ import annotations

import datetime
import uuid

from tinker_wire import models
from tinker_wire.api import service as api
from tinker_wire.api import telemetry as telemetry_api

from tinker._version import __version__
from tinker.testing.conformance.context import CheckContext
from tinker.testing.conformance.registry import check

_CONFIG = models.ClientConfigRequest(sdk_version=__version__)


@check("healthz")
def health(context: CheckContext) -> None:
    """The health check responds, also without a credential."""
    context.call(api.healthz(), key=None)


@check("get_server_capabilities", core=True, basis=True)
def capabilities(context: CheckContext) -> None:
    """At least one model is offered by name."""
    offered = context.call(api.get_server_capabilities()).supported_models
    how = f"none of the {len(offered)} entries of supported_models has a model_name"
    cause = "misfit: SupportedModel: no `model_name`"
    named = any(model.model_name for model in offered)
    context.require(named, how, cause, "get_server_capabilities", "SupportedModel")


@check("client_config")
def client_config(context: CheckContext) -> None:
    """The settings for clients have the documented types, and their limits leave room for work."""
    config = context.call(api.client_config(_CONFIG))
    limits = (
        config.fwdbwd_max_chunk_len,
        config.fwdbwd_max_chunk_bytes_count,
        config.sample_max_concurrent_requests,
    )
    context.expect(min(limits) > 0, f"a limit of the client configuration allows nothing: {limits}")


@check("client_dynamic_config")
def client_dynamic_config(context: CheckContext) -> None:
    """The settings that may change have the documented types."""
    context.call(api.client_dynamic_config(_CONFIG))


@check("telemetry")
def telemetry(context: CheckContext) -> None:
    """A batch with every kind of event is accepted."""
    now = datetime.datetime.now(datetime.UTC)

    def common(index: int) -> dict[str, object]:
        return {
            "event_id": str(uuid.uuid4()),
            "event_session_index": index,
            "severity": "INFO",
            "timestamp": now,
        }

    events: list[models.TelemetryEvent] = [
        models.SessionStartEvent(**common(0)),  # type: ignore[arg-type]
        models.GenericEvent(event_name="conformance", event_data={"a": 1}, **common(1)),  # type: ignore[arg-type]
        models.UnhandledExceptionEvent(error_message="m", error_type="t", **common(2)),  # type: ignore[arg-type]
        models.SessionEndEvent(duration="0:00:01.000000", **common(3)),  # type: ignore[arg-type]
    ]
    body = models.TelemetrySendRequest(
        events=events,
        platform="Linux",
        sdk_version=__version__,
        session_id=context.session(),
        process_uuid=str(uuid.uuid4()),
    )
    context.call(telemetry_api.telemetry(body))
