"""The messages of tinker_public.proto, for Google's protobuf runtime; made by `python -m codegen generate`."""

from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder


def _add_older_name(kind: Any, name: str, older: str) -> Any:
    """Let messages of a class be made, read and written with an older name of a field too."""
    make, assign = kind.__init__, kind.__setattr__

    def make_with_either(self: Any, **fields: Any) -> None:
        if older in fields:
            fields[name] = fields.pop(older)
        make(self, **fields)

    def assign_either(self: Any, attribute: str, value: Any) -> None:
        assign(self, name if attribute == older else attribute, value)

    def read(self: Any) -> Any:
        return getattr(self, name)

    kind.__init__, kind.__setattr__ = make_with_either, assign_either
    setattr(kind, older, property(read))
    return kind


DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(
    b'\n\x13tinker_public.proto\x12\rtinker_public"F\n\tSparseCsr\x12'
    b'\x0e\n\x06values\x18\x01 \x01(\x0c\x12\x14\n\x0ccrow_indices\x18\x02 \x01(\x0c\x12\x13\n\x0bcol_indic'
    b'es\x18\x03 \x01(\x0c"\x89\x01\n\x06Tensor\x12#\n\x05dtype\x18\x03 \x01(\x0e2\x14.tinker_public'
    b'.DType\x12\r\n\x05shape\x18\x04 \x03(\x03\x12\x0f\n\x05dense\x18\x01 \x01(\x0cH\x00\x12.\n\nsparse_c'
    b'sr\x18\x02 \x01(\x0b2\x18.tinker_public.SparseCsrH\x00B\n\n\x08encoding"k'
    b'\n\rBatchedTensor\x12#\n\x05dtype\x18\x03 \x01(\x0e2\x14.tinker_public.DTy'
    b'pe\x12\x16\n\x0etrailing_shape\x18\x04 \x03(\x03\x12\x0f\n\x07offsets\x18\x02 \x01(\x0c\x12\x0c\n\x04dat'
    b'a\x18\x01 \x01(\x0c""\n\x10EncodedTextChunk\x12\x0e\n\x06tokens\x18\x01 \x01(\x0c"0\n\x0fIma'
    b'geDimensions\x12\r\n\x05width\x18\x01 \x01(\r\x12\x0e\n\x06height\x18\x02 \x01(\r"\xb6\x01\n\nIm'
    b'ageChunk\x12\x0e\n\x06format\x18\x02 \x01(\t\x12\x1c\n\x0fexpected_tokens\x18\x03 \x01(\x05H'
    b'\x00\x88\x01\x01\x12@\n\x13override_dimensions\x18\x04 \x01(\x0b2\x1e.tinker_public.'
    b'ImageDimensionsH\x01\x88\x01\x01\x12\x0c\n\x04data\x18\x01 \x01(\x0cB\x12\n\x10_expected_to'
    b'kensB\x16\n\x14_override_dimensions"\x19\n\tDmelChunk\x12\x0c\n\x04dmel\x18'
    b'\x01 \x01(\x0c"\x9f\x01\n\x05Chunk\x127\n\x0cencoded_text\x18\x01 \x01(\x0b2\x1f.tinker_pub'
    b'lic.EncodedTextChunkH\x00\x12*\n\x05image\x18\x02 \x01(\x0b2\x19.tinker_pub'
    b'lic.ImageChunkH\x00\x12(\n\x04dmel\x18\x03 \x01(\x0b2\x18.tinker_public.Dme'
    b'lChunkH\x00B\x07\n\x05chunk"K\n\x14PromptProvenanceSpan\x12\x13\n\x0bseque'
    b'nce_id\x18\x01 \x01(\t\x12\x0e\n\x06offset\x18\x02 \x01(\x03\x12\x0e\n\x06length\x18\x03 \x01(\x03"L\n\x15Sa'
    b'mpledProvenanceSpan\x12\x13\n\x0bsequence_id\x18\x01 \x01(\t\x12\x0e\n\x06offset'
    b'\x18\x02 \x01(\x03\x12\x0e\n\x06length\x18\x03 \x01(\x03"\x96\x01\n\x0eProvenanceSpan\x12<\n\rpromp'
    b't_tokens\x18\x01 \x01(\x0b2#.tinker_public.PromptProvenanceSpa'
    b'nH\x00\x12>\n\x0esampled_tokens\x18\x02 \x01(\x0b2$.tinker_public.Sample'
    b'dProvenanceSpanH\x00B\x06\n\x04span"\xb4\x02\n\x05Datum\x12)\n\x0bmodel_input'
    b'\x18\x01 \x03(\x0b2\x14.tinker_public.Chunk\x12>\n\x0eloss_fn_inputs\x18\x02 \x03'
    b'(\x0b2&.tinker_public.Datum.LossFnInputsEntry\x128\n\x11mode'
    b'l_input_spans\x18\x03 \x03(\x0b2\x1d.tinker_public.ProvenanceSpan'
    b'\x12:\n\x13loss_fn_input_spans\x18\x04 \x03(\x0b2\x1d.tinker_public.Prov'
    b'enanceSpan\x1aJ\n\x11LossFnInputsEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12$\n\x05va'
    b'lue\x18\x02 \x01(\x0b2\x15.tinker_public.Tensor:\x028\x01"<\n\x0fLossConfig'
    b'Value\x12\x10\n\x06number\x18\x01 \x01(\x01H\x00\x12\x0e\n\x04text\x18\x02 \x01(\tH\x00B\x07\n\x05value"\xb8'
    b'\x03\n\x16ForwardBackwardRequest\x12\x10\n\x08model_id\x18\x01 \x01(\t\x12\x0e\n\x06seq'
    b'_id\x18\x02 \x01(\x05\x12\x0f\n\x07loss_fn\x18\x04 \x01(\t\x12\x14\n\x0cforward_only\x18\x06 \x01(\x08\x12O'
    b'\n\x0eloss_fn_config\x18\x05 \x03(\x0b27.tinker_public.ForwardBack'
    b'wardRequest.LossFnConfigEntry\x12T\n\x11loss_fn_config_v2'
    b'\x18\x07 \x03(\x0b29.tinker_public.ForwardBackwardRequest.Loss'
    b'FnConfigV2Entry\x12"\n\x04data\x18\x03 \x03(\x0b2\x14.tinker_public.Datu'
    b'm\x1a3\n\x11LossFnConfigEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\x01'
    b':\x028\x01\x1aU\n\x13LossFnConfigV2Entry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12-\n\x05value\x18'
    b'\x02 \x01(\x0b2\x1e.tinker_public.LossConfigValue:\x028\x01"\xb8\x01\n\x0bArra'
    b'yRecord\x12\x10\n\x08type_tag\x18\x01 \x01(\t\x12\x12\n\nnum_datums\x18\x03 \x01(\x03\x126\n\x06f'
    b'ields\x18\x02 \x03(\x0b2&.tinker_public.ArrayRecord.FieldsEntr'
    b'y\x1aK\n\x0bFieldsEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12+\n\x05value\x18\x02 \x01(\x0b2\x1c.tin'
    b'ker_public.BatchedTensor:\x028\x01"\xdd\x01\n\x15ForwardBackwardOu'
    b'tput\x12\x1b\n\x13loss_fn_output_type\x18\x01 \x01(\t\x123\n\x0floss_fn_outpu'
    b'ts\x18\x02 \x03(\x0b2\x1a.tinker_public.ArrayRecord\x12B\n\x07metrics\x18\x03 '
    b'\x03(\x0b21.tinker_public.ForwardBackwardOutput.MetricsE'
    b'ntry\x1a.\n\x0cMetricsEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\x01:\x02'
    b'8\x01"N\n\x0cTopkLogprobs\x12\t\n\x01k\x18\x03 \x01(\r\x12\x0e\n\x06length\x18\x04 \x01(\r\x12\x11\n\tt'
    b'oken_ids\x18\x01 \x01(\x0c\x12\x10\n\x08logprobs\x18\x02 \x01(\x0c"\xd0\x01\n\x0fSampledSequen'
    b'ce\x12.\n\x0bstop_reason\x18\x01 \x01(\x0e2\x19.tinker_public.StopReason'
    b'\x12\x0e\n\x06tokens\x18\x02 \x01(\x0c\x12\x15\n\x08logprobs\x18\x03 \x01(\x0cH\x00\x88\x01\x01\x12?\n\x15topk_sa'
    b'mpled_logprobs\x18\x04 \x01(\x0b2\x1b.tinker_public.TopkLogprobsH'
    b'\x01\x88\x01\x01B\x0b\n\t_logprobsB\x18\n\x16_topk_sampled_logprobs"a\n\x0fPro'
    b'mptAltTokens\x12%\n\x06tokens\x18\x01 \x01(\x0b2\x15.tinker_public.Tenso'
    b'r\x12\'\n\x08logprobs\x18\x02 \x01(\x0b2\x15.tinker_public.Tensor"\x9c\x03\n\x0eSam'
    b'pleResponse\x121\n\tsequences\x18\x01 \x03(\x0b2\x1e.tinker_public.Sam'
    b'pledSequence\x12\x1c\n\x0fprompt_logprobs\x18\x02 \x01(\x0cH\x00\x88\x01\x01\x12>\n\x14topk'
    b'_prompt_logprobs\x18\x03 \x01(\x0b2\x1b.tinker_public.TopkLogprob'
    b'sH\x01\x88\x01\x01\x12\x1f\n\x17prompt_cache_hit_tokens\x18\x04 \x01(\x05\x12:\n\x16target_'
    b'prompt_logprobs\x18\x05 \x01(\x0b2\x15.tinker_public.TensorH\x02\x88\x01\x01\x12'
    b'>\n\x11prompt_alt_tokens\x18\x06 \x01(\x0b2\x1e.tinker_public.PromptA'
    b'ltTokensH\x03\x88\x01\x01B\x12\n\x10_prompt_logprobsB\x17\n\x15_topk_prompt_'
    b'logprobsB\x19\n\x17_target_prompt_logprobsB\x14\n\x12_prompt_alt'
    b'_tokens"\xa5\x02\n\x0eSamplingParams\x12\x17\n\nmax_tokens\x18\x01 \x01(\x05H\x01\x88\x01'
    b'\x01\x12\x11\n\x04seed\x18\x02 \x01(\x04H\x02\x88\x01\x01\x12\x18\n\x0btemperature\x18\x03 \x01(\x02H\x03\x88\x01\x01\x12\x12\n\x05'
    b'top_k\x18\x04 \x01(\x05H\x04\x88\x01\x01\x12\x12\n\x05top_p\x18\x05 \x01(\x02H\x05\x88\x01\x01\x12/\n\tstop_strs\x18'
    b'\x06 \x01(\x0b2\x1a.tinker_public.StopStringsH\x00\x120\n\x0bstop_tokens'
    b'\x18\x07 \x01(\x0b2\x19.tinker_public.StopTokensH\x00B\x06\n\x04stopB\r\n\x0b_ma'
    b'x_tokensB\x07\n\x05_seedB\x0e\n\x0c_temperatureB\x08\n\x06_top_kB\x08\n\x06_to'
    b'p_p"\x1d\n\x0bStopStrings\x12\x0e\n\x06values\x18\x01 \x03(\t"\x1c\n\nStopTokens\x12\x0e'
    b'\n\x06values\x18\x01 \x03(\x05*:\n\nStopReason\x12\x14\n\x10STOP_REASON_STOP\x10\x00'
    b'\x12\x16\n\x12STOP_REASON_LENGTH\x10\x01*g\n\x05DType\x12\x15\n\x11DTYPE_UNSPECI'
    b'FIED\x10\x00\x12\x11\n\rDTYPE_FLOAT32\x10\x01\x12\x0f\n\x0bDTYPE_INT64\x10\x02\x12\x0f\n\x0bDTYP'
    b'E_INT32\x10\x03\x12\x12\n\x0eDTYPE_BFLOAT16\x10\x04b\x06proto3'
)
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, "tinker.proto.tinker_public_pb2", globals())
TopkPromptLogprobs = _add_older_name(globals()["TopkLogprobs"], "length", "prompt_length")
