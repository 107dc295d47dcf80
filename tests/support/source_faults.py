"""Faults in the sources: where each is put, and which test it fails."""

from __future__ import annotations

PLAYED = "contract/test_recorded_calls.py::test_the_same_calls_send_the_same_requests"
KIT = "testing/test_conformance.py::test_our_server_supports_it"
#: Faults outside the schemas: the file, the original text, the text with the fault, and the test
#: that fails.
SOURCE_FAULTS: dict[str, tuple[str, str, str, str]] = {
    "C4 no X-Tinker-Sampling-Backpressure": (
        "tinker/_sampling/__init__.py",
        ', x_tinker_sampling_backpressure="1"\n',
        "\n",
        f"{PLAYED}[cancel]",
    ),
    "C5 no X-Tinker-Request-Type": (
        "tinker/_session/results.py",
        "            x_tinker_request_type=self.spec.result.request_type,\n",
        "",
        f"{PLAYED}[optim_step]",
    ),
    "C6 no X-Idempotency-Key": (
        "tinker/_http/transport.py",
        'own[_IDEMPOTENCY_HEADER] = f"{self._key_prefix}{next(self._key_numbers):012x}"',
        "pass",
        "client/test_exchanges.py::test_attempts_share_an_idempotency_key",
    ),
    "C7 zstd without Content-Encoding": (
        "tinker/_http/transport.py",
        '            own["Content-Encoding"] = _wire.CONTENT_ENCODING\n',
        "",
        f"{PLAYED}[forward_backward_chunked_bytes]",
    ),
    "C8 copies numbered by 10**8": (
        "tinker/_sampling/portable.py",
        "SEQ_IDS_PER_CLONE = 1_000_000_000",
        "SEQ_IDS_PER_CLONE = 100_000_000",
        f"{PLAYED}[sample_clone_join]",
    ),
    "C9 numbers in one of two maps": (
        "tinker/_wire/proto.py",
        '            parts.append(_blob(b"\\x2a", key + b"\\x11" + _pack_double(item)))\n',
        "            pass\n",
        f"{PLAYED}[forward_backward_variants]",
    ),
    "O15 410 of retrieve_future removed": (
        "openapi.yaml",
        "        '410': {$ref: '#/components/responses/Gone'}\n        '422'",
        "        '422'",
        "contract/test_evidence.py::test_every_status_that_was_recorded_is_spelled_out",
    ),
    "S1 202 instead of 200": (
        "tinker/local/app.py",
        "return Response(reshaped(json.encode(value)), media_type",
        "return Response(reshaped(json.encode(value)), 202, media_type",
        f"{KIT}[errors.statuses]",
    ),
    "S2 a bare checkpoint id": (
        "tinker/local/handlers/common.py",
        "checkpoint_id=record.checkpoint_id,",
        'checkpoint_id=record.checkpoint_id.partition("/")[2],',
        f"{KIT}[weights.of_run]",
    ),
    "S3 a category in capitals": (
        "tinker/local/handlers/sampling.py",
        "category=outcome.category,",
        "category=outcome.category.upper(),",
        f"{KIT}[weights.missing]",
    ),
    "S4 no sample_sequence_ids": (
        "tinker/local/handlers/sampling.py",
        "sample_sequence_ids=sequence_ids)",
        "sample_sequence_ids=None)",
        f"{KIT}[sampling.samples]",
    ),
    "S5 an unknown queue state": (
        "tinker/local/handlers/sampling.py",
        'queue_state="active"',
        'queue_state="paused"',
        f"{KIT}[sequence.gap]",
    ),
    "S6 JSON for protobuf": (
        "tinker/local/handlers/sampling.py",
        "proto_wanted=call.accepts_proto and profile.protobuf",
        "proto_wanted=False",
        f"{KIT}[wires.protobuf]",
    ),
    "S7 401 without invalid_token": (
        "tinker/local/storage/__init__.py",
        """_refuse(detail, 'Bearer error="invalid_token"') from""",
        "_refuse(detail) from",
        "local/test_server_accounts.py::test_an_expired_token_is_called_invalid",
    ),
    "S8 total_count of the page": (
        "tinker/local/handlers/weights.py",
        "total_count=len(records)",
        "total_count=len(page)",
        "local/test_server_catalog.py::test_checkpoints_of_the_user_come_in_pages",
    ),
    "S9 no lora_rank": (
        "tinker/local/handlers/training.py",
        "        lora_rank=model.spec.rank,\n",
        "",
        "local/test_server_contract.py::test_info_describes_a_model",
    ),
    "S10 425 without Retry-After": (
        "tinker/local/handlers/weights.py",
        """is still being written", {"retry-after": "1"}
""",
        """is still being written"
""",
        "local/test_server_catalog.py::test_what_is_being_written_comes_too_early",
    ),
}
