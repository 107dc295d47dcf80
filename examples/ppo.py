"""Several PPO steps on the same samples: the clipping keeps the policy near the one that sampled.

    python examples/ppo.py

The reward is the share of letters "e" in 24 sampled letters. Each batch of samples is used for four
optimizer steps; the thresholds are bounds of the ratio new/old probability itself, not distances
from 1.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
ROUNDS, STEPS_PER_ROUND, SAMPLES = 3, 4, 48
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.25}


def reward(text: str) -> float:
    return text.count("e") / max(len(text), 1)


def to_data(
    prompt: list[int], sequences: list[types.SampledSequence], rewards: list[float]
) -> list[types.Datum]:
    """Rewards become advantages with mean 0 and deviation 1."""
    mean, deviation = statistics.mean(rewards), statistics.pstdev(rewards) or 1.0
    data = []
    for sequence, one in zip(sequences, rewards, strict=True):
        tokens = prompt + list(sequence.tokens)
        unlearned, count = [0.0] * (len(prompt) - 1), len(sequence.tokens)
        data.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={
                    "target_tokens": tokens[1:],
                    "logprobs": unlearned + list(sequence.logprobs or []),
                    "advantages": unlearned + [(one - mean) / deviation] * count,
                },
            )
        )
    return data


def improve(training: tinker.TrainingClient, data: list[types.Datum]) -> dict[str, float]:
    """Four steps on the same data, all sent before the first is waited for; the metrics of the
    last.
    """
    for _ in range(STEPS_PER_ROUND):
        output = training.forward_backward(data, "ppo", CLIP)
        step = training.optim_step(types.AdamParams(learning_rate=2e-3))
    step.result()
    return output.result().metrics


def sample(
    training: tinker.TrainingClient, tokenizer: Any, prompt: list[int], number: int
) -> tuple[list[types.SampledSequence], list[float]]:
    sampler = training.save_weights_and_get_sampling_client()
    # the same samples in each run
    params = types.SamplingParams(max_tokens=24, seed=number, stop=[])
    sequences = (
        sampler.sample(types.ModelInput.from_ints(prompt), SAMPLES, params).result().sequences
    )
    return sequences, [reward(tokenizer.decode(sequence.tokens)) for sequence in sequences]


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=16, seed=0)
    tokenizer = training.get_tokenizer()
    prompt = tokenizer.encode("Once upon a time", add_special_tokens=False)

    means = []
    for number in range(ROUNDS):
        sequences, rewards = sample(training, tokenizer, prompt, number)
        means.append(statistics.mean(rewards))
        metrics = improve(training, to_data(prompt, sequences, rewards))
        print(f"round {number}  mean reward {means[-1]:.3f}  loss {metrics['loss:sum']:.1f}")
    means.append(statistics.mean(sample(training, tokenizer, prompt, ROUNDS)[1]))
    print(f"mean reward {means[0]:.3f} -> {means[-1]:.3f}")
    service.close().result()
    assert means[-1] > means[0]


if __name__ == "__main__":
    main()
