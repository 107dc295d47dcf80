"""Text as it is sampled: each piece as soon as the server has drawn it, with a stop of your own.

python examples/stream_sample.py
"""

from __future__ import annotations

import os
import time

import tinker

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    sampler = service.create_sampling_client(base_model=base_model)
    # loads the tokenizer, so that chunks have text
    prompt = tinker.ModelInput.from_ints(sampler.encode("Once upon a time"))
    params = tinker.SamplingParams(max_tokens=48, temperature=0.7, seed=1, stop=[])

    began, first = time.monotonic(), None
    for chunk in sampler.sample_stream(prompt, 1, params):
        first = first or time.monotonic() - began
        print(chunk.text, end="", flush=True)
    print(
        f"\nfirst token after {1000 * (first or 0):.0f} ms, the last one after "
        f"{1000 * (time.monotonic() - began):.0f} ms"
    )

    words = 0
    # leaving the block ends the server's work
    with sampler.sample_stream(prompt, 1, params) as stream:
        for chunk in stream:
            words += (chunk.text or "").count(" ")
            if words >= 3:
                break
    print(f"left after {words} words: {stream}")
    service.close().result()
    assert first is not None


if __name__ == "__main__":
    main()
