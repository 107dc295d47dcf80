"""Train the tiny base model packaged in ``tinker/local/base_model``.

    python tools/train_base_model.py OUT_DIRECTORY

A Llama of 1.8 million parameters over bytes. Every document comes from what ships with Python
itself: docstrings of the standard library, ``pydoc_data.topics``, ``this``, and three kinds of
exercise made from the same words (and from random letters), so that the model learns to copy: a
passage repeated, a word list repeated, and lines that apply one string operation (a slice, a
suffix, upper case, ...) to word after word. Half of the training bytes are exercises. The model
knows next to nothing. Takes about twenty minutes on two idle CPU cores with bfloat16. Seeded: a
second run on the same machine and Python gives a like model; other versions of Python carry other
docstrings.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import json
import math
import random
import re
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SEED = 20
END_OF_TEXT, PAD = 256, 257
SPECIAL_TOKENS = {"<|endoftext|>": END_OF_TEXT, "<|pad|>": PAD}
CONTEXT = 512
ROWS = 8
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def docstrings() -> Iterator[str]:
    """Every docstring of the standard library, without its tests and whatever was
    installed later.
    """
    skip = {"site-packages", "test", "tests", "idle_test", "dist-packages"}
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if skip & set(path.relative_to(root).parts):
            continue
        with contextlib.suppress(SyntaxError, UnicodeDecodeError, ValueError):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(
                    node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
                ):
                    text = ast.get_docstring(node)
                    if text and len(text) > 40:
                        yield text


def documents() -> list[str]:
    """All texts, each once."""
    from pydoc_data.topics import topics

    with contextlib.redirect_stdout(io.StringIO()) as zen:
        importlib.import_module("this")
    builtins = [inspect.getdoc(value) or "" for value in vars(__import__("builtins")).values()]
    texts = [*docstrings(), *topics.values(), zen.getvalue(), *builtins]
    return list(dict.fromkeys(text.strip() for text in texts if len(text) > 40))


def encode(text: str) -> list[int]:
    return list(text.encode("utf-8"))


def pseudo_word(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(2, 9)))


def operations(rng: random.Random) -> Callable[[str], str]:
    """One operation on a word, with its parameters drawn once."""
    cut, suffix = rng.randint(1, 3), pseudo_word(rng)[: rng.randint(1, 3)]
    choices: list[Callable[[str], str]] = [
        lambda w: w,
        str.upper,
        str.capitalize,
        lambda w: w[cut:],
        lambda w: w[:cut],
        lambda w: w[:-1],
        lambda w: w + suffix,
        lambda w: suffix + w,
        lambda w: w[cut:] + w[:cut],
        lambda w: w[cut:] + suffix,
        lambda w: w + w[:cut],
        lambda w: w + w,
        lambda w: w[-1] + w[:-1],
        lambda w: w.replace(w[0], suffix),
    ]
    return rng.choice(choices)


def exercise(rng: random.Random, texts: list[str], words: list[str], length: int) -> str:
    """Return a repeated passage, a repeated word list, or lines of one string operation."""
    kind = rng.random()
    if kind < 0.2:
        text = rng.choice(texts)
        start = rng.randrange(max(1, len(text) - 40))
        return (text[start : start + rng.randint(20, length // 3)].strip() + "\n") * 12
    draw = lambda: pseudo_word(rng) if rng.random() < 0.3 else rng.choice(words)  # noqa: E731
    if kind < 0.35:
        separator = rng.choice([" ", ", ", "\n", "\n- "])
        listed = [draw() for _ in range(rng.randint(4, 16))]
        return (separator.join(listed) + "\n\n") * 12
    change, arrow = operations(rng), rng.choice([" -> ", ": ", " = ", " => ", "\t", "\n"])
    return "\n".join(
        f"{word}{arrow}{change(word)}" for word in (draw() for _ in range(length // 8))
    )


class Corpus:
    """Random training rows: half running text, half exercises, each row starting with the
    end-of-text token.
    """

    def __init__(self, texts: list[str], rng: random.Random) -> None:
        rng.shuffle(texts)
        cut = len(texts) // 50
        self.rng, self.texts = rng, texts[cut:]
        self.words = sorted(set(re.findall(r"\b[a-z]{2,12}\b", " ".join(self.texts))))
        self.training, self.held_out = self._stream(texts[cut:]), self._stream(texts[:cut])

    @staticmethod
    def _stream(texts: list[str]) -> NDArray[np.int64]:
        return np.array(
            [token for text in texts for token in [END_OF_TEXT, *encode(text)]], np.int64
        )

    def row(self, length: int) -> NDArray[np.int64]:
        if self.rng.random() < 0.5:
            start = self.rng.randrange(len(self.training) - length)
            return self.training[start : start + length]
        tokens = [END_OF_TEXT, *encode(exercise(self.rng, self.texts, self.words, length))]
        return np.array((tokens * (length // len(tokens) + 1))[:length], np.int64)

    def batch(self, rows: int, length: int) -> torch.Tensor:
        return torch.from_numpy(np.stack([self.row(length) for _ in range(rows)]))


def new_model() -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        vocab_size=258,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT,
        eos_token_id=END_OF_TEXT,
        pad_token_id=PAD,
    )
    return transformers.LlamaForCausalLM(config)


def optimizers(model: torch.nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def held_out_loss(model: torch.nn.Module, stream: NDArray[np.int64]) -> float:
    rows = torch.from_numpy(stream[: len(stream) // 256 * 256].reshape(-1, 256))[:128]
    with torch.no_grad():
        return float(loss_of(model, rows))


def train(model: torch.nn.Module, corpus: Corpus, steps: int, rate: float) -> None:
    """The rate rises over 2 % of the steps, then falls linearly; the last quarter is at full
    context.
    """
    started, smooth = time.monotonic(), math.log(258)
    stages = optimizers(model, rate)
    for step in range(1, steps + 1):
        done = step / (steps + 1)
        tokens = corpus.batch(ROWS, 257) if done < 0.75 else corpus.batch(ROWS // 2, CONTEXT)
        for optimizer in stages:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, done / 0.02, (1 - done) / 0.9)
            optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in stages:
            optimizer.step()
        smooth = 0.98 * smooth + 0.02 * loss.item()
        if step % 100 == 0 or step == steps:
            seconds, held_out = time.monotonic() - started, held_out_loss(model, corpus.held_out)
            print(
                f"step {step} at {seconds:.0f} s: loss {smooth:.3f}, held out {held_out:.3f}",
                flush=True,
            )


def byte_tokenizer() -> Tokenizer:
    """Token id = byte value; no merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }
    tokenizer = Tokenizer(
        models.BPE(vocab=dict(sorted(vocabulary.items(), key=lambda item: item[1])), merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def write(model: transformers.LlamaForCausalLM, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    (directory / "model.safetensors").chmod(0o644)
    byte_tokenizer().save(str(directory / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|pad|>",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=7000)
    parser.add_argument("--rate", type=float, default=1e-2)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    corpus = Corpus(documents(), random.Random(SEED))
    model = new_model()
    print(
        f"{model.num_parameters()} parameters, {len(corpus.training)} bytes of text, "
        f"{len(corpus.words)} words",
        flush=True,
    )
    train(model, corpus, options.steps, options.rate)
    write(model, options.out)


if __name__ == "__main__":
    main()
