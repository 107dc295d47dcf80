"""Small tokenizers of the kinds that models have. Needs transformers and tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tinker.local.engines.toy import ToyEngine

SPECIAL = ["<unk>", "<s>", "</s>", "<|end|>"]
PARTS = ["T", "h", "e", "c", "a", "t", "s", "x", ".", "Th", "The", "cat", "cats"]


def _wrap(made: Any, **names: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    kind: Any = PreTrainedTokenizerFast
    made.add_special_tokens(SPECIAL)
    return kind(tokenizer_object=made, unk_token="<unk>", **names)


def _number(*pieces: str) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(dict.fromkeys([*SPECIAL, *pieces]))}


def byte_level(**names: str) -> Any:
    """Make one of byte-level BPE, such as Qwen's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        models.BPE(
            _number(*letters, "Th", "The", "Ġc", "Ġca", "ðŁ"),
            [("T", "h"), ("Th", "e"), ("Ġ", "c"), ("Ġc", "a"), ("ð", "Ł")],
        )
    )
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    return _wrap(made, **names)


def byte_fallback(**names: str) -> Any:
    """Make one with a token for each byte that no other token has, as Llama 2 has."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = ["▁", *PARTS, "▁The", "▁cat", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("T", "h"), ("Th", "e"), ("▁", "The"), ("c", "a"), ("ca", "t"), ("▁", "cat")]
    made = Tokenizer(
        models.BPE(
            _number(*pieces, "ca"), merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _wrap(made, **names)


def sentence_piece(**names: str) -> Any:
    """Make one of whole characters, with a mark for spaces."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [*SPECIAL, "▁", *PARTS, "▁The", "▁cat", "é", "사"]
    made = Tokenizer(models.Unigram([(piece, -1.0 / len(piece)) for piece in pieces], unk_id=0))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _wrap(made, **names)


def word_piece(**names: str) -> Any:
    """Make one of words and their ends, such as BERT's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(
        models.WordPiece(
            _number(*PARTS, *(f"##{part}" for part in PARTS), "é", "##é"), unk_token="<unk>"
        )
    )
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return _wrap(made, **names)


MAKERS: Mapping[str, Callable[..., Any]] = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "sentence_piece": sentence_piece,
    "word_piece": word_piece,
}


class ScriptedEngine(ToyEngine):
    """A toy that draws the tokens of a script, and names another tokenizer, which it writes into a
    folder.
    """

    def __init__(self, folder: Path, tokenizer: Any, script: list[int]) -> None:
        super().__init__(vocabulary=512, max_context_length=256)
        tokenizer.save_pretrained(folder)
        self.tokenizer_id, self.script = str(folder), script

    def _distribution(self, weights: Any, run: Any) -> Any:
        import numpy as np

        return np.ones(1), np.array([self.script[len(run.tokens) % len(self.script)]], np.int32)
