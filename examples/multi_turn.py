"""A conversation of several turns: each answer becomes part of the next prompt; then all turns
become one training example, in which only the answers count.

python examples/multi_turn.py
"""

from __future__ import annotations

import os

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
QUESTIONS = ["Name a file.", "Another one.", "And one more."]


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name or ""
    training = service.create_lora_training_client(base_model=base_model, rank=8)
    sampler = service.create_sampling_client(base_model=base_model)
    tokenizer = training.get_tokenizer()
    params = types.SamplingParams(max_tokens=8, temperature=0.7, seed=1, stop=["\n"])

    tokens: list[int] = []
    weights: list[float] = []  # 1 where the model spoke
    for question in QUESTIONS:
        asked = tokenizer.encode(f"Q: {question}\nA:", add_special_tokens=False)
        tokens, weights = tokens + asked, weights + [0.0] * len(asked)
        answer = sampler.sample(types.ModelInput.from_ints(tokens), 1, params).result().sequences[0]
        tokens, weights = tokens + answer.tokens, weights + [1.0] * len(answer.tokens)
        print(f"Q: {question}\nA:{tokenizer.decode(answer.tokens).rstrip()}")

    # The prompt grows, so a server that keeps what it has read needs to read only the new part.
    example = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights[1:]},
    )
    losses = []
    for _ in range(4):
        losses.append(training.forward_backward([example], "cross_entropy"))
        last_step = training.optim_step(tinker.AdamParams(learning_rate=5e-3))
    last_step.result()
    values = [future.result().loss for future in losses]
    print(f"loss of the {int(sum(weights))} answer tokens: {values[0]:.2f} -> {values[-1]:.2f}")
    service.close().result()
    assert values[-1] < values[0]


if __name__ == "__main__":
    main()
