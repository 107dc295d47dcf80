"""Learn from pairs of answers, the better one first: direct preference optimization (DPO).

    python examples/preference_pairs.py

The reference is the model before the training; its log-probabilities are computed once. Datums come
in pairs, so the loss function finds the two of a pair side by side.
"""

from __future__ import annotations

import os
from typing import Any

import torch

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
PAIRS = [
    ("May I come in?", " Yes, please do.", " No, go away."),
    ("Is this seat free?", " It is, sit down.", " Leave me alone."),
    ("Could you help me?", " Gladly, with what?", " Ask someone else."),
    ("Is it far?", " Ten minutes, this way.", " Too far for you."),
]
BETA, STEPS = 0.1, 12


def to_datum(tokenizer: Any, prompt: str, answer: str) -> types.Datum:
    """The weights are for the loss function: they tell the answer from the prompt."""
    before, after = (
        tokenizer.encode(prompt, add_special_tokens=False),
        tokenizer.encode(answer, add_special_tokens=False),
    )
    tokens = before + after
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "weights": [0.0] * (len(before) - 1) + [1.0] * len(after),
        },
    )


def log_likelihoods(data: list[types.Datum], logprobs: list[torch.Tensor]) -> torch.Tensor:
    """Of each answer."""
    weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
    return torch.stack(
        [(one * weight).sum() for one, weight in zip(logprobs, weights, strict=True)]
    )


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
    tokenizer = training.get_tokenizer()
    data = [
        to_datum(tokenizer, prompt, answer) for prompt, good, bad in PAIRS for answer in (good, bad)
    ]

    outputs = training.forward(data, "cross_entropy").result().loss_fn_outputs
    reference = log_likelihoods(data, [output["logprobs"].to_torch() for output in outputs])

    def dpo(
        data: list[types.Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        # over the reference, of good and bad in turn
        gains = log_likelihoods(data, logprobs) - reference
        margins = BETA * (gains[0::2] - gains[1::2])
        loss = -torch.nn.functional.logsigmoid(margins).sum()
        return loss, {"margin": margins.mean().item(), "right": (margins > 0).float().mean().item()}

    steps = []
    for _ in range(STEPS):
        steps.append(training.forward_backward_custom(data, dpo))
        last_step = training.optim_step(types.AdamParams(learning_rate=1e-3))
    last_step.result()
    history = [step.result() for step in steps]
    for number, output in enumerate(history):
        margin, right = output.metrics["margin"], output.metrics["right"]
        print(
            f"step {number:2d}  loss {output.loss:.3f}  mean margin "
            f"{margin:.3f}  {right:.0%} of the pairs right"
        )
    service.close().result()
    assert history[-1].loss < history[0].loss
    assert history[-1].metrics["right"] == 1.0


if __name__ == "__main__":
    main()
