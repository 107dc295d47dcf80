"""Loss on examples that are not trained on: `forward` computes what `forward_backward` does,
without a gradient.

python examples/forward_inference.py
"""

from __future__ import annotations

import math
import os

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TRAIN = ["the cat sat on the mat", "the dog sat on the rug", "the cow sat on the log"]
HELD_OUT = ["the fox sat on the box", "the hen sat on the pen"]


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name or ""
    training = service.create_lora_training_client(base_model=base_model, rank=8)
    tokenizer = training.get_tokenizer()

    def to_datum(text: str) -> types.Datum:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        return types.Datum(types.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]})

    train, held_out = [to_datum(text) for text in TRAIN], [to_datum(text) for text in HELD_OUT]
    evaluations = []
    for step in range(9):
        # in the order of the calls: what was trained before counts, what comes later does not
        if step % 4 == 0:
            evaluations.append((step, training.forward(held_out, "cross_entropy")))
        training.forward_backward(train, "cross_entropy")
        last_step = training.optim_step(tinker.AdamParams(learning_rate=2e-3))
    last_step.result()

    perplexities = []
    for step, future in evaluations:
        logprobs = [
            value
            for output in future.result().loss_fn_outputs
            for value in output["logprobs"].tolist()
        ]
        perplexities.append(math.exp(-sum(logprobs) / len(logprobs)))
        print(f"step {step}: perplexity of {len(HELD_OUT)} held-out texts {perplexities[-1]:.1f}")
    service.close().result()
    assert perplexities[-1] < perplexities[0]


if __name__ == "__main__":
    main()
