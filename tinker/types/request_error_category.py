"""The cause of a failed request."""

from __future__ import annotations

import enum


class RequestErrorCategory(enum.StrEnum):
    """The known values of ``RequestFailedError.category``, which is text; each equals its text.

    >>> RequestErrorCategory.User == "user"
    True
    """

    Unknown = "unknown"
    Server = "server"
    User = "user"
