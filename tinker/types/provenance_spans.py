"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import PromptProvenanceSpan, ProvenanceSpans, SampledProvenanceSpan

__all__ = ["PromptProvenanceSpan", "ProvenanceSpans", "SampledProvenanceSpan"]
