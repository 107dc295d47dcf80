"""What steps share: the clients, made when first needed, replaced when a step has failed on one;
and how to wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steps import NotOffered, NotReached

import tinker
from tinker import types

RANK = 8
CREATION_SECONDS = 110
_slowness = 1.0


def allow_for_slowness(factor: float) -> None:
    """Wait so many times as long for everything, where the machine is slow or busy."""
    global _slowness
    _slowness = factor


ADAM = types.AdamParams(learning_rate=1e-2)
TEXT = list(b"the quick brown fox jumps over the lazy dog")


def wait(value: Any, seconds: float = 60.0) -> Any:
    """The result of a future, whatever kind it is; anything else is itself, as older clients answer
    at once.
    """
    return value.result(timeout=seconds * _slowness) if hasattr(value, "result") else value


def offered(owner: Any, name: str) -> Any:
    """A method, or NotOffered where this version of the client has none."""
    method = getattr(owner, name, None)
    if method is None:
        raise NotOffered(f"{type(owner).__name__} has no {name}")
    return method


def tensor(values: list[Any], dtype: str = "float32") -> Any:
    """A vector for a loss."""
    return types.TensorData(data=values, dtype=dtype, shape=[len(values)])  # type: ignore[arg-type]


def prompt(tokens: list[int] | None = None) -> Any:
    """A model input; a few letters by default."""
    return types.ModelInput.from_ints(TEXT[:16] if tokens is None else tokens)


def datum(tokens: list[int] | None = None, **inputs: list[float]) -> Any:
    """A sequence to predict, each token weighing 1 unless inputs say otherwise."""
    tokens = TEXT[:17] if tokens is None else tokens
    targets = tokens[1:]
    given = {
        name: tensor(values)
        for name, values in (inputs or {"weights": [1.0] * len(targets)}).items()
    }
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tensor(targets, "int64"), **given},
    )


def sampled_datum(advantage: float = 1.0) -> Any:
    """A sequence for the losses of reinforcement learning."""
    return datum(TEXT[:17], logprobs=[-2.0] * 16, advantages=[advantage] * 16)


def logprobs_of(output: Any, index: int = 0) -> list[float]:
    """The log-probabilities of one sequence of a training result."""
    return [float(value) for value in output.loss_fn_outputs[index]["logprobs"].tolist()]


def params(**options: Any) -> Any:
    """Sampling parameters; five tokens by default."""
    return types.SamplingParams(**{"max_tokens": 5, **options})


def tokens_of(response: Any) -> list[list[int]]:
    """The tokens of each sample."""
    return [list(sequence.tokens) for sequence in response.sequences]


def near(one: list[float], other: list[float], tolerance: float = 2e-2) -> bool:
    """Whether the numbers are the same up to rounding."""
    return len(one) == len(other) and all(
        abs(a - b) <= tolerance for a, b in zip(one, other, strict=True)
    )


class World:
    """The server under test, and what the steps have made there."""

    def __init__(self, base_url: str, api_key: str, model: str, folder: Path) -> None:
        self.base_url, self.api_key, self.model, self.folder = base_url, api_key, model, folder
        self.used: set[str] = set()
        self._made: dict[str, Any] = {}
        self._reasons: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def need(self, name: str, make: Callable[[], Any]) -> Any:
        """A thing by its name, made when first needed. The step that needs it first fails with it;
        it is tried once more.
        """
        self.used.add(name)
        with self._lock:
            if name in self._made:
                return self._made[name]
            reasons = self._reasons.setdefault(name, [])
            if len(reasons) >= 2:
                raise NotReached(f"{name}: {reasons[0]}")
            reasons.append("it did not come in time")
        try:
            made = make()
        except Exception as error:
            reasons[-1] = f"{type(error).__name__}: {str(error)[:200]}"
            if len(reasons) == 1 or isinstance(error, NotReached):
                raise
            raise NotReached(f"{name}: {reasons[0]}") from error
        with self._lock:
            reasons.clear()
            return self._made.setdefault(name, made)

    def forget(self, names: set[str]) -> None:
        """Make these anew when they are needed next: a step has failed with them."""
        with self._lock:
            for name in names & {"a training client"}:
                self._made.pop(name, None)

    def open_service(self, **options: Any) -> Any:
        """A service client of its own session."""
        return tinker.ServiceClient(base_url=self.base_url, api_key=self.api_key, **options)

    @property
    def service(self) -> Any:
        """The service client that the steps share."""
        return self.need("a service client", self.open_service)

    @property
    def rest(self) -> Any:
        """The client of lists."""
        return self.need("a REST client", lambda: self.service.create_rest_client())

    def new_trainer(self, **options: Any) -> Any:
        """A fresh adapter."""
        creation = self.service.create_lora_training_client(
            base_model=self.model, **{"rank": RANK, "seed": 1, **options}
        )
        return wait(creation, CREATION_SECONDS)

    @property
    def trainer(self) -> Any:
        """The adapter that the steps share; another one after a step that failed on it."""
        return self.need("a training client", self.new_trainer)

    @property
    def base_sampler(self) -> Any:
        """A sampling client of the untrained model."""
        return self.need("a sampling client of the base model", self._open_base_sampler)

    def _open_base_sampler(self) -> Any:
        sampler = wait(self.service.create_sampling_client(base_model=self.model), CREATION_SECONDS)
        wait(sampler.sample(prompt(), 1, params(max_tokens=1)), CREATION_SECONDS)
        return sampler

    @property
    def sampler(self) -> Any:
        """A sampling client that works, of whatever weights."""
        with contextlib.suppress(Exception):
            return self.base_sampler
        return self.trained_sampler

    @property
    def trained_sampler(self) -> Any:
        """A sampling client of an adapter that was trained a little."""
        return self.need("a sampling client of trained weights", self._open_trained_sampler)

    def _open_trained_sampler(self) -> Any:
        trainer = self.trained
        return wait(trainer.save_weights_and_get_sampling_client(), CREATION_SECONDS)

    @property
    def trained(self) -> Any:
        """An adapter that has learnt a line by heart, which the steps leave as it is."""
        return self.need("a trained adapter", self._train)

    def _train(self) -> Any:
        trainer = self.new_trainer()
        for _ in range(5):
            wait(trainer.forward_backward([datum()], "cross_entropy"))
            wait(trainer.optim_step(ADAM))
        return trainer

    @property
    def state(self) -> str:
        """The path of a saved state of the trained adapter."""
        return str(
            self.need("a saved state", lambda: wait(self.trained.save_state("by-heart")).path)
        )

    @property
    def sampler_path(self) -> str:
        """The path of sampler weights of the trained adapter."""
        return str(
            self.need(
                "saved sampler weights",
                lambda: wait(self.trained.save_weights_for_sampler("by-heart")).path,
            )
        )

    def twins(self) -> list[Any]:
        """Two fresh adapters with the same weights: loaded from one state, or where that fails made
        from one seed.
        """
        trainers = [self.new_trainer(seed=3), self.new_trainer(seed=3)]
        with contextlib.suppress(Exception):
            start = self.need(
                "a saved state of a fresh adapter",
                lambda: wait(self.new_trainer().save_state("fresh")).path,
            )
            for trainer in trainers:
                wait(trainer.load_state(start))
        return trainers

    def loss(self, trainer: Any, tokens: list[int] | None = None) -> float:
        """The loss of the line under an adapter, which does not change it."""
        return -sum(logprobs_of(wait(trainer.forward([datum(tokens)], "cross_entropy"))))
