"""The conformance kit: small checks, each of one statement of the contract, run against any server over HTTP.

``outcome`` says what may be found and ``registry`` what checks are; ``connection`` and ``decoding`` speak to the server and
read it; ``context``, ``training_fixture`` and ``sampling_fixture`` are what checks work with; ``runner`` runs the checks, and
``table`` shows the report.
"""

from __future__ import annotations

from tinker.testing.conformance.outcome import Outcome, Report, Row
from tinker.testing.conformance.runner import Nonconformance, check_ids, run, verify

__all__ = ["Nonconformance", "Outcome", "Report", "Row", "check_ids", "run", "verify"]
