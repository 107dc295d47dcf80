"""A small random model in the torch engine, with an adapter that has taken a step, beside the same
adapter in PEFT.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import peft
import torch

from support.small_configs import Kind, find_class
from support.tiny_models import sample_jobs
from support.tolerances import assert_near, terms_of_gradient, terms_of_pass
from tinker.local.engines import PACKAGED_FOLDER
from tinker.local.engines.protocol import Adam, AdapterSpec, SampleJob, TrainingExample
from tinker.local.engines.torch import TorchEngine

# that a pass is reckoned with: of some kinds more happens in a layer than attention and an MLP
LAYERS = 6
NEW = 8  # tokens of a sample


def prompt(length: int) -> Any:
    return np.random.default_rng(length).integers(0, 250, length).astype(np.int32)


def example(length: int) -> TrainingExample:
    tokens = prompt(length + 1)
    return TrainingExample(
        tokens=tokens[:-1], loss_inputs={"target_tokens": tokens[1:].astype(np.int64)}
    )


def job(length: int, weights: object, **changes: Any) -> SampleJob:
    options = {
        "tokens": prompt(length),
        "weights": weights,
        "max_tokens": NEW,
        "seed": length,
        "stop": [],
        **changes,
    }
    return SampleJob(**options)


@attrs.frozen(eq=False)
class Compared:
    """An engine, and plain transformers with PEFT over the class of the checkpoint."""

    engine: TorchEngine
    plain: Any

    @classmethod
    def make(cls, kind: Kind, folder: Path) -> Compared:
        """Write a random model, load and train it, and load the file of the adapter into PEFT."""
        directory = write_kind(kind, folder / "model")
        engine = TorchEngine(directory, device="cpu")
        engine.create_adapter("a", AdapterSpec(rank=4, seed=1))
        engine.forward_backward("a", [example(12), example(5)], "cross_entropy", {}, backward=True)
        engine.optim_step("a", Adam(learning_rate=0.02))
        engine.save("a", folder, optimizer=False)
        base = type(engine._model).from_pretrained(directory, dtype=torch.float32).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="Found missing adapter keys")
            return cls(
                engine, peft.PeftModel.from_pretrained(base, str(folder), is_trainable=True).eval()
            )

    def logprobs(self, tokens: Any) -> torch.Tensor:
        """Compute PEFT's log-probability of each token after the first: alone, without a cache."""
        ids = torch.from_numpy(np.asarray(tokens).astype(np.int64))[None]
        return torch.log_softmax(self.plain(input_ids=ids).logits[0, :-1], dim=-1).gather(
            1, ids[0, 1:, None]
        )[:, 0]

    def assert_trains(self) -> None:
        """Assert that log-probabilities of data of unlike length, and the gradient of every matrix,
        are PEFT's.
        """
        data = [example(length) for length in (5, 14, 1)]
        result = self.engine.forward_backward("a", data, "cross_entropy", {}, backward=True)
        total = torch.zeros(())
        for one, output in zip(data, result.outputs, strict=True):
            expected = self.logprobs(np.append(one.tokens, one.loss_inputs["target_tokens"][-1]))
            assert_near(output["logprobs"], expected, terms_of_pass(14, LAYERS))
            total = total - expected.sum()
        total.backward()
        own = self.engine._adapters["a"]
        assert own.gradient is not None
        gradients = dict(zip(own.weights.tensors, own.gradient, strict=True))
        named = [
            (name, one.grad) for name, one in self.plain.named_parameters() if one.requires_grad
        ]
        theirs = {
            name.removeprefix("base_model.model.").replace(".default", ""): gradient
            for name, gradient in named
        }
        assert gradients.keys() == theirs.keys()
        for name, gradient in gradients.items():
            assert gradient.abs().max() > 0, name
            assert_near(gradient, theirs[name], LAYERS * terms_of_gradient(14, 20), name=name)

    def assert_samples(self) -> None:
        """Assert that samples of unlike length that begin one after another, and end so, are those
        of ``generate`` and PEFT.
        """
        weights = self.engine.snapshot("a")
        jobs = [
            job(3, weights, temperature=0.0),
            job(17, weights, num_samples=3),
            job(9, weights, temperature=0.0, max_tokens=4),
            job(17, weights, max_tokens=2, prompt_logprobs=True),
        ]
        for one, result in zip(jobs, sample_staggered(self.engine, jobs), strict=True):
            for sequence in result.sequences:
                with torch.no_grad():
                    expected = self.logprobs(np.concatenate([one.tokens, sequence.tokens]))
                assert_near(
                    sequence.logprobs, expected[len(one.tokens) - 1 :], terms_of_pass(25, LAYERS)
                )
                if one.temperature == 0:
                    assert sequence.tokens.tolist() == self._generate(one)
                if one.prompt_logprobs:
                    assert_near(
                        result.prompt_logprobs[1:],
                        expected[: len(one.tokens) - 1],
                        terms_of_pass(25, LAYERS),
                    )

    def _generate(self, one: SampleJob) -> list[int]:
        ids = torch.from_numpy(one.tokens.astype(np.int64))[None]
        options = {
            "attention_mask": torch.ones_like(ids),
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 257,
        }
        made = self.plain.base_model.model.generate(
            input_ids=ids, max_new_tokens=one.max_tokens, **options
        )
        return [int(token) for token in made[0, len(one.tokens) :]]


def sample_staggered(engine: TorchEngine, jobs: Sequence[SampleJob]) -> list[Any]:
    """Sample jobs that begin one step after another, and assert that each gives what it gives
    alone.
    """
    batch, done = engine.open_batch(1000), dict[Any, Any]()
    for number, one in enumerate(jobs):
        batch.add(number, one)
        done.update(batch.step())
    while len(done) < len(jobs):
        done.update(batch.step())
    for number, one in enumerate(jobs):
        (alone,) = sample_jobs(engine, [one])
        together = [sequence.tokens.tolist() for sequence in done[number].sequences]
        assert together == [sequence.tokens.tolist() for sequence in alone.sequences]
    return [done[number] for number in range(len(jobs))]


def write_kind(kind: Kind, directory: Path) -> Path:
    """Write a random model of this kind, with the packaged tokenizer."""
    torch.manual_seed(0)
    config = kind.make_config()
    find_class(config)(config).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((PACKAGED_FOLDER / name).read_bytes())
    return directory
