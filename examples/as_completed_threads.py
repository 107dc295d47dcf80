"""Without asyncio: futures of the standard library's kind, scored in the order in which they
finish, by a pool of threads.

python examples/as_completed_threads.py
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
PARAMS = types.SamplingParams(max_tokens=24, temperature=1.0)


def score(text: str) -> float:
    """Stands for a check that takes its time: running tests, asking a judge."""
    return len(set(text)) / max(len(text), 1)


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    tokenizer = service.create_lora_training_client(base_model=base_model, rank=8).get_tokenizer()
    sampler = service.create_sampling_client(base_model=base_model)

    prompts = {
        f"Note {number}:": tokenizer.encode(f"Note {number}:", add_special_tokens=False)
        for number in range(40)
    }
    futures: dict[Future[types.SampleResponse], str] = {
        sampler.sample(types.ModelInput.from_ints(tokens), 1, PARAMS): text
        for text, tokens in prompts.items()
    }
    scores: dict[str, Future[float]] = {}
    with ThreadPoolExecutor(4) as pool:
        for future in as_completed(futures):
            text = tokenizer.decode(future.result().sequences[0].tokens)
            scores[futures[future]] = pool.submit(score, text)
    best = max(scores, key=lambda name: scores[name].result())
    print(f"{len(scores)} answers scored; the most varied followed {best!r}")

    # Threads may share one client; each call returns a future of its own. Here the first of several
    # to finish is enough.
    race = [
        sampler.sample(types.ModelInput.from_ints(prompts["Note 0:"]), 1, PARAMS) for _ in range(4)
    ]
    done, late = wait(race, return_when="FIRST_COMPLETED")
    for future in late:
        future.cancel()
    print(f"{len(done)} finished first, {len(late)} cancelled")
    service.close().result()
    assert len(scores) == len(prompts)
    assert done


if __name__ == "__main__":
    main()
