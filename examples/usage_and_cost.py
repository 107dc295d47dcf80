"""What a run will cost, what it has cost so far, and that the server's bill says the same.

python examples/usage_and_cost.py
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import numpy as np
from rich.console import Console

import tinker
from tinker.usage import Usage, count_billing, estimate_training, load_prices, price_of

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
PRICES = load_prices(Path(__file__).parent / "data" / "prices.toml")
STEPS = 5
HOUR = datetime.timedelta(hours=1)


def datum(text: str, tokenizer: object) -> tinker.Datum:
    tokens = np.array(tokenizer.encode(text))  # type: ignore[attr-defined]
    weights = np.ones(len(tokens) - 1, np.float32)
    return tinker.Datum(
        tinker.ModelInput.from_ints(tokens[:-1].tolist()),
        {"target_tokens": tokens[1:], "weights": weights},
    )


def main() -> None:
    usage = Usage()
    service = tinker.ServiceClient({"experiment": "prices"}, base_url=BASE_URL, observers=[usage])
    model = service.get_server_capabilities().supported_models[0].model_name
    assert model is not None
    training = service.create_lora_training_client(base_model=model, rank=8)
    tokenizer = training.get_tokenizer()
    batch = [datum(text, tokenizer) for text in ("the quick brown fox", "jumps over the lazy dog")]

    estimate = estimate_training(batch, passes=STEPS)
    print(
        f"{STEPS} steps will train {estimate.trained} tokens, for "
        f"{price_of(PRICES, model).cost(estimate):.6f}"
    )

    for _ in range(STEPS):
        training.forward_backward(batch, "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result()
    assert usage.total.trained == estimate.trained

    prompt = tinker.ModelInput.from_ints(tokenizer.encode("the quick"))
    sampler = training.save_weights_and_get_sampling_client()
    sampler.sample(
        prompt, num_samples=4, sampling_params=tinker.SamplingParams(max_tokens=16)
    ).result()

    Console().print(usage)
    print(f"cost so far: {usage.cost(PRICES):.6f}")

    session_id = training.model_id.partition(":")[0]
    now = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    try:
        bill = service.create_rest_client().get_billing_usage(now - HOUR, now + 2 * HOUR).result()
        print("the bill:", count_billing(bill, session_id=session_id))
        if BASE_URL.startswith("local://"):  # others are some hours late
            assert count_billing(bill, session_id=session_id) == usage.by("base_model")
    except tinker.APIStatusError as error:
        print(f"this server shows no bill: {error.status_code}")
    service.close().result()


if __name__ == "__main__":
    main()
