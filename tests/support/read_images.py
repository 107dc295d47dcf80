"""A small random model that reads images in the torch engine, beside plain transformers with the processor's own inputs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
import transformers
from PIL import Image

from support.compared import LAYERS, SPEC, assert_same_gradient, load_in_peft, pick
from support.engine_inputs import compute, make_job
from support.seeing_kinds import Seeing
from support.tiny_models import sample_jobs
from support.tolerances import assert_near, terms_of_gradient, terms_of_pass
from tinker.local.engines.protocol import Adam, SampleJob, TrainingExample
from tinker.local.engines.torch import TorchEngine
from tinker.local.handlers.common import read_input
from tinker.types import EncodedTextChunk, ImageChunk, ModelInput

Value = Sequence[str | tuple[int, int]]  # texts, and sizes of images between them


def make_value(last: int, *sizes: tuple[int, int]) -> Value:
    """Alternate text and images of these sizes, and end with text of this length."""
    parts: list[str | tuple[int, int]] = ["The"]
    for number, size in enumerate(sizes):
        parts += [size, f" sees {number}"]
    return [*parts, "abcdefghij"[:last]]


def draw_image(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Draw an image of noise; ``size`` is width and height."""
    draw = np.random.default_rng([*size, seed])
    return Image.fromarray(draw.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def make_image(size: tuple[int, int], seed: int = 0, kind: str = "PNG", **options: Any) -> bytes:
    """Make the file of an image of noise."""
    draw_image(size, seed).save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


def make_chunk(size: tuple[int, int], seed: int = 0, **fields: Any) -> ImageChunk:
    return ImageChunk(data=make_image(size, seed), format="png", **fields)


@attrs.frozen(eq=False, kw_only=True)
class ReadingModel:
    """An engine whose adapter has taken a step on an image, and the same adapter in PEFT.

    How an input is read, and what plain transformers gets, is that of its kind. Rounding is that of
    so many ``layers`` and of the ``longest`` sequence, and of a gradient as many ``times``.
    """

    engine: TorchEngine
    processor: Any
    plain: Any = None
    adapter: object = None
    layers: int = LAYERS
    times: int = LAYERS
    longest: int = 80

    def read(self, value: Any) -> Any:
        """Return the tokens and images of an input as the server reads it."""
        raise NotImplementedError

    def inputs(self, value: Any, more: Sequence[int] = ()) -> dict[str, Any]:
        """Return the inputs of plain transformers, and more tokens."""
        raise NotImplementedError

    def train(self, value: Any, folder: Path, base: Any) -> Any:
        """Train the adapter on an input, save it, and return this with its file in PEFT."""
        self.engine.create_adapter("a", SPEC)
        compute(self.engine, "a", [self.example(value)])
        self.engine.optim_step("a", Adam(learning_rate=0.02))
        self.engine.save("a", folder, optimizer=False)
        plain = load_in_peft(base, folder).eval()
        return attrs.evolve(self, plain=plain, adapter=self.engine.snapshot("a"))

    def example(self, value: Any) -> TrainingExample:
        """Make a datum that predicts random tokens."""
        tokens, images = self.read(value)
        targets = np.random.default_rng(len(tokens)).integers(0, 250, len(tokens))
        return TrainingExample(tokens=tokens, images=images, loss_inputs={"target_tokens": targets})

    def job(self, value: Any, weights: object = None, **changes: Any) -> SampleJob:
        """Return a job for an input."""
        tokens, images = self.read(value)
        given = {"max_tokens": 6, "weights": weights, **changes}
        return make_job(tokens=tokens, images=images, **given)

    def table(self, value: Any, more: Sequence[int] = (), *, is_base: bool = False) -> torch.Tensor:
        """Return PEFT's log-probability of each next token ``[tokens, vocabulary]``, without a
        cache.
        """
        self._forget()
        with self.plain.disable_adapter() if is_base else nullcontext():
            return torch.log_softmax(self.plain(**self.inputs(value, more)).logits[0], dim=-1)

    def _forget(self) -> None:
        inner = self.plain.base_model.model.model
        if hasattr(inner, "rope_deltas"):
            inner.rope_deltas = None

    def assert_trains(self, values: Sequence[Any]) -> None:
        """Assert that log-probabilities of these data in one call, and the gradient of every matrix,
        are PEFT's.
        """
        data, total = [self.example(value) for value in values], torch.zeros(())
        self.plain.zero_grad()
        outputs = compute(self.engine, "a", data).outputs
        for value, one, output in zip(values, data, outputs, strict=True):
            expected = pick(self.table(value), one.loss_inputs["target_tokens"])
            assert_near(output["logprobs"], expected, terms_of_pass(self.longest, self.layers))
            total = total - expected.sum()
        total.backward()
        terms = self.times * terms_of_gradient(self.longest, 3 * self.longest)
        assert_same_gradient(self.engine, self.plain, terms)

    def assert_samples(self, values: Sequence[Any], weights: object = None) -> None:
        """Assert that greedy samples of these prompts together are those of ``generate``, and that
        the scores are PEFT's; of the base model without weights.
        """
        asked = {"temperature": 0.0, "prompt_logprobs": True}
        jobs = [self.job(value, weights, **asked) for value in values]
        plain: Any = self.plain.disable_adapter() if weights is None else nullcontext()
        options = {"do_sample": False, "eos_token_id": None, "repetition_penalty": 1.0}
        with torch.no_grad(), plain:
            for value, job, result in zip(
                values, jobs, sample_jobs(self.engine, jobs), strict=True
            ):
                (drawn,) = result.sequences
                self._forget()
                inputs = self.inputs(value)
                whole = self.plain.generate(**inputs, max_new_tokens=job.max_tokens, **options)
                assert drawn.tokens.tolist() == whole[0, len(job.tokens) :].tolist()
                following = np.concatenate([job.tokens[1:], drawn.tokens])
                expected = pick(self.table(value, drawn.tokens.tolist()[:-1]), following)
                assert result.prompt_logprobs is not None
                found = np.concatenate([result.prompt_logprobs[1:], drawn.logprobs])
                assert_near(found, expected, terms_of_pass(self.longest, self.layers))


@attrs.frozen(eq=False, kw_only=True)
class ReadImages(ReadingModel):
    """A kind with a processor that takes a whole text with its images."""

    kind: Seeing
    tokenizer: Any

    @classmethod
    def make(cls, kind: Seeing, folder: Path) -> ReadImages:
        """Write a random model, load and train it, and load the file of the adapter into PEFT."""
        directory = kind.write(folder / "model")
        engine = TorchEngine(directory, device="cpu")
        assert not hasattr(engine.image_reader, "reason"), engine.image_reader.reason  # type: ignore[union-attr]
        opener: Any = (
            transformers.AutoProcessor if kind.writes_tokens else transformers.AutoImageProcessor
        )
        processor, tokenizer = opener.from_pretrained(directory), kind.make_tokenizer()
        first = cls(kind=kind, engine=engine, processor=processor, tokenizer=tokenizer)
        base = type(engine._model).from_pretrained(directory, dtype=torch.float32)
        return first.train(make_value(3, (33, 20)), folder, base)  # type: ignore[no-any-return]

    def read(self, value: Value) -> Any:
        def encode(text: str) -> EncodedTextChunk:
            return EncodedTextChunk(tokens=self.tokenizer.encode(text, add_special_tokens=False))

        chunks: list[Any] = [
            encode(part) if isinstance(part, str) else make_chunk(part) for part in value
        ]
        return read_input(self.engine, ModelInput(chunks=chunks), "the input")

    def tokens(self, value: Value) -> list[int]:
        """Return the tokens of an input, those of its images included."""
        return self.read(value)[0].tolist()  # type: ignore[no-any-return]

    def inputs(self, value: Value, more: Sequence[int] = ()) -> dict[str, Any]:
        """Return what the processor makes of the text with its images, and more tokens."""
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
