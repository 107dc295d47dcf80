"""What one run has learned about the server: what it takes, what fails there, what it answers."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from tinker._http import RefusedFields

BodyFormat: TypeAlias = Literal["proto", "json"]


@attrs.define
class RunMemory:
    """What checks tell those after them.

    ``rate`` and ``eps``: of steps as long as the gradient. ``spare``: a model that was not freed, and its next number.
    ``refused``: fields at their default that the server forbids, which are left out as clients do.
    ``broken``: checks on which others rest and that fail, each with how. ``statuses``: operation to the statuses of its
    successes. ``full``: operations that were refused with 429 until the time was over. ``lacking``: operations for freeing
    things that are not there. ``shared_session``: the session of all checks where sessions cannot be finished;
    ``numbers_used``: how many numbers of models and samplers earlier checks took in it.
    """

    base_model: str | None = None
    form: BodyFormat | None = None
    rate: float | None = None
    eps: float = 1e4
    spare: tuple[str, int] | None = None
    refused: RefusedFields = attrs.field(factory=RefusedFields)
    broken: dict[str, str] = attrs.field(factory=lambda: dict[str, str]())
    statuses: dict[str, set[int]] = attrs.field(factory=lambda: dict[str, set[int]]())
    full: set[str] = attrs.field(factory=lambda: set[str]())
    lacking: set[str] = attrs.field(factory=lambda: set[str]())
    shared_session: str | None = None
    numbers_used: int = 0
