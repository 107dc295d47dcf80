"""A loss of your own in torch: cross entropy, and a penalty on the unevenness of the texts.

    python examples/custom_loss_torch.py

The function gets the log-probability of each target and may look at all data at once: here it also
asks that no text be left behind, by the variance of the losses per token.
"""

from __future__ import annotations

import os

import torch

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TEXTS = ["the cat sat on the mat", "zxq jvk wpf", "a b c d e f g h i j k l m"]
EVENNESS, STEPS = 2.0, 12


def even_loss(
    data: list[types.Datum], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """The sum of the losses per token, and of their variance."""
    per_token = torch.stack([-one.mean() for one in logprobs])
    spread = per_token.var(unbiased=False)
    return per_token.sum() + EVENNESS * spread, {
        "spread": spread.item(),
        "worst": per_token.max().item(),
    }


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
    tokenizer = training.get_tokenizer()
    data = []
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        data.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={"target_tokens": tokens[1:]},
            )
        )

    outputs = []
    # the step is one request in the order of the run: nothing needs to be waited for in between
    for _ in range(STEPS):
        outputs.append(training.forward_backward_custom(data, even_loss))
        last_step = training.optim_step(types.AdamParams(learning_rate=3e-3))
    last_step.result()
    history = [output.result() for output in outputs]
    for step, output in enumerate(history):
        worst, spread = output.metrics["worst"], output.metrics["spread"]
        print(f"step {step:2d}  loss {output.loss:6.3f}  worst {worst:.3f}  spread {spread:.3f}")
    service.close().result()
    assert history[-1].loss < history[0].loss
    assert history[-1].metrics["spread"] < history[0].metrics["spread"]


if __name__ == "__main__":
    main()
