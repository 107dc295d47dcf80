"""A session on the server: its start and end, the settings the server pushes, submitting requests and waiting for results."""

from __future__ import annotations

from tinker._session.capture import Capture, wrap
from tinker._session.metering import count_tokens, meter, prompt_use, training_use
from tinker._session.misspelled import suggest_loss, suggest_models
from tinker._session.results import NotRunError, ResultSpec, json_only, loss_output, report_pause, sample_response
from tinker._session.server_config import ServerConfig, ServerSettings
from tinker._session.session import Description, Session, SessionContext
from tinker._session.session_poller import SessionPoller
from tinker._session.telemetry import Telemetry, is_user_error

__all__ = [
    "Capture",
    "SessionPoller",
    "Description",
    "ResultSpec",
    "ServerConfig",
    "NotRunError",
    "ServerSettings",
    "Session",
    "SessionContext",
    "Telemetry",
    "count_tokens",
    "is_user_error",
    "json_only",
    "loss_output",
    "meter",
    "prompt_use",
    "report_pause",
    "sample_response",
    "suggest_loss",
    "suggest_models",
    "training_use",
    "wrap",
]
