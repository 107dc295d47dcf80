"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import PromptProvenanceSpan, ProvenanceSpans, SampledProvenanceSpan

__all__ = ["PromptProvenanceSpan", "ProvenanceSpans", "SampledProvenanceSpan"]
