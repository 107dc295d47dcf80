"""Supervised fine-tuning from a JSONL file, in epochs, always one batch ahead of the one waited
for.

    python examples/sft.py

Prints the loss of the training batches, and before and after the training the loss of pairs that
are held out.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
DATA = Path(__file__).parent / "data" / "pig_latin.jsonl"
# a large model wants a learning rate of about 1e-4
PAIRS, EPOCHS, BATCH, LEARNING_RATE = 384, 2, 32, 5e-3


def to_datum(tokenizer: Any, prompt: str, answer: str) -> types.Datum:
    """Input is the text without its last token, target the text without its first; the prompt has
    no weight.
    """
    before = tokenizer.encode(f"{prompt} ->", add_special_tokens=False)
    after = tokenizer.encode(f" {answer}\n", add_special_tokens=False)
    tokens = before + after
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "weights": [0.0] * (len(before) - 1) + [1.0] * len(after),
        },
    )


def batches(data: list[types.Datum]) -> Iterator[list[types.Datum]]:
    """Every datum once in each epoch, shuffled each time."""
    order = random.Random(0)  # noqa: S311 (a fixed order of the data)
    for _ in range(EPOCHS):
        shuffled = order.sample(data, len(data))
        for start in range(0, len(shuffled), BATCH):
            yield shuffled[start : start + BATCH]


def loss_per_token(output: types.ForwardBackwardOutput, data: list[types.Datum]) -> float:
    """Losses are sums over tokens; this is the mean over those that have weight."""
    return output.loss / sum(
        float(datum.loss_fn_inputs["weights"].to_numpy().sum()) for datum in data
    )


def main() -> None:
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=16, seed=0)
    tokenizer = training.get_tokenizer()

    held_out, data = [], []
    for row in rows[:PAIRS]:
        chosen = held_out if zlib.crc32(row["prompt"].encode()) % 8 == 0 else data
        chosen.append(to_datum(tokenizer, row["prompt"], row["answer"]))
    print(f"{base_model}: {len(data)} pairs to learn, {len(held_out)} held out")

    before = loss_per_token(training.forward(held_out, "cross_entropy").result(), held_out)
    waiting: list[tuple[list[types.Datum], tinker.APIFuture[types.ForwardBackwardOutput]]] = []
    steps = 0
    for batch in batches(data):
        waiting.append((batch, training.forward_backward(batch, "cross_entropy")))
        training.optim_step(types.AdamParams(learning_rate=LEARNING_RATE))
        if len(waiting) > 1:  # this batch is on its way; read the result of the one before it
            steps += 1
            done, future = waiting.pop(0)
            print(f"step {steps:3d}  loss per token {loss_per_token(future.result(), done):.3f}")
    after = loss_per_token(training.forward(held_out, "cross_entropy").result(), held_out)

    path = training.save_weights_for_sampler("sft").result().path
    print(f"held-out loss per token {before:.3f} -> {after:.3f}; saved {path}")
    service.close().result()
    assert after < before


if __name__ == "__main__":
    main()
