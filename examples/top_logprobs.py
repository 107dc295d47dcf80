"""What the model would have said instead: the likeliest tokens of each prompt and sampled position,
and scores of chosen ones.

python examples/top_logprobs.py
"""

from __future__ import annotations

import os

import numpy as np

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TEXT = "the quick brown"


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    tokenizer = service.create_lora_training_client(base_model=base_model, rank=8).get_tokenizer()
    sampler = service.create_sampling_client(base_model=base_model)

    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    vowels = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "aeiou"]
    response = sampler.sample(
        types.ModelInput.from_ints(tokens),
        num_samples=1,
        sampling_params=types.SamplingParams(max_tokens=5, temperature=0.0),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=3,
        topk_sample_logprobs=3,
        # Five tokens scored at every position after the first: shape [len(prompt) - 1, 5].
        target_prompt_logprobs=types.TensorData.from_numpy(
            np.tile(np.array(vowels, np.int64), (len(tokens) - 1, 1))
        ),
    ).result()

    def shown(row: list[tuple[int, float]] | None) -> str:
        return "  ".join(
            f"{tokenizer.decode([token])!r} {logprob:.2f}" for token, logprob in row or []
        )

    assert response.prompt_logprobs is not None
    assert response.topk_prompt_logprobs is not None
    assert response.target_prompt_logprobs is not None
    print("prompt")
    for token, logprob, row in zip(
        tokens, response.prompt_logprobs, response.topk_prompt_logprobs, strict=True
    ):
        # nothing comes before the first token
        own = "  --  " if logprob is None else f"{logprob:6.2f}"
        print(f"  {tokenizer.decode([token])!r} {own}   likeliest: {shown(row)}")

    print("sampled")
    sequence = response.sequences[0]
    for token, row in zip(sequence.tokens, sequence.topk_logprobs or [], strict=True):
        print(f"  {tokenizer.decode([token])!r}          likeliest: {shown(row)}")

    scores = response.target_prompt_logprobs.to_numpy()
    print(
        f"vowels scored at {scores.shape[0]} positions; their share of the last one: "
        f"{np.exp(scores[-1]).sum():.2f}"
    )
    service.close().result()
    assert scores.shape == (len(tokens) - 1, len(vowels))
    assert all(
        row[0][0] == token
        for token, row in zip(sequence.tokens, sequence.topk_logprobs or [], strict=True)
    )


if __name__ == "__main__":
    main()
