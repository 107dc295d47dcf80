"""The endpoints that clients for OpenAI's API ask for: ``/v1/models``, ``/v1/completions`` and ``/v1/chat/completions``.

They are no part of the contract. A request becomes a sample of the contract (``asample`` or ``stream_sample``), so that it
waits, is counted and is refused like every other one.
"""

from __future__ import annotations

from tinker.local.v1.answers import describe_error
from tinker.local.v1.routes import read_any_credential, v1_routes

__all__ = ["describe_error", "read_any_credential", "v1_routes"]
