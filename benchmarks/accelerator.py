"""What the torch engine costs on an accelerator, beside plain transformers and PEFT on the same
device.

    python benchmarks/accelerator.py [--device cuda] [--dtype bfloat16] [--size 0.6B]
        [--rows step,samples] [--rounds 3]

Needs torch, transformers, peft, safetensors and numpy, and no network: the model is a random Qwen3
of the given size, made by this script, with a vocabulary of 151,936, or 4,096 for the tiny one. The
engine is called directly, without HTTP. Each row is taken in turn with its plain side; times are
medians over the rounds. Prints a table in Markdown. Memory is the peak of what torch has allocated.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import peft
import torch
import transformers

import tinker
from tinker.local.engines.protocol import Adam, AdapterSpec, SampleJob, TrainingExample
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.engine import find_devices

TOKENIZER = Path(tinker.__file__).parent / "local" / "base_model"
RANK, ALPHA = 16, 32
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
#: hidden, intermediate, layers, heads, heads of keys, size of a head, vocabulary
SIZES = {
    "tiny": (64, 128, 2, 4, 2, 16, 4096),
    "0.6B": (1024, 3072, 28, 16, 8, 128, 151_936),
    "1.7B": (2048, 6144, 28, 16, 8, 128, 151_936),
}
SAMPLING = {"do_sample": True, "top_k": 0, "pad_token_id": 0}
LEARNING_RATE = 1e-4


@attrs.define
class Bench:
    """Both sides, and the lengths of the work."""

    engine: TorchEngine
    plain: Any
    device: torch.device
    scale: float
    rng: np.random.Generator = attrs.field(factory=lambda: np.random.default_rng(0))

    def rows(self, count: int, length: int) -> Any:
        return self.rng.integers(1, self.plain.config.vocab_size - 8, (count, length)).astype(
            np.int32
        )

    def tensor(self, rows: Any) -> torch.Tensor:
        return torch.from_numpy(rows.astype(np.int64)).to(self.device)

    def length(self, tokens: int) -> int:
        """Return a length, made shorter where the machine is slow."""
        return max(8, int(tokens * self.scale))


Row = Callable[[Bench], tuple[str, Callable[[Any], object], Callable[[Any], object], Any]]


def write_model(folder: Path, size: str, longest: int) -> Path:
    hidden, inner, layers, heads, key_heads, head, vocabulary = SIZES[size]
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=head,
        max_position_embeddings=longest,
        tie_word_embeddings=True,
        eos_token_id=vocabulary - 1,
        pad_token_id=0,
        dtype="bfloat16",
    )
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    return folder


def train_rows(
    bench: Bench, count: int, length: int, *, recompute: bool = False
) -> tuple[Any, Any, Any]:
    """One step of training of so many rows, on both sides."""
    trained = [one for name, one in bench.plain.named_parameters() if "lora_" in name]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0)

    def ours(rows: Any) -> None:
        data = [
            TrainingExample(tokens=row, loss_inputs={"target_tokens": row.astype(np.int64)})
            for row in rows
        ]
        bench.engine.forward_backward("a", data, "cross_entropy", {}, backward=True)
        bench.engine.optim_step("a", Adam(learning_rate=LEARNING_RATE))

    def plain(rows: Any) -> None:
        if recompute:
            bench.plain.train()
            bench.plain.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        tokens = bench.tensor(rows)
        logits = bench.plain(input_ids=tokens, use_cache=False).logits.float()
        (
            -(logits.gather(2, tokens[:, :, None])[:, :, 0] - logits.logsumexp(dim=-1)).sum()
        ).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if recompute:
            bench.plain.gradient_checkpointing_disable()
            bench.plain.eval()

    return ours, plain, lambda: bench.rows(count, length)


def step(bench: Bench) -> tuple[str, Any, Any, Any]:
    length = bench.length(512)
    return f"training step, 16 x {length} tokens", *train_rows(bench, 16, length)


def long(bench: Bench) -> tuple[str, Any, Any, Any]:
    length = bench.length(8192)
    return f"training step, 1 x {length} tokens", *train_rows(bench, 1, length)


def longest(bench: Bench) -> tuple[str, Any, Any, Any]:
    length = bench.length(32768)
    title = f"training step, 1 x {length} tokens (plain with gradient checkpointing)"
    return title, *train_rows(bench, 1, length, recompute=True)


def samples(bench: Bench) -> tuple[str, Any, Any, Any]:
    prompt, new = bench.length(64), bench.length(128)
    return f"64 samples of {new} tokens", *sample_rows(bench, 64, prompt, new)


def prefill(bench: Bench) -> tuple[str, Any, Any, Any]:
    length = bench.length(16384)
    return f"prompt of {length} tokens, and one more", *sample_rows(bench, 1, length, 1)


def sample_rows(bench: Bench, count: int, length: int, new: int) -> tuple[Any, Any, Any]:
    def ours(rows: Any) -> None:
        weights = bench.engine.snapshot("a")
        jobs = [SampleJob(tokens=row, weights=weights, max_tokens=new, stop=[]) for row in rows]
        sample_jobs(bench.engine, jobs)

    def plain(rows: Any) -> None:
        tokens = bench.tensor(rows)
        options = {**SAMPLING, "max_new_tokens": new, "min_new_tokens": new}
        bench.plain.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), **options)

    return ours, plain, lambda: bench.rows(count, length)


def sample_jobs(engine: TorchEngine, jobs: list[SampleJob]) -> None:
    batch, left = engine.open_batch(2**16), len(jobs)
    for index, job in enumerate(jobs):
        batch.add(index, job)
    while left:
        left -= len(batch.step())


def scores(bench: Bench) -> tuple[str, Any, Any, Any]:
    length = bench.length(8192)

    def ours(rows: Any) -> None:
        weights = bench.engine.snapshot("a")
        sample_jobs(
            bench.engine,
            [SampleJob(tokens=rows[0], weights=weights, max_tokens=0, prompt_logprobs=True)],
        )

    @torch.no_grad()
    def plain(rows: Any) -> None:
        tokens = bench.tensor(rows)
        logits = bench.plain(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        (logits.gather(2, tokens[:, 1:, None])[:, :, 0] - logits.logsumexp(dim=-1)).cpu()

    return (
        f"log-probabilities of a prompt of {length} tokens",
        ours,
        plain,
        lambda: bench.rows(1, length),
    )


ROWS: dict[str, Row] = {
    "step": step,
    "samples": samples,
    "prefill": prefill,
    "scores": scores,
    "long": long,
    "longest": longest,
}


def measure(bench: Bench, work: Callable[[Any], object], rows: Any) -> tuple[float, float]:
    """Return seconds and the peak of the allocated memory in MB; both are NaN where the memory does
    not suffice.
    """
    is_cuda = bench.device.type == "cuda"
    gc.collect()
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(bench.device)
        torch.cuda.synchronize(bench.device)
    began = time.perf_counter()
    try:
        work(rows)
    except Exception as error:  # noqa: BLE001 - a row that fails must not end the others
        print(f"<!-- {type(error).__name__}: {str(error).splitlines()[0][:150]} -->", flush=True)
        return float("nan"), float("nan")
    if is_cuda:
        torch.cuda.synchronize(bench.device)
    peak = torch.cuda.max_memory_allocated(bench.device) / 1e6 if is_cuda else float("nan")
    return time.perf_counter() - began, peak


def show(bench: Bench, row: Row, rounds: int) -> str:
    title, ours, plain, draw = row(bench)
    seen: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for number in range(rounds + 1):
        rows = draw()
        pair = measure(bench, ours, rows), measure(bench, plain, rows)
        if number:  # the first one warms up
            seen.append(pair)
    times = [statistics.median(pair[side][0] for pair in seen) for side in (0, 1)]
    peaks = [max(pair[side][1] for pair in seen) for side in (0, 1)]
    ratio = times[0] / times[1]
    return (
        f"| {title} | {times[0]:.3f} s | {times[1]:.3f} s | {ratio:.2f} | {peaks[0]:,.0f} MB | "
        f"{peaks[1]:,.0f} MB |"
    )


def describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=find_devices()[-1].partition(":")[0])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--size", choices=SIZES, default=None, help="default: 0.6B on an accelerator, tiny on a CPU"
    )
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scale",
        type=float,
        default=None,
        help="of all lengths; default: 1 on an accelerator, 1/32 on a CPU",
    )
    options = parser.parse_args()
    is_slow = options.device == "cpu"
    size, scale = (
        options.size or ("tiny" if is_slow else "0.6B"),
        options.scale or (1 / 32 if is_slow else 1.0),
    )
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder) / "speed", size, 40_960)
        engine = TorchEngine(source, device=options.device, dtype=options.dtype)
        kind, device = engine._model.dtype, engine._model.device
        engine.create_adapter("a", AdapterSpec(rank=RANK, seed=0))
        base = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=kind).to(device)
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=TARGETS)
        plain: Any = peft.get_peft_model(base, config).eval()
        bench = Bench(engine, plain, device, scale)
        versions = (
            f"torch {torch.__version__}, transformers {transformers.__version__}, peft "
            f"{peft.__version__}"
        )
        print(f"{describe(device)}, {kind}, Qwen3 of {size}, {versions}\n")
        print(
            "| work | engine | plain | ratio | peak of the engine | peak of plain "
            "|\n|---|--:|--:|--:|--:|--:|",
            flush=True,
        )
        for name in options.rows.split(","):
            print(show(bench, ROWS[name], options.rounds), flush=True)


if __name__ == "__main__":
    main()
