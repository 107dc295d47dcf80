"""Tokenizers: of a model by its name, of a client by what the server says; special tokens, and
prompts in a chat template.

python examples/model_tokenizers.py
"""

from __future__ import annotations

import os

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TURNS = [("user", "What is 2 + 2?"), ("assistant", "4")]


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    assert base_model is not None

    # By name: no session, no server. For models on the hub, their own; it is loaded once in a
    # process.
    tokenizer = tinker.get_tokenizer(base_model)
    print(f"{base_model}: {type(tokenizer).__name__}, {len(tokenizer)} tokens")

    # Of a client: the one that the server names for the model.
    sampler = service.create_sampling_client(base_model=base_model)
    assert sampler.get_tokenizer().get_vocab() == tokenizer.get_vocab()

    text = "the quick brown fox"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    print(f"{text!r} is {len(tokens)} tokens: {[tokenizer.decode([token]) for token in tokens]}")

    # A prompt that is text alone; one that is built turn by turn, as chat templates do.
    plain = types.ModelInput.from_text(text, tokenizer)
    turns = "".join(f"<{role}>{words}</{role}>\n" for role, words in TURNS)
    chat = types.ModelInput.from_ints(tokenizer.encode(turns, add_special_tokens=False))
    print(f"a text of {plain.length} tokens, a conversation of {chat.length}")

    sampled = (
        sampler.sample(plain, 1, types.SamplingParams(max_tokens=6, temperature=0))
        .result()
        .sequences[0]
    )
    print(f"continues with {sampler.decode(sampled.tokens)!r}")
    service.close().result()
    assert tokenizer.decode(tokens) == text


if __name__ == "__main__":
    main()
