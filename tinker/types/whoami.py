"""Whose credential it is."""

from __future__ import annotations

import attrs

from tinker.types._values import AttrsValue


@attrs.frozen(kw_only=True)
class WhoamiResponse(AttrsValue):
    """The user and the organization a credential belongs to; ``email`` is None where the server does not tell."""

    user_urn: str
    org_urn: str
    email: str | None = None
