# generated from openapi.yaml; do not edit
"""What the contract says of values and its types do not: limits of schemas and properties, and the constants of schemas."""

from typing import Final

CLIENT_CONFIG_RESPONSE_SAMPLE_DISPATCH_BYTES_SEMAPHORE_SIZE_MINIMUM: Final = 0
"""`minimum` of `ClientConfigResponse.sample_dispatch_bytes_semaphore_size`."""

CLIENT_CONFIG_RESPONSE_INFLIGHT_RESPONSE_BYTES_SEMAPHORE_SIZE_MINIMUM: Final = 0
"""`minimum` of `ClientConfigResponse.inflight_response_bytes_semaphore_size`."""

CLIENT_CONFIG_RESPONSE_FWDBWD_MAX_CHUNK_LEN_MINIMUM: Final = 1
"""`minimum` of `ClientConfigResponse.fwdbwd_max_chunk_len`."""

CLIENT_CONFIG_RESPONSE_FWDBWD_MAX_CHUNK_BYTES_COUNT_MINIMUM: Final = 1
"""`minimum` of `ClientConfigResponse.fwdbwd_max_chunk_bytes_count`."""

CLIENT_CONFIG_RESPONSE_FWDBWD_DISPATCH_BYTES_SEMAPHORE_SIZE_MINIMUM: Final = 0
"""`minimum` of `ClientConfigResponse.fwdbwd_dispatch_bytes_semaphore_size`."""

CLIENT_CONFIG_RESPONSE_BILLING_EXCEPTION_MAX_PAUSE_DURATION_SEC_MINIMUM: Final = 0
"""`minimum` of `ClientConfigResponse.billing_exception_max_pause_duration_sec`."""

CLIENT_CONFIG_RESPONSE_SAMPLE_MAX_CONCURRENT_REQUESTS_MINIMUM: Final = 1
"""`minimum` of `ClientConfigResponse.sample_max_concurrent_requests`."""

CLIENT_DYNAMIC_CONFIG_RESPONSE_REFRESH_INTERVAL_SEC_MINIMUM: Final = 0
"""`minimum` of `ClientDynamicConfigResponse.refresh_interval_sec`."""

CLIENT_DYNAMIC_CONFIG_RESPONSE_SAMPLE_CANCEL_MAX_BATCH_SIZE_MINIMUM: Final = 1
"""`minimum` of `ClientDynamicConfigResponse.sample_cancel_max_batch_size`."""

SUPPORTED_MODEL_MAX_CONTEXT_LENGTH_MINIMUM: Final = 1
"""`minimum` of `SupportedModel.max_context_length`."""

CREATE_SESSION_RESPONSE_SESSION_ID_MIN_LENGTH: Final = 1
"""`minLength` of `CreateSessionResponse.session_id`."""

USER_SEARCH_OWNER_OWNER_URNS_MIN_ITEMS: Final = 1
"""`minItems` of `UserSearchOwner.owner_urns`."""

USER_SEARCH_OWNER_OWNER_URNS_MAX_ITEMS: Final = 10
"""`maxItems` of `UserSearchOwner.owner_urns`."""

CLIENT_FINISHED_SESSION_STATUS_QUERY_REASONS_MIN_ITEMS: Final = 1
"""`minItems` of `ClientFinishedSessionStatusQuery.reasons`."""

SESSION_SEARCH_REQUEST_DISPLAY_NAME_MIN_LENGTH: Final = 1
"""`minLength` of `SessionSearchRequest.display_name`."""

SESSION_SEARCH_REQUEST_STATUSES_MIN_ITEMS: Final = 1
"""`minItems` of `SessionSearchRequest.statuses`."""

SESSION_SEARCH_REQUEST_LIMIT_MINIMUM: Final = 1
"""`minimum` of `SessionSearchRequest.limit`."""

SESSION_SEARCH_REQUEST_LIMIT_MAXIMUM: Final = 200
"""`maximum` of `SessionSearchRequest.limit`."""

SESSION_SUMMARY_CHECKPOINTS_COUNT_MINIMUM: Final = 0
"""`minimum` of `SessionSummary.checkpoints_count`."""

SESSION_SUMMARY_CHECKPOINT_STORAGE_BYTES_MINIMUM: Final = 0
"""`minimum` of `SessionSummary.checkpoint_storage_bytes`."""

LORA_CONFIG_RANK_MINIMUM: Final = 0
"""`minimum` of `LoraConfig.rank`."""

LORA_CONFIG_LORA_ALPHA_EXCLUSIVE_MINIMUM: Final = 0
"""`exclusiveMinimum` of `LoraConfig.lora_alpha`."""

LORA_CONFIG_TARGET_MODULES_MIN_ITEMS: Final = 1
"""`minItems` of `LoraConfig.target_modules`."""

DIMUON_OPTIMIZER_CONFIG_VERSION_MINIMUM: Final = 1
"""`minimum` of `DimuonOptimizerConfig.version`."""

DIMUON_OPTIMIZER_CONFIG_VERSION_MAXIMUM: Final = 1
"""`maximum` of `DimuonOptimizerConfig.version`."""

CREATE_MODEL_REQUEST_MODEL_SEQ_ID_MINIMUM: Final = 0
"""`minimum` of `CreateModelRequest.model_seq_id`."""

CREATE_MODEL_RESPONSE_MODEL_ID_MIN_LENGTH: Final = 1
"""`minLength` of `CreateModelResponse.model_id`."""

GET_INFO_RESPONSE_LORA_RANK_MINIMUM: Final = 0
"""`minimum` of `GetInfoResponse.lora_rank`."""

IMAGE_CHUNK_EXPECTED_TOKENS_MINIMUM: Final = 0
"""`minimum` of `ImageChunk.expected_tokens`."""

IMAGE_CHUNK_HEIGHT_MINIMUM: Final = 0
"""`minimum` of `ImageChunk.height`."""

IMAGE_CHUNK_WIDTH_MINIMUM: Final = 0
"""`minimum` of `ImageChunk.width`."""

IMAGE_CHUNK_TOKENS_MINIMUM: Final = 0
"""`minimum` of `ImageChunk.tokens`."""

IMAGE_ASSET_POINTER_CHUNK_EXPECTED_TOKENS_MINIMUM: Final = 0
"""`minimum` of `ImageAssetPointerChunk.expected_tokens`."""

LOSS_FN_TYPE_INPUTS: Final = {
    "cross_entropy": {"required": ["target_tokens"], "optional": ["weights"]},
    "importance_sampling": {
        "required": ["target_tokens", "logprobs", "advantages"],
        "optional": ["weights", "mask", "clip_low_threshold", "clip_high_threshold", "sequence_ratio_mask"],
    },
    "ppo": {
        "required": ["target_tokens", "logprobs", "advantages"],
        "optional": ["weights", "mask", "clip_low_threshold", "clip_high_threshold", "sequence_ratio_mask"],
    },
    "cispo": {
        "required": ["target_tokens", "logprobs", "advantages"],
        "optional": ["weights", "mask", "clip_low_threshold", "clip_high_threshold", "sequence_ratio_mask"],
    },
    "gspo": {
        "required": ["target_tokens", "logprobs", "advantages"],
        "optional": ["weights", "mask", "clip_low_threshold", "clip_high_threshold", "sequence_ratio_mask"],
    },
    "dro": {
        "required": ["target_tokens", "logprobs", "advantages"],
        "optional": ["weights", "mask", "clip_low_threshold", "clip_high_threshold", "sequence_ratio_mask"],
    },
}
"""`inputs` of `LossFnType`."""

LOSS_FN_TYPE_INPUT_DTYPES: Final = {
    "target_tokens": "int64",
    "weights": "float32",
    "advantages": "float32",
    "logprobs": "float32",
    "clip_low_threshold": "float32",
    "clip_high_threshold": "float32",
    "sequence_ratio_mask": "float32",
}
"""`input_dtypes` of `LossFnType`."""

FORWARD_BACKWARD_REQUEST_SEQ_ID_MINIMUM: Final = 1
"""`minimum` of `ForwardBackwardRequest.seq_id`."""

FORWARD_REQUEST_SEQ_ID_MINIMUM: Final = 1
"""`minimum` of `ForwardRequest.seq_id`."""

CUSTOM_LOSS_INPUT_NAME_PATTERN: Final = "^[a-z_][a-z0-9_]{0,63}$"
"""`pattern` of `CustomLossInput.name`."""

CUSTOM_LOSS_INPUT_RANK_MINIMUM: Final = 0
"""`minimum` of `CustomLossInput.rank`."""

CUSTOM_LOSS_INPUT_RANK_MAXIMUM: Final = 2
"""`maximum` of `CustomLossInput.rank`."""

CUSTOM_LOSS_GRAPH_FORMAT_MINIMUM: Final = 1
"""`minimum` of `CustomLossGraph.format`."""

CUSTOM_LOSS_GRAPH_FORMAT_MAXIMUM: Final = 1
"""`maximum` of `CustomLossGraph.format`."""

CUSTOM_LOSS_GRAPH_METRIC_NAME_PATTERN: Final = "^custom/[a-z0-9_./-]{1,64}:(sum|mean)$"
"""`metric_name_pattern` of `CustomLossGraph`."""

CREATE_CUSTOM_LOSS_REQUEST_CUSTOM_LOSS_SEQ_ID_MINIMUM: Final = 0
"""`minimum` of `CreateCustomLossRequest.custom_loss_seq_id`."""

CREATE_CUSTOM_LOSS_REQUEST_NAME_MIN_LENGTH: Final = 1
"""`minLength` of `CreateCustomLossRequest.name`."""

CREATE_CUSTOM_LOSS_REQUEST_INPUTS_MIN_ITEMS: Final = 1
"""`minItems` of `CreateCustomLossRequest.inputs`."""

CREATE_CUSTOM_LOSS_REQUEST_INPUTS_MAX_ITEMS: Final = 16
"""`maxItems` of `CreateCustomLossRequest.inputs`."""

DIMUON_PARAMS_LEARNING_RATE_MINIMUM: Final = 0
"""`minimum` of `DimuonParams.learning_rate`."""

DIMUON_PARAMS_BETA1_MINIMUM: Final = 0
"""`minimum` of `DimuonParams.beta1`."""

DIMUON_PARAMS_BETA1_EXCLUSIVE_MAXIMUM: Final = 1
"""`exclusiveMaximum` of `DimuonParams.beta1`."""

OPTIM_STEP_REQUEST_SEQ_ID_MINIMUM: Final = 1
"""`minimum` of `OptimStepRequest.seq_id`."""

TTL_SECONDS_MINIMUM: Final = 3600
"""`minimum` of `TtlSeconds`."""

TTL_SECONDS_MAXIMUM: Final = 315360000
"""`maximum` of `TtlSeconds`."""

SAVE_WEIGHTS_REQUEST_SEQ_ID_MINIMUM: Final = 1
"""`minimum` of `SaveWeightsRequest.seq_id`."""

SAVE_WEIGHTS_REQUEST_KEEP_LAST_MINIMUM: Final = 1
"""`minimum` of `SaveWeightsRequest.keep_last`."""

SAVE_WEIGHTS_FOR_SAMPLER_REQUEST_SAMPLING_SESSION_SEQ_ID_MINIMUM: Final = 0
"""`minimum` of `SaveWeightsForSamplerRequest.sampling_session_seq_id`."""

SAVE_WEIGHTS_FOR_SAMPLER_REQUEST_SEQ_ID_MINIMUM: Final = 1
"""`minimum` of `SaveWeightsForSamplerRequest.seq_id`."""

SAVE_WEIGHTS_FOR_SAMPLER_REQUEST_KEEP_LAST_MINIMUM: Final = 1
"""`minimum` of `SaveWeightsForSamplerRequest.keep_last`."""

SAVE_WEIGHTS_EXTERNAL_REQUEST_SEQ_ID_MINIMUM: Final = 1
"""`minimum` of `SaveWeightsExternalRequest.seq_id`."""

SAVE_WEIGHTS_EXTERNAL_REQUEST_AGE_ENCRYPTION_RECIPIENTS_MAX_ITEMS: Final = 10
"""`maxItems` of `SaveWeightsExternalRequest.age_encryption_recipients`."""

SAVE_WEIGHTS_EXTERNAL_RESPONSE_INTERNAL_SIZE_BYTES_MINIMUM: Final = 0
"""`minimum` of `SaveWeightsExternalResponseInternal.size_bytes`."""

LOAD_WEIGHTS_REQUEST_SEQ_ID_MINIMUM: Final = 1
"""`minimum` of `LoadWeightsRequest.seq_id`."""

LOAD_WEIGHTS_REQUEST_MODEL_SEQ_ID_MINIMUM: Final = 0
"""`minimum` of `LoadWeightsRequest.model_seq_id`."""

WEIGHTS_INFO_RESPONSE_LORA_RANK_MINIMUM: Final = 0
"""`minimum` of `WeightsInfoResponse.lora_rank`."""

COPY_WEIGHTS_REQUEST_MODEL_SEQ_ID_MINIMUM: Final = 0
"""`minimum` of `CopyWeightsRequest.model_seq_id`."""

CHECKPOINT_CHECKPOINT_ID_PATTERN: Final = "^(weights|sampler_weights|external_weights)/[^/]+$"
"""`pattern` of `Checkpoint.checkpoint_id`."""

CHECKPOINT_SIZE_BYTES_MINIMUM: Final = 0
"""`minimum` of `Checkpoint.size_bytes`."""

CHECKPOINT_SEARCH_REQUEST_LIMIT_MINIMUM: Final = 1
"""`minimum` of `CheckpointSearchRequest.limit`."""

CHECKPOINT_SEARCH_REQUEST_LIMIT_MAXIMUM: Final = 200
"""`maximum` of `CheckpointSearchRequest.limit`."""

CURSOR_OFFSET_MINIMUM: Final = 0
"""`minimum` of `Cursor.offset`."""

CURSOR_LIMIT_MINIMUM: Final = 0
"""`minimum` of `Cursor.limit`."""

CURSOR_TOTAL_COUNT_MINIMUM: Final = 0
"""`minimum` of `Cursor.total_count`."""

TRAINING_RUN_LORA_RANK_MINIMUM: Final = 0
"""`minimum` of `TrainingRun.lora_rank`."""

CREATE_SAMPLING_SESSION_REQUEST_SAMPLING_SESSION_SEQ_ID_MINIMUM: Final = 0
"""`minimum` of `CreateSamplingSessionRequest.sampling_session_seq_id`."""

CREATE_SAMPLING_SESSION_RESPONSE_SAMPLING_SESSION_ID_MIN_LENGTH: Final = 1
"""`minLength` of `CreateSamplingSessionResponse.sampling_session_id`."""

JOIN_SAMPLING_SESSION_RESPONSE_CLIENT_COUNTER_MINIMUM: Final = 1
"""`minimum` of `JoinSamplingSessionResponse.client_counter`."""

JOIN_SAMPLING_SESSION_RESPONSE_CLIENT_COUNTER_MAXIMUM: Final = 1000000000
"""`maximum` of `JoinSamplingSessionResponse.client_counter`."""

SAMPLING_PARAMS_MAX_TOKENS_MINIMUM: Final = 0
"""`minimum` of `SamplingParams.max_tokens`."""

SAMPLING_PARAMS_TEMPERATURE_MINIMUM: Final = 0
"""`minimum` of `SamplingParams.temperature`."""

SAMPLING_PARAMS_TOP_K_MINIMUM: Final = -1
"""`minimum` of `SamplingParams.top_k`."""

SAMPLING_PARAMS_TOP_P_MINIMUM: Final = 0
"""`minimum` of `SamplingParams.top_p`."""

SAMPLING_PARAMS_TOP_P_MAXIMUM: Final = 1
"""`maximum` of `SamplingParams.top_p`."""

SAMPLING_PARAMS_MIN_P_MINIMUM: Final = 0
"""`minimum` of `SamplingParams.min_p`."""

SAMPLING_PARAMS_MIN_P_MAXIMUM: Final = 1
"""`maximum` of `SamplingParams.min_p`."""

SAMPLING_PARAMS_PRESENCE_PENALTY_MINIMUM: Final = -2
"""`minimum` of `SamplingParams.presence_penalty`."""

SAMPLING_PARAMS_PRESENCE_PENALTY_MAXIMUM: Final = 2
"""`maximum` of `SamplingParams.presence_penalty`."""

SAMPLING_PARAMS_FREQUENCY_PENALTY_MINIMUM: Final = -2
"""`minimum` of `SamplingParams.frequency_penalty`."""

SAMPLING_PARAMS_FREQUENCY_PENALTY_MAXIMUM: Final = 2
"""`maximum` of `SamplingParams.frequency_penalty`."""

SAMPLING_PARAMS_REPETITION_PENALTY_EXCLUSIVE_MINIMUM: Final = 0
"""`exclusiveMinimum` of `SamplingParams.repetition_penalty`."""

SAMPLE_REQUEST_NUM_SAMPLES_MINIMUM: Final = 1
"""`minimum` of `SampleRequest.num_samples`."""

SAMPLE_REQUEST_SEQ_ID_MINIMUM: Final = 0
"""`minimum` of `SampleRequest.seq_id`."""

SAMPLE_REQUEST_TOPK_PROMPT_LOGPROBS_MINIMUM: Final = 0
"""`minimum` of `SampleRequest.topk_prompt_logprobs`."""

SAMPLE_REQUEST_TOPK_SAMPLE_LOGPROBS_MINIMUM: Final = 0
"""`minimum` of `SampleRequest.topk_sample_logprobs`."""

SAMPLE_REQUEST_PROMPT_ALT_TOKENS_K_MINIMUM: Final = 0
"""`minimum` of `SampleRequest.prompt_alt_tokens_k`."""

SAMPLE_REQUEST_PROMPT_LOGPROBS_LAST_N_MINIMUM: Final = 1
"""`minimum` of `SampleRequest.prompt_logprobs_last_n`."""

TOKEN_LOGPROB_MIN_ITEMS: Final = 2
"""`minItems` of `TokenLogprob`."""

TOKEN_LOGPROB_MAX_ITEMS: Final = 2
"""`maxItems` of `TokenLogprob`."""

SAMPLE_RESPONSE_PROMPT_CACHE_HIT_TOKENS_MINIMUM: Final = 0
"""`minimum` of `SampleResponse.prompt_cache_hit_tokens`."""

SAMPLE_STREAM_EVENT_INDEX_MINIMUM: Final = 0
"""`minimum` of `SampleStreamEvent.index`."""

UNTYPED_API_FUTURE_REQUEST_ID_MIN_LENGTH: Final = 1
"""`minLength` of `UntypedAPIFuture.request_id`."""

FUTURE_STATUS_RESPONSE_PAYLOAD_SIZE_MINIMUM: Final = 0
"""`minimum` of `FutureStatus.response_payload_size`."""

FUTURE_METADATA_RESPONSE_RESPONSE_PAYLOAD_SIZE_MINIMUM: Final = 0
"""`minimum` of `FutureMetadataResponse.response_payload_size`."""

SAMPLING_SESSION_FUTURES_TARGET_CLONED_SAMPLER_ID_MINIMUM: Final = 0
"""`minimum` of `SamplingSessionFuturesTarget.cloned_sampler_id`."""

FUTURES_RETRIEVE_REQUEST_PREV_CURSOR_MINIMUM: Final = 0
"""`minimum` of `FuturesRetrieveRequest.prev_cursor`."""

FUTURES_RETRIEVE_REQUEST_TIMEOUT_MINIMUM: Final = 0
"""`minimum` of `FuturesRetrieveRequest.timeout`."""

FUTURE_FINISHED_RESPONSE_PAYLOAD_UNCOMPRESSED_SIZE_MINIMUM: Final = 0
"""`minimum` of `FutureFinished.response_payload_uncompressed_size`."""

FUTURES_RETRIEVE_RESPONSE_CURSOR_MINIMUM: Final = 0
"""`minimum` of `FuturesRetrieveResponse.cursor`."""

SESSION_START_EVENT_EVENT_SESSION_INDEX_MINIMUM: Final = 0
"""`minimum` of `SessionStartEvent.event_session_index`."""

SESSION_END_EVENT_EVENT_SESSION_INDEX_MINIMUM: Final = 0
"""`minimum` of `SessionEndEvent.event_session_index`."""

UNHANDLED_EXCEPTION_EVENT_EVENT_SESSION_INDEX_MINIMUM: Final = 0
"""`minimum` of `UnhandledExceptionEvent.event_session_index`."""

GENERIC_EVENT_EVENT_SESSION_INDEX_MINIMUM: Final = 0
"""`minimum` of `GenericEvent.event_session_index`."""

TELEMETRY_SEND_REQUEST_EVENTS_MAX_ITEMS: Final = 100
"""`maxItems` of `TelemetrySendRequest.events`."""

TRAINING_BILLING_EVENT_TOKEN_COUNT_MINIMUM: Final = 0
"""`minimum` of `TrainingBillingEvent.token_count`."""

SAMPLING_PREFILL_BILLING_EVENT_TOKEN_COUNT_MINIMUM: Final = 0
"""`minimum` of `SamplingPrefillBillingEvent.token_count`."""

SAMPLING_SAMPLE_BILLING_EVENT_TOKEN_COUNT_MINIMUM: Final = 0
"""`minimum` of `SamplingSampleBillingEvent.token_count`."""

CHECKPOINT_BILLING_EVENT_COUNT_MINIMUM: Final = 0
"""`minimum` of `CheckpointBillingEvent.count`."""

STORAGE_BILLING_EVENT_GIGABYTE_HOURS_MINIMUM: Final = 0
"""`minimum` of `StorageBillingEvent.gigabyte_hours`."""

CURRENT_CHECKPOINT_STORAGE_USAGE_ITEM_CHECKPOINT_COUNT_MINIMUM: Final = 0
"""`minimum` of `CurrentCheckpointStorageUsageItem.checkpoint_count`."""

CURRENT_CHECKPOINT_STORAGE_USAGE_ITEM_SIZE_BYTES_MINIMUM: Final = 0
"""`minimum` of `CurrentCheckpointStorageUsageItem.size_bytes`."""

CURRENT_CHECKPOINT_STORAGE_USAGE_ITEM_SIZE_GIGABYTES_MINIMUM: Final = 0
"""`minimum` of `CurrentCheckpointStorageUsageItem.size_gigabytes`."""
