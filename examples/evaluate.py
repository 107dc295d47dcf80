"""Compare a base model with the tuned one on the same questions: both are asked at the same time.

python examples/evaluate.py
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Norway": "Oslo",
    "Japan": "Tokyo",
    "Peru": "Lima",
}
GREEDY = types.SamplingParams(max_tokens=12, temperature=0.0, stop=["\n"])


def question(country: str) -> str:
    return f"{country}:"


def to_datum(tokenizer: Any, country: str, capital: str) -> types.Datum:
    before = tokenizer.encode(question(country), add_special_tokens=False)
    after = tokenizer.encode(f" {capital}\n", add_special_tokens=False)
    tokens = before + after
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "weights": [0.0] * (len(before) - 1) + [1.0] * len(after),
        },
    )


async def right_answers(sampler: tinker.SamplingClient, tokenizer: Any) -> dict[str, bool]:
    async def is_right(country: str, capital: str) -> bool:
        prompt = types.ModelInput.from_ints(
            tokenizer.encode(question(country), add_special_tokens=False)
        )
        sequence = (await sampler.sample(prompt, 1, GREEDY)).sequences[0]
        return tokenizer.decode(sequence.tokens).strip() == capital

    found = await asyncio.gather(
        *(is_right(country, capital) for country, capital in CAPITALS.items())
    )
    return dict(zip(CAPITALS, found, strict=True))


async def main() -> None:
    async with tinker.ServiceClient(base_url=BASE_URL) as service:
        capabilities = await tinker.RestClient(base_url=BASE_URL).get_server_capabilities()
        base_model = capabilities.supported_models[0].model_name
        training = await service.create_lora_training_client(base_model=base_model, rank=16, seed=0)
        tokenizer = training.get_tokenizer()
        data = [to_datum(tokenizer, country, capital) for country, capital in CAPITALS.items()]
        for step in range(40):
            training.forward_backward(data, "cross_entropy")
            last = training.optim_step(types.AdamParams(learning_rate=5e-3 * (1 - step / 40)))
        await last

        base = service.create_sampling_client(base_model=base_model)
        tuned = training.save_weights_and_get_sampling_client()
        before, after = await asyncio.gather(
            right_answers(base, tokenizer), right_answers(tuned, tokenizer)
        )
    for country in CAPITALS:
        print(
            f"{country:8} base {'right' if before[country] else 'wrong'}  tuned "
            f"{'right' if after[country] else 'wrong'}"
        )
    print(
        f"right: {sum(before.values())} -> {sum(after.values())} of {len(CAPITALS)} (seen in "
        "training: this is recall)"
    )
    assert sum(after.values()) > sum(before.values())


if __name__ == "__main__":
    asyncio.run(main())
