"""Sampled sequences at the sizes where the length prefix grows, and where the fast reader stops
applying.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinker._wire import proto

LENGTHS = [1, 2, 31, 32, 33, 63, 64, 127, 128, 129, 1000, 4095, 4096, 4097]
#: A field of up to 16383 bytes has a length prefix of two bytes; longer sequences are read by the
#: general reader.
LONGEST_QUICK = 4095


def message_of(messages: dict[str, Any], lengths: list[int], stop_reason: int) -> Any:
    """Return a response of Google's runtime, with distinct tokens and log-probabilities."""
    response = messages["SampleResponse"]()
    for place, length in enumerate(lengths):
        sequence = response.sequences.add()
        sequence.stop_reason = stop_reason
        sequence.tokens = (np.arange(length, dtype="<i4") * 7919 - place).tobytes()
        sequence.logprobs = (-np.arange(length, dtype="<f4") / 3 - place).tobytes()
    return response


@pytest.mark.parametrize("stop_reason", [0, 1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_sequences_of_every_length(messages: dict[str, Any], length: int, stop_reason: int) -> None:
    """Tokens, log-probabilities and stop reasons equal those that Google's runtime wrote."""
    message = message_of(messages, [3, length, 5], stop_reason)
    read = proto.decode_sample(message.SerializeToString(), ["a", "b", "c"])
    assert [sequence.sequence_id for sequence in read.sequences] == ["a", "b", "c"]
    for sequence, written in zip(read.sequences, message.sequences, strict=True):
        assert sequence.tokens_np.tobytes() == written.tokens
        assert sequence.logprobs_np is not None
        assert sequence.logprobs_np.tobytes() == written.logprobs
        assert sequence.stop_reason == {0: "stop", 1: "length"}.get(stop_reason, str(stop_reason))


@pytest.mark.parametrize("length", LENGTHS)
def test_the_usual_layout_is_read_quickly(messages: dict[str, Any], length: int) -> None:
    """The fast reader takes exactly the sequences with length prefixes of one or two bytes."""
    body = bytearray(message_of(messages, [length], 1).sequences[0].SerializeToString())
    quick = proto._read_usual_sequence(body, 0, len(body))
    assert (quick is not None) is (length <= LONGEST_QUICK)
    if quick is not None:
        assert quick.tokens == (np.arange(length) * 7919).astype(np.int32).tolist()
        assert quick.logprobs is not None
        assert quick.logprobs[-1] == np.float32(-(length - 1)) / np.float32(3)


@pytest.mark.parametrize("length", [1, 31, 32, 200])
def test_truncated_sequences_are_not_read(messages: dict[str, Any], length: int) -> None:
    """A truncated sequence is refused; the fast reader never reads past the end of its message."""
    body = message_of(messages, [length], 1).sequences[0].SerializeToString()
    for end in [*range(min(12, len(body))), *range(len(body) - 12, len(body))]:
        if end >= 0 and end != len(body):
            assert proto._read_usual_sequence(bytearray(body), 0, end) is None


@pytest.mark.parametrize("extra", [b"\x0a\x00", b"\x12\x00"])
def test_other_layouts_are_left_to_the_general_reader(
    messages: dict[str, Any], extra: bytes
) -> None:
    """Reordered, repeated, empty or partial fields are not read as the usual layout."""
    body = message_of(messages, [40], 1).sequences[0].SerializeToString()
    for changed in (body + extra, extra + body, body[:2] + body[2:].replace(b"\x1a", b"\x22", 1)):
        assert proto._read_usual_sequence(bytearray(changed), 0, len(changed)) is None
    for length in (0, 6):
        odd = b"\x08\x01\x12" + bytes([length]) + b"x" * length + b"\x1a\x04aaaa"
        assert proto._read_usual_sequence(bytearray(odd), 0, len(odd)) is None


def test_arrays_of_any_layout_are_written(messages: dict[str, Any]) -> None:
    """Transposed, strided and big-endian arrays are written with their values in order."""
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    for values in (table.T, table[:, ::2], table[::-1], table.astype(">f4")):
        content = bytes(proto._view(values))
        assert np.frombuffer(content, "<f4").tolist() == values.reshape(-1).tolist()
