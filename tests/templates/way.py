"""The page `docs/whole-way.md`, walked with a small model: its Python and commands are run."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Mapping
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
    """The merged model, the questions with the tools of each, and the tokens of the answers."""

    merged: Path
    questions: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]
    answers: list[list[int]]
    names: dict[str, Any]


def write_model(folder: Path, name: str) -> None:
    """Write a small random model, whose head is its embedding; vLLM needs heads of 32 or more."""
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


def walk(folder: Path, name: str) -> Walked:
    """Do what the page says, with a server for `tinker serve` and a piped line for a chat."""
    write_model(folder / "base-model", name)
    names: dict[str, Any] = {"__name__": "page"}
    answers = list[list[int]]()
    with (
        running_server(
            Settings(data_dir=folder / "data"), "torch", model=str(folder / "base-model")
        ) as url,
        contextlib.chdir(folder),
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
    text = (folder / "answers.jsonl").read_text("utf-8")
    lines = sorted(map(json.loads, text.splitlines()), key=lambda line: len(line["messages"]))
    answers += [line["samples"][0]["tokens"] for line in lines]
    asked: list[Any] = [([{"role": "user", "content": GREETING}], None)]
    asked += [(one, names["tools"]) for one in names["questions"]]
    return Walked(folder / "merged", asked, answers, names)
