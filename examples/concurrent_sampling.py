"""Two hundred prompts at once with asyncio, each with its own parameters, and the answers as they
come.

python examples/concurrent_sampling.py
"""

from __future__ import annotations

import asyncio
import os
import time

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
PROMPTS = 200


async def main() -> None:
    async with tinker.ServiceClient(base_url=BASE_URL) as service:
        capabilities = await tinker.RestClient(base_url=BASE_URL).get_server_capabilities()
        base_model = capabilities.supported_models[0].model_name
        training = await service.create_lora_training_client(base_model=base_model, rank=8)
        tokenizer = training.get_tokenizer()
        sampler = await service.create_sampling_client(base_model=base_model)

        async def answer(number: int) -> tuple[int, types.SampledSequence]:
            """No semaphore is needed: the client keeps to the limits that the server tells it."""
            prompt = types.ModelInput.from_ints(
                tokenizer.encode(f"Item {number}:", add_special_tokens=False)
            )
            params = types.SamplingParams(max_tokens=16, temperature=0.8, seed=number)
            return number, (await sampler.sample(prompt, 1, params)).sequences[0]

        started, tokens = time.monotonic(), 0
        for count, next_one in enumerate(
            asyncio.as_completed([answer(number) for number in range(PROMPTS)]), start=1
        ):
            number, sequence = await next_one
            tokens += len(sequence.tokens)
            if count % 50 == 0:
                print(
                    f"{count:3d} answers; the last was for item {number}: "
                    f"{tokenizer.decode(sequence.tokens)!r}"
                )
        seconds = time.monotonic() - started
        print(f"{tokens} tokens in {seconds:.1f} s: {tokens / seconds:.0f} a second")
        assert count == PROMPTS


if __name__ == "__main__":
    asyncio.run(main())
