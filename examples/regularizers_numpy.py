"""Terms without torch: one in numpy that computes its gradient itself, and one that asks another
service meanwhile.

    python examples/regularizers_numpy.py

The coroutine runs beside the others. It does not depend on the log-probabilities here, so it is
reported and trains nothing.
"""

from __future__ import annotations

import asyncio
import os

import numpy as np
from numpy.typing import NDArray

import tinker
from tinker import types
from tinker.regularizers import LinearWeight, Regularizer, regularized

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TEXT, CERTAIN, STEPS = "nobody should be too sure of anything", -0.1, 15
Arrays = list[NDArray[np.float32]]


@tinker.with_gradients
def certainty(data: list[types.Datum], logprobs: Arrays) -> tuple[float, Arrays, dict[str, float]]:
    """The squares of what is above a log-probability of -0.1, their derivatives, and how many
    tokens that are.
    """
    excess = [np.maximum(one - CERTAIN, 0.0) for one in logprobs]
    value = float(sum((one**2).sum() for one in excess))
    return (
        value,
        [2 * one for one in excess],
        {"tokens": float(sum((one > 0).sum() for one in excess))},
    )


async def grade(
    data: list[types.Datum], logprobs: Arrays
) -> tuple[float, Arrays, dict[str, float]]:
    """What a service might say of the texts, if you asked one."""
    await asyncio.sleep(0)
    lengths = [len(datum.loss_fn_inputs["target_tokens"].tolist()) for datum in data]
    return float(np.mean(lengths)), [np.zeros_like(one) for one in logprobs], {}


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    tokenizer = service.create_lora_training_client(
        base_model=base_model, rank=8, seed=0
    ).get_tokenizer()
    tokens = tokenizer.encode(TEXT)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )

    certain: list[float] = []
    for weight in (0.0, 100.0):
        training = service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
        asked = tinker.with_gradients(grade)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        terms = [
            Regularizer(certainty, LinearWeight(0.0, weight, steps=5)),
            Regularizer(asked, weight=0.0, name="grade", mode="async"),
        ]
        loss = regularized("cross_entropy", terms, timeout_seconds=10.0)
        outputs = []
        for _ in range(STEPS):
            outputs.append(training.forward_backward_custom([datum], loss))
            last_step = training.optim_step(types.AdamParams(learning_rate=1e-2))
        last_step.result()
        metrics = outputs[-1].result().metrics
        certain.append(metrics["reg/certainty/value"])
        print(
            f"weight {weight:5.1f}  cross entropy {metrics['base/loss']:5.2f}  certainty "
            f"{metrics['reg/certainty/value']:.4f}"
        )
    service.close().result()
    assert certain[1] < certain[0]


if __name__ == "__main__":
    main()
