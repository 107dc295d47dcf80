"""The field numbers and enum values of tinker_public.proto; made by `python -m codegen generate`."""

from typing import Final

STOP_REASON: Final = {"stop": 0, "length": 1}
DTYPE: Final = {"unspecified": 0, "float32": 1, "int64": 2, "int32": 3, "bfloat16": 4}


class SparseCsrFields:
    VALUES: Final = 1
    CROW_INDICES: Final = 2
    COL_INDICES: Final = 3


class TensorFields:
    DENSE: Final = 1
    SPARSE_CSR: Final = 2
    DTYPE: Final = 3
    SHAPE: Final = 4


class BatchedTensorFields:
    DATA: Final = 1
    OFFSETS: Final = 2
    DTYPE: Final = 3
    TRAILING_SHAPE: Final = 4


class EncodedTextChunkFields:
    TOKENS: Final = 1


class ImageDimensionsFields:
    WIDTH: Final = 1
    HEIGHT: Final = 2


class ImageChunkFields:
    DATA: Final = 1
    FORMAT: Final = 2
    EXPECTED_TOKENS: Final = 3
    OVERRIDE_DIMENSIONS: Final = 4


class DmelChunkFields:
    DMEL: Final = 1


class ChunkFields:
    ENCODED_TEXT: Final = 1
    IMAGE: Final = 2
    DMEL: Final = 3


class PromptProvenanceSpanFields:
    SEQUENCE_ID: Final = 1
    OFFSET: Final = 2
    LENGTH: Final = 3


class SampledProvenanceSpanFields:
    SEQUENCE_ID: Final = 1
    OFFSET: Final = 2
    LENGTH: Final = 3


class ProvenanceSpanFields:
    PROMPT_TOKENS: Final = 1
    SAMPLED_TOKENS: Final = 2


class DatumFields:
    MODEL_INPUT: Final = 1
    LOSS_FN_INPUTS: Final = 2
    MODEL_INPUT_SPANS: Final = 3
    LOSS_FN_INPUT_SPANS: Final = 4


class LossConfigValueFields:
    NUMBER: Final = 1
    TEXT: Final = 2


class ForwardBackwardRequestFields:
    MODEL_ID: Final = 1
    SEQ_ID: Final = 2
    DATA: Final = 3
    LOSS_FN: Final = 4
    LOSS_FN_CONFIG: Final = 5
    FORWARD_ONLY: Final = 6
    LOSS_FN_CONFIG_V2: Final = 7


class ArrayRecordFields:
    TYPE_TAG: Final = 1
    FIELDS: Final = 2
    NUM_DATUMS: Final = 3


class ForwardBackwardOutputFields:
    LOSS_FN_OUTPUT_TYPE: Final = 1
    LOSS_FN_OUTPUTS: Final = 2
    METRICS: Final = 3


class TopkLogprobsFields:
    TOKEN_IDS: Final = 1
    LOGPROBS: Final = 2
    K: Final = 3
    LENGTH: Final = 4


class SampledSequenceFields:
    STOP_REASON: Final = 1
    TOKENS: Final = 2
    LOGPROBS: Final = 3
    TOPK_SAMPLED_LOGPROBS: Final = 4


class PromptAltTokensFields:
    TOKENS: Final = 1
    LOGPROBS: Final = 2


class SampleResponseFields:
    SEQUENCES: Final = 1
    PROMPT_LOGPROBS: Final = 2
    TOPK_PROMPT_LOGPROBS: Final = 3
    PROMPT_CACHE_HIT_TOKENS: Final = 4
    TARGET_PROMPT_LOGPROBS: Final = 5
    PROMPT_ALT_TOKENS: Final = 6


class SamplingParamsFields:
    MAX_TOKENS: Final = 1
    SEED: Final = 2
    TEMPERATURE: Final = 3
    TOP_K: Final = 4
    TOP_P: Final = 5
    STOP_STRS: Final = 6
    STOP_TOKENS: Final = 7


class StopStringsFields:
    VALUES: Final = 1


class StopTokensFields:
    VALUES: Final = 1
