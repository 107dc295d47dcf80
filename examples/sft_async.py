"""The training loop as a coroutine: the same methods, awaited; three runs share one event loop.

python examples/sft_async.py
"""

from __future__ import annotations

import asyncio
import os

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TEXTS = ["the cat sat on the mat", "the dog ran in the fog", "the hen ate ten men"]
STEPS = 8


def to_datum(tokens: list[int]) -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )


async def train(
    service: tinker.ServiceClient, base_model: str, learning_rate: float
) -> tuple[float, list[float]]:
    """The losses of one run. Both requests of a step are sent before either is awaited."""
    training = await service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
    tokenizer = training.get_tokenizer()
    data = [to_datum(tokenizer.encode(text)) for text in TEXTS]
    losses = []
    for _ in range(STEPS):
        backward = training.forward_backward(data, "cross_entropy")
        step = training.optim_step(types.AdamParams(learning_rate=learning_rate))
        losses.append((await backward).loss)
        await step
    return learning_rate, losses


async def main() -> None:
    async with tinker.ServiceClient(base_url=BASE_URL) as service:
        capabilities = await tinker.RestClient(base_url=BASE_URL).get_server_capabilities()
        base_model = capabilities.supported_models[0].model_name
        runs = await asyncio.gather(
            *(train(service, base_model, rate) for rate in (1e-3, 3e-3, 1e-2))
        )
    for learning_rate, losses in runs:
        print(f"learning rate {learning_rate:g}: loss {losses[0]:.1f} -> {losses[-1]:.1f}")
        assert losses[-1] < losses[0]


if __name__ == "__main__":
    asyncio.run(main())
