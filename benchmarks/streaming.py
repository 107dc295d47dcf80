"""The first token of a streamed sample of 512 tokens (or as many as the model can), beside an
ordinary sample of one token.

    python benchmarks/streaming.py [--url local://] [--rounds 15]

`local://` is the server of this process; `tinker serve` gives a URL to measure over HTTP.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import tinker

PROMPT = tinker.ModelInput.from_ints(list(b"Once upon a time"))
ONE = tinker.SamplingParams(max_tokens=1, stop=[], seed=1)


def measure(function: Callable[[], object], rounds: int) -> float:
    """Return the median in milliseconds, after one call to warm up."""
    function()
    seconds: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - began)
        if isinstance(result, tinker.SampleStream):
            for _ in result:  # to the end, so that the next round finds the server idle
                pass
    return 1000 * statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="local://")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    service = tinker.ServiceClient(base_url=options.url)
    model = service.get_server_capabilities().supported_models[0]
    length = min(512, (model.max_context_length or 1024) - PROMPT.length)
    params = tinker.SamplingParams(max_tokens=length, stop=[], seed=1)
    sampler = service.create_sampling_client(base_model=model.model_name).result()

    def first_token() -> tinker.SampleStream:
        stream = sampler.sample_stream(PROMPT, 1, params)
        next(stream)
        return stream

    one = measure(lambda: sampler.sample(PROMPT, 1, ONE).result(), options.rounds)
    first = measure(first_token, options.rounds)
    whole = measure(lambda: sampler.sample(PROMPT, 1, params).result(), options.rounds)
    print(f"one token, not streamed        {one:8.1f} ms")
    print(f"first of {length} tokens, streamed  {first:8.1f} ms   {first / one:.2f} times as long")
    print(f"all of {length} tokens              {whole:8.1f} ms")
    service.close().result()


if __name__ == "__main__":
    main()
