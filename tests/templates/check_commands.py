"""`tinker train`, `sample --file` and `chat` on models with these templates: what they send."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

#: Several examples, an opened thought, an end of the last answer only, no end, contents in parts.
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
            inputs = {name: values.tolist() for name, values in one.loss_inputs.items()}
            tokens = [*one.tokens.tolist(), inputs["target_tokens"][-1]]
            learned = [False, *(weight > 0 for weight in inputs["weights"])]
            self.trained.append(Example(tokens, learned))
        return super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)

    def open_batch(self, limit: int) -> Any:
        """Keep what is sampled from."""
        return RecordedBatch(super().open_batch(limit), self.prompts)


class Served(NamedTuple):
    """A server with all of the models."""

    url: str
    engines: Mapping[str, RecordingEngine]
    tokenizers: Mapping[str, Any]


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
    """Training has the examples of the public function; each prompt begins one of them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    engine, tokenizer = served.engines[name], served.tokenizers[name]

    def call(*arguments: str, given: str | None = None) -> str:
        done = CliRunner().invoke(
            main, ["--base-url", served.url, "--patience", "0", *arguments], input=given
        )
        assert done.exit_code == 0, done.output
        return done.output

    def write(file: str, field: str, rows: list[Any]) -> None:
        Path(file).write_text("".join(json.dumps({field: row}) + "\n" for row in rows))

    chats = [CHATS[chat] for chat in _ROWS]
    write("data.jsonl", "messages", [chat.messages for chat in chats])
    with hear():
        wanted = [
            read_example(datum) for chat in chats for datum in encode_publicly(tokenizer, chat)
        ]
    sizes = ("--rank", "2", "--batch-size", "4", "--epochs", "1")
    output = call("train", "data.jsonl", "--model", engine.base_model, *sizes)
    assert sorted(engine.trained) == sorted(wanted)
    if len(wanted) > len(chats):
        assert f"{len(wanted)} examples" in output

    questions = [chat.messages[:-1] for chat in chats[:3]]
    write("questions.jsonl", "prompt", questions)
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
