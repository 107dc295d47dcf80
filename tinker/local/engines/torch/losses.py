"""The token losses in torch. Their inputs and options are in ``inputs``.

Every loss is a sum over tokens (and, for ``[N, K]`` targets, over cells) of a term times its weight. Terms see only the
cells with a weight, so whatever stands in the other inputs of a cell of weight zero has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from tinker.local.engines.inputs import LOSS_FORMS, SEQUENCE_LOG_RATIO

TorchInputs: TypeAlias = Mapping[str, torch.Tensor]
TorchOptions: TypeAlias = Mapping[str, float]
TorchLoss: TypeAlias = Callable[[torch.Tensor, TorchInputs, TorchOptions], torch.Tensor]


def ratio(logprobs: torch.Tensor, inputs: TorchInputs) -> torch.Tensor:
    """Compute how much likelier each token, or its whole sequence, is now than when it was sampled.

    The ratio of a sequence is that of each of its tokens, with the gradient of the token's own log-probability.
    """
    if SEQUENCE_LOG_RATIO in inputs:
        return torch.exp(inputs[SEQUENCE_LOG_RATIO] + logprobs - logprobs.detach())
    return torch.exp(logprobs - inputs["logprobs"])


def _clip(ratios: torch.Tensor, options: TorchOptions) -> torch.Tensor:
    return ratios.clamp(options["clip_low_threshold"], options["clip_high_threshold"])


def _cross_entropy(logprobs: torch.Tensor, inputs: TorchInputs, options: TorchOptions) -> torch.Tensor:
    return -logprobs


def _importance_sampling(logprobs: torch.Tensor, inputs: TorchInputs, options: TorchOptions) -> torch.Tensor:
    return -ratio(logprobs, inputs) * inputs["advantages"]


def _ppo(logprobs: torch.Tensor, inputs: TorchInputs, options: TorchOptions) -> torch.Tensor:
    ratios, advantages = ratio(logprobs, inputs), inputs["advantages"]
    return -torch.minimum(ratios * advantages, _clip(ratios, options) * advantages)


def _cispo(logprobs: torch.Tensor, inputs: TorchInputs, options: TorchOptions) -> torch.Tensor:
    return -_clip(ratio(logprobs, inputs), options).detach() * logprobs * inputs["advantages"]


def _dro(logprobs: torch.Tensor, inputs: TorchInputs, options: TorchOptions) -> torch.Tensor:
    drift = logprobs - inputs["logprobs"]
    return -(logprobs * inputs["advantages"] - 0.5 * options["beta"] * drift.square())


def _reinforce(logprobs: torch.Tensor, inputs: TorchInputs, options: TorchOptions) -> torch.Tensor:
    factor = ratio(logprobs, inputs).clamp(max=options["clip_high_threshold"]).detach() * inputs["advantages"]
    return -factor * logprobs + 0.5 * options["kl_coeff"] * (logprobs - inputs["logprobs"]).square()


TORCH_LOSSES: Mapping[str, TorchLoss] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "gspo": _ppo,
    "dro": _dro,
    "stable_reinforce": _reinforce,
}
assert TORCH_LOSSES.keys() == LOSS_FORMS.keys()
