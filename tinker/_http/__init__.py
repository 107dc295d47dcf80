"""A Request in, a typed value or a typed error out: retry, limits, credentials, redirects,
connections. Knows no sessions.
"""

from __future__ import annotations

from tinker._http import credentials as credentials
from tinker._http import responses as responses
from tinker._http import retry as retry
from tinker._http import statuses as statuses
from tinker._http.auth import Auth as Auth
from tinker._http.auth import Credential as Credential
from tinker._http.auth import CredentialSource as CredentialSource
from tinker._http.auth import find_command as find_command
from tinker._http.auth import find_source as find_source
from tinker._http.auth import read_claims as read_claims
from tinker._http.circuits import CircuitRegistry as CircuitRegistry
from tinker._http.engines import open_engine as open_engine
from tinker._http.engines import open_files as open_files
from tinker._http.engines import wrap_client as wrap_client
from tinker._http.findings import Findings as Findings
from tinker._http.findings import RefusedFields as RefusedFields
from tinker._http.forms import FormAttempt as FormAttempt
from tinker._http.forms import Negotiation as Negotiation
from tinker._http.forms import WireFormat as WireFormat
from tinker._http.limits import THROTTLED_SLOTS as THROTTLED_SLOTS
from tinker._http.limits import Budget as Budget
from tinker._http.limits import Holding as Holding
from tinker._http.limits import Limits as Limits
from tinker._http.limits import SampleAdmission as SampleAdmission
from tinker._http.limits import cool_down_for as cool_down_for
from tinker._http.messages import ConnectionFacts as ConnectionFacts
from tinker._http.messages import ExchangeFailed as ExchangeFailed
from tinker._http.messages import PreparedRequest as PreparedRequest
from tinker._http.messages import Purpose as Purpose
from tinker._http.messages import RawResponse as RawResponse
from tinker._http.observers import Observers as Observers
from tinker._http.redaction import HIDDEN_TEXT as HIDDEN_TEXT
from tinker._http.redaction import hide_signature as hide_signature
from tinker._http.responses import NO_API as NO_API
from tinker._http.responses import UNREACHABLE_HINT as UNREACHABLE_HINT
from tinker._http.responses import find_explanation as find_explanation
from tinker._http.retry import ONE_SHOT as ONE_SHOT
from tinker._http.retry import REST as REST
from tinker._http.retry import SUBMIT as SUBMIT
from tinker._http.retry import Policy as Policy
from tinker._http.retry import RetryableException as RetryableException
from tinker._http.retry import RetryConfig as RetryConfig
from tinker._http.statuses import ABSENT_STATUSES as ABSENT_STATUSES
from tinker._http.statuses import is_absent as is_absent
from tinker._http.streams import StreamsAbsent as StreamsAbsent
from tinker._http.submission import Retries as Retries
from tinker._http.submission import Variant as Variant
from tinker._http.transport import Reply as Reply
from tinker._http.transport import Transport as Transport
from tinker._http.trust import explain_handshake as explain_handshake
