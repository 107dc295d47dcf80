"""Tokens on ``/v1``: their bytes, what ends a text, their ids in answers, and ``/tokenize``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.fake_vllm import FakeVLLM, running
from support.made_tokenizers import MAKERS, ScriptedEngine, byte_fallback, byte_level
from support.tiny_models import write_tiny_llama

from tinker.local import Settings
from tinker.local.engines.protocol import SampleJob
from tinker.local.engines.toy import ToyEngine
from tinker.local.serving import running_server
from tinker.local.v1 import INCOMPLETE, ModelTexts, SampleText, Texts, load_texts

openai = pytest.importorskip("openai")
transformers = pytest.importorskip("transformers")
TEXTS = ["The cat", "The cats cat. The", "é cat", "가나다라마바사아", "a😀b The"]
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if not loop.last %}</s>{% endif %}{% "
    "endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@contextmanager
def served(folder: Path, engine: Any, model: Path | None = None, **settings: Any) -> Iterator[Any]:
    """Yield an openai client of a server with this engine."""
    server = running_server(
        Settings(data_dir=folder / "data", **settings),
        engine,
        model=None if model is None else str(model),
    )
    with server as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        yield client


def ask(client: Any, path: str, **body: Any) -> Any:
    """Post a body to the root of the server, and return the answer."""
    answer = httpx.post(str(client.base_url).removesuffix("v1/") + path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def join(text: SampleText, tokens: list[int]) -> str:
    """Return all parts of a text."""
    return "".join(text.add(token, -1.0) for token in tokens) + text.finish("length")


def fitting(kind: str) -> list[str]:
    """Return the texts that a kind of tokenizer can write."""
    return TEXTS if kind.startswith("byte") else TEXTS[:3]


@pytest.mark.parametrize("kind", MAKERS)
def test_parts_join_to_the_whole_text(kind: str) -> None:
    """The parts of a text, and the bytes of its tokens, are what the tokenizer decodes."""
    tokenizer = MAKERS[kind]()
    for text in fitting(kind):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        whole = tokenizer.decode(tokens)
        sample = SampleText(ModelTexts(tokenizer), [], frozenset())
        assert join(sample, tokens) == whole
        scores = sample.drain_scores()
        assert b"".join(score.word.content for score in scores) == whole.encode()
        assert all(
            whole[score.offset :].startswith(score.word.content.decode(errors="ignore"))
            for score in scores
        )
        assert [score.offset for score in scores] == sorted(score.offset for score in scores)


def test_a_word_is_its_own_bytes(tmp_path: Path) -> None:
    """A special token is its name, a byte itself, and a space belongs to the word that has it."""
    texts = {kind: ModelTexts(make()) for kind, make in MAKERS.items()}

    def word(kind: str, name: str, previous: str | None = "cat") -> Any:
        of = texts[kind]._tokenizer.convert_tokens_to_ids
        return texts[kind].word(None if previous is None else of(previous), of(name))

    for kind in MAKERS:
        assert (word(kind, "<|end|>").content, word(kind, "<|end|>").is_special) == (
            b"<|end|>",
            True,
        )
    assert word("byte_level", "ðŁ", "a").content == b"\xf0\x9f"
    assert word("byte_level", "ðŁ", "a").text == "bytes:\\xf0\\x9f"
    assert word("byte_level", "Ġca", "ðŁ").content == b" ca"
    assert word("byte_fallback", "<0xEC>").content == b"\xec"
    assert word("byte_fallback", "<0x20>", None).content == b" "
    assert word("byte_fallback", "<0x41>", "<0xEC>").content == b"A"
    assert word("byte_fallback", "▁cat", "<0xEC>").content == b" cat"
    assert [word("byte_fallback", "▁cat", one).content for one in (None, "cat")] == [
        b"cat",
        b" cat",
    ]
    assert word("sentence_piece", "▁cat").content == b" cat"
    assert word("sentence_piece", "é").content == "é".encode()
    assert [word("word_piece", one).content for one in ("cat", "##cat", ".")] == [
        b" cat",
        b"cat",
        b".",
    ]


def test_bytes_that_are_no_text_spoil_no_other_character() -> None:
    """A stray byte, or a character that the end cuts, is one U+FFFD; those around it stay."""
    tokenizer = byte_fallback()
    texts = ModelTexts(tokenizer)
    ids = [
        tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>")
        for byte in ("가".encode() + b"\x80" + "나".encode() + b"\xeb\x8b")
    ]
    assert join(SampleText(texts, [], frozenset()), ids) == "가\ufffd나\ufffd"


@pytest.mark.parametrize("least", [0, 4])
@pytest.mark.parametrize("kind", MAKERS)
def test_stop_texts_are_found_wherever_they_begin(kind: str, least: int) -> None:
    """Torch ends at the token that completes a stop text behind the least length, not earlier."""
    pytest.importorskip("torch")
    from tinker.local.engines.arrays import Stops

    tokenizer = MAKERS[kind]()
    for text in fitting(kind):
        tokens = tokenizer.encode(text * 6, add_special_tokens=False)
        whole = tokenizer.decode(tokens)
        while INCOMPLETE in tokenizer.decode(tokens[:least]):
            least += 1
        for stop in sorted({whole[at : at + size] for at in range(len(whole)) for size in (1, 2)}):
            if least and stop.startswith(" "):
                continue  # that a text without its beginning does not show
            job = SampleJob(
                tokens=np.zeros(1, np.int32),
                weights=None,
                max_tokens=9,
                stop=[stop],
                min_tokens=least,
            )
            stops, sample = (
                Stops(job, frozenset(), tokenizer.decode),
                SampleText(ModelTexts(tokenizer), [stop], set(), least=least),
            )
            found = next(
                count for count in range(1, len(tokens) + 1) if stops.is_reached(tokens[:count])
            )
            expected = next(
                count
                for count in range(1, len(tokens) + 1)
                if stop in tokenizer.decode(tokens[least:count])
            )
            assert found == expected, (text, stop)
            for token in tokens[:found]:
                assert sample.finish_reason is None
                sample.add(token, 0.0)
            assert sample.finish_reason == "stop"


@pytest.mark.parametrize("kind", MAKERS)
def test_a_text_goes_on_where_its_prompt_ends(tmp_path: Path, kind: str) -> None:
    """An echoed prompt and its completion are one text, with its bytes and offsets."""
    tokenizer, text = MAKERS[kind](eos_token="</s>"), "The cat cats The cat"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    end, half = tokenizer.convert_tokens_to_ids("</s>"), len(tokens) // 2
    with served(tmp_path, ScriptedEngine(tmp_path, tokenizer, [*tokens[half:], end])) as client:
        wanted: dict[str, Any] = {
            "model": "tinker/toy",
            "prompt": tokens[:half],
            "max_tokens": 99,
            "logprobs": 0,
        }
        echoed = client.completions.create(**wanted, echo=True).choices[0]
        assert echoed.text == tokenizer.decode(tokens) == text
        assert echoed.finish_reason == "stop"
        assert [
            text[at:].startswith(one)
            for at, one in zip(echoed.logprobs.text_offset, echoed.logprobs.tokens)
        ][:-1] == [True] * len(tokens)
        assert echoed.logprobs.text_offset[-1] == len(text)
        parts = [one.choices[0] for one in client.completions.create(**wanted, stream=True)]
        whole = client.completions.create(**wanted).choices[0]
        assert tokenizer.decode(tokens[:half]) + whole.text == text
        assert "".join(one.text for one in parts) == whole.text
        streamed = [at for one in parts if one.logprobs for at in one.logprobs.text_offset]
        assert streamed == whole.logprobs.text_offset


def test_a_character_of_several_tokens_can_be_put_together(tmp_path: Path) -> None:
    """Parts of a character have their bytes, in streams too; offsets lie in the text."""
    tokenizer = byte_level(eos_token="</s>")
    tokens = tokenizer.encode("a😀b", add_special_tokens=False)
    with served(tmp_path, ScriptedEngine(tmp_path, tokenizer, tokens)) as client:
        asked: dict[str, Any] = {"model": "tinker/toy", "max_tokens": len(tokens), "logprobs": True}
        messages = [{"role": "user", "content": "x"}]
        whole = client.chat.completions.create(messages=messages, **asked).choices[0]
        parts = [
            one.choices[0]
            for one in client.chat.completions.create(messages=messages, **asked, stream=True)
        ]
        for content in (
            whole.logprobs.content,
            [one for part in parts if part.logprobs for one in part.logprobs.content],
        ):
            assert (
                bytes(byte for one in content for byte in one.bytes).decode()
                == whole.message.content
                == "a😀b"
            )
            assert content[1].token == "bytes:\\xf0\\x9f"
        scored = client.completions.create(
            model="tinker/toy", prompt="a😀b", max_tokens=0, echo=True, logprobs=0
        )
        assert scored.choices[0].logprobs.text_offset == [0, *[1] * (len(tokens) - 2), 2]


def test_tokens_that_look_alike_are_kept_apart(tmp_path: Path) -> None:
    """Each likeliest token has a key of its own, and the drawn one that of ``tokens``."""
    pytest.importorskip("peft")
    model = write_tiny_llama(tmp_path / "model")
    with served(tmp_path, "torch", model=model) as client:
        found = client.completions.create(
            model="model", prompt="a", max_tokens=3, logprobs=100, temperature=0
        )
        columns = found.choices[0].logprobs
        assert [len(one) for one in columns.top_logprobs] == [100] * 3
        assert all(
            max(top, key=top.get) == token
            for token, top in zip(columns.tokens, columns.top_logprobs)
        )
        chat = client.chat.completions.create(
            model="model",
            messages=[{"role": "user", "content": "a"}],
            max_tokens=1,
            logprobs=True,
            top_logprobs=100,
        )
        likeliest = chat.choices[0].logprobs.content[0].top_logprobs
        assert len({(one.token, *one.bytes) for one in likeliest}) == 100


def write_model(folder: Path, tokenizer: Any) -> tuple[Path, list[int], int]:
    """Write a model with three end tokens; return what it writes after "a", and the end in it."""
    import torch

    model = write_tiny_llama(folder)
    loaded = transformers.LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    prompt = tokenizer.encode("a", add_special_tokens=False)
    written = loaded.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
    )[0].tolist()
    written = written[len(prompt) :]
    end = next(one for at, one in enumerate(written) if at > 1 and one not in written[:at])
    loaded.generation_config.eos_token_id = [256, end, 3]
    loaded.generation_config.do_sample = False
    loaded.save_pretrained(model)
    reloaded = transformers.LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    ended = reloaded.generate(torch.tensor([prompt]), max_new_tokens=12)[0].tolist()[len(prompt) :]
    assert ended == written[: written.index(end) + 1]
    return model, written, end


@pytest.mark.parametrize("has_end", [True, False])
def test_a_stop_leaves_every_end_of_the_model(tmp_path: Path, has_end: bool) -> None:
    """With and without ``stop``, streamed or not, a text ends where ``generate`` ends it."""
    pytest.importorskip("peft")
    tokenizer = transformers.AutoTokenizer.from_pretrained(ToyEngine().tokenizer_id)
    model, written, end = write_model(tmp_path / "model", tokenizer)
    if not has_end:
        settings = json.loads((model / "tokenizer_config.json").read_text())
        settings = {name: value for name, value in settings.items() if name != "eos_token"}
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
    expected = written[: written.index(end) + 1]
    with served(tmp_path, "torch", model=model) as client:
        asked: dict[str, Any] = {
            "model": "model",
            "prompt": "a",
            "temperature": 0,
            "max_tokens": 12,
        }

        def write(**extra: Any) -> tuple[list[int], str, str]:
            whole = client.completions.create(
                **asked, extra_body={"return_token_ids": True, **extra}
            ).choices[0]
            parts = [
                one.choices[0]
                for one in client.completions.create(
                    **asked, stream=True, extra_body={"return_token_ids": True, **extra}
                )
            ]
            assert [token for part in parts for token in part.token_ids] == whole.token_ids
            assert "".join(part.text for part in parts) == whole.text
            assert parts[-1].finish_reason == whole.finish_reason
            return whole.token_ids, whole.finish_reason, whole.text

        plain = write()
        assert plain[:2] == (expected, "stop")
        assert write(stop=["\x00" * 9]) == plain
        assert write(stop_token_ids=[257]) == plain
        assert write(stop_token_ids=[expected[1]])[0] == expected[: expected.index(expected[1]) + 1]
        assert write(ignore_eos=True)[:2] == (written, "length")
        assert write(ignore_eos=True, stop_token_ids=[end])[:2] == (expected, "stop")
        least, reason, _ = write(min_tokens=12)
        assert (len(least), reason) == (12, "length")
        assert not {end, 256, 3} & set(least)
        assert least[: len(expected) - 1] == expected[:-1]
        chats = [
            client.chat.completions.create(
                model="model",
                messages=[{"role": "user", "content": "a"}],
                temperature=0,
                max_tokens=40,
                stop=stop,
            ).choices[0]
            for stop in (None, ["\x00" * 9])
        ]
        assert chats[0].message.content == chats[1].message.content
        assert chats[0].finish_reason == chats[1].finish_reason


def test_vllm_gets_every_end_beside_the_stops(tmp_path: Path) -> None:
    """vLLM is asked to end at the texts, ids and ends of the model, behind the least length."""
    fake = FakeVLLM()
    with (
        running(fake) as url,
        served(tmp_path, ToyEngine(vocabulary=512), sampler=(url,)) as client,
    ):

        def params(**body: Any) -> dict[str, Any]:
            client.completions.create(model="tinker/toy", prompt="x", max_tokens=4, extra_body=body)
            sent = fake.asked[-1]["sampling_params"]
            return {
                name: sent[name] for name in ("stop", "stop_token_ids", "ignore_eos", "min_tokens")
            }

        nothing = {"stop": [], "stop_token_ids": [], "ignore_eos": False, "min_tokens": 0}
        assert params() == nothing
        assert params(stop="zz") == {
            **nothing,
            "stop": ["zz"],
            "stop_token_ids": [256],
            "ignore_eos": True,
        }
        assert params(stop_token_ids=[7]) == {
            **nothing,
            "stop_token_ids": [7, 256],
            "ignore_eos": True,
        }
        assert params(ignore_eos=True) == {**nothing, "ignore_eos": True}
        assert params(min_tokens=3) == {
            **nothing,
            "stop_token_ids": [256],
            "ignore_eos": True,
            "min_tokens": 3,
        }


def test_a_stop_within_the_least_length_does_not_count(tmp_path: Path) -> None:
    """No stop text and no end counts before ``min_tokens`` tokens; the first behind them does."""
    tokenizer = byte_level(eos_token="</s>")
    script = tokenizer.encode("cat cat cat cat", add_special_tokens=False)
    with served(tmp_path, ScriptedEngine(tmp_path, tokenizer, script)) as client:
        asked: dict[str, Any] = {
            "model": "tinker/toy",
            "prompt": "x",
            "max_tokens": 99,
            "stop": "at",
        }
        for least, text in ((0, "c"), (4, "cat cat c"), (99, None)):
            body = {"min_tokens": least}
            whole = client.completions.create(**asked, extra_body=body).choices[0]
            parts = [
                one.choices[0].text
                for one in client.completions.create(**asked, extra_body=body, stream=True)
            ]
            assert "".join(parts) == whole.text
            assert whole.finish_reason == ("length" if text is None else "stop")
            assert text in (None, whole.text)
        for least in (-1, 100):
            with pytest.raises(
                openai.BadRequestError,
                match=f"min_tokens is {least}; it must be from 0 to max_tokens",
            ):
                client.completions.create(**asked, extra_body={"min_tokens": least})


def test_answers_have_the_ids_where_vllm_has_them(tmp_path: Path) -> None:
    """With ``return_token_ids`` an answer has the ids of its tokens, and of the prompt once."""
    with served(tmp_path, ToyEngine()) as client:
        body: dict[str, Any] = {
            "model": "tinker/toy",
            "prompt": ["ab", "c"],
            "max_tokens": 3,
            "seed": 1,
        }
        messages = [{"role": "user", "content": "x"}]
        chat: dict[str, Any] = {
            "model": "tinker/toy",
            "messages": messages,
            "max_tokens": 3,
            "seed": 1,
            "n": 2,
        }
        found = ask(client, "v1/completions", **body, return_token_ids=True)
        assert [one["prompt_token_ids"] for one in found["choices"]] == [[97, 98], [99]]
        assert [bytes(one["token_ids"]).decode() for one in found["choices"]] == [
            one["text"] for one in found["choices"]
        ]
        found = ask(client, "v1/chat/completions", **chat, return_token_ids=True)
        assert bytes(found["prompt_token_ids"]).decode() == "User: x\nAssistant:"
        texts = [one["message"]["content"] for one in found["choices"]]
        assert [bytes(one["token_ids"]).decode() for one in found["choices"]] == texts
        parts = list(
            client.chat.completions.create(
                **chat, stream=True, extra_body={"return_token_ids": True}
            )
        )
        assert [one.prompt_token_ids for one in parts[:2]] == [found["prompt_token_ids"]] * 2
        assert not any(hasattr(one, "prompt_token_ids") for one in parts[2:])
        streamed = [b"", b""]
        for part in parts:
            streamed[part.choices[0].index] += bytes(part.choices[0].token_ids)
        assert [one.decode() for one in streamed] == texts
        parts = list(
            client.completions.create(
                **{**body, "prompt": "ab"}, stream=True, extra_body={"return_token_ids": True}
            )
        )
        assert parts[0].choices[0].prompt_token_ids == [97, 98]
        assert "token_ids" not in str(ask(client, "v1/completions", **body)) + str(
            ask(client, "v1/chat/completions", **chat)
        )


def test_the_last_message_goes_on(tmp_path: Path) -> None:
    """``continue_final_message`` leaves the last message open; what is written continues it."""
    tokenizer = byte_fallback(eos_token="</s>")
    tokenizer.chat_template = PLAIN
    script = tokenizer.encode("cat cat", add_special_tokens=False)
    messages = [{"role": "user", "content": "The"}, {"role": "assistant", "content": "cats"}]
    asked: dict[str, Any] = {"model": "tinker/toy", "messages": messages, "max_tokens": 2}
    with served(tmp_path / "a", ScriptedEngine(tmp_path, tokenizer, script)) as client:
        for fields, text, written in (
            (
                {"continue_final_message": True, "add_generation_prompt": False},
                "<user>The</s><assistant>cats",
                " cat cat",
            ),
            ({"add_generation_prompt": False}, "<user>The</s><assistant>cats", "cat cat"),
            ({}, "<user>The</s><assistant>cats<assistant>", "cat cat"),
        ):
            found = ask(client, "v1/chat/completions", **asked, **fields, return_token_ids=True)
            assert found["prompt_token_ids"] == tokenizer.encode(text, add_special_tokens=False)
            assert found["choices"][0]["message"]["content"] == written
            assert ask(client, "tokenize", **asked, **fields)["tokens"] == found["prompt_token_ids"]
    with served(tmp_path / "b", ToyEngine()) as client:
        found = ask(
            client,
            "v1/chat/completions",
            **asked,
            continue_final_message=True,
            return_token_ids=True,
        )
        assert bytes(found["prompt_token_ids"]).decode() == "User: The\nAssistant: cats"
        with pytest.raises(
            openai.BadRequestError,
            match="continue_final_message and add_generation_prompt cannot both be true",
        ):
            client.chat.completions.create(
                **asked, extra_body={"continue_final_message": True, "add_generation_prompt": True}
            )


@pytest.mark.parametrize("kind", MAKERS)
def test_texts_and_chats_are_tokenized_as_vllm_does_it(tmp_path: Path, kind: str) -> None:
    """``/tokenize`` and ``/detokenize`` have vLLM's fields and transformers' tokens."""
    tokenizer = MAKERS[kind](eos_token="</s>", bos_token="<s>")
    from tokenizers import processors

    begin = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    tokenizer.chat_template = PLAIN
    messages = [{"role": "user", "content": "The"}]
    with served(tmp_path, ScriptedEngine(tmp_path, tokenizer, [5])) as client:
        bare = tokenizer.encode("The cat", add_special_tokens=False)
        for fields, tokens in (
            ({}, [begin, *bare]),
            ({"add_special_tokens": False}, bare),
            ({"model": "tinker/toy"}, [begin, *bare]),
        ):
            found = ask(client, "tokenize", prompt="The cat", **fields)
            assert found == {
                "count": len(tokens),
                "max_model_len": 256,
                "tokens": tokens,
                "token_strs": None,
            }
            assert ask(client, "detokenize", tokens=tokens) == {"prompt": tokenizer.decode(tokens)}
            asked = {
                "model": "tinker/toy",
                **fields,
                "prompt": "The cat",
                "max_tokens": 1,
                "return_token_ids": True,
            }
            assert (
                ask(client, "v1/completions", **asked)["choices"][0]["prompt_token_ids"] == tokens
            )
        found = ask(client, "tokenize", prompt="The cat", return_token_strs=True)
        assert found["token_strs"] == tokenizer.convert_ids_to_tokens(found["tokens"])
        chat = tokenizer.encode("<user>The<assistant>", add_special_tokens=False)
        assert ask(client, "tokenize", messages=messages)["tokens"] == chat
        for special, tokens in ((True, [begin, *chat]), (False, chat)):
            asked = {"model": "tinker/toy", "messages": messages, "add_special_tokens": special}
            assert ask(client, "tokenize", **asked)["tokens"] == tokens
            found = ask(client, "v1/chat/completions", **asked, max_tokens=1, return_token_ids=True)
            assert found["prompt_token_ids"] == tokens
        assert ask(client, "tokenize", prompt="")["tokens"] == [begin]


def test_tokens_of_the_packaged_tokenizer_need_no_transformers(tmp_path: Path) -> None:
    """The packaged tokenizer's words are those of transformers; wrong requests are refused."""
    theirs, ours = (
        ModelTexts(transformers.AutoTokenizer.from_pretrained(ToyEngine().tokenizer_id)),
        Texts(),
    )
    assert type(load_texts(ToyEngine())) is Texts
    for text in ("plain", "é 漢 \U0001f600", "two\nlines"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text)) == text
    assert ours.ends == theirs.ends
    hello = [{"role": "user", "content": "Hello"}]
    assert ours.encode_chat(hello, []) == theirs.encode_chat(hello, [])
    ids = list(range(257))
    assert [one.names(ids) for one in (ours, theirs)] == [theirs.names(ids)] * 2
    assert [[one.word(97, token) for token in ids] for one in (ours, theirs)] == [
        [ours.word(97, token) for token in ids]
    ] * 2
    assert (
        ours.decode([104, 256, 195, 169])
        == theirs.decode([104, 256, 195, 169])
        == "h<|endoftext|>é"
    )
    with served(tmp_path, ToyEngine()) as client:
        root = str(client.base_url).removesuffix("v1/")
        for path, body, message in (
            ("tokenize", {}, "either prompt or messages must be given"),
            (
                "tokenize",
                {"prompt": "a", "messages": [{"role": "user", "content": "x"}]},
                "either prompt or messages must be given",
            ),
            (
                "tokenize",
                {"messages": [{"role": "me", "content": "x"}]},
                "messages[0].role is 'me'",
            ),
            ("tokenize", {"prompt": "a", "model": "other"}, "base model 'other' is not offered"),
            ("detokenize", {"tokens": [-1]}, "tokens[0]: must be an integer of at least 0"),
            ("detokenize", {"tokens": [2**40]}, "tokens[0]: must be an integer of"),
            ("detokenize", {}, "tokens: the field is missing"),
        ):
            answer = httpx.post(root + path, json=body)
            assert (answer.status_code, answer.json()["error"]["message"][: len(message)]) in (
                (400, message),
                (404, message),
            )


def test_tokens_are_given_to_those_who_have_the_key(tmp_path: Path) -> None:
    """``/tokenize`` and ``/detokenize`` need the key of the server, in either header."""
    with running_server(Settings(data_dir=tmp_path, api_key="tml-one")) as url:
        for path, body in (("tokenize", {"prompt": "a"}), ("detokenize", {"tokens": [97]})):
            for headers, status in (
                ({}, 401),
                ({"x-api-key": "tml-one"}, 200),
                ({"authorization": "Bearer tml-one"}, 200),
            ):
                assert httpx.post(f"{url}/{path}", json=body, headers=headers).status_code == status


def test_a_context_that_is_too_long_has_the_code_of_openai(tmp_path: Path) -> None:
    """What exceeds the context is refused with the code ``context_length_exceeded``."""
    with served(tmp_path, ToyEngine(max_context_length=32)) as client:
        for body in ({"max_tokens": 40}, {"prompt": "x" * 33}, {"prompt": "x" * 32}):
            for stream in (False, True):
                with pytest.raises(openai.APIError) as caught:
                    list(
                        client.completions.create(
                            **{"model": "tinker/toy", "prompt": "x", "max_tokens": 1, **body},
                            stream=stream,
                        )
                    )
                assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model="tinker/toy", messages=[{"role": "user", "content": "x" * 40}]
            )
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as other:
            client.completions.create(model="tinker/toy", prompt="x", temperature=-1)
        assert other.value.code is None
