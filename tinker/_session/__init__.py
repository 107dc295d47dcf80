"""A session on the server: its start and end, the settings the server pushes, submitting requests and waiting for results."""

from __future__ import annotations

from tinker._session.negotiation import Form, Negotiation, Trial
from tinker._session.results import Expected, json_only, loss_output, report_pause, sample_response
from tinker._session.server_config import Facts, Server
from tinker._session.session import Description, Session, Started, shut_down
from tinker._session.session_poller import Completions
from tinker._session.telemetry import Telemetry

__all__ = [
    "Completions",
    "Description",
    "Expected",
    "Facts",
    "Form",
    "Negotiation",
    "Server",
    "Session",
    "Started",
    "Telemetry",
    "Trial",
    "json_only",
    "loss_output",
    "report_pause",
    "sample_response",
    "shut_down",
]
