"""Checkpoint paths as arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker.cli.errors import Failure

if TYPE_CHECKING:
    from tinker.types.paths import ParsedCheckpointTinkerPath


def parsed(tinker_path: str) -> ParsedCheckpointTinkerPath:
    """The parts of a path; Failure for what is none."""
    from tinker.types.paths import ParsedCheckpointTinkerPath

    try:
        return ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
    except ValueError:
        wanted = "It must be tinker://RUN/KIND/NAME, with KIND weights, sampler_weights or external_weights."
        raise Failure(f"Invalid checkpoint path: {tinker_path}", wanted) from None
