"""What a stream of samples consists of."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class SampleStreamChunk:
    """Some tokens of one sample, in the order in which they were drawn.

    Attributes:
        index: Which of the samples the tokens belong to, from 0.
        tokens: The token ids; empty where a sample ends without a further one.
        logprobs: The log-probability of each of the tokens; None where the server gives none.
        text: The text that these tokens complete; None without a tokenizer. A character that is spread over several tokens
            comes with the last of them.
        stop_reason: Why the sample ends with this chunk, ``stop`` or ``length``; None when it goes on.
    """

    index: int
    tokens: list[int]
    logprobs: list[float] | None = None
    text: str | None = None
    stop_reason: str | None = None
