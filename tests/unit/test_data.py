"""`tinker.data`: examples of tokens, chats and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinker

CHAT = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "3 + 3?"},
    {"role": "assistant", "content": "6"},
]
ANSWER = tinker.SampledSequence(stop_reason="stop", tokens=[3, 8], logprobs=[-0.5, -0.25])


class Letters:
    """A tokenizer whose tokens are letters, with a chat template."""

    eos_token_id = 0
    chat_template = "role:content;"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def apply_chat_template(self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        return "".join(f"{one['role']}:{one['content']};" for one in messages) + "assistant:" * add_generation_prompt


class Lines(Letters):
    """The same without a template."""

    chat_template = ""


def read(datum: tinker.Datum, name: str) -> list[float]:
    return datum.loss_fn_inputs[name].tolist()


def learned(datum: tinker.Datum) -> str:
    targets, weights = (datum.loss_fn_inputs[name].to_numpy() for name in ("target_tokens", "weights"))
    return bytes(targets[weights == 1].tolist()).decode()


def test_tokens() -> None:
    """Each token is predicted from those before it, with its own weight."""
    datum = tinker.data.from_tokens([5, 17, 3], [0.0, 0.0, 1.0])
    assert datum.model_input.to_ints() == [5, 17]
    assert (read(datum, "target_tokens"), read(datum, "weights")) == ([17, 3], [0.0, 1.0])
    assert tinker.data.from_tokens([5, 17, 3]).loss_fn_inputs.keys() == {"target_tokens"}


def test_a_chat() -> None:
    """The answers are learned, all of them or those from a message on, with a template and without one."""
    letters: Any = Letters()
    lines: Any = Lines()
    assert learned(tinker.data.from_messages(letters, CHAT)) == "4;6;"
    assert learned(tinker.data.from_messages(letters, CHAT, first=-1)) == "6;"
    assert tinker.data.from_messages(letters, CHAT, max_length=20).model_input.length == 19
    assert learned(tinker.data.from_messages(lines, CHAT)) == " 4\n 6\n\0"


@pytest.mark.parametrize("advantage", [2.0, np.float32(2.0), [2.0, 2.0], np.full(2, 2.0)])
@pytest.mark.parametrize("prompt", [[5, 17], tinker.ModelInput.from_ints([5, 17])])
def test_a_sample(prompt: Any, advantage: Any) -> None:
    """The answer has its advantage and the log-probabilities it was sampled with, and the prompt has zeros."""
    datum = tinker.data.from_sample(prompt, ANSWER, advantage)
    assert datum.model_input.to_ints() == [5, 17, 3]
    assert read(datum, "target_tokens") == [17, 3, 8]
    assert (read(datum, "logprobs"), read(datum, "advantages")) == ([0.0, -0.5, -0.25], [0.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tinker.data.from_tokens([1]), "at least two tokens"),
        (lambda: tinker.data.from_tokens([1, 2], [1.0]), "one weight for each token, got 1 for 2 tokens"),
        (lambda: tinker.data.from_messages(Letters(), CHAT[:1]), 'no message has the role "assistant"'),
        (lambda: tinker.data.from_sample([], ANSWER, 1.0), "the prompt is empty"),
        (lambda: tinker.data.from_sample([1], ANSWER, [1.0]), "one for each of the 2 tokens, got 1"),
        (
            lambda: tinker.data.from_sample([1], tinker.SampledSequence(stop_reason="stop", tokens=[3]), 1.0),
            "the sequence has no logprobs",
        ),
    ],
)
def test_refusals(make: Any, text: str) -> None:
    """What cannot become an example is refused with the reason."""
    with pytest.raises(ValueError, match=text):
        make()
