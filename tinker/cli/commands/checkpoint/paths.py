"""Checkpoint paths as arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker.cli.errors import CommandFailed

if TYPE_CHECKING:
    from tinker.types.paths import ParsedCheckpointTinkerPath


def parse_path(tinker_path: str) -> ParsedCheckpointTinkerPath:
    """Parse a checkpoint path; CommandFailed when it is not one."""
    from tinker.types.paths import ParsedCheckpointTinkerPath

    try:
        return ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
    except ValueError:
        expected = "It must be tinker://RUN/KIND/NAME, with KIND weights, sampler_weights or external_weights."
        advice = "`tinker checkpoint list` shows the paths."
        raise CommandFailed(f"Invalid checkpoint path: {tinker_path}", expected, advice) from None
