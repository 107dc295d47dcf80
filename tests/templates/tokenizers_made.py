# ruff: noqa: RUF001 (special tokens of DeepSeek)
"""Small tokenizers of three kinds, each with the special tokens of a template."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

#: Joins newlines, as Qwen's and Llama 3's; writes characters that it lacks as bytes, as Llama 2's;
#: drops white space, as BERT's.
KINDS = ("byte-level", "byte-fallback", "word-piece")

_SPECIAL = re.compile(
    r"<\|[^|<>\s'\"]+\|>|<｜[^｜<>\s]+｜>|<\|[a-z_\"]+>|<[a-z_]+\|>|<(?:start|end)_of_[a-z]+>|\[/?INST\]|\[gMASK\]|<sop>|</s>|<image>"
)
#: In the vocabulary of models that have them, but shown when a text is decoded.
_MARKS = re.compile(r"</?think>|</?tool_call>|</?tool_response>")
#: What ends a turn of the models that have it; some end a turn that goes on, such as a call.
ENDS_OF_TURNS = (
    *(
        "<|im_end|>",
        "<|eot_id|>",
        "<|END_OF_TURN_TOKEN|>",
        "<｜end▁of▁sentence｜>",
        "<|return|>",
        "<end_of_utterance>",
        "<|eot|>",
    ),
    *(
        "</s>",
        "<|endoftext|>",
        "<end_of_turn>",
        "<turn|>",
        "<|end|>",
        "<|call|>",
        "<|eom_id|>",
        "<|eom|>",
        "<|tool_response>",
    ),
)
_BEGINNINGS = {
    "gemma": "<bos>",
    "llama3": "<|begin_of_text|>",
    "deepseek": "<｜begin▁of▁sentence｜>",
    "cohere": "<BOS_TOKEN>",
}
_ENDS_OF_TEXT = {
    "gemma": "<eos>",
    "diffusion_gemma": "<eos>",
    "phi3": "<|endoftext|>",
    "glm4moe": "<|endoftext|>",
}

#: Newlines follow one another, full stops and brackets here, so that a tokenizer that joins joins
#: them.
_SENTENCES = [
    (
        "user system assistant model tool developer You are a helpful assistant.\n\nWhat is the "
        "weather in Paris?\n"
    ),
    "<think>\n\n</think>\n\n>\n\n>\n>\n\n\n\n.\n\n.\n?\n\n?\n\n\n \n\n```\n\n```\n{\n}\n\n",
    (
        'Four and four is eight, the name is {"name": "get_weather", "arguments": {"city": '
        '"Paris"}}\n</tool_call>\n'
    ),
    (
        "0 1 2 3 4 5 6 7 8 9 10 2024 Nov 28 : ; , . ! ? - _ / \\ ( ) [ ] { } < > | # * & % $ "
        "@ ^ ~ ` ' \" + ="
    ),
    (
        "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ a b c d e f g h i j k l m n o "
        "p q r s t u v w x y z"
    ),
] * 4

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizer(
    kind: str, template_name: str, template: str, *, ends_texts: bool = False
) -> Any:
    """Make a tokenizer that begins texts as the template's does, and may append the end too."""
    backend = Tokenizer.from_str(_train(kind))
    special = sorted(set(_SPECIAL.findall(template)))
    family = next((name for name in _BEGINNINGS if template_name.startswith(name)), None)
    begin = _BEGINNINGS[family] if family else "<s>"
    end = next(
        (_ENDS_OF_TEXT[name] for name in _ENDS_OF_TEXT if template_name.startswith(name)), None
    )
    end = end or next((token for token in ENDS_OF_TURNS if token in special), "</s>")
    wanted = list(dict.fromkeys([begin, end, *special]))
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in wanted]
    )
    backend.add_tokens(
        [AddedToken(token, normalized=False) for token in sorted(set(_MARKS.findall(template)))]
    )
    around = (begin if "bos_token" in template else "", "$A", end if ends_texts else "")
    ids = [(token, backend.token_to_id(token)) for token in (begin, end)]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(filter(None, around)), special_tokens=ids
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=begin,
        eos_token=end,
        clean_up_tokenization_spaces=False,
        model_max_length=10**6,
    )
    made.chat_template = template
    return made


@cache
def _train(kind: str) -> str:
    return {
        "byte-level": _train_byte_level,
        "byte-fallback": _train_byte_fallback,
        "word-piece": _train_word_piece,
    }[kind]().to_str()


def _train_byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        _SENTENCES,
        trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False),
    )
    return made


def _train_byte_fallback() -> Tokenizer:
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    texts = [line for text in _SENTENCES for line in text.split("\n")]
    learned.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    model = json.loads(learned.to_str())["model"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(merge) for merge in model["merges"]]
    made = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    made.decoder = decoders.Sequence(steps)
    return made


def _train_word_piece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=200))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=False)
    characters = [chr(code) for code in range(33, 127)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=700, special_tokens=["[UNK]"], initial_alphabet=characters, show_progress=False
    )
    made.train_from_iterator(_SENTENCES, trainer)
    return made
