"""The page `docs/whole-way.md`, walked with a small model that has a template: its Python is run,
and its commands of `tinker`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from templates.tokenizers_made import make_tokenizer
from templates.wheel import TEMPLATES
from tinker.cli import main
from tinker.local import Settings, running_server

PAGE = Path(__file__).parents[2] / "docs" / "whole-way.md"
BLOCKS = re.findall(
    r"^```(python|sh)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
)
GREETING = "Hello!"
#: A model that has learned nothing yet needs larger steps than those of the page.
FOR_RANDOM_WEIGHTS = {"1e-3": "1e-2"}
#: The templates to walk with, and the tokens that end an answer or a call of each.
NAMES: Mapping[str, tuple[str, ...]] = {
    "qwen3_5_think": ("<|im_end|>",),
    "gptoss": ("<|return|>", "<|call|>"),
}


class Walked(NamedTuple):
    """The merged model, the questions with the tools of each, and the tokens that `tinker` answered
    them with.
    """

    merged: Path
    questions: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]
    answers: list[list[int]]
    names: dict[str, Any]


def write_model(folder: Path, name: str) -> None:
    """Write a small random model with a template, whose head is its embedding; vLLM's attention
    needs heads of 32 or more.
    """
    import torch
    import transformers

    tokenizer = make_tokenizer("byte-level", name, TEMPLATES[name])
    ends = tokenizer.convert_tokens_to_ids(list(NAMES[name]))
    assert None not in ends
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=2048,
        initializer_range=0.1,
        tie_word_embeddings=True,
        eos_token_id=ends,
        pad_token_id=ends[0],
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def walk(folder: Path, name: str) -> Walked:
    """Do what the page says, in order: a server stands for `tinker serve`, and a line that is piped
    in for a conversation.
    """
    write_model(folder / "base-model", name)
    names: dict[str, Any] = {"__name__": "page"}
    answers = list[list[int]]()
    with (
        running_server(
            Settings(data_dir=folder / "data"), "torch", model=str(folder / "base-model")
        ) as url,
        _inside(folder),
    ):
        for language, block in BLOCKS:
            if language == "python":
                exec(compile(block, str(PAGE), "exec"), names)
                continue
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line)
                if words[:2] not in (
                    ["tinker", one] for one in ("train", "chat", "sample", "checkpoint")
                ):
                    assert words[0] in ("export", "vllm") or words[:2] == ["tinker", "serve"], line
                    continue
                given = [FOR_RANDOM_WEIGHTS.get(word, word) for word in words[1:]]
                form = ["-f", "json"] if words[1] == "chat" else []
                done = CliRunner().invoke(
                    main, ["--base-url", url, *form, *given], input=f"{GREETING}\n"
                )
                assert done.exit_code == 0, done.output
                if words[1] == "chat":
                    answers.append(json.loads(done.stdout)["tokens"])
    lines = [
        json.loads(line) for line in (folder / "answers.jsonl").read_text("utf-8").splitlines()
    ]
    answers += [
        line["samples"][0]["tokens"]
        for line in sorted(lines, key=lambda line: len(line["messages"]))
    ]
    asked = [
        ([{"role": "user", "content": GREETING}], None),
        *((one, names["tools"]) for one in names["questions"]),
    ]
    return Walked(folder / "merged", asked, answers, names)
