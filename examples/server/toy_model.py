"""The model of `minimal_server.py`: it guesses each token from the one before it, and a LoRA
adapter learns on top of that.
"""

import copy
from typing import Any

import numpy as np

NAME, VOCABULARY, CONTEXT = "toy/bigram", 256, 512
_BASE = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY))


def read_tokens(tokens: list[int]) -> list[int]:
    """The tokens, where there is a model for them. ValueError for others."""
    if not 0 < len(tokens) <= CONTEXT or not all(0 <= token < VOCABULARY for token in tokens):
        raise ValueError(f"a text has 1 to {CONTEXT} tokens below {VOCABULARY}")
    return tokens


def read_datum(datum: Any) -> tuple[list[int], list[int], np.ndarray]:
    """The tokens of a datum, and for each its target and its weight; without `weights` each counts
    as one.
    """
    tokens, rows = (
        datum.model_input.to_ints(),
        {name: row.to_numpy() for name, row in datum.loss_fn_inputs.items()},
    )
    rows = {"weights": np.ones(len(tokens)), **rows}
    if rows.keys() != {"target_tokens", "weights"} or any(
        row.shape != (len(tokens),) for row in rows.values()
    ):
        raise ValueError(
            "cross_entropy takes target_tokens and weights, with one number for each token"
        )
    return (
        read_tokens(tokens),
        read_tokens(rows["target_tokens"].astype(int).tolist()),
        rows["weights"],
    )


class Adapter:
    """What is trained: two matrices, their gradient, and the state of Adam."""

    def __init__(self, rank: int, seed: int | None) -> None:
        generator = np.random.default_rng(seed)
        self.weights = [
            generator.normal(size=(VOCABULARY, rank)) / np.sqrt(rank),
            np.zeros((rank, VOCABULARY)),
        ]
        self.gradient = [np.zeros_like(each) for each in self.weights]
        self.moments = [(np.zeros_like(each), np.zeros_like(each)) for each in self.weights]
        self.steps = 0

    def copy(self) -> "Adapter":
        """A copy, which goes its own way."""
        return copy.deepcopy(self)

    def with_optimizer_of(self, other: "Adapter") -> "Adapter":
        """A copy with the state of another's optimizer."""
        copied = self.copy()
        copied.moments, copied.steps = copy.deepcopy(other.moments), other.steps
        return copied

    def logprobs(self, tokens: list[int]) -> np.ndarray:
        """After each of the tokens: the logprob of every token, shape (tokens, vocabulary)."""
        logits = _BASE[tokens] + self.weights[0][tokens] @ self.weights[1]
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    def train(
        self, loss_fn: str, data: list[Any], *, backward: bool
    ) -> tuple[list[np.ndarray], float]:
        """For each datum the logprobs of its targets, and the loss of all; with `backward` its
        gradient is added up.
        """
        if loss_fn != "cross_entropy":
            raise ValueError(f"this model has cross_entropy, not {loss_fn}")
        checked, found, loss = [read_datum(datum) for datum in data], [], 0.0
        for tokens, targets, weights in checked:
            logprobs, rows = self.logprobs(tokens), np.arange(len(tokens))
            found.append(logprobs[rows, targets].astype(np.float32))
            loss -= float(logprobs[rows, targets] @ weights)
            if backward:
                slope = np.exp(logprobs) * weights[:, None]
                slope[rows, targets] -= weights
                np.add.at(self.gradient[0], tokens, slope @ self.weights[1].T)
                self.gradient[1] += self.weights[0][tokens].T @ slope
        return found, loss

    def step(self, params: Any) -> None:
        """One step of Adam, which uses the gradient up."""
        self.steps += 1
        norm = float(np.sqrt(sum((each**2).sum() for each in self.gradient)))
        scale = min(1.0, params.grad_clip_norm / norm) if params.grad_clip_norm and norm else 1.0
        for weight, gradient, (mean, square) in zip(
            self.weights, self.gradient, self.moments, strict=True
        ):
            mean += (1 - params.beta1) * (scale * gradient - mean)
            square += (1 - params.beta2) * ((scale * gradient) ** 2 - square)
            size = np.sqrt(square / (1 - params.beta2**self.steps)) + params.eps
            weight -= params.learning_rate * (
                mean / (1 - params.beta1**self.steps) / size + params.weight_decay * weight
            )
            gradient[:] = 0

    def score(self, tokens: list[int]) -> np.ndarray:
        """The logprob of each token of a prompt, NaN for the first."""
        rows = self.logprobs(tokens[:-1])
        return np.array([np.nan, *rows[np.arange(len(rows)), tokens[1:]]], np.float32)

    def sample(
        self, tokens: list[int], params: Any, index: int, k: int
    ) -> tuple[list[int], list[float], list[Any], str]:
        """The continuation of that index: its tokens, their logprobs, for each the likeliest k with
        theirs, and why it ends.
        """
        if not all(isinstance(token, int) for token in params.stop or ()):
            raise ValueError("this model stops at tokens, not at texts")
        generator = np.random.default_rng(None if params.seed is None else [params.seed, index])
        drawn, logprobs, likeliest = [read_tokens(tokens)[-1]], list[float](), list[Any]()
        while len(logprobs) < (params.max_tokens or CONTEXT):
            row = self.logprobs(drawn[-1:])[0]
            drawn.append(draw(row, params, generator))
            logprobs.append(float(row[drawn[-1]]))
            likeliest.append([(int(token), float(row[token])) for token in np.argsort(-row)[:k]])
            if drawn[-1] in (params.stop or ()):
                return drawn[1:], logprobs, likeliest, "stop"
        return drawn[1:], logprobs, likeliest, "length"


def draw(logprobs: np.ndarray, params: Any, generator: np.random.Generator) -> int:
    """A token by its logprobs."""
    kept = np.argsort(-logprobs)[: params.top_k if params.top_k > 0 else None]
    chances = np.exp((logprobs[kept] - logprobs[kept[0]]) / max(params.temperature, 1e-6))
    chances /= chances.sum()
    chances *= np.cumsum(chances) - chances < max(params.top_p, 1e-9)
    return int(generator.choice(kept, p=chances / chances.sum()))
