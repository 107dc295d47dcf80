"""Sampling: every argument, base models and saved weights, together and one by one, handles and
pickles.
"""

import asyncio
import concurrent.futures
import pickle
from typing import Any

from showing import failure, show

import tinker
from tinker import types

MODEL = "tinker/babble"
PROMPT = types.ModelInput.from_ints([5, 17, 3, 40])
#: Some of those that programs pass; `nox -s compat -- surface` compares the values of all of them.
NAMES_OF_OTHER_LIBRARIES = (
    "stop_token_ids",
    "return_logprobs",
    "top_logprobs",
    "n",
    "max_new_tokens",
    "do_sample",
    "min_tokens",
)


def shown(name: str, response: types.SampleResponse) -> None:
    sequences = [
        [one.tokens, one.logprobs, one.topk_logprobs, one.stop_reason] for one in response.sequences
    ]
    target = response.target_prompt_logprobs
    show(
        name,
        [
            sequences,
            response.prompt_logprobs,
            response.topk_prompt_logprobs,
            target and target.tolist(),
        ],
    )


def main() -> None:
    with tinker.ServiceClient(user_metadata={"run": "parity"}) as service:
        sampler = service.create_sampling_client(base_model=MODEL).result()
        show("base model", sampler.get_base_model())
        greedy = types.SamplingParams(max_tokens=6, temperature=0.0, seed=1)
        shown("greedy", sampler.sample(PROMPT, 1, greedy).result())
        warm = types.SamplingParams(
            max_tokens=6, temperature=0.7, top_k=5, top_p=0.9, seed=3, stop=[2, 9]
        )
        shown("warm", sampler.sample(prompt=PROMPT, num_samples=2, sampling_params=warm).result())
        for name in NAMES_OF_OTHER_LIBRARIES:
            ignored: Any = {"max_tokens": 2, "temperature": 0.0, "seed": 1, name: 1}
            shown(
                f"ignored {name}",
                sampler.sample(PROMPT, 1, types.SamplingParams(**ignored)).result(),
            )
            shown(
                f"ignored {name} in data",
                sampler.sample(PROMPT, 1, types.SamplingParams.model_validate(ignored)).result(),
            )
        texts = types.SamplingParams(max_tokens=12, temperature=0.0, seed=1, stop=["e"])
        shown("stop", sampler.sample(PROMPT, 1, texts).result())
        shown(
            "stop text",
            sampler.sample(
                PROMPT, 1, types.SamplingParams(max_tokens=12, temperature=0.0, seed=1, stop="e")
            ).result(),
        )
        shown(
            "no stops",
            sampler.sample(
                PROMPT, 1, types.SamplingParams(max_tokens=3, temperature=0.0, seed=1, stop=[])
            ).result(),
        )
        shown(
            "prompt logprobs",
            sampler.sample(
                PROMPT,
                1,
                greedy,
                include_prompt_logprobs=True,
                topk_prompt_logprobs=3,
                topk_sample_logprobs=2,
            ).result(),
        )
        targets = types.TensorData(data=[1, 2, 3, 4, 5, -1], dtype="int64", shape=[3, 2])
        shown("targets", sampler.sample(PROMPT, 1, greedy, target_prompt_logprobs=targets).result())
        shown(
            "last",
            sampler.sample(
                PROMPT, 1, greedy, include_prompt_logprobs=True, prompt_logprobs_last_n=2
            ).result(),
        )
        show("logprobs", sampler.compute_logprobs(PROMPT).result())

        wanted = [
            sampler.sample(
                PROMPT, 1, types.SamplingParams(max_tokens=4, temperature=1.0, seed=seed)
            )
            for seed in range(8)
        ]
        concurrent.futures.wait(wanted)
        for number, future in enumerate(wanted):
            shown(f"one of many {number}", future.result())

        async def awaited() -> None:
            other = await service.create_sampling_client_async(base_model=MODEL)
            responses = await asyncio.gather(
                *(other.sample_async(PROMPT, 1, greedy) for _ in range(3))
            )
            for response in responses:
                shown("async", response)
            show("async logprobs", await other.compute_logprobs_async(PROMPT))

        asyncio.run(awaited())
        training = service.create_lora_training_client(MODEL, rank=4, seed=2).result()
        tuned = training.save_weights_and_get_sampling_client().result()
        shown("tuned", tuned.sample(PROMPT, 1, greedy).result())
        saved = training.save_weights_for_sampler("0001").result().path
        show("path", saved)
        shown(
            "saved",
            service.create_sampling_client(model_path=saved)
            .result()
            .sample(PROMPT, 1, greedy)
            .result(),
        )
        shown(
            "through training",
            training.create_sampling_client(saved).result().sample(PROMPT, 1, greedy).result(),
        )
        shown("clone", pickle.loads(pickle.dumps(sampler)).sample(PROMPT, 1, greedy).result())
        handle = tinker.SamplingClient.from_sampler_handle(
            sampler.get_sampler_handle(), api_key="tml-parity"
        )
        shown("handle", handle.sample(PROMPT, 1, greedy).result())

        failure("no model", lambda: service.create_sampling_client())
        failure("unknown model", lambda: service.create_sampling_client(base_model="no/such-model"))
        failure("not a path", lambda: service.create_sampling_client(model_path="nothing"))
        failure(
            "no such path",
            lambda: service.create_sampling_client(
                model_path="tinker://no:train:0/sampler_weights/0001"
            ),
        )
        failure(
            "bad targets",
            lambda: sampler.sample(
                PROMPT, 1, greedy, target_prompt_logprobs=types.TensorData([1.0], "float32", [1])
            ),
        )
        failure("last of none", lambda: sampler.sample(PROMPT, 1, greedy, prompt_logprobs_last_n=1))


main()
