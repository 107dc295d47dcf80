"""The owner of a credential."""

from __future__ import annotations

import attrs

from tinker.types._values import AttrsValue


@attrs.frozen(kw_only=True)
class WhoamiResponse(AttrsValue):
    """The user and the organization that own a credential.

    Attributes:
        user_urn: The URN of the user.
        org_urn: The URN of the organization.
        email: The address of the user; None if the server does not report it.
    """

    user_urn: str
    org_urn: str
    email: str | None = None
