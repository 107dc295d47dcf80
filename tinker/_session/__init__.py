"""A session on the server: its start and end, the settings the server pushes, submitting requests
and waiting for results.
"""

from __future__ import annotations

from tinker._session.misspelled import suggest_loss as suggest_loss
from tinker._session.misspelled import suggest_models as suggest_models
from tinker._session.results import NotRunError as NotRunError
from tinker._session.results import ResultSpec as ResultSpec
from tinker._session.results import count_tokens as count_tokens
from tinker._session.results import json_only as json_only
from tinker._session.results import loss_output as loss_output
from tinker._session.results import meter as meter
from tinker._session.results import prompt_use as prompt_use
from tinker._session.results import report_pause as report_pause
from tinker._session.results import sample_response as sample_response
from tinker._session.results import training_use as training_use
from tinker._session.session import Description as Description
from tinker._session.session import ServerConfig as ServerConfig
from tinker._session.session import ServerSettings as ServerSettings
from tinker._session.session import Session as Session
from tinker._session.session import SessionContext as SessionContext
from tinker._session.session_poller import SessionPoller as SessionPoller
from tinker._session.telemetry import Capture as Capture
from tinker._session.telemetry import Telemetry as Telemetry
from tinker._session.telemetry import is_user_error as is_user_error
from tinker._session.telemetry import wrap as wrap
