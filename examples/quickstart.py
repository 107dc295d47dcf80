"""Teach a model pig latin: fine-tune, watch the loss, compare held-out words before and after,
save, load again.

    python examples/quickstart.py # in process, needs no account
    TINKER_BASE_URL=http://localhost:8000 python examples/quickstart.py  # against a server

Uses only the public SDK, so it runs against any server of this API. One word in sixteen is held out
of the training; exits with 1 when the held-out words were not learned, or when the saved weights do
not sample the same tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import zlib
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
DATA = Path(__file__).parent / "data" / "pig_latin.jsonl"
ENOUGH = 0.6  # share of held-out words that must come out exactly right
SHOWN = 6


@dataclass
class Pair:
    prompt: str
    answer: str

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.prompt.encode()) % 16 == 0


@dataclass
class Score:
    exact: float
    similarity: float
    answers: list[str]


def read_pairs() -> tuple[list[Pair], list[Pair]]:
    """The training pairs and the held-out pairs."""
    pairs = [Pair(**json.loads(line)) for line in DATA.read_text().splitlines()]
    return [pair for pair in pairs if not pair.held_out], [pair for pair in pairs if pair.held_out]


def prompt_tokens(tokenizer: Any, pair: Pair) -> list[int]:
    return tokenizer.encode(f"{pair.prompt} ->", add_special_tokens=False)


def make_datum(tokenizer: Any, pair: Pair) -> types.Datum:
    """Input is the text without its last token, target the text without its first; only the answer
    has weight.
    """
    prompt = prompt_tokens(tokenizer, pair)
    answer = tokenizer.encode(f" {pair.answer}\n", add_special_tokens=False)
    tokens = prompt + answer
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "weights": [0.0] * (len(prompt) - 1) + [1.0] * len(answer),
        },
    )


def evaluate(sampler: tinker.SamplingClient, tokenizer: Any, pairs: list[Pair]) -> Score:
    """Ask for all words at once, greedily, then compare."""
    params = types.SamplingParams(max_tokens=24, temperature=0.0, stop=["\n"])
    futures = [
        sampler.sample(
            prompt=types.ModelInput.from_ints(prompt_tokens(tokenizer, pair)),
            num_samples=1,
            sampling_params=params,
        )
        for pair in pairs
    ]
    answers = [tokenizer.decode(future.result().sequences[0].tokens).strip() for future in futures]
    similar = [
        SequenceMatcher(None, answer, pair.answer).ratio()
        for answer, pair in zip(answers, pairs, strict=True)
    ]
    exact = [answer == pair.answer for answer, pair in zip(answers, pairs, strict=True)]
    return Score(sum(exact) / len(pairs), sum(similar) / len(pairs), answers)


def train(
    client: tinker.TrainingClient,
    data: list[types.Datum],
    steps: int,
    batch: int,
    rate: float,
    console: Console,
) -> list[float]:
    """The loss per answer token of each step. Backward pass and optimizer step are on their way
    before we wait.
    """
    rng = random.Random(0)  # noqa: S311 (a fixed order of the data)
    losses: list[float] = []
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("", total=steps)
        for step in range(steps):
            chosen = rng.sample(data, batch)
            adam = types.AdamParams(learning_rate=rate * (1 - step / steps))
            backward = client.forward_backward(chosen, "cross_entropy")
            stepped = client.optim_step(adam)
            tokens = sum(float(sum(datum.loss_fn_inputs["weights"].data)) for datum in chosen)
            losses.append(backward.result().metrics["loss:sum"] / tokens)
            stepped.result()
            progress.update(bar, advance=1, description=f"loss per token {losses[-1]:.3f}")
            if not console.is_terminal and step % 25 == 0:
                console.print(f"  step {step:4d}  loss per token {losses[-1]:.3f}")
    return losses


def draw(sampler: tinker.SamplingClient, tokenizer: Any, pair: Pair) -> list[list[int]]:
    """Four samples at temperature 1 with a fixed seed."""
    params = types.SamplingParams(max_tokens=24, temperature=1.0, seed=7, stop=["\n"])
    prompt = types.ModelInput.from_ints(prompt_tokens(tokenizer, pair))
    reply = sampler.sample(prompt=prompt, num_samples=4, sampling_params=params).result()
    return [list(sequence.tokens) for sequence in reply.sequences]


def show_samples(console: Console, pairs: list[Pair], before: Score, after: Score) -> None:
    table = Table("held-out word", "before", "after", "right answer")
    for pair, first, last in list(zip(pairs, before.answers, after.answers, strict=True))[:SHOWN]:
        table.add_row(pair.prompt, first[:24], last[:24], pair.answer)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="Teach a model pig latin.")
    parser.add_argument("--base-model", help="default: the first model of the server")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument(
        "--learning-rate", type=float, default=5e-3, help="large models want about 1e-4"
    )
    options = parser.parse_args()
    started, console = time.monotonic(), Console(highlight=False)
    training, held_out = read_pairs()

    service = tinker.ServiceClient(base_url=BASE_URL)
    capabilities = tinker.RestClient(base_url=BASE_URL).get_server_capabilities().result()
    base_model = options.base_model or capabilities.supported_models[0].model_name
    client = service.create_lora_training_client(
        base_model=base_model, rank=options.rank, seed=0
    ).result()
    tokenizer = client.get_tokenizer()
    console.print(
        f"{base_model} at {BASE_URL}: {len(training)} words to learn, {len(held_out)} held out"
    )

    before = evaluate(
        service.create_sampling_client(base_model=base_model).result(), tokenizer, held_out
    )
    data = [make_datum(tokenizer, pair) for pair in training]
    losses = train(client, data, options.steps, options.batch, options.learning_rate, console)
    sampler = client.save_weights_and_get_sampling_client().result()
    after = evaluate(sampler, tokenizer, held_out)
    show_samples(console, held_out, before, after)

    path = client.save_weights_for_sampler("pig-latin").result().path
    again = tinker.ServiceClient(base_url=BASE_URL).create_sampling_client(model_path=path).result()
    same = draw(again, tokenizer, held_out[0]) == draw(sampler, tokenizer, held_out[0])

    learned = after.exact >= ENOUGH and losses[-1] < losses[0] / 2
    console.print(f"loss per token    {losses[0]:.3f} -> {losses[-1]:.3f}")
    console.print(
        f"exactly right     {before.exact:.0%} -> {after.exact:.0%} "
        f"of {len(held_out)} held-out words"
    )
    console.print(f"letters alike     {before.similarity:.0%} -> {after.similarity:.0%}")
    console.print(f"saved             {path}", soft_wrap=True)
    console.print(f"loaded, resampled {'the same tokens' if same else 'DIFFERENT TOKENS'}")
    console.print(f"time              {time.monotonic() - started:.0f} s")
    console.print(
        "learned"
        if learned and same
        else "FAILED: not learned"
        if same
        else "FAILED: the reload differs"
    )
    return 0 if learned and same else 1


if __name__ == "__main__":
    sys.exit(main())
