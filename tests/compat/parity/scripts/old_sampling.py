"""Samples, checkpoints and lists as scripts of 0.4 to 0.7 have them: futures of
``concurrent.futures``, twins of everything.
"""

import asyncio
import concurrent.futures
from typing import Any

from showing import failure, show

import tinker
from tinker import types

MODEL = "tinker/babble"
PROMPT = types.ModelInput.from_ints(tokens=[5, 17, 3, 40])
GREEDY = types.SamplingParams(max_tokens=5, temperature=0.0, seed=1)


def shown(name: str, response: types.SampleResponse) -> None:
    sequences = [[one.tokens, one.logprobs, one.stop_reason] for one in response.sequences]
    show(name, [sequences, response.prompt_logprobs, response.topk_prompt_logprobs])


async def awaited(service: tinker.ServiceClient, sampler: tinker.SamplingClient, rest: Any) -> None:
    other = await service.create_sampling_client_async(base_model=MODEL)
    for response in await asyncio.gather(
        *(other.sample_async(PROMPT, 1, GREEDY) for _ in range(2))
    ):
        shown("async", response)
    show("async logprobs", await sampler.compute_logprobs_async(PROMPT))
    show(
        "async models",
        [
            one.model_name
            for one in (await service.get_server_capabilities_async()).supported_models
        ],
    )
    show("async runs", (await rest.list_training_runs_async(limit=1)).cursor.total_count)


def main() -> None:
    service = tinker.ServiceClient()
    show("models", [one.model_name for one in service.get_server_capabilities().supported_models])
    training = service.create_lora_training_client(base_model=MODEL, rank=4, seed=3)
    sampler = training.save_weights_and_get_sampling_client(name="0001")
    futures = [sampler.sample(PROMPT, num_samples=2, sampling_params=GREEDY) for _ in range(3)]
    assert len(concurrent.futures.wait(futures).done) == 3
    for future in futures:
        shown("sample", future.result())
    shown(
        "stop",
        sampler.sample(
            PROMPT, 1, types.SamplingParams(max_tokens=8, temperature=0.0, seed=1, stop=["e"])
        ).result(),
    )
    shown(
        "prompt",
        sampler.sample(
            PROMPT, 1, GREEDY, include_prompt_logprobs=True, topk_prompt_logprobs=2
        ).result(),
    )
    show("logprobs", sampler.compute_logprobs(PROMPT).result())

    saved = training.save_weights_for_sampler("s1").result().path
    shown(
        "saved", service.create_sampling_client(model_path=saved).sample(PROMPT, 1, GREEDY).result()
    )
    state = training.save_state("w1").result().path
    rest = service.create_rest_client()
    show("run", rest.get_training_run(training.model_id).result().lora_rank)
    show("by path", rest.get_training_run_by_tinker_path(state).result().base_model)
    show(
        "listed",
        sorted(
            one.checkpoint_id
            for one in rest.list_checkpoints(training.model_id).result().checkpoints
        ),
    )
    show("mine", rest.list_user_checkpoints(limit=1, offset=1).result().cursor)
    show("info", rest.get_weights_info_by_tinker_path(state).result().lora_rank)
    show("published", rest.publish_checkpoint_from_tinker_path(state).result())
    show("unpublished", rest.unpublish_checkpoint_from_tinker_path(state).result())
    show("session", rest.get_session(training.model_id.partition(":")[0]).result().training_run_ids)
    show("sessions", len(rest.list_sessions().result().sessions))
    archive = rest.get_checkpoint_archive_url_from_tinker_path(saved).result()
    show("archive", [archive.url.startswith("http"), archive.expires])
    show("deleted", rest.delete_checkpoint_from_tinker_path(state).result())
    show("deleted by id", rest.delete_checkpoint(training.model_id, "sampler_weights/s1").result())
    asyncio.run(awaited(service, sampler, rest))
    failure("not a path", lambda: rest.delete_checkpoint_from_tinker_path("nothing"))
    failure("no such run", lambda: rest.get_training_run("no:train:0"))


main()
