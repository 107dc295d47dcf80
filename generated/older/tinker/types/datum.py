"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    Datum,
    LossFnInputs,
    ModelInput,
    PromptProvenanceSpan,
    ProvenanceSpan,
    ProvenanceSpans,
    SampledProvenanceSpan,
    TensorData,
)
from tinker.types.model_input import (
    LIST_DTYPES,
    LossFnInputValue,
    NamedTensors,
    SPARSIFIED,
    to_tensor_data,
)

__all__ = [
    "Datum",
    "LIST_DTYPES",
    "LossFnInputValue",
    "LossFnInputs",
    "ModelInput",
    "NamedTensors",
    "PromptProvenanceSpan",
    "ProvenanceSpan",
    "ProvenanceSpans",
    "SPARSIFIED",
    "SampledProvenanceSpan",
    "TensorData",
    "to_tensor_data",
]
