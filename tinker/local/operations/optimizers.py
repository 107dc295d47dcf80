"""The families of optimizers, of which a model keeps one, and the parameters of their steps."""

from __future__ import annotations

from tinker_wire import models

from tinker.local.engines import Adam, Dimuon, EngineError
from tinker.local.errors import APIProblem
from tinker.local.storage.sessions import ModelRecord

ADAMW, DIMUON = "adamw", "dimuon"


def optimizer_family(config: models.OptimizerConfig | None) -> str:
    """Return the name of an optimizer family; without a configuration ``adamw``. Raises APIProblem 400 for an unknown one."""
    if config is None or isinstance(config, models.AdamOptimizerConfig):
        return ADAMW
    if isinstance(config, models.DimuonOptimizerConfig):
        if config.version != 1:
            raise APIProblem(400, f"version {config.version} of the optimizer 'dimuon' is not offered; this server has 1")
        return DIMUON
    raise APIProblem(400, f"optimizer {_family_name(config)!r} is not offered; this server has {ADAMW!r} and {DIMUON!r}")


def optimizer_config(family: str) -> models.OptimizerConfig:
    """Return the inverse of :func:`optimizer_family`."""
    return models.DimuonOptimizerConfig() if family == DIMUON else models.AdamOptimizerConfig()


def _family_name(optimizer: models.OptimizerConfig | models.OptimizerParams) -> object:
    """Return the name of an optimizer family; those that the contract does not know are dictionaries."""
    return optimizer.get("type") if isinstance(optimizer, dict) else optimizer.type


def step_params(model: ModelRecord, request: models.OptimStepRequest) -> Adam | Dimuon:
    """Return the step's parameters, by default Adam's. Raises EngineError for another family than the model's."""
    other = request.optimizer_params
    family = ADAMW if other is None else _family_name(other)
    if family != model.optimizer or (other is not None and request.adam_params is not None):
        given = (
            f"{ADAMW!r} and {_family_name(other)!r}" if other is not None and request.adam_params is not None else repr(family)
        )
        raise EngineError(f"the step has parameters of {given}; the optimizer of this model is {model.optimizer!r}")
    if isinstance(other, models.DimuonParams):
        return Dimuon(learning_rate=other.learning_rate, beta1=other.beta1, grad_clip_norm=other.grad_clip_norm)
    return _adam_params(request.adam_params)


def _adam_params(params: models.AdamParams | None) -> Adam:
    given = params or models.AdamParams()
    return Adam(
        learning_rate=given.learning_rate,
        beta1=given.beta1,
        beta2=given.beta2,
        eps=given.eps,
        weight_decay=given.weight_decay,
        grad_clip_norm=given.grad_clip_norm,
    )
