"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import GetServerCapabilitiesResponse, SupportedModel

__all__ = ["GetServerCapabilitiesResponse", "SupportedModel"]
