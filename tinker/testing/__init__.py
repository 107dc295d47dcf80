"""What helps to test a server of the Tinker API: the conformance kit.

From a shell it is ``tinker conformance --base-url http://localhost:8000``. In a test suite each check is one test::

    import pytest
    from tinker.testing import check_ids, verify


    @pytest.mark.parametrize("check_id", check_ids())
    def test_conformance(check_id: str) -> None:
        verify(check_id, "http://localhost:8000")

It speaks to the server as any client would, over HTTP, and nothing in it knows which server that is.
"""

from __future__ import annotations

from tinker.testing.conformance import Nonconformance, Outcome, Report, Row, check_ids, run, verify

__all__ = ["Nonconformance", "Outcome", "Report", "Row", "check_ids", "run", "verify"]
