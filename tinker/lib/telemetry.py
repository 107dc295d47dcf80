"""A path that older code imports from."""

from tinker._session import Telemetry, is_user_error

__all__ = ["Telemetry", "is_user_error"]
