"""Reinforcement learning that stays near the policy it began with: importance_sampling, and KL to a
reference.

    python examples/kl_to_reference.py

The model is paid for digits. With KL it earns less of that and strays less from what it was. The
reference is a second adapter that is never trained; it is asked for the log-probabilities of the
same samples.
"""

from __future__ import annotations

import os
from typing import Any

import tinker
from tinker import types
from tinker.regularizers import Regularizer, regularized
from tinker.regularizers._terms import KL

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
PROMPTS = ["1 + 1 =", "the cat", "2 * 3 =", "good"]
GROUP, STEPS, LEARNING_RATE = 8, 6, 3e-3


def reward(answer: str) -> float:
    """The share of digits among the characters that are not blank."""
    characters = answer.replace(" ", "")
    return sum(one.isdigit() for one in characters) / max(len(characters), 1)


def sample(
    training: tinker.TrainingClient, frozen: tinker.TrainingClient, tokenizer: Any, seed: int
) -> tuple[float, list[types.Datum]]:
    """The mean reward, and datums with advantages and the reference's log-probabilities."""
    sampler = training.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=8, temperature=1.0, seed=seed)
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in PROMPTS]
    futures = [
        sampler.sample(types.ModelInput.from_ints(prompt), GROUP, params) for prompt in prompts
    ]
    rewards: list[float] = []
    data: list[types.Datum] = []
    for prompt, future in zip(prompts, futures, strict=True):
        sequences = future.result().sequences
        group = [reward(tokenizer.decode(sequence.tokens)) for sequence in sequences]
        rewards += group
        for sequence, one in zip(sequences, group, strict=True):
            sampled, unlearned = list(sequence.tokens), [0.0] * (len(prompt) - 1)
            inputs: dict[str, Any] = {
                "target_tokens": (prompt + sampled)[1:],
                "weights": unlearned + [1.0] * len(sampled),
                "logprobs": unlearned + list(sequence.logprobs or []),
                "advantages": unlearned + [one - sum(group) / GROUP] * len(sampled),
            }
            data.append(
                types.Datum(
                    model_input=types.ModelInput.from_ints((prompt + sampled)[:-1]),
                    loss_fn_inputs=inputs,
                )
            )
    add_reference(data, frozen)
    return sum(rewards) / len(rewards), data


def add_reference(data: list[types.Datum], frozen: tinker.TrainingClient) -> None:
    """Ask the reference for the same tokens; cross entropy takes targets and weights only."""
    known = ("target_tokens", "weights")
    plain = [
        types.Datum(one.model_input, {name: one.loss_fn_inputs[name] for name in known})
        for one in data
    ]
    for datum, output in zip(
        data, frozen.forward(plain, "cross_entropy").result().loss_fn_outputs, strict=True
    ):
        datum.loss_fn_inputs["ref_logprobs"] = output["logprobs"]


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    frozen = service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
    tokenizer = frozen.get_tokenizer()
    strayed, earned = [], []
    for weight in (0.0, 0.1):
        training = service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
        kl = KL("ref_logprobs", estimator="k2", reduction="sum", mask="weights")
        loss = regularized("importance_sampling", [Regularizer(kl, weight)])
        distances, means = [], []
        for step in range(STEPS):
            mean, data = sample(training, frozen, tokenizer, seed=step)
            output = training.forward_backward_custom(data, loss)
            last_step = training.optim_step(types.AdamParams(learning_rate=LEARNING_RATE))
            last_step.result()
            distances.append(output.result().metrics["reg/kl/mean"])
            means.append(mean)
            print(
                f"weight {weight:g}  step {step}  reward {means[-1]:.2f}  distance "
                f"{distances[-1]:.3f}"
            )
        strayed.append(distances[-1])
        earned.append(means[-1] - means[0])
    service.close().result()
    assert strayed[1] < strayed[0] / 2
    assert earned[0] > 0


if __name__ == "__main__":
    main()
