"""A small random model that reads images in the torch engine, beside plain transformers with the processor's own inputs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import peft
import torch
import transformers
from PIL import Image

from support.seeing_kinds import Seeing
from support.tiny_models import sample_jobs
from support.tolerances import assert_near, terms_of_gradient, terms_of_pass
from tinker.local.engines.protocol import Adam, AdapterSpec, SampleJob, TrainingExample
from tinker.local.engines.torch import TorchEngine
from tinker.local.handlers.common import read_input
from tinker.types import EncodedTextChunk, ImageChunk, ModelInput

LAYERS, LONGEST, NEW = (
    6,
    80,
    6,
)  # layers and tokens that rounding is reckoned with, and tokens of a sample
Value = Sequence[str | tuple[int, int]]  # texts, and sizes of images between them


def make_value(last: int, *sizes: tuple[int, int]) -> Value:
    """Alternate text and images of these sizes, and end with text of this length."""
    parts: list[str | tuple[int, int]] = ["The"]
    for number, size in enumerate(sizes):
        parts += [size, f" sees {number}"]
    return [*parts, "abcdefghij"[:last]]


def draw_image(size: tuple[int, int]) -> Image.Image:
    """Draw an image of noise; ``size`` is width and height."""
    return Image.fromarray(
        np.random.default_rng(size).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    )


@attrs.frozen(eq=False)
class ReadImages:
    """A kind's engine with an adapter that has taken a step on an image, and the same adapter in PEFT."""

    kind: Seeing
    engine: TorchEngine
    plain: Any
    processor: Any
    tokenizer: Any

    @classmethod
    def make(cls, kind: Seeing, folder: Path) -> ReadImages:
        """Write a random model, load and train it, and load the file of the adapter into PEFT."""
        directory = kind.write(folder / "model")
        engine, tokenizer = TorchEngine(directory, device="cpu"), kind.make_tokenizer()
        assert not hasattr(engine.image_reader, "reason"), engine.image_reader.reason  # type: ignore[union-attr]
        engine.create_adapter("a", AdapterSpec(rank=4, seed=1))
        opener: Any = (
            transformers.AutoProcessor if kind.writes_tokens else transformers.AutoImageProcessor
        )
        first = cls(kind, engine, None, opener.from_pretrained(directory), tokenizer)
        engine.forward_backward(
            "a", [first.example(make_value(3, (33, 20)))], "cross_entropy", {}, backward=True
        )
        engine.optim_step("a", Adam(learning_rate=0.02))
        engine.save("a", folder, optimizer=False)
        base = type(engine._model).from_pretrained(directory, dtype=torch.float32).eval()
        plain = peft.PeftModel.from_pretrained(base, str(folder), is_trainable=True).eval()
        return attrs.evolve(first, plain=plain)

    def read(self, value: Value) -> Any:
        """Return the tokens and images of an input as the server reads it."""
        chunks: list[Any] = []
        for part in value:
            if isinstance(part, str):
                chunks.append(
                    EncodedTextChunk(tokens=self.tokenizer.encode(part, add_special_tokens=False))
                )
            else:
                draw_image(part).save(file := io.BytesIO(), "PNG")
                chunks.append(ImageChunk(data=file.getvalue(), format="png"))
        return read_input(self.engine, ModelInput(chunks=chunks), "the input")

    def tokens(self, value: Value) -> list[int]:
        """Return the tokens of an input, those of its images included."""
        return self.read(value)[0].tolist()  # type: ignore[no-any-return]

    def example(self, value: Value) -> TrainingExample:
        """Make a datum that predicts random tokens."""
        tokens, images = self.read(value)
        targets = np.random.default_rng(len(tokens)).integers(0, 250, len(tokens))
        return TrainingExample(tokens=tokens, images=images, loss_inputs={"target_tokens": targets})

    def inputs(self, value: Value, more: Sequence[int] = ()) -> dict[str, Any]:
        """Return the inputs of plain transformers: what the processor makes of the text with its images, and more tokens."""
        opened = [draw_image(part) for part in value if not isinstance(part, str)]
        texts = [part if isinstance(part, str) else self.kind.token for part in value]
        if self.kind.writes_tokens:
            options = {"add_special_tokens": False, "return_tensors": "pt"}
            done = dict(self.processor(text=["".join(texts)], images=opened or None, **options))
        else:
            done = self._inputs_of_grid(texts, opened)
        length = done["input_ids"].shape[1]
        for name, one in done.items():
            if one.shape == (1, length) and more:
                tail = {"input_ids": list(more), "attention_mask": [1] * len(more)}.get(
                    name, [0] * len(more)
                )
                done[name] = torch.cat([one, torch.tensor([tail])], dim=1)
        return done

    def _inputs_of_grid(self, texts: list[str], opened: list[Image.Image]) -> dict[str, Any]:
        """Return what a processor with a tokenizer would: a placeholder for each four patches."""
        seen = dict(self.processor(images=opened, return_tensors="pt")) if opened else {}
        counts = iter(
            (seen["image_grid_thw"].prod(dim=1) // self.processor.merge_size**2).tolist()
            if opened
            else []
        )
        whole = "".join(one * next(counts) if one == self.kind.token else one for one in texts)
        tokens = torch.tensor([self.tokenizer.encode(whole, add_special_tokens=False)])
        kinds = (tokens == self.tokenizer.convert_tokens_to_ids(self.kind.token)).int()
        takes_kinds = self.kind.model_type.startswith("glm")
        marks = {"mm_token_type_ids": kinds} if takes_kinds and opened else {}
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **seen, **marks}

    def logprobs(self, value: Value, more: Sequence[int] = ()) -> torch.Tensor:
        """Return PEFT's log-probability of each next token ``[tokens, vocabulary]``, without a cache."""
        self._forget()
        return torch.log_softmax(self.plain(**self.inputs(value, more)).logits[0], dim=-1)

    def _forget(self) -> None:
        inner = self.plain.base_model.model.model
        if hasattr(inner, "rope_deltas"):
            inner.rope_deltas = None

    def assert_trains(self, values: Sequence[Value]) -> None:
        """Assert that log-probabilities of these data in one call, and the gradient of every matrix, are PEFT's."""
        data = [self.example(value) for value in values]
        result = self.engine.forward_backward("a", data, "cross_entropy", {}, backward=True)
        total = torch.zeros(())
        for value, one, output in zip(values, data, result.outputs, strict=True):
            targets = torch.from_numpy(np.asarray(one.loss_inputs["target_tokens"]))
            expected = self.logprobs(value).gather(1, targets[:, None])[:, 0]
            assert_near(output["logprobs"], expected, terms_of_pass(LONGEST, LAYERS))
            total = total - expected.sum()
        self.plain.zero_grad()
        total.backward()
        own = self.engine._adapters["a"]
        assert own.gradient is not None
        named = [
            (name, one.grad) for name, one in self.plain.named_parameters() if one.requires_grad
        ]
        theirs = {
            name.removeprefix("base_model.model.").replace(".default", ""): gradient
            for name, gradient in named
        }
        assert own.weights.tensors.keys() == theirs.keys()
        for name, gradient in zip(own.weights.tensors, own.gradient, strict=True):
            assert gradient.abs().max() > 0, name
            assert_near(
                gradient, theirs[name], LAYERS * terms_of_gradient(LONGEST, 3 * LONGEST), name=name
            )
        own.gradient = None

    def assert_samples(self, values: Sequence[Value]) -> None:
        """Assert that greedy samples of these prompts together are those of ``generate``, and that the scores are PEFT's."""
        weights, jobs = self.engine.snapshot("a"), list[SampleJob]()
        for value in values:
            tokens, images = self.read(value)
            options = {"temperature": 0.0, "max_tokens": NEW, "stop": [], "prompt_logprobs": True}
            jobs.append(SampleJob(tokens=tokens, images=images, weights=weights, **options))
        for value, job, result in zip(values, jobs, sample_jobs(self.engine, jobs), strict=True):
            (drawn,) = result.sequences
            self._forget()
            with torch.no_grad():
                whole = self.plain.generate(
                    **self.inputs(value),
                    max_new_tokens=NEW,
                    do_sample=False,
                    eos_token_id=None,
                    repetition_penalty=1.0,
                )
                table = self.logprobs(value, drawn.tokens.tolist()[:-1])
            assert drawn.tokens.tolist() == whole[0, len(job.tokens) :].tolist()
            following = torch.from_numpy(
                np.concatenate([job.tokens[1:], drawn.tokens]).astype(np.int64)
            )
            expected = table.gather(1, following[:, None])[:, 0]
            assert result.prompt_logprobs is not None
            found = np.concatenate([result.prompt_logprobs[1:], drawn.logprobs])
            assert_near(found, expected, terms_of_pass(LONGEST, LAYERS))
