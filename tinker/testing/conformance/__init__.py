"""The conformance kit: small checks, each of one statement of the contract, run against any server over HTTP.

``outcome`` says what may be found, ``registry`` what checks are, ``exchange`` and ``reading`` how the server is spoken to
and read, ``bench`` and ``trainee`` what checks work with, ``running`` runs them, ``table`` shows the report to people.
"""

from __future__ import annotations

from tinker.testing.conformance.outcome import Outcome, Report, Row
from tinker.testing.conformance.running import Nonconformance, check_ids, run, verify

__all__ = ["Nonconformance", "Outcome", "Report", "Row", "check_ids", "run", "verify"]
