"""harbor: its TinkerLLM, which its agent Terminus 2 asks, on a base model and on a checkpoint
trained to say yes.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import pytest
import typing_extensions

# harbor is written for Python 3.12, of which this module needs only this
if not hasattr(typing, "override"):
    typing.override = typing_extensions.override

from harbor.llms.base import ContextLengthExceededError, LLMResponse, OutputLengthExceededError
from harbor.llms.tinker import TinkerLLM
from reporting import MODEL, PATIENCE_SECONDS, register_tokenizer, report
from tinker_cookbook import renderers, tokenizer_utils

import tinker

QUESTION = "Is it so?"
HISTORY = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello, you."}]
trained: list[str] = []


def make_llm(**options: Any) -> TinkerLLM:
    """TinkerLLM with the renderer that the packaged tokenizer can serve."""
    return TinkerLLM(
        MODEL, **{"renderer_name": "role_colon", "max_tokens": 16, "temperature": 0.0, **options}
    )


def train_to_say_yes() -> None:
    """Not harbor's: the checkpoint that the later steps sample, which answers and stops."""
    tokenizer = tokenizer_utils.get_tokenizer(MODEL)
    renderer = renderers.get_renderer("role_colon", tokenizer)
    prompt = renderer.build_generation_prompt(
        [*HISTORY, {"role": "user", "content": QUESTION}]
    ).to_ints()
    answer = tokenizer.encode(" yes" + renderer.get_stop_sequences()[0], add_special_tokens=False)
    tokens, weights = prompt + answer, [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
    inputs = {"target_tokens": tokens[1:], "weights": weights}
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs
    )
    training = tinker.ServiceClient().create_lora_training_client(base_model=MODEL, rank=8)
    for _ in range(20):
        training.forward_backward([datum], "cross_entropy").result(PATIENCE_SECONDS)
        training.optim_step(tinker.AdamParams(learning_rate=5e-3)).result(PATIENCE_SECONDS)
    trained.append(training.save_weights_for_sampler("yes").result(PATIENCE_SECONDS).path)


async def answer_cut_at_the_limit() -> None:
    """The base model does not stop; harbor raises with the partial output."""
    with pytest.raises(OutputLengthExceededError) as caught:
        await make_llm().call(QUESTION)
    assert caught.value.truncated_response


async def prompt_too_long() -> None:
    with pytest.raises(ContextLengthExceededError, match="4 tokens"):
        await make_llm(context_limit=4).call(QUESTION)


async def ask_checkpoint(**options: Any) -> LLMResponse:
    return await make_llm(model_path=trained[0], **options).call(QUESTION, message_history=HISTORY)


async def answer_of_a_checkpoint() -> None:
    said = await ask_checkpoint()
    assert said.content.strip() == "yes"
    assert said.usage.prompt_tokens > said.usage.completion_tokens > 0


async def rollout_details() -> None:
    """Tokens and their log probabilities, which harbor writes as JSON."""
    said = await ask_checkpoint()
    assert len(said.logprobs) == len(said.completion_token_ids) == said.usage.completion_tokens
    assert len(said.prompt_token_ids) == said.usage.prompt_tokens
    assert all(one <= 0 for one in said.logprobs)
    assert json.loads(json.dumps([said.prompt_token_ids, said.completion_token_ids, said.logprobs]))


async def no_rollout_details() -> None:
    said = dataclasses.asdict(await ask_checkpoint(collect_rollout_details=False))
    assert said["logprobs"] is said["completion_token_ids"] is said["prompt_token_ids"] is None


async def seeded_answer() -> None:
    first, second = [
        await ask_checkpoint(temperature=0.7, seed=7, top_k=20, top_p=0.9) for _ in range(2)
    ]
    assert first.completion_token_ids == second.completion_token_ids


async def checkpoint_that_is_not_there() -> None:
    with pytest.raises(tinker.APIStatusError) as caught:
        await make_llm(model_path="tinker://no-such-run/sampler_weights/nothing").call(QUESTION)
    assert caught.value.status_code in {400, 404}


if __name__ == "__main__":
    register_tokenizer()
    report([
        answer_cut_at_the_limit, prompt_too_long, train_to_say_yes, answer_of_a_checkpoint, rollout_details, no_rollout_details,
        seeded_answer, checkpoint_that_is_not_there,
    ])  # fmt: skip
