"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import GetServerCapabilitiesResponse, SupportedModel

__all__ = ["GetServerCapabilitiesResponse", "SupportedModel"]
