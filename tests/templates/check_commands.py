"""`tinker train`, `tinker sample --file` and `tinker chat` on models with these templates: what
each of them sends, in tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner

from templates.chats import CHATS
from templates.judge import Example, encode_publicly, hear, read_example
from templates.tokenizers_made import make_tokenizer
from templates.wheel import TEMPLATES
from tinker.cli import main
from tinker.local import Settings, running_server
from tinker.local.engines.protocol import LossResult, SampleBatch, SampleJob, TrainingExample
from tinker.local.engines.torch import TorchEngine

#: One example for each answer, a thought that the prompt opens, an end of the last answer only, no
#: end, contents in parts.
MODELS = {
    "qwen3": "byte-level",
    "qwen3_8": "byte-level",
    "gptoss": "byte-level",
    "phi3": "byte-fallback",
    "glm4moe": "byte-fallback",
    "idefics3": "word-piece",
}
_ROWS = ("one", "system", "turns", "newline before", "newline behind", "ends with a question")


class RecordedBatch:
    """A batch that keeps the prompts of its samples."""

    def __init__(self, batch: SampleBatch, prompts: list[list[int]]) -> None:
        self._batch, self._prompts = batch, prompts

    def add(self, ticket: object, job: SampleJob) -> None:
        """Keep the prompt, and sample it."""
        self._prompts.append(job.tokens.tolist())
        self._batch.add(ticket, job)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


class RecordingEngine(TorchEngine):
    """An engine that keeps the tokens that it samples from and trains on."""

    def __init__(self, model: Path) -> None:
        super().__init__(model)
        self.prompts: list[list[int]] = []
        self.trained: list[Example] = []

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[TrainingExample],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> LossResult:
        """Keep the examples, and compute the loss."""
        for one in data:
            targets, weights = (
                one.loss_inputs[name].tolist() for name in ("target_tokens", "weights")
            )
            self.trained.append(
                Example(
                    [*one.tokens.tolist(), targets[-1]],
                    [False, *(weight > 0 for weight in weights)],
                )
            )
        return super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)

    def open_batch(self, limit: int) -> Any:
        """Keep what is sampled from."""
        return RecordedBatch(super().open_batch(limit), self.prompts)


class Served:
    """A server with all of the models."""

    def __init__(
        self, url: str, engines: Mapping[str, RecordingEngine], tokenizers: Mapping[str, Any]
    ) -> None:
        self.url, self.engines, self.tokenizers = url, engines, tokenizers


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a tiny model with the tokenizer of each template."""
    folder = tmp_path_factory.mktemp("models")
    tokenizers = {
        name: make_tokenizer(kind, name, TEMPLATES[name]) for name, kind in MODELS.items()
    }
    for name, tokenizer in tokenizers.items():
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=1024,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    engines = {name: RecordingEngine(folder / name) for name in MODELS}
    with running_server(Settings(data_dir=folder / "data"), list(engines.values())) as url:
        yield Served(url, engines, tokenizers)


@pytest.mark.parametrize("name", MODELS)
def test_commands_send_the_tokens_of_the_rules(
    served: Served, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training has the examples of the public function; what is sampled from, in a file and in a
    chat, begins one of them.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    engine, tokenizer = served.engines[name], served.tokenizers[name]

    def call(*arguments: str, given: str | None = None) -> str:
        done = CliRunner().invoke(
            main, ["--base-url", served.url, "--patience", "0", *arguments], input=given
        )
        assert done.exit_code == 0, done.output
        return done.output

    rows = [{"messages": CHATS[chat].messages} for chat in _ROWS]
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with hear():
        wanted = [
            read_example(datum)
            for chat in _ROWS
            for datum in encode_publicly(tokenizer, CHATS[chat])
        ]
    output = call(
        "train",
        "data.jsonl",
        "--model",
        engine.base_model,
        "--rank",
        "2",
        "--batch-size",
        "4",
        "--epochs",
        "1",
    )
    assert sorted(engine.trained) == sorted(wanted)
    if len(wanted) > len(rows):
        assert f"{len(wanted)} examples" in output

    questions = [CHATS[chat].messages[:-1] for chat in ("one", "system", "turns")]
    Path("questions.jsonl").write_text(
        "".join(json.dumps({"prompt": messages}) + "\n" for messages in questions)
    )
    how = ("--model", engine.base_model, "--max-tokens", "2")
    call("sample", "--file", "questions.jsonl", "--out", "answers.jsonl", *how)
    assert len(engine.prompts) == len(questions)
    for prompt in engine.prompts:
        assert any(
            tokens[: len(prompt)] == prompt and learned[len(prompt)]
            for tokens, learned in engine.trained
        ), prompt

    of_file = sorted(engine.prompts)
    engine.prompts.clear()
    call("chat", *how, given="Two?\n")
    call("chat", *how, "--system", "Briefly.", given="Two?\n")
    assert len(engine.prompts) == 2
    assert all(prompt in of_file for prompt in engine.prompts)
