"""What the local server costs beside plain torch and transformers, and what requests cost one
another. On the CPU.

    python benchmarks/server.py [--rows topk,memory] [--rounds 3] [--family Gemma3] [--tiny]

Needs the extra ``local``. The model is a random Qwen3 of 3.8 million parameters, made by this
script; another family, or with ``--tiny`` one of 0.1 million parameters. Every row is a ratio of
two times taken in turn in one process, the median over the rounds, so that it says the same on
another machine; the first row is the resident memory of the process. The server is asked over HTTP,
by this client, in the same process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import attrs
import numpy as np
import peft
import torch
import transformers

import tinker
from tinker.local import Settings, State, serve_in_thread
from tinker.local.engines.arrays import start_runs
from tinker.local.engines.protocol import AdapterSpec, ExpectedLoss, SampleJob, TrainingExample
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.sampling import extend

TOKENIZER = Path(tinker.__file__).parent / "local" / "base_model"
VOCABULARY, LARGE_VOCABULARY = 4096, 151_936
RANK, ALPHA = 16, 32
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
Rows = dict[str, tuple[str, float, Callable[["Bench"], Iterator[tuple[float, float]]]]]


SIZES = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "head_dim": 32,
}
TINY = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
}
LINEAR = {
    f"linear_{name}": size
    for name, size in (("key_head_dim", 32), ("value_head_dim", 32), ("num_key_heads", 4))
}
MIXED: dict[str, Any] = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_value_heads": 8,
    **LINEAR,
}
WINDOWS = {"sliding_window": 256, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3": ("Qwen3Config", {}),
    "Gemma3": ("Gemma3TextConfig", WINDOWS),
    "Mistral": ("MistralConfig", {"sliding_window": 256}),
    "Qwen3_5": ("Qwen3_5TextConfig", MIXED),
}


@attrs.define
class Bench:
    """One server with its client, the same model in transformers, and a source of prompts that
    never repeats.
    """

    engine: TorchEngine
    plain: Any
    service: tinker.ServiceClient
    url: str
    rng: np.random.Generator = attrs.field(factory=lambda: np.random.default_rng(0))

    def prompt(self, length: int) -> list[int]:
        return [
            int(token) for token in self.rng.integers(1, self.plain.config.vocab_size - 8, length)
        ]

    def sampler(self) -> tinker.SamplingClient:
        return self.service.create_sampling_client(base_model="speed")

    def adapter(self, seed: int) -> tinker.SamplingClient:
        training = self.service.create_lora_training_client(
            base_model="speed", rank=RANK, seed=seed
        )
        training.forward_backward([datum(self.prompt(16))], "cross_entropy").result()
        training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result()
        return training.save_weights_and_get_sampling_client()


def write_model(folder: Path, family: str, sizes: dict[str, Any]) -> Path:
    """Write the random model and a tokenizer."""
    torch.manual_seed(0)
    config, options = FAMILIES[family]
    settings = {"vocab_size": VOCABULARY, **sizes, **options}
    if "layer_types" in settings:
        settings["layer_types"] = settings["layer_types"][-sizes["num_hidden_layers"] :]
    made = getattr(transformers, config)(
        num_key_value_heads=sizes["num_attention_heads"] // 2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=settings["vocab_size"] - 1,
        pad_token_id=0,
        **settings,
    )
    getattr(transformers, f"{family}ForCausalLM")(made).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    return folder


@contextmanager
def bench(family: str, sizes: dict[str, Any]) -> Iterator[Bench]:
    """Start everything."""
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder) / "speed", family, sizes)
        engine = TorchEngine(source, device="cpu", share_passes=True)
        plain = transformers.AutoModelForCausalLM.from_pretrained(
            source, torch_dtype=torch.float32
        ).eval()
        state = State(lambda: engine, Settings(data_dir=Path(folder) / "data"))
        with (
            serve_in_thread(state) as url,
            tinker.ServiceClient(base_url=url, api_key="tml-bench") as service,
        ):
            yield Bench(engine, plain, service, url)
        state.close()


def measure(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def params(max_tokens: int, **fields: Any) -> tinker.SamplingParams:
    return tinker.SamplingParams(max_tokens=max_tokens, stop=[], **fields)


def ask(
    sampler: tinker.SamplingClient, prompts: list[list[int]], max_tokens: int, count: int = 1
) -> None:
    """Submit every sample, then wait for all."""
    for future in [
        sampler.sample(tinker.ModelInput.from_ints(one), count, params(max_tokens))
        for one in prompts
    ]:
        future.result()


def datum(tokens: list[int]) -> tinker.Datum:
    inputs = {
        "target_tokens": np.array(tokens, np.int64),
        "weights": np.ones(len(tokens), np.float32),
    }
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


# Requests among themselves: how long the work takes in company, and alone


def measure_behind_long(bench: Bench, work: Callable[[], object]) -> Iterator[tuple[float, float]]:
    sampler = bench.sampler()
    while True:
        alone = measure(work)
        running = sampler.sample(tinker.ModelInput.from_ints(bench.prompt(16)), 1, params(512))
        time.sleep(0.15)
        behind = measure(work)
        assert not running.done()
        running.result()
        yield behind, alone


def short_sample(bench: Bench) -> Iterator[tuple[float, float]]:
    sampler = bench.sampler()
    return measure_behind_long(bench, lambda: ask(sampler, [bench.prompt(16)], 8))


def training_step(bench: Bench) -> Iterator[tuple[float, float]]:
    training = bench.service.create_lora_training_client(base_model="speed", rank=RANK)

    def step() -> None:
        loss = training.forward_backward([datum(bench.prompt(63))], "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=1e-4)).result()
        loss.result()

    return measure_behind_long(bench, step)


def equal_prompts(bench: Bench) -> Iterator[tuple[float, float]]:
    sampler = bench.sampler()
    while True:
        many, one = bench.prompt(1000), bench.prompt(1000)
        yield (
            measure(lambda many=many: ask(sampler, [many] * 16, 16)),
            measure(lambda one=one: ask(sampler, [one], 16, 16)),
        )


def unlike_prompts(bench: Bench) -> Iterator[tuple[float, float]]:
    sampler = bench.sampler()
    while True:
        short = [[bench.prompt(10) for _ in range(60)] for _ in range(2)]
        long = [bench.prompt(1000) for _ in range(2)]
        together = measure(lambda short=short, long=long: ask(sampler, [*short[0], long[0]], 16))
        apart = measure(lambda short=short: ask(sampler, short[1], 16))
        yield together, apart + measure(lambda long=long: ask(sampler, [long[1]], 16))


def unlike_data(bench: Bench) -> Iterator[tuple[float, float]]:
    training = bench.service.create_lora_training_client(base_model="speed", rank=RANK)
    while True:
        data = [datum(bench.prompt(length)) for length in (*[16] * 7, 1024)]
        together = measure(
            lambda data=data: training.forward_backward(data, "cross_entropy").result()
        )
        each = [
            measure(lambda one=one: training.forward_backward([one], "cross_entropy").result())
            for one in data
        ]
        yield together, sum(each)


def trained_adapters(bench: Bench) -> Iterator[tuple[float, float]]:
    """Call the engine, so that all eight are there when the first one runs, as they are while it
    computes another pass.
    """
    names, data = (
        [f"adapter {number}" for number in range(8)],
        [[example(bench.prompt(64))] for _ in range(8)],
    )
    for name in names:
        bench.engine.create_adapter(name, AdapterSpec(rank=RANK, seed=1))

    def together() -> None:
        calls = [
            ExpectedLoss(adapter_id=name, data=mine, loss_fn="cross_entropy", config={})
            for name, mine in zip(names, data)
        ]
        bench.engine.expect_losses(calls)
        for name, mine in zip(names, data):
            bench.engine.forward_backward(name, mine, "cross_entropy", {}, backward=True)

    everything = [one for mine in data for one in mine]
    while True:
        yield (
            measure(together),
            measure(
                lambda: bench.engine.forward_backward(
                    names[0], everything, "cross_entropy", {}, backward=True
                )
            ),
        )


def example(tokens: list[int]) -> TrainingExample:
    inputs = {
        "target_tokens": np.array(tokens, np.int64),
        "weights": np.ones(len(tokens), np.float32),
    }
    return TrainingExample(tokens=np.array(tokens, np.int32), loss_inputs=inputs)


def eight_clients(bench: Bench) -> Iterator[tuple[float, float]]:
    clients = [
        bench.service.create_lora_training_client(base_model="speed", rank=RANK, seed=seed)
        for seed in range(8)
    ]
    for client in clients:
        client.result()

    def slowest(count: int) -> float:
        """Return the 95th percentile of the times of steps of so many clients, each of which takes
        ten in a row.
        """
        with ThreadPoolExecutor(count) as pool:
            times = [one for found in pool.map(take_steps, clients[:count]) for one in found]
        return statistics.quantiles(times, n=20)[-1]

    def take_steps(client: tinker.TrainingClient) -> list[float]:
        return [measure(lambda: take_step(client)) for _ in range(10)]

    def take_step(client: tinker.TrainingClient) -> None:
        client.forward_backward([datum(bench.prompt(64))], "cross_entropy")
        client.optim_step(tinker.AdamParams(learning_rate=1e-4)).result()

    while True:
        yield slowest(8), slowest(1)


def adapters(bench: Bench) -> Iterator[tuple[float, float]]:
    samplers = [bench.adapter(seed) for seed in range(4)]
    while True:
        prompts = [[bench.prompt(64) for _ in range(64)] for _ in range(2)]

        def ask_all(chosen: list[tinker.SamplingClient], mine: list[list[int]]) -> None:
            inputs = [tinker.ModelInput.from_ints(one) for one in mine]
            futures = [
                chosen[index % len(chosen)].sample(one, 1, params(64))
                for index, one in enumerate(inputs)
            ]
            for future in futures:
                future.result()

        four = measure(lambda prompts=prompts: ask_all(samplers, prompts[0]))
        yield four, measure(lambda prompts=prompts: ask_all(samplers[:1], prompts[1]))


# The engine by itself, in CPU time


def measure_engine(
    bench: Bench, prompts: list[list[int]], count: int = 1, max_tokens: int = 16, at_once: int = 1
) -> tuple[float, list[int]]:
    """Return the CPU time of samples, of which so many begin with each step, and the tokens of the
    first.
    """
    batch, done, waiting = (
        bench.engine.open_batch(2**17),
        dict[object, Any](),
        list(enumerate(prompts)),
    )
    began = time.process_time()
    while len(done) < len(prompts):
        for number, tokens in waiting[:at_once]:
            fields: dict[str, Any] = {"num_samples": count, "max_tokens": max_tokens, "stop": []}
            batch.add(number, SampleJob(tokens=np.array(tokens, np.int32), weights=None, **fields))
        waiting = waiting[at_once:]
        done |= batch.step()
    return time.process_time() - began, done[0].sequences[0].tokens.tolist()


def late_prompts(bench: Bench) -> Iterator[tuple[float, float]]:
    while True:
        many, one = bench.prompt(1000), bench.prompt(1000)
        yield measure_engine(bench, [many] * 16)[0], measure_engine(bench, [one], 16)[0]


def next_turn(bench: Bench) -> Iterator[tuple[float, float]]:
    while True:
        prompt = bench.prompt(1000)
        first, tokens = measure_engine(bench, [prompt])
        yield measure_engine(bench, [[*prompt, *tokens, *bench.prompt(20)]])[0], first


def prompts_apart(bench: Bench) -> Iterator[tuple[float, float]]:
    while True:
        prompts = [[bench.prompt(16) for _ in range(16)] for _ in range(2)]
        yield (
            measure_engine(bench, prompts[0], 1, 64)[0],
            measure_engine(bench, prompts[1], 1, 64, 16)[0],
        )


# Many short requests, whose client is a process of its own, in CPU time

MANY = 256


def run_client(url: str, link: Connection) -> None:
    """Ask for the prompts that come through the link, and send the CPU time that each list of them
    took.
    """
    with tinker.ServiceClient(base_url=url, api_key="tml-bench") as service:
        sampler = service.create_sampling_client(base_model="speed")
        while prompts := link.recv():
            began = time.process_time()
            ask(sampler, prompts, 32)
            link.send(time.process_time() - began)


@contextmanager
def client_apart(bench: Bench) -> Iterator[Callable[[list[list[int]]], tuple[float, float]]]:
    """Start a client; yield a function that returns the CPU time of this process, and of that one,
    for prompts.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=run_client, args=(bench.url, there))
    process.start()

    def ask_client(prompts: list[list[int]]) -> tuple[float, float]:
        began = time.process_time()
        here.send(prompts)
        other = here.recv()
        return time.process_time() - began, other

    try:
        yield ask_client
    finally:
        here.send([])
        process.join()


def short_requests(bench: Bench) -> Iterator[tuple[float, float]]:
    with client_apart(bench) as ask_client:
        while True:
            prompts = [bench.prompt(16) for _ in range(MANY)]
            plain = measure_plain(bench, prompts, 32, time.process_time)
            yield sum(ask_client(prompts)), plain


def beyond_engine(bench: Bench) -> Iterator[tuple[float, float]]:
    """Yield milliseconds, beside 1."""
    with client_apart(bench) as ask_client:
        while True:
            prompts = [[bench.prompt(16) for _ in range(MANY)] for _ in range(2)]
            engine, _ = measure_engine(bench, prompts[0], 1, 32, MANY)
            yield (ask_client(prompts[1])[0] - engine) / MANY * 1000, 1.0


# Beside plain torch and transformers


def measure_plain(
    bench: Bench,
    prompts: list[list[int]],
    max_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    tokens, options = torch.tensor(prompts), {"do_sample": True, "top_k": 0, "pad_token_id": 0}
    began = clock()
    bench.plain.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=max_tokens,
        min_new_tokens=max_tokens,
        **options,
    )
    return clock() - began


def generate(bench: Bench) -> Iterator[tuple[float, float]]:
    sampler = bench.sampler()
    while True:
        prompts = [bench.prompt(64) for _ in range(64)]
        plain = measure_plain(bench, prompts, 64)
        yield measure(lambda prompts=prompts: ask(sampler, prompts, 64)), plain


def plain_step(bench: Bench) -> Iterator[tuple[float, float]]:
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=TARGETS)
    source = bench.engine.tokenizer_id
    model: Any = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(source, torch_dtype=torch.float32), config
    )
    optimizer = torch.optim.AdamW(
        [one for one in model.parameters() if one.requires_grad], lr=1e-4, weight_decay=0.0
    )
    training = bench.service.create_lora_training_client(base_model="speed", rank=RANK)

    def step_plain(rows: list[list[int]]) -> None:
        tokens = torch.tensor(rows)
        logits = model(input_ids=tokens, use_cache=False).logits
        logprobs = logits.gather(2, tokens[:, :, None])[:, :, 0] - logits.logsumexp(dim=-1)
        (-logprobs.sum()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def step_ours(data: list[tinker.Datum]) -> None:
        loss = training.forward_backward(data, "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=1e-4)).result()
        loss.result()

    while True:
        rows = [bench.prompt(256) for _ in range(16)]
        data = [datum(row) for row in rows]
        yield (
            measure(lambda data=data: step_ours(data)),
            measure(lambda rows=rows: step_plain(rows)),
        )


def top_k(bench: Bench) -> Iterator[tuple[float, float]]:
    warpers = [transformers.TemperatureLogitsWarper(0.7), transformers.TopKLogitsWarper(50)]
    job = SampleJob(
        tokens=np.ones(1, np.int32),
        weights=None,
        num_samples=16,
        max_tokens=10**6,
        top_k=50,
        temperature=0.7,
        stop=[],
    )
    runs = start_runs(job, frozenset(), str)
    tokens = torch.zeros(16, 1, dtype=torch.long)

    def draw_plain(logits: torch.Tensor) -> None:
        for warper in warpers:
            logits = warper(tokens, logits)
        torch.multinomial(torch.softmax(logits, dim=-1), 1)

    with torch.no_grad():
        while True:
            logits = torch.randn(16, LARGE_VOCABULARY)
            ours = measure(lambda logits=logits: [extend(runs, logits) for _ in range(5)])
            yield ours, measure(lambda logits=logits: [draw_plain(logits) for _ in range(5)])


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory(bench: Bench, steps: int = 400) -> str:
    """Train in this process, and return the resident memory on the way."""
    training, seen = (
        bench.service.create_lora_training_client(base_model="speed", rank=RANK),
        list[str](),
    )
    for number in range(1, steps + 1):
        length = int(bench.rng.integers(40, 80))
        data = [datum(bench.prompt(length)) for _ in range(8)]
        training.forward_backward(data, "cross_entropy").result()
        training.optim_step(tinker.AdamParams(learning_rate=1e-5)).result()
        if number == steps // 20 or number % (steps // 4) == 0:
            seen.append(f"{resident_megabytes():,.0f} MB after {number}")
    return ", ".join(seen)


ROWS: Rows = {
    "sample": ("8-token sample behind a running 512-token one, against idle", 3.0, short_sample),
    "step": ("training step of 63 tokens behind it", 4.0, training_step),
    "equal": ("16 requests of one 1,000-token prompt against num_samples=16", 1.15, equal_prompts),
    "late": (
        "16 requests of one 1,000-token prompt, one step apart, against num_samples=16",
        1.5,
        late_prompts,
    ),
    "turn": ("second turn of a conversation of 1,000 tokens against the first", 0.5, next_turn),
    "unlike": (
        "60 prompts of 10 tokens + one of 1,000 in one go against apart",
        1.2,
        unlike_prompts,
    ),
    "data": ("training 7 x 16 + 1 x 1,024 tokens in one call against one by one", 1.1, unlike_data),
    "generate": ("64 samples over HTTP against `transformers.generate` batched", 1.1, generate),
    "short": (
        "CPU of 256 samples of 32 tokens, client and server, against `transformers.generate`",
        1.4,
        short_requests,
    ),
    "request": ("CPU of the server for each of them beyond the engine, ms", 1.0, beyond_engine),
    "apart": (
        "CPU of 16 samples of 64 tokens, one step apart, against at once",
        1.3,
        prompts_apart,
    ),
    "adapters": ("64 samples over 4 adapters against 1", 1.15, adapters),
    "trained": (
        "training 8 adapters with one datum of 64 tokens each against one with all",
        1.15,
        trained_adapters,
    ),
    "eight": ("95th percentile of a step of 8 clients against that of one", 4.0, eight_clients),
    "plain": ("training step against plain torch + peft", 1.02, plain_step),
    "topk": ("top_k 50, vocabulary 152k, per token against transformers' warpers", 1.0, top_k),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join([*ROWS, "memory"]))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400, help="of the row on memory")
    parser.add_argument("--family", choices=FAMILIES, default="Qwen3")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    chosen = options.rows.split(",")
    print(
        f"| ratio in one run, {torch.get_num_threads()} threads | wanted | now | lowest to highest "
        "|\n|---|--:|--:|--:|"
    )
    with bench(options.family, TINY if options.tiny else SIZES) as server:
        if "memory" in chosen:
            print(
                f"| resident memory over {options.steps} steps | flat | "
                f"{memory(server, options.steps)} | |",
                flush=True,
            )
        for title, wanted, row in (ROWS[name] for name in chosen if name in ROWS):
            pairs = row(server)
            next(pairs)  # warms up
            ratios = sorted(
                ours / theirs for ours, theirs in (next(pairs) for _ in range(options.rounds))
            )
            print(
                f"| {title} | <= {wanted:g} | {statistics.median(ratios):.2f} | {ratios[0]:.2f} to "
                f"{ratios[-1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
