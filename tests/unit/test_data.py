"""`tinker.data`: examples of tokens, completions, chats and samples."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable
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

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        return (
            "".join(f"{one['role']}:{one['content']};" for one in messages)
            + "assistant:" * add_generation_prompt
        )


class Lines(Letters):
    """The same without a template."""

    chat_template = ""


LETTERS: Any = Letters()
LINES: Any = Lines()


def read(datum: tinker.Datum, name: str) -> list[float]:
    return datum.loss_fn_inputs[name].tolist()


def learned(datum: tinker.Datum) -> str:
    targets, weights = (
        datum.loss_fn_inputs[name].to_numpy() for name in ("target_tokens", "weights")
    )
    return bytes(targets[weights == 1].tolist()).decode()


def test_tokens() -> None:
    """Each token is predicted from those before it, with its own weight."""
    datum = tinker.data.from_tokens([5, 17, 3], [0.0, 0.0, 1.0])
    assert datum.model_input.to_ints() == [5, 17]
    assert (read(datum, "target_tokens"), read(datum, "weights")) == ([17, 3], [0.0, 1.0])
    assert tinker.data.from_tokens([5, 17, 3]).loss_fn_inputs.keys() == {"target_tokens"}


def test_a_chat() -> None:
    """The answers are learned, all or from a message on, with a template and without one."""
    assert learned(tinker.data.from_messages(LETTERS, CHAT)) == "4;6;"
    assert learned(tinker.data.from_messages(LETTERS, CHAT, first=-1)) == "6;"
    assert tinker.data.from_messages(LETTERS, CHAT, max_length=20).model_input.length == 19
    assert learned(tinker.data.from_messages(LINES, CHAT)) == " 4\n 6\n\0"


def test_a_completion() -> None:
    """A completion is learned and its prompt is not, as texts and as messages."""
    assert learned(tinker.data.from_completion(LETTERS, "2 + 2 =", " 4")) == " 4\0"
    assert tinker.data.from_completion(LETTERS, CHAT[:3], CHAT[3:]) == tinker.data.from_messages(
        LETTERS, CHAT, first=3
    )
    assert (
        tinker.data.from_completion(LETTERS, "2 + 2 =", " 4", max_length=8).model_input.length == 7
    )
    with pytest.raises(
        ValueError, match="must both be strings, or both lists of messages, got str and list"
    ):
        tinker.data.from_completion(LETTERS, "2 + 2?", CHAT[1:2])
    with pytest.raises(ValueError, match="the completion is empty"):
        tinker.data.from_completion(LETTERS, "2 + 2?", "")


@pytest.mark.parametrize("advantage", [2.0, np.float32(2.0), [2.0, 2.0], np.full(2, 2.0)])
@pytest.mark.parametrize("prompt", [[5, 17], tinker.ModelInput.from_ints([5, 17])])
def test_a_sample(prompt: Any, advantage: Any) -> None:
    """The answer has its advantage and log-probabilities, and the prompt has zeros."""
    datum = tinker.data.from_sample(prompt, ANSWER, advantage)
    assert datum.model_input.to_ints() == [5, 17, 3]
    assert read(datum, "target_tokens") == [17, 3, 8]
    assert (read(datum, "logprobs"), read(datum, "advantages")) == (
        [0.0, -0.5, -0.25],
        [0.0, 2.0, 2.0],
    )


@pytest.mark.parametrize("tokens", [np.array([5, 17, 3]), (5, 17, 3), range(3)])
def test_tokens_of_arrays(tokens: Any) -> None:
    """Tokens and weights may be arrays and tuples."""
    datum = tinker.data.from_tokens(tokens, np.array([0, 0, 1]))
    assert (read(datum, "target_tokens"), read(datum, "weights")) == (list(tokens)[1:], [0.0, 1.0])


def test_tokens_of_torch() -> None:
    """So may tensors of torch."""
    torch = pytest.importorskip("torch")
    datum = tinker.data.from_tokens(torch.tensor([5, 17, 3]), torch.tensor([0, 0, 1]))
    assert (read(datum, "target_tokens"), read(datum, "weights")) == ([17, 3], [0.0, 1.0])
    with pytest.raises(
        ValueError, match=r"got shape \[1, 3\]: of a batch of one, pass tokens\[0\]"
    ):
        tinker.data.from_tokens(torch.tensor([[5, 17, 3]]))


@pytest.mark.parametrize("tokenizer", [LETTERS, LINES])
def test_contents_of_parts(tokenizer: Any) -> None:
    """Parts of text are the text that they make together."""
    parts = [
        {
            **one,
            "content": [
                {"type": "text", "text": one["content"][:1]},
                {"type": "text", "text": one["content"][1:]},
            ],
        }
        for one in CHAT
    ]
    assert tinker.data.from_messages(tokenizer, parts) == tinker.data.from_messages(tokenizer, CHAT)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ({"messages": CHAT}, '"messages" must be a list, got dict: take its ["messages"]'),
        (
            {"prompt": CHAT[:1], "completion": CHAT[1:2]},
            (
                'got dict: use tinker.data.from_completion(tokenizer, row["prompt"], '
                'row["completion"])'
            ),
        ),
        (CHAT[0], '"messages" must be a list, got dict: put the message in a list'),
        ("2 + 2?", '"messages" must be a list, got str'),
        (None, '"messages" must be a list, got NoneType'),
        ([], '"messages" is empty'),
        ([CHAT], "message 0 is a list; if it is a chat of its own, make an example of each chat"),
        (
            [{"from": "human", "value": "a"}],
            'message 0 has no "role"; it has from, value: rename "from" to "role" (human to user',
        ),
        (
            [*CHAT, {"content": "a"}],
            (
                'message 4 has no "role"; it has content; a message is '
                '{"role": "user", "content": "Hi"}'
            ),
        ),
        ([CHAT[0], {"role": "assistant", "content": None}], 'message 1: "content" must be text'),
        (
            [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}],
            "parts that are not text; for images, see docs/vision.md",
        ),
    ],
)
def test_refusals_of_messages(messages: Any, text: str) -> None:
    """What is not a list of messages of text is refused, with what to write."""
    with pytest.raises(ValueError, match=re.escape(text)):
        tinker.data.from_messages(LETTERS, messages)


@pytest.mark.parametrize("tokenizer", ["tinker/babble", CHAT, tinker.AdamParams()])
def test_refusals_of_tokenizers(tokenizer: Any) -> None:
    """What is not a tokenizer is refused, with where to get one."""
    with pytest.raises(
        TypeError,
        match=r"tokenizer must be a tokenizer, got \w+: use get_tokenizer\(\) of a training",
    ):
        tinker.data.from_messages(tokenizer, CHAT)


def test_a_sequence_must_be_a_sequence() -> None:
    """Text in the place of a sampled sequence is named."""
    wrong: Any = "answer"
    with pytest.raises(TypeError, match="sequence must be a SampledSequence, got str"):
        tinker.data.from_sample([1], wrong, 1.0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tinker.data.from_tokens([1]), "at least two tokens"),
        (
            lambda: tinker.data.from_tokens([1, 2], [1.0]),
            "one weight for each token, got 1 for 2 tokens",
        ),
        (
            lambda: tinker.data.from_tokens(UserDict(input_ids=[1, 2])),
            "tokens must be a list of token ids, got UserDict: take its",
        ),
        (lambda: tinker.data.from_tokens("hello"), "got str: use tokenizer.encode"),
        (lambda: tinker.data.from_tokens([[1, 2, 3]]), "must be one-dimensional"),
        (
            lambda: tinker.data.from_tokens([1, 2], [-100, 2]),
            "a weight is -100, which marks labels of transformers; a token",
        ),
        (
            lambda: tinker.data.from_tokens([1, 2], [None, 1.0]),
            "weights must be numbers, got None at position 0",
        ),
        (
            lambda: tinker.data.from_messages(LETTERS, CHAT[:1]),
            'no message has the role "assistant"',
        ),
        (lambda: tinker.data.from_sample([], ANSWER, 1.0), "the prompt is empty"),
        (
            lambda: tinker.data.from_sample(UserDict(input_ids=[1]), ANSWER, 1.0),
            "prompt: tokens must be a list of token ids",
        ),
        (
            lambda: tinker.data.from_sample([1], ANSWER, "good"),
            "advantage must be one finite number, .* got 'good'",
        ),
        (
            lambda: tinker.data.from_sample([1], ANSWER, float("nan")),
            "advantage must be one finite number, .* got nan",
        ),
        (
            lambda: tinker.data.from_sample([1], ANSWER, [1.0, np.inf]),
            "advantage must be one finite number",
        ),
        (
            lambda: tinker.data.from_sample([1], ANSWER, [1.0]),
            "one for each of the 2 tokens, got 1",
        ),
        (
            lambda: tinker.data.from_sample(
                [1], tinker.SampledSequence(stop_reason="stop", tokens=[3]), 1.0
            ),
            "the sequence has no logprobs",
        ),
    ],
)
def test_refusals(make: Callable[[], object], text: str) -> None:
    """What cannot become an example is refused with the reason."""
    with pytest.raises(ValueError, match=text):
        make()
