"""Parameters that only some servers know, and mistakes that are told before anything is sent.

python examples/server_parameters.py
"""

from __future__ import annotations

import os

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    # what it says of lengths is remembered
    model = service.get_server_capabilities().supported_models[0]
    sampler = service.create_sampling_client(base_model=model.model_name)
    prompt = types.ModelInput.from_text("the quick", sampler.get_tokenizer())

    # A server with vLLM behind it may know bad_words; it is sent beside temperature and its like.
    # Ours ignores it.
    params = types.SamplingParams(max_tokens=6, temperature=0, extra={"bad_words": ["dog"]})
    print(repr(sampler.decode(sampler.sample(prompt, 1, params).result().sequences[0].tokens)))

    refusals = []
    for arguments in ({"max_token": 6}, {"extra": {"top_p": 0.5}}):
        try:
            types.SamplingParams(**arguments)
        except (TypeError, ValueError) as error:
            refusals.append(error)
            print(f"{type(error).__name__}: {error}")

    longest = model.max_context_length
    if longest is not None:
        try:
            sampler.sample(types.ModelInput.from_ints([1] * (longest + 1)), 1, params)
        except ValueError as error:
            refusals.append(error)
            print(f"{type(error).__name__}: {error}")
    service.close().result()
    assert len(refusals) == (2 if longest is None else 3)


if __name__ == "__main__":
    main()
