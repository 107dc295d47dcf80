"""Score texts: log-probability of each token, perplexity, and the likelier of two endings.

python examples/perplexity.py
"""

from __future__ import annotations

import math
import os

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TEXTS = ["This is a sentence.", "sentence This a is.", "Xq zvbk wwpf."]
QUESTION, ENDINGS = "The name of the", [" file", " qxzj"]


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    tokenizer = service.create_lora_training_client(base_model=base_model, rank=8).get_tokenizer()
    sampler = service.create_sampling_client(base_model=base_model)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    futures = [sampler.compute_logprobs(types.ModelInput.from_ints(encode(text))) for text in TEXTS]
    perplexities = []
    for text, future in zip(TEXTS, futures, strict=True):
        # the first token has none
        known = [logprob for logprob in future.result() if logprob is not None]
        perplexities.append(math.exp(-sum(known) / len(known)))
        print(f"{text!r:24} perplexity per token {perplexities[-1]:.1f}")

    # Only the ending is of interest: ask for the last n alone.
    scores = {}
    for ending in ENDINGS:
        count = len(encode(ending))
        logprobs = sampler.compute_logprobs(
            types.ModelInput.from_ints(encode(QUESTION + ending)), prompt_logprobs_last_n=count
        )
        scores[ending] = sum(logprob or 0.0 for logprob in logprobs.result()[-count:])
        print(f"{QUESTION + ending!r:24} log-probability of the ending {scores[ending]:.1f}")
    service.close().result()
    assert perplexities[0] < perplexities[-1]
    assert scores[ENDINGS[0]] > scores[ENDINGS[1]]


if __name__ == "__main__":
    main()
