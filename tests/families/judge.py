"""What becomes of a kind of models on the torch engine, beside plain torch, PEFT and ``generate``.

A kind that the engine runs is compared in everything that the engine computes of it, and a
difference is an AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
import transformers
from support.compared import load_in_peft, pick, trained_by_peft
from support.engine_inputs import compute, make_job
from support.tiny_models import sample_jobs
from support.tolerances import assert_near, terms_of_gradient, terms_of_pass, tolerance

from families.maker import Made
from tinker.local.engines.protocol import Adam, AdapterSpec, EngineError, TrainingExample
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.lora import LoraWeights
from tinker.local.engines.torch.sampling import Prefixes

# of log-probabilities, the sampler's, advantages
Terms = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SPEC = AdapterSpec(rank=4, seed=1)
LENGTHS = (5, 14, 9)
LONG = 60  # tokens of the longest sequence
# upper bounds of the small models, by which rounding is estimated
LAYERS, WIDTH, INNER = 4, 128, 128
BETA = 0.05
#: Written anew from docs/rl.md; the thresholds are the defaults.
LOSSES: Mapping[str, Terms] = {
    "cross_entropy": lambda now, old, gain: -now,
    "importance_sampling": lambda now, old, gain: -(now - old).exp() * gain,
    "ppo": lambda now, old, gain: (
        -torch.minimum((now - old).exp() * gain, (now - old).exp().clamp(0.8, 1.2) * gain)
    ),
    "cispo": lambda now, old, gain: -(now - old).exp().clamp(0.8, 1.2).detach() * gain * now,
    "dro": lambda now, old, gain: -(now * gain - 0.5 * BETA * (now - old) ** 2),
    "stable_reinforce": lambda now, old, gain: (
        -(now - old).exp().clamp(max=2.0).detach() * gain * now
    ),
}
# A step in which an error of a gradient stays as small as it is: with a small eps, one of nearly
# zero may change its sign.
STEP = Adam(
    learning_rate=3e-3, beta1=0.8, beta2=0.97, eps=1.0, weight_decay=0.1, grad_clip_norm=0.5
)


def draw_tokens(length: int, seed: int = 0) -> Any:
    """Return random tokens, without the special ones."""
    return np.random.default_rng([length, seed]).integers(3, 200, length).astype(np.int32)


def make_data(loss: str) -> list[TrainingExample]:
    """Make data of unlike lengths, with old log-probabilities and advantages where the loss takes
    them.
    """
    found: list[TrainingExample] = []
    for length in LENGTHS:
        tokens, draw = draw_tokens(length + 1), np.random.default_rng(length)
        inputs: dict[str, Any] = {"target_tokens": tokens[1:].astype(np.int64)}
        if loss == "cross_entropy":
            inputs["weights"] = draw.choice([0.0, 0.5, 1.0], length).astype(np.float32)
        else:
            inputs["logprobs"] = draw.normal(-6, 1, length).astype(np.float32)
            inputs["advantages"] = draw.normal(0, 1, length).astype(np.float32)
        found.append(TrainingExample(tokens=tokens[:-1], loss_inputs=inputs))
    return found


@attrs.define(eq=False)
class Judge:
    """A kind's engine with a trained adapter, and the same adapter in PEFT."""

    made: Made
    folder: Path
    engine: TorchEngine
    spec: AdapterSpec
    plain: Any

    @classmethod
    def open(cls, made: Made, folder: Path) -> Judge:
        """Load a kind. Raises ValueError, of the engine, for one that is refused."""
        engine = TorchEngine(made.write(folder / "model"), device="cpu")
        spec = SPEC
        try:
            engine.create_adapter("a", spec)
        except EngineError as error:
            if "train_mlp=False" not in str(error):
                raise
            spec = attrs.evolve(spec, train_mlp=False)
            engine.create_adapter("a", spec)
        compute(engine, "a", make_data("cross_entropy"), "cross_entropy")
        engine.optim_step("a", Adam(learning_rate=0.02))
        return cls(made, folder, engine, spec, cls.load(made, engine, folder))

    @staticmethod
    def load(made: Made, engine: TorchEngine, folder: Path) -> Any:
        """Save the adapter and load the file in PEFT."""
        engine.save("a", folder, optimizer=False)
        base = getattr(transformers, made.model).from_pretrained(
            folder / "model", dtype=torch.float32
        )
        return load_in_peft(base, folder)

    def check_training(self) -> None:
        """Six losses, their gradients and their log-probabilities, are those of
        autograd in PEFT.
        """
        for loss, terms in LOSSES.items():
            data = make_data(loss)
            result = compute(self.engine, "a", data, loss)
            total = torch.zeros(())
            for one, output in zip(data, result.outputs, strict=True):
                inputs = {
                    name: torch.from_numpy(np.asarray(value))
                    for name, value in one.loss_inputs.items()
                }
                now = pick(self.table(self.plain, one.tokens), inputs["target_tokens"])
                assert_near(output["logprobs"], now, self.terms, name=f"{loss}: log-probabilities")
                none = torch.zeros(len(now))
                each = terms(now, inputs.get("logprobs", none), inputs.get("advantages", none))
                total = total + (each * inputs.get("weights", none + 1)).sum()
            self.plain.zero_grad()
            total.backward()
            value = float(total.detach())
            size = abs(value) + sum(LENGTHS)
            assert abs(result.metrics["loss:sum"] - value) <= tolerance(self.terms, size), loss
            self.compare(loss, [tensor.grad for tensor in trained_by_peft(self.plain).values()])
            self.engine._adapters["a"].gradient = None

    def compare(self, what: str, theirs: list[Any]) -> None:
        """Compare the gradient; terms of a matrix may cancel, so that the largest number of all of
        them counts.
        """
        own = self.engine._adapters["a"]
        assert own.gradient is not None
        assert sorted(own.weights.tensors) == sorted(trained_by_peft(self.plain))
        wanted = dict(zip(trained_by_peft(self.plain), theirs, strict=True))
        size = max(float(one.abs().max()) for one in theirs if one is not None)
        for name, gradient in zip(own.weights.tensors, own.gradient, strict=True):
            expected = torch.zeros_like(gradient) if wanted[name] is None else wanted[name]
            assert_near(
                gradient, expected, self.terms * 2, size, name=f"{what}: gradient of {name}"
            )

    def check_steps(self) -> None:
        """Two clipped steps are those of torch.optim.AdamW on PEFT's matrices, whose file has the
        new weights.
        """
        betas = (STEP.beta1, STEP.beta2)
        options = {
            "lr": STEP.learning_rate,
            "betas": betas,
            "eps": STEP.eps,
            "weight_decay": STEP.weight_decay,
        }
        optimizer = torch.optim.AdamW(trained_by_peft(self.plain).values(), **options)
        self.engine.load("a", self.folder, optimizer=False)
        for _ in range(2):
            compute(self.engine, "a", make_data("ppo"), "ppo")
            norm = self.engine.optim_step("a", STEP)["grad_norm:mean"]
            self.plain.zero_grad()
            for one in make_data("ppo"):
                inputs = {
                    name: torch.from_numpy(np.asarray(value))
                    for name, value in one.loss_inputs.items()
                }
                now = pick(self.table(self.plain, one.tokens), inputs["target_tokens"])
                LOSSES["ppo"](now, inputs["logprobs"], inputs["advantages"]).sum().backward()
            # torch lets one alone that nothing is computed with; here its weight decays
            for tensor in trained_by_peft(self.plain).values():
                tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            given = torch.nn.utils.clip_grad_norm_(
                trained_by_peft(self.plain).values(), STEP.grad_clip_norm
            )
            assert_near(norm, given, self.terms * 2)
            optimizer.step()
        allowed = tolerance(2 * 2 * self.terms, STEP.grad_clip_norm) * STEP.learning_rate / STEP.eps
        for name, tensor in self.engine._adapters["a"].weights.tensors.items():
            apart = float((tensor - trained_by_peft(self.plain)[name]).abs().max())
            assert apart <= allowed + tolerance(8, float(tensor.detach().abs().max())), (
                f"two steps: {name}, {apart}"
            )
        again = self.load(self.made, self.engine, self.folder)
        with torch.no_grad():
            tokens = draw_tokens(20)
            assert_near(
                self.table(again, tokens),
                self.table(self.plain, tokens),
                self.terms,
                name="the file after two steps",
            )

    def check_samples(self) -> None:
        """Greedy tokens are those of ``generate``; samples alone, together, staggered and from the
        cache are equal.
        """
        adapter = self.engine.snapshot("a")
        assert isinstance(adapter, LoraWeights)
        prompt = draw_tokens(11)
        (greedy,) = sample_jobs(
            self.engine,
            [
                make_job(
                    tokens=draw_tokens(11), weights=adapter, seed=11, temperature=0.0, max_tokens=12
                )
            ],
        )
        options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": -1, "pad_token_id": 1}
        with torch.no_grad():
            inputs = torch.from_numpy(prompt.astype(np.int64))[None]
            drawn = self.plain.generate(
                input_ids=inputs, attention_mask=torch.ones_like(inputs), **options
            )
        assert greedy.sequences[0].tokens.tolist() == drawn[0, 11:].tolist(), "greedy"
        jobs = [
            make_job(
                tokens=draw_tokens(length),
                weights=weights,
                max_tokens=6,
                seed=length,
                temperature=1.0,
            )
            for length in (3, 17, 40, 47)
            for weights in (None, adapter)
        ]
        alone = []
        for one in jobs:
            self.engine._parts.prefixes = Prefixes()
            alone += sample_jobs(self.engine, [one])
        self.engine._parts.prefixes = Prefixes()
        together = sample_jobs(self.engine, jobs)
        cached = sample_jobs(self.engine, jobs)
        self.engine._parts.prefixes = Prefixes()
        batch, staggered = self.engine.open_batch(1000), dict[Any, Any]()
        while len(staggered) < len(jobs):
            if (number := len(batch._works) + len(staggered)) < len(jobs):
                batch.add(number, jobs[number])
            staggered |= dict(batch.step())
        for number, one in enumerate(alone):
            for how, other in (
                ("together", together),
                ("cached", cached),
                ("staggered", staggered),
            ):
                mine, theirs = one.sequences[0], other[number].sequences[0]
                assert mine.tokens.tolist() == theirs.tokens.tolist(), how
                assert_near(theirs.logprobs, mine.logprobs, self.terms, name=how)

    @property
    def terms(self) -> int:
        return (
            terms_of_pass(LONG, LAYERS, WIDTH, INNER) + terms_of_gradient(LONG, sum(LENGTHS)) // 2
        )

    def table(self, model: Any, tokens: Any) -> torch.Tensor:
        """Compute the log-probabilities ``[tokens, vocabulary]`` of a text, without padding and
        cache.
        """
        inputs = torch.from_numpy(np.asarray(tokens).astype(np.int64))[None]
        return torch.log_softmax(model(input_ids=inputs, use_cache=False).logits[0], dim=-1)


def judge(made: Made, folder: Path) -> str:
    """Return what becomes of a kind. Raises AssertionError where the engine computes something else
    than others do.
    """
    try:
        found = Judge.open(made, folder)
    except ValueError as error:
        return f"refused: {str(error).partition(';')[0].partition(chr(10))[0]}"
    found.check_training()
    found.check_steps()
    words = "right" if found.spec.train_mlp else "right with train_mlp=False only"
    if (fault := found.engine._fault) is not None:
        return f"{words} in training, not sampled: {fault}"
    found.check_samples()
    return words
