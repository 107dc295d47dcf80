"""The one exception that becomes an error status, and the statuses that several handlers share."""

from __future__ import annotations

from collections.abc import Mapping

from tinker_wire.models import JSONValue


class APIProblem(Exception):
    """The request is refused: ``status``, the ``detail`` of the answer's body, and headers to go with it."""

    def __init__(self, status: int, detail: JSONValue, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers: Mapping[str, str] = headers or {}


def make_not_found(what: str, name: str, hint: str = "") -> APIProblem:
    """Make a 404 that names what is unknown."""
    return APIProblem(404, f"{what} {name!r} was not found on this server{hint}")


def conflict(detail: str) -> APIProblem:
    """Make a 409 that asks clients not to try again, because waiting does not help."""
    return APIProblem(409, detail, {"x-should-retry": "false"})


def unavailable(detail: str) -> APIProblem:
    """Make a 500 that asks clients not to try again, because a person has to do something first."""
    return APIProblem(500, detail, {"x-should-retry": "false"})


def unprocessable(field: str, fault: str, kind: str = "value_error") -> APIProblem:
    """Make a 422 that names one field of the body."""
    return APIProblem(422, [{"loc": ["body", *field.split(".")], "msg": fault, "type": kind}])
