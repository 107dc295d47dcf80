"""The model of `plain_server.py`: it guesses each token from the one before it, and a LoRA adapter
learns on top of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NAME, VOCABULARY, CONTEXT = "toy/bigram", 256, 512
_BASE = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY))


class Adapter:
    """A trained adapter: two matrices, their gradient, and the state of Adam."""

    def __init__(self, rank: int, seed: int | None) -> None:
        generator = np.random.default_rng(seed)
        self.weights = [
            generator.normal(size=(VOCABULARY, rank)) / np.sqrt(rank),
            np.zeros((rank, VOCABULARY)),
        ]
        self.gradient = [np.zeros_like(each) for each in self.weights]
        self.moments = [(np.zeros_like(each), np.zeros_like(each)) for each in self.weights]
        self.steps = 0

    def logprobs(self, tokens: list[int]) -> np.ndarray:
        """After each of the tokens: the logprob of every token, shape (tokens, vocabulary)."""
        logits = _BASE[tokens] + self.weights[0][tokens] @ self.weights[1]
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    def cross_entropy(
        self, tokens: list[int], targets: np.ndarray, weights: np.ndarray, *, backward: bool
    ) -> np.ndarray:
        """Return the logprob of each target; `backward` adds the gradient of their weighted sum."""
        logprobs, rows = self.logprobs(tokens), np.arange(len(targets))
        if backward:
            slope = np.exp(logprobs) * weights[:, None]
            slope[rows, targets] -= weights
            np.add.at(self.gradient[0], tokens, slope @ self.weights[1].T)
            self.gradient[1] += self.weights[0][tokens].T @ slope
        return logprobs[rows, targets]

    def step(self, params: dict[str, float]) -> None:
        """Take one step of Adam, and clear the gradient."""
        self.steps += 1
        beta1, beta2, clip = params["beta1"], params["beta2"], params["grad_clip_norm"]
        norm = float(np.sqrt(sum((each**2).sum() for each in self.gradient)))
        scale = min(1.0, clip / norm) if clip and norm else 1.0
        for weight, gradient, (mean, square) in zip(self.weights, self.gradient, self.moments):
            mean += (1 - beta1) * (scale * gradient - mean)
            square += (1 - beta2) * ((scale * gradient) ** 2 - square)
            change = (
                mean
                / (1 - beta1**self.steps)
                / (np.sqrt(square / (1 - beta2**self.steps)) + params["eps"])
            )
            weight -= params["learning_rate"] * (change + params["weight_decay"] * weight)
            gradient[:] = 0

    def draw(self, token: int, params: dict[str, Any], generator: np.random.Generator) -> int:
        """Draw the token after a token."""
        logprobs = self.logprobs([token])[0]
        top_k, temperature = params.get("top_k", -1), params.get("temperature", 1.0)
        kept = np.argsort(-logprobs)[: top_k if top_k > 0 else None]
        chances = np.exp((logprobs[kept] - logprobs[kept[0]]) / max(temperature, 1e-6))
        chances /= chances.sum()
        chances *= np.cumsum(chances) - chances < max(params.get("top_p", 1.0), 1e-9)
        return int(generator.choice(kept, p=chances / chances.sum()))
