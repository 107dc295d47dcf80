"""Sample from several processes: a sampler pickles into a pool, and a handle is text for any other
machine.

    python examples/process_pool.py

Neither carries the credential: each process uses its own (TINKER_API_KEY). A server at local://
lives in one process and cannot be reached from another, so without TINKER_BASE_URL this starts one
on a port.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

import tinker
from tinker import types

PARAMS = types.SamplingParams(max_tokens=8, temperature=1.0)


def sample_pickled(sampler: tinker.SamplingClient, prompt: list[int]) -> tuple[int, list[int]]:
    """Runs in a process of the pool."""
    response = sampler.sample(types.ModelInput.from_ints(prompt), 1, PARAMS).result()
    return os.getpid(), list(response.sequences[0].tokens)


def sample_by_handle(handle: str, prompt: list[int]) -> tuple[int, list[int]]:
    """The same, from text that could have come by any way."""
    return sample_pickled(tinker.SamplingClient.from_sampler_handle(handle), prompt)


def main() -> None:
    with ExitStack() as stack:
        base_url = os.environ.get("TINKER_BASE_URL", "local://")
        if base_url.startswith("local://"):
            from tinker.local import running_server

            base_url = stack.enter_context(running_server(engine="toy"))
        service = stack.enter_context(tinker.ServiceClient(base_url=base_url))
        base_model = service.get_server_capabilities().supported_models[0].model_name
        sampler = service.create_sampling_client(base_model=base_model)
        prompts = [[1, 2, number] for number in range(1, 9)]

        # "spawn": threads do not survive a fork
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            pickled = [pool.submit(sample_pickled, sampler, prompt) for prompt in prompts]
            handle = sampler.get_sampler_handle()
            by_handle = [pool.submit(sample_by_handle, handle, prompt) for prompt in prompts]
            results = [future.result() for future in pickled + by_handle]
    processes = {process for process, _ in results}
    print(
        f"{len(results)} answers of {len(processes)} processes, the "
        f"handle has {len(handle)} characters"
    )
    assert os.getpid() not in processes
    assert all(tokens for _, tokens in results)


if __name__ == "__main__":
    main()
