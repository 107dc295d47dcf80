"""The chunks of a sample stream."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class SampleStreamChunk:
    """Consecutive tokens of one sample.

    Attributes:
        index: The number of the sample that the tokens belong to, from 0.
        tokens: The token ids; empty if a sample ends without another token.
        logprobs: The log-probability of each token; None if the server sends none.
        text: The text that these tokens complete; None without a tokenizer. A character that spans
            several tokens belongs to the last of them.
        stop_reason: Why the sample ends with this chunk, ``stop`` or ``length``; None if it
            continues.
    """

    index: int
    tokens: list[int]
    logprobs: list[float] | None = None
    text: str | None = None
    stop_reason: str | None = None
