"""A small random model in the torch engine, with an adapter that has taken a step, beside the same
adapter in PEFT.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import peft
import torch

from support.engine_inputs import (
    compute,
    gradient_of,
    make_job,
    make_text,
    make_tokens,
    tokens_of,
)
from support.small_configs import Kind, find_class
from support.tiny_models import sample_jobs
from support.tolerances import assert_near, terms_of_gradient, terms_of_pass
from tinker.local.engines import PACKAGED_FOLDER
from tinker.local.engines.protocol import Adam, AdapterSpec, SampleJob
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.sampling import Prefixes

# that a pass is reckoned with: of some kinds more happens in a layer than attention and an MLP
LAYERS = 6
SPEC = AdapterSpec(rank=4, seed=1)


def load_in_peft(base: Any, folder: Path) -> Any:
    """Load the file of an adapter into PEFT, all of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="Found missing adapter keys")
        return peft.PeftModel.from_pretrained(base, str(folder), is_trainable=True)


def trained_by_peft(plain: Any) -> dict[str, Any]:
    """Return PEFT's matrices by the names of the engine."""
    return {
        name.removeprefix("base_model.model.").replace(".default", ""): one
        for name, one in plain.named_parameters()
        if one.requires_grad
    }


def assert_same_gradient(engine: TorchEngine, plain: Any, terms: int) -> None:
    """Assert that the gradient of every matrix of the adapter ``a`` is PEFT's, and forget it."""
    ours, theirs = gradient_of(engine, "a"), trained_by_peft(plain)
    assert ours.keys() == theirs.keys()
    for name, part in ours.items():
        assert np.abs(part).max() > 0, name
        assert_near(part, theirs[name].grad, terms, name=name)
    engine._adapter("a").gradient = None


def pick(logprobs: torch.Tensor, tokens: Any) -> torch.Tensor:
    """Return the log-probability of each of these tokens, each from its row."""
    return logprobs.gather(1, torch.from_numpy(np.asarray(tokens).astype(np.int64))[:, None])[:, 0]


@attrs.frozen(eq=False)
class Compared:
    """An engine, and plain transformers with PEFT over the class of the checkpoint.

    Rounding is that of so many ``layers``, and of a gradient as many ``times``.
    """

    engine: TorchEngine
    plain: Any
    layers: int = LAYERS
    times: int = LAYERS

    @classmethod
    def make(cls, kind: Kind, folder: Path) -> Compared:
        """Write a random model, load and train it, and load the file of the adapter into PEFT."""
        return cls.open(write_kind(kind, folder / "model"), folder)

    @classmethod
    def open(cls, directory: Path, folder: Path, **rounding: int) -> Compared:
        """Load and train a model."""
        engine = TorchEngine(directory, device="cpu")
        engine.create_adapter("a", SPEC)
        compute(engine, "a", [make_text(make_tokens(length)) for length in (13, 6)])
        engine.optim_step("a", Adam(learning_rate=0.02))
        engine.save("a", folder, optimizer=False)
        base = type(engine._model).from_pretrained(directory, dtype=torch.float32).eval()
        return cls(engine, load_in_peft(base, folder).eval(), **rounding)

    def table(self, tokens: Any, *, is_base: bool = False) -> torch.Tensor:
        """Compute PEFT's log-probabilities after each token ``[tokens, vocabulary]``: alone,
        without a cache.
        """
        inputs = torch.from_numpy(np.asarray(tokens).astype(np.int64))[None]
        with self.plain.disable_adapter() if is_base else nullcontext():
            return torch.log_softmax(self.plain(input_ids=inputs).logits[0], dim=-1)

    def assert_trains(self) -> None:
        """Assert that log-probabilities of data of unlike length, and the gradient of every matrix,
        are PEFT's.
        """
        data = [make_text(make_tokens(length)) for length in (6, 15, 2)]
        total = torch.zeros(())
        self.plain.zero_grad()
        for one, output in zip(data, compute(self.engine, "a", data).outputs, strict=True):
            expected = pick(self.table(one.tokens), one.loss_inputs["target_tokens"])
            assert_near(output["logprobs"], expected, terms_of_pass(14, self.layers))
            total = total - expected.sum()
        total.backward()
        assert_same_gradient(self.engine, self.plain, self.times * terms_of_gradient(14, 20))

    def assert_samples(self, other: object = None) -> None:
        """Assert that samples of unlike length that begin one after another, and end so, are those
        that each is alone, and those of ``generate`` and PEFT; of another adapter, the former.
        """
        weights = self.engine.snapshot("a")
        jobs = [
            make_job(3, weights=weights, temperature=0.0, max_tokens=8),
            make_job(17, weights=weights, num_samples=3, max_tokens=8),
            make_job(9, temperature=0.0, max_tokens=4),
            make_job(17, weights=weights, max_tokens=2, prompt_logprobs=True),
            make_job(11, weights=other, num_samples=2, max_tokens=4),
            make_job(4, weights=weights, max_tokens=0, prompt_logprobs=True),
        ]
        for one, result in zip(jobs, sample_staggered(self.engine, jobs), strict=True):
            is_base = one.weights is None
            for drawn in result.sequences if is_base or one.weights is weights else ():
                with torch.no_grad():
                    whole = np.concatenate([one.tokens, drawn.tokens])
                    expected = pick(self.table(whole, is_base=is_base)[:-1], whole[1:])
                prompt = len(one.tokens) - 1
                assert_near(drawn.logprobs, expected[prompt:], terms_of_pass(25, self.layers))
                if one.temperature == 0:
                    assert drawn.tokens.tolist() == self._generate(one)
                if one.prompt_logprobs:
                    found = result.prompt_logprobs[1:]
                    assert_near(found, expected[:prompt], terms_of_pass(17, self.layers))

    def _generate(self, one: SampleJob) -> list[int]:
        ids = torch.from_numpy(one.tokens.astype(np.int64))[None]
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 257}
        with self.plain.disable_adapter() if one.weights is None else nullcontext():
            made = self.plain.base_model.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=one.max_tokens,
                **options,
            )
        return [int(token) for token in made[0, len(one.tokens) :]]


def sample_staggered(engine: TorchEngine, jobs: Sequence[SampleJob]) -> list[Any]:
    """Sample jobs that begin one step after another, and assert that each gives what it gives
    alone.
    """
    alone = []
    for one in jobs:
        engine._parts.prefixes = Prefixes()
        alone += sample_jobs(engine, [one])
    engine._parts.prefixes = Prefixes()
    batch, done = engine.open_batch(1000), dict[Any, Any]()
    for number, one in enumerate(jobs):
        batch.add(number, one)
        done.update(batch.step())
    while len(done) < len(jobs):
        done.update(batch.step())
    for number, single in enumerate(alone):
        assert tokens_of(done[number]) == tokens_of(single)
        for ours, theirs in zip(done[number].sequences, single.sequences, strict=True):
            assert_near(ours.logprobs, theirs.logprobs, terms_of_pass(25))
    return [done[number] for number in range(len(jobs))]


def write_kind(kind: Kind, directory: Path) -> Path:
    """Write a random model of this kind, with the packaged tokenizer."""
    torch.manual_seed(0)
    config = kind.make_config()
    find_class(config)(config).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((PACKAGED_FOLDER / name).read_bytes())
    return directory
