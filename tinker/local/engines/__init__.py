"""Engines train and sample: their protocol, the checks that they share, and the choice of one."""

from __future__ import annotations

from tinker.local.engines.dimuon import newton_schulz, orthogonal_direction
from tinker.local.engines.loss_inputs import (
    CLIP_DEFAULTS,
    LOSS_FORMS,
    Cells,
    LossForm,
    check_data,
    check_datum,
    check_step,
    check_tokens,
    resolve_loss,
)
from tinker.local.engines.opening import (
    PACKAGED_FOLDER,
    PACKAGED_MODEL,
    EngineName,
    choose_engine,
    explain_absence,
    missing_parts,
    open_engine,
)
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Continuation,
    Dimuon,
    Engine,
    EngineError,
    Float32,
    Int32,
    LossResult,
    PromptTargets,
    SampleJob,
    SampleResult,
    TokenListener,
    TrainingExample,
)
from tinker.local.engines.sample_inputs import check_job, noise_seed

__all__ = [
    "Adam",
    "AdapterSpec",
    "CLIP_DEFAULTS",
    "Cells",
    "Continuation",
    "Dimuon",
    "Engine",
    "EngineError",
    "EngineName",
    "Float32",
    "Int32",
    "LOSS_FORMS",
    "LossForm",
    "LossResult",
    "PACKAGED_FOLDER",
    "PACKAGED_MODEL",
    "PromptTargets",
    "SampleJob",
    "SampleResult",
    "TokenListener",
    "TrainingExample",
    "check_data",
    "check_datum",
    "check_job",
    "noise_seed",
    "check_step",
    "check_tokens",
    "choose_engine",
    "explain_absence",
    "missing_parts",
    "newton_schulz",
    "open_engine",
    "orthogonal_direction",
    "resolve_loss",
]
