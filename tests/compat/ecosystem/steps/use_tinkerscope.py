"""tinkerscope: its calls of the service, and its samples with the log-probabilities of their
tokens.
"""

from __future__ import annotations

from typing import Any

from reporting import MODEL, register_tokenizer, report, train
from tinkerscope.api import discovery, tinker_sampler

run = train()
manager = tinker_sampler.SamplerManager()


async def samples(**options: Any) -> list[dict[str, Any]]:
    """Return the events of a chat, without tinkerscope's reports about the connection."""
    how: dict[str, Any] = {
        "temperature": 1.0,
        "max_tokens": 8,
        "renderer_name": "role_colon",
        "base_model": MODEL,
        **options,
    }
    messages = how.pop("messages", [{"role": "user", "content": "Say hi."}])
    stream = tinker_sampler.SamplerManager().sample_stream(messages=messages, n=2, **how)
    found = [one async for one in stream if "tinker_status" not in one]
    assert len(found) == 2, found
    assert not [one for one in found if "error" in one], found
    return found


def capabilities() -> None:
    found = discovery.get_capabilities(force=True)
    assert found["available"], found
    assert found["supported_models"]


def servable_paths() -> None:
    found = discovery.get_servable_paths(force=True)
    assert found["available"], found
    assert run.weights in found["paths"]
    assert run.state not in found["paths"]


async def base_model_of_a_path() -> None:
    found = await manager.probe_sampler_path(run.weights)
    assert found["base_model"] == MODEL, found


async def path_that_is_not_there() -> None:
    found = await manager.probe_sampler_path(f"tinker://{run.id}/sampler_weights/nothing")
    assert not found["available"]
    assert found["error"]


async def prompt_as_the_renderer_makes_it() -> None:
    model_input, text, stop = await manager.render(
        MODEL, "role_colon", [{"role": "user", "content": "Say hi."}]
    )
    assert model_input.length == len(model_input.to_ints())
    assert "Say hi." in text
    assert stop


async def samples_of_the_base_model() -> None:
    for one in await samples(sampler_path=None):
        assert one["finish_reason"] in {"stop", "length"}
        assert all(
            len(token["top"]) == tinker_sampler.TOPK_LOGPROBS for token in one["token_logprobs"]
        )


async def samples_of_a_checkpoint() -> None:
    for one in await samples(sampler_path=run.weights):
        assert all(token["lp"] <= 0 for token in one["token_logprobs"])


async def prefilled_answer() -> None:
    messages = [{"role": "user", "content": "Say hi."}, {"role": "assistant", "content": "Well,"}]
    assert await samples(sampler_path=run.weights, messages=messages, logprobs=False)


async def continued_tokens() -> None:
    for one in await samples(sampler_path=run.weights, continue_tokens=[40, 41, 42]):
        assert one["loom_cut"] == 3


async def watched_connection() -> None:
    await manager._sampling_client(MODEL, None)
    assert manager._liveness_on


async def fresh_connection() -> None:
    """A retired client is closed, and the next sample runs on another."""
    before = await manager._service()
    assert await manager._reconnect(before, "a test")
    client = await manager._sampling_client(MODEL, run.weights)
    assert await manager._service() is not before
    manager._close_stack(before)
    assert (await client.get_base_model_async()) == MODEL


if __name__ == "__main__":
    register_tokenizer()
    report([
        capabilities, servable_paths, base_model_of_a_path, path_that_is_not_there, prompt_as_the_renderer_makes_it,
        samples_of_the_base_model, samples_of_a_checkpoint, prefilled_answer, continued_tokens, watched_connection, fresh_connection,
    ])  # fmt: skip
