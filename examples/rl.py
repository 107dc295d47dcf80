"""Reinforcement learning with importance_sampling and a reward that a program checks.

    python examples/rl.py

The model is asked for sums and must answer with an integer (the packaged model is too small to find
the right one). Such an answer gets 1, any other gets 0; the advantage of an answer is its reward
less the mean of its group. A group whose answers are all alike teaches nothing and is left out.
"""

from __future__ import annotations

import os
from typing import Any

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
PROMPTS = [
    f"{a} + {b} =" for a, b in ((1, 1), (2, 3), (4, 4), (7, 2), (5, 8), (9, 9), (3, 6), (8, 1))
]
GROUP, STEPS, LEARNING_RATE = 16, 6, 3e-3
PARAMS = types.SamplingParams(max_tokens=8, temperature=1.0, stop=["\n"])


def reward(answer: str) -> float:
    """Return 1 for an integer, else 0."""
    return 1.0 if answer.strip().isdigit() else 0.0


def to_datum(prompt: list[int], sequence: types.SampledSequence, advantage: float) -> types.Datum:
    """Only what was sampled has an advantage; the log-probabilities are those of the sampling."""
    sampled, logprobs = list(sequence.tokens), list(sequence.logprobs or [])
    tokens = prompt + sampled
    unlearned = [0.0] * (len(prompt) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": unlearned + logprobs,
            "advantages": unlearned + [advantage] * len(sampled),
        },
    )


def rollouts(sampler: tinker.SamplingClient, tokenizer: Any) -> tuple[float, list[types.Datum]]:
    """The mean reward of a group for each prompt, and the data to learn from. All groups are
    sampled at once.
    """
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in PROMPTS]
    futures = [
        sampler.sample(types.ModelInput.from_ints(prompt), GROUP, PARAMS) for prompt in prompts
    ]
    rewards: list[float] = []
    data: list[types.Datum] = []
    for prompt, future in zip(prompts, futures, strict=True):
        sequences = future.result().sequences
        group = [reward(tokenizer.decode(sequence.tokens)) for sequence in sequences]
        rewards += group
        mean = sum(group) / len(group)
        if len(set(group)) > 1:
            data += [
                to_datum(prompt, sequence, one - mean)
                for sequence, one in zip(sequences, group, strict=True)
            ]
    return sum(rewards) / len(rewards), data


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=16, seed=0)
    tokenizer = training.get_tokenizer()

    means: list[float] = []
    for step in range(STEPS):
        # the weights of now; what follows does not change them
        sampler = training.save_weights_and_get_sampling_client()
        mean, data = rollouts(sampler, tokenizer)
        means.append(mean)
        print(f"step {step:2d}  mean reward {mean:.2f}  {len(data)} answers to learn from")
        if not data:
            break
        training.forward_backward(data, "importance_sampling")
        training.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()
    service.close().result()
    assert means[-1] > means[0] + 0.2


if __name__ == "__main__":
    main()
