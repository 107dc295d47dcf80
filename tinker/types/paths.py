"""Checkpoint paths: ``tinker://<training run>/<kind>/<name>``."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from tinker.types._values import AttrsValue

CheckpointType: TypeAlias = Literal["training", "sampler", "external"]
ModelID: TypeAlias = str
RequestID: TypeAlias = str

_TYPES: dict[str, CheckpointType] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
SCHEME = "tinker://"


@attrs.frozen(kw_only=True)
class ParsedCheckpointTinkerPath(AttrsValue):
    """Parts of a checkpoint path.

    Attributes:
        tinker_path: The whole path, ``tinker://<training run>/<kind>/<name>``.
        training_run_id: The id of the training run.
        checkpoint_type: ``training``, ``sampler`` or ``external``, according to the kind.
        checkpoint_id: The rest of the path, ``<kind>/<name>``.
    """

    tinker_path: str
    training_run_id: str
    checkpoint_type: CheckpointType
    checkpoint_id: str

    @classmethod
    def from_tinker_path(cls, tinker_path: str) -> ParsedCheckpointTinkerPath:
        """Parse a path.

        Args:
            tinker_path: The path, ``tinker://<training run>/<kind>/<name>``.

        Returns:
            The parts of the path.

        Raises:
            ValueError: The text lacks the scheme, a run, a known kind or a name.

        >>> ParsedCheckpointTinkerPath.from_tinker_path("tinker://run/weights/0001").checkpoint_id
        'weights/0001'
        """
        parts = tinker_path.removeprefix(SCHEME).split("/")
        if not tinker_path.startswith(SCHEME) or len(parts) != 3 or parts[1] not in _TYPES:
            kinds = "|".join(_TYPES)
            raise ValueError(
                f"{tinker_path!r} is not the path of a checkpoint; expected {SCHEME}<training "
                f"run>/<{kinds}>/<name>"
            )
        return cls(
            tinker_path=tinker_path,
            training_run_id=parts[0],
            checkpoint_type=_TYPES[parts[1]],
            checkpoint_id=f"{parts[1]}/{parts[2]}",
        )
