"""One scenario with our own sampler and with vLLM: the same tokens, log-probabilities and
distribution, and nothing lost.

Models that were merged from an adapter and its base model, by the page `docs/whole-way.md`, are
served by vLLM alone and asked through its own API: its template and its tokens are those of
`tinker chat` and `tinker sample`.

``PYTHONPATH=tests python tests/compat/vllm/run.py`` needs a program ``vllm`` on PATH; `nox -s compat --
vllm` installs one, and the wheel of TRL for its templates. Prints a line for each check.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
from compat.servers.tiny_model import VOCABULARY, write_model
from templates.way import NAMES, Walked, walk

import tinker
from tinker import AdamParams, Datum, ModelInput, SamplingParams
from tinker.local import Settings, running_server
from tinker.local.engines.vllm import VLLMProcess

CLOSE = 1e-4
ARGUMENTS = "--enforce-eager --max-model-len 1024"
ADAM = AdamParams(learning_rate=3e-3)
GREEDY = SamplingParams(max_tokens=32, temperature=0.0)
N_DRAWN, N_AT_ONCE = 8192, 256
MAX_Z = 4.0
faults: list[str] = []


def check(name: str, value: object, *, is_right: bool) -> None:
    """Print a result, and remember it if it is wrong."""
    sys.stdout.write(f"{'ok   ' if is_right else 'WRONG'} {name}: {value}\n")
    sys.stdout.flush()
    if not is_right:
        faults.append(name)


def check_all(name: str, flags: Sequence[bool]) -> None:
    """Check how many of several are right."""
    check(name, f"{sum(flags)} of {len(flags)}", is_right=all(flags))


#: vLLM's attention on the CPU needs heads of 32 or more.
LARGER = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "initializer_range": 0.2,
    "tie_word_embeddings": True,
}


@contextmanager
def service(model: Path, folder: Path, *sampler: str) -> Iterator[tinker.ServiceClient]:
    """Yield a client of a server that has loaded the model and, if it is to, vLLM."""
    settings = Settings(data_dir=folder, sampler=sampler, sampler_args=ARGUMENTS, dtype="float32")
    with (
        running_server(settings, "torch", model=str(model)) as url,
        tinker.ServiceClient(base_url=url) as client,
    ):
        yield client


def numbers(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 250, count).tolist()


PROMPTS = [ModelInput.from_ints(numbers(seed, 8 + 5 * seed)) for seed in range(8)]


def train(run: tinker.TrainingClient, seed: int) -> None:
    data = [
        Datum(
            model_input=ModelInput.from_ints(numbers(seed + i, 20)),
            loss_fn_inputs={"target_tokens": numbers(seed - i, 20)},
        )
        for i in range(1, 5)
    ]
    run.forward_backward(data, "cross_entropy").result()
    run.optim_step(ADAM).result()


def make_runs(client: tinker.ServiceClient) -> list[tinker.TrainingClient]:
    runs = [
        client.create_lora_training_client(base_model="model", rank=8, seed=seed) for seed in (1, 2)
    ]
    for run, seed in zip(runs, (100, 200), strict=True):
        for step in range(3):
            train(run, seed + 10 * step)
    return runs


def compare(own: Sequence[tinker.SamplingClient], vllm: Sequence[tinker.SamplingClient]) -> None:
    """Compare the base model and two adapters at once: greedy tokens, logprobs, prompts."""
    both = [
        [one.sample(p, 1, GREEDY, topk_sample_logprobs=3) for one in side for p in PROMPTS]
        for side in (own, vllm)
    ]
    pairs = [(mine.result(), theirs.result()) for mine, theirs in zip(*both, strict=True)]
    equal = [mine.sequences[0].tokens == theirs.sequences[0].tokens for mine, theirs in pairs]
    check_all("greedy samples that are equal", equal)
    sampled = max(
        farthest(mine.sequences[0].logprobs, theirs.sequences[0].logprobs) for mine, theirs in pairs
    )
    check(
        "largest difference of sampled log-probabilities",
        f"{sampled:.1e}",
        is_right=sampled < CLOSE,
    )
    tables = [
        [[token for token, _ in row] for row in one.sequences[0].topk_logprobs or []]
        for pair in pairs
        for one in pair
    ]
    alike = [mine == theirs for mine, theirs in zip(tables[::2], tables[1::2], strict=True)]
    check_all("tables of likeliest tokens that are equal", alike)
    scored = [
        [one.compute_logprobs(PROMPTS[0]).result()[1:] for one in side] for side in (own, vllm)
    ]
    prompt = max(farthest(mine, theirs) for mine, theirs in zip(*scored, strict=True))
    check(
        "largest difference of the prompt's log-probabilities",
        f"{prompt:.1e}",
        is_right=prompt < CLOSE,
    )


def compare_extensions(own: tinker.SamplingClient, vllm: tinker.SamplingClient) -> None:
    """Compare what both draw with penalties, and with a ``min_p`` that leaves one token."""
    penalized = {"presence_penalty": 0.5, "frequency_penalty": 0.7, "repetition_penalty": 1.3}
    for name, params in (
        ("penalties", SamplingParams(max_tokens=32, temperature=0.0, **penalized)),
        ("min_p", SamplingParams(max_tokens=32, min_p=1.0)),
    ):
        both = [[side.sample(prompt, 1, params) for prompt in PROMPTS] for side in (own, vllm)]
        pairs = [
            [future.result().sequences[0].tokens for future in pair]
            for pair in zip(*both, strict=True)
        ]
        check_all(f"samples with {name} that are equal", [mine == theirs for mine, theirs in pairs])


def compare_schema(vllm: tinker.SamplingClient) -> None:
    """Draw texts of a schema, though the weights are random."""
    schema = {"enum": ["yes", "no", 22]}
    drawn = (
        vllm.sample(PROMPTS[0], 16, SamplingParams(max_tokens=16, json_schema=schema))
        .result()
        .sequences
    )
    texts = [msgspec.json.decode(bytes(one.tokens[:-1])) for one in drawn]
    check_all("texts that follow a schema", [text in schema["enum"] for text in texts])


def farthest(mine: Sequence[float | None] | None, theirs: Sequence[float | None] | None) -> float:
    return float(np.abs(np.array(mine, np.float64) - np.array(theirs, np.float64)).max())


def compare_draws(own: tinker.SamplingClient, vllm: tinker.SamplingClient) -> None:
    """Compare vLLM's draws with the probabilities of our own sampler, by chi-square."""
    one = SamplingParams(max_tokens=1, stop=[])
    table = (
        own.sample(PROMPTS[0], 1, one, topk_sample_logprobs=VOCABULARY)
        .result()
        .sequences[0]
        .topk_logprobs
    )
    rows = sorted((table or [])[0] or [])
    expected = N_DRAWN * np.exp(np.array([logprob for _, logprob in rows]))
    params = [
        SamplingParams(max_tokens=1, stop=[], seed=seed) for seed in range(N_DRAWN // N_AT_ONCE)
    ]
    futures = [vllm.sample(PROMPTS[0], N_AT_ONCE, one) for one in params]
    drawn = [sequence.tokens[0] for future in futures for sequence in future.result().sequences]
    seen = np.bincount(drawn, minlength=VOCABULARY)
    often = expected >= 5
    cells = [
        *zip(seen[often], expected[often], strict=True),
        (seen[~often].sum(), expected[~often].sum()),
    ]
    statistic, degrees = sum((n - e) ** 2 / e for n, e in cells), len(cells) - 1
    # Wilson and Hilferty
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / (2 / (9 * degrees)) ** 0.5
    check(
        f"chi-square of {N_DRAWN} tokens, {degrees} degrees of freedom, as z",
        f"{z:.2f}",
        is_right=abs(z) < MAX_Z,
    )
    again = vllm.sample(PROMPTS[0], N_AT_ONCE, params[0]).result()
    same = [one.tokens for one in again.sequences] == [
        one.tokens for one in futures[0].result().sequences
    ]
    check("the same seed draws the same tokens", same, is_right=same)


def measure_gap(run: tinker.TrainingClient, sampler: tinker.SamplingClient) -> None:
    """Train on samples of vLLM, before any step: the metric is the rounding of two programs."""
    sampled = [
        future.result()
        for future in [sampler.sample(p, 4, SamplingParams(max_tokens=16, seed=1)) for p in PROMPTS]
    ]
    data = [
        to_datum(prompt, one)
        for prompt, result in zip(PROMPTS, sampled, strict=True)
        for one in result.sequences
    ]
    metrics = run.forward_backward(data, "importance_sampling").result().metrics
    mean, largest = (metrics[f"sampler_logprob_gap:{name}"] for name in ("mean", "max"))
    check(
        "sampler_logprob_gap, mean and largest",
        f"{mean:.1e}, {largest:.1e}",
        is_right=0 <= mean <= largest < CLOSE,
    )
    run.optim_step(ADAM).result()


def to_datum(prompt: ModelInput, sampled: tinker.SampledSequence) -> Datum:
    tokens, before = [*prompt.to_ints(), *sampled.tokens], [0.0] * (prompt.length - 1)
    inputs = {
        "target_tokens": tokens[1:],
        "logprobs": [*before, *(sampled.logprobs or [])],
        "advantages": [*before, *[1.0] * len(sampled.tokens)],
    }
    return Datum(model_input=ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def sample_while_training(run: tinker.TrainingClient, sampler: tinker.SamplingClient) -> None:
    """Draw 500 samples while training goes on; they are of the weights they were asked of."""
    expected = sampler.sample(PROMPTS[0], 1, GREEDY).result().sequences[0].tokens
    began = time.monotonic()
    futures = [sampler.sample(PROMPTS[0], 1, GREEDY) for _ in range(500)]
    steps = 0
    while not all(future.done() for future in futures):
        train(run, 1000 + steps)
        steps += 1
    right = [future.result().sequences[0].tokens == expected for future in futures]
    seconds = time.monotonic() - began
    check_all(f"samples that are right, in {seconds:.1f} s with {steps} steps of training", right)
    check("steps of training meanwhile", steps, is_right=steps > 1)


def sample_through_a_kill(sampler: tinker.SamplingClient) -> None:
    """Kill vLLM while it samples: every sample arrives, from the vLLM that is started again."""
    expected = sampler.sample(PROMPTS[1], 1, GREEDY).result().sequences[0].tokens
    futures = [sampler.sample(PROMPTS[1], 1, GREEDY) for _ in range(300)]
    futures[0].result()
    waiting = sum(not future.done() for future in futures)
    (pid,) = find_children("vllm")
    os.kill(pid, signal.SIGKILL)
    right = [future.result().sequences[0].tokens == expected for future in futures]
    check_all(f"samples that are right, {waiting} of which waited when vLLM was killed", right)
    check("processes of vLLM", now := find_children("vllm"), is_right=now != [pid])


def compare_merged(folder: Path, template: str) -> None:
    """Walk the whole way, serve the merged model by vLLM alone, and ask it the same."""
    folder.mkdir()
    walked = walk(folder, template)
    process = VLLMProcess(
        [str(walked.merged), "--dtype", "float32", *ARGUMENTS.split()], folder / "vllm.log"
    )
    headers = {"Authorization": f"Bearer {process.key}"}
    try:
        with httpx.Client(base_url=process.url, headers=headers, timeout=600) as client:
            wait_for(process, client)
            answers = [ask(client, walked, *question) for question in walked.questions]
    finally:
        process.stop()
    equal = [mine == theirs for mine, theirs in zip(walked.answers, answers, strict=True)]
    check_all(f"answers of the merged model that are equal, with the template {template}", equal)


def wait_for(process: VLLMProcess, client: httpx.Client) -> None:
    """Wait until it answers; OSError when it ends before, or after five minutes."""
    for _ in range(300):
        process.ensure()
        try:
            client.get("/v1/models").raise_for_status()
            process.has_started = True
            return
        except httpx.TransportError:
            time.sleep(1)
    raise OSError("vLLM has not answered after five minutes")


def ask(
    client: httpx.Client,
    walked: Walked,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
) -> list[int]:
    """Return the tokens of vLLM's own API, in which the arguments of calls are texts."""
    messages = copy.deepcopy(messages)
    for call in (call for message in messages for call in message.get("tool_calls", [])):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    asked = {
        "messages": messages,
        "temperature": 0,
        "max_tokens": 64,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }
    given = {} if tools is None else {"tools": tools, "tool_choice": "none"}
    answer = client.post(
        "/v1/chat/completions", json={"model": str(walked.merged), **asked, **given}
    )
    assert answer.is_success, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


def find_children(word: str) -> list[int]:
    """Return the ids of the child processes whose command contains the word."""
    found = list[int]()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            is_child = f"PPid:\t{os.getpid()}\n" in status.read_text()
            if is_child and word.encode() in status.with_name("cmdline").read_bytes():
                found.append(int(status.parent.name))
        except OSError:  # it has ended
            continue
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        model = root / "model"
        write_model(model, seed=0, **LARGER)
        with service(model, root / "own") as own, service(model, root / "vllm", "vllm") as vllm:
            runs = [make_runs(one) for one in (own, vllm)]
            samplers = [
                [
                    one.create_sampling_client(base_model="model"),
                    *(run.save_weights_and_get_sampling_client() for run in pair),
                ]
                for one, pair in zip((own, vllm), runs, strict=True)
            ]
            steps: list[Callable[[], None]] = [
                lambda: compare(*samplers),
                lambda: compare_extensions(samplers[0][1], samplers[1][1]),
                lambda: compare_schema(samplers[1][1]),
                lambda: compare_draws(samplers[0][1], samplers[1][1]),
                lambda: measure_gap(runs[1][0], samplers[1][1]),
                lambda: sample_while_training(runs[1][0], samplers[1][2]),
                lambda: sample_through_a_kill(samplers[1][1]),
            ]
            for step in steps:
                step()
        for template in NAMES:
            compare_merged(root / template, template)
        left = find_children("vllm")
        check("processes of vLLM that are left", len(left), is_right=not left)
    sys.exit(f"{len(faults)} checks failed: {', '.join(faults)}" if faults else 0)


if __name__ == "__main__":
    main()
