"""A loss with several weighted terms: stay near the first model, stay undecided, leave no text
behind.

    python examples/regularizers.py

Each term is reported by itself, with the norm of its gradient, so you see which of them pulls how
hard.
"""

from __future__ import annotations

import os

import torch

import tinker
from tinker import types
from tinker.regularizers import DecayWeight, LossBreakdown, Regularizer, WarmUpWeight, regularized
from tinker.regularizers._terms import KL, Entropy

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TEXTS = ["the cat sat on the mat", "zxq jvk wpf", "a b c d e f g h i j k l m"]
STEPS = 10


def unevenness(
    data: list[types.Datum], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """The variance of the losses per token among the texts: a term of one's own."""
    per_token = torch.stack([-one.mean() for one in logprobs])
    return per_token.var(unbiased=False), {"worst": per_token.max().item()}


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
    tokenizer = training.get_tokenizer()
    data = []
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
        data.append(
            types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
        )
    for datum, output in zip(
        data, training.forward(data, "cross_entropy").result().loss_fn_outputs, strict=True
    ):
        # those of the model before the training
        datum.loss_fn_inputs["ref_logprobs"] = output["logprobs"]

    loss = regularized(
        "cross_entropy",
        [
            Regularizer(
                KL("ref_logprobs", mask="weights", reduction="sum"), WarmUpWeight(0.05, steps=4)
            ),
            Regularizer(Entropy(mode="maximize"), DecayWeight(0.5, half_life_steps=5)),
            Regularizer(unevenness, weight=2.0),
        ],
        track_grad_norms=True,
    )
    outputs = []
    for _ in range(STEPS):
        outputs.append(training.forward_backward_custom(data, loss))
        last_step = training.optim_step(types.AdamParams(learning_rate=3e-3))
    last_step.result()
    history = [LossBreakdown.from_metrics(output.result().metrics) for output in outputs]
    for step, one in enumerate(history):
        terms = "  ".join(
            f"{name} {term.weight:.2f} x {term.value:6.3f}" for name, term in one.terms.items()
        )
        print(f"step {step}  loss {one.total:6.2f} = {one.base:6.2f} + {terms}")
    for name, term in history[-1].terms.items():
        print(
            f"{name}: {term.grad_norm_weighted:.3f} of a gradient of length "
            f"{history[-1].total_grad_norm:.3f}"
        )
    service.close().result()
    assert history[-1].base < history[0].base
    assert history[-1].terms["unevenness"].value < history[0].terms["unevenness"].value
    assert history[0].terms["kl"].value == 0.0
    assert history[-1].terms["kl"].value > 0.0


if __name__ == "__main__":
    main()
