"""A path of versions 0.16 to 0.25, under which the class had another name."""

from __future__ import annotations

from tinker.types.results import TopkLogprobs as TopkPromptLogprobs

__all__ = ["TopkPromptLogprobs"]
