"""The conformance kit: small checks, each of one statement of the contract, run against any server
over HTTP.

``outcome`` has what a check may find, ``registry`` the checks; ``connection`` and ``decoding`` send
requests and read them; ``session`` and ``context`` are what checks work with, ``values`` their
data; ``runner`` runs them, and ``table`` shows the report.
"""

from __future__ import annotations

from tinker.testing.conformance.outcome import Outcome, Report, Row
from tinker.testing.conformance.runner import Nonconformance, check_ids, run, verify

__all__ = ["Nonconformance", "Outcome", "Report", "Row", "check_ids", "run", "verify"]
