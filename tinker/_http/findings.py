"""Facts that a client discovers about its server, with their evidence, and the fields that the
server refuses.

Fields with their default value are omitted if a server refuses them, in the retry and then for the
rest of the session. Servers that validate with the classes of an older client refuse every newer
field, even if it has its default value. A field with any other value is always sent.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import FieldInfo, fields, force_setattr

from tinker.errors import APIError, APIStatusError
from tinker.observing import ServerFact

S = TypeVar("S", bound=msgspec.Struct)
Path: TypeAlias = tuple[str, ...]

logger: logging.Logger = logging.getLogger("tinker")

# What pydantic 2 and 1 call a field that a class does not have.
_REFUSALS = frozenset({"extra_forbidden", "value_error.extra"})


ABSENT = "absent"


class Findings:
    """The facts about one server, by subject and operation. Written on the loop, read anywhere."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], ServerFact] = {}

    @property
    def facts(self) -> tuple[ServerFact, ...]:
        """Return all of them, in the order in which they were first found."""
        return tuple(self._facts.copy().values())

    def note(self, subject: str, operation: str, finding: str, evidence: str) -> None:
        """Note a fact, in the place of an earlier one on the same subject."""
        self._facts[subject, operation] = ServerFact(
            operation=operation, finding=finding, evidence=evidence
        )

    def note_absence(self, operation: str, error: APIError | None) -> None:
        """Note that the server lacks an operation. If there is no error, its response had an
        unexpected type.
        """
        evidence = "unexpected response type" if error is None else _describe(error)
        self.note(ABSENT, operation, ABSENT, evidence)

    def forget_absences(self) -> None:
        """Forget the features that the server lacked: it was restarted, perhaps as
        another version.
        """
        for key in [key for key in self._facts if key[0] == ABSENT]:
            del self._facts[key]

    def lacks(self, operation: str) -> bool:
        """Return whether the server is known to lack an operation."""
        return (ABSENT, operation) in self._facts


class RefusedFields:
    """The fields that one server refuses, by operation."""

    def __init__(self, findings: Findings | None = None) -> None:
        self._findings = findings
        self.paths: dict[str, set[Path]] = {}

    def learn(
        self, operation: str, body: msgspec.Struct, refusal: object, status: int = 422
    ) -> bool:
        """Return whether a refusal only concerns fields of ``body`` with their default value, and
        omit these from now on.

        ``refusal`` is the body of the response, parsed or not.
        """
        paths = _find_refused(refusal)
        if not paths or not all(_is_default(body, path) for path in paths):
            return False
        logger.debug(
            "%s: the server refuses %s; omitted from later requests",
            operation,
            ", ".join(map(".".join, paths)),
        )
        known = self.paths.setdefault(operation, set())
        known.update(paths)
        if self._findings is not None:
            self._findings.note(
                "fields",
                operation,
                f"{', '.join(sorted(map('.'.join, known)))} left out",
                str(status),
            )
        return True

    def without(self, operation: str, body: S) -> S:
        """Return the body without refused fields that have their default value; the same body if it
        has no such fields.
        """
        for path in self.paths.get(operation, ()):
            if _is_default(body, path):
                body = _leave_out(body, path)
        return body


def _describe(error: APIError) -> str:
    """Describe a failure in one word or number."""
    return str(error.status_code) if isinstance(error, APIStatusError) else type(error).__name__


def _find_refused(refusal: object) -> list[Path]:
    """Return the fields that a refusal names; none if the refusal has other reasons or another
    format.
    """
    try:
        if isinstance(refusal, bytes):
            read = msgspec.json.decode(refusal, type=_FieldRefusal)
        else:
            read = msgspec.convert(refusal, _FieldRefusal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    paths = [_path(fault.loc) for fault in read.detail if fault.type in _REFUSALS]
    known = [path for path in paths if path]
    return known if len(known) == len(read.detail) else []


class _FieldFault(msgspec.Struct):
    type: str
    loc: list[str | int]


class _FieldRefusal(msgspec.Struct):
    detail: list[_FieldFault]


def _path(loc: Sequence[str | int]) -> Path:
    """Return the path of a field, from the outermost name, without the part for the body; empty for
    an item of a list.
    """
    names = loc[1:] if loc and loc[0] == "body" else loc
    return (
        tuple(cast("Sequence[str]", names)) if all(isinstance(name, str) for name in names) else ()
    )


def _is_default(record: Any, path: Path) -> bool:
    """Return whether a field is present with its default value."""
    *outer, last = path
    for name in outer:
        record = getattr(record, name, None)
    if not isinstance(record, msgspec.Struct):
        return False
    field = next((field for field in fields(record) if field.encode_name == last), None)
    return (
        field is not None
        and not field.required
        and bool(getattr(record, field.name) == _default(field))
    )


def _default(field: FieldInfo) -> object:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _leave_out(record: S, path: Path) -> S:
    name, *inner = path
    changed = copy.copy(record)
    force_setattr(
        changed, name, _leave_out(getattr(record, name), tuple(inner)) if inner else UNSET
    )
    return changed
