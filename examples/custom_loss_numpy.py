"""A loss of your own without torch: it computes its gradient itself, here in numpy.

    python examples/custom_loss_numpy.py

The loss stops pushing a token that is likely enough already: it is zero once the log-probability is
above -0.5.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TEXT, ENOUGH, STEPS = "what is likely enough is left alone", -0.5, 15


@tinker.with_gradients
def hinge(
    data: list[types.Datum], logprobs: list[NDArray[np.float32]]
) -> tuple[float, list[NDArray[np.float32]], dict[str, float]]:
    """Return the loss, its derivative by each log-probability, and the metrics to report."""
    missing = [np.maximum(ENOUGH - one, 0.0) for one in logprobs]
    gradients = [np.where(one > 0.0, -1.0, 0.0).astype(np.float32) for one in missing]
    left = sum(int((one > 0.0).sum()) for one in missing)
    return float(sum(one.sum() for one in missing)), gradients, {"tokens left": float(left)}


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
    tokens = training.get_tokenizer().encode(TEXT)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )

    outputs = []
    for _ in range(STEPS):
        outputs.append(training.forward_backward_custom([datum], hinge))
        last_step = training.optim_step(types.AdamParams(learning_rate=5e-3))
    last_step.result()
    history = [output.result() for output in outputs]
    for step, output in enumerate(history):
        print(
            f"step {step:2d}  loss {output.loss:6.2f}  tokens still to learn "
            f"{output.metrics['tokens left']:.0f}"
        )
    service.close().result()
    assert history[-1].metrics["tokens left"] < history[0].metrics["tokens left"] / 2


if __name__ == "__main__":
    main()
