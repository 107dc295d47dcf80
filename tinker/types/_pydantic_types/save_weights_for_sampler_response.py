"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import ParsedCheckpointTinkerPath, SaveWeightsForSamplerResponse, SaveWeightsForSamplerResponseInternal

__all__ = ["ParsedCheckpointTinkerPath", "SaveWeightsForSamplerResponse", "SaveWeightsForSamplerResponseInternal"]
