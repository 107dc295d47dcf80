"""The creation of models, and the optimizer family of each: its configuration and the parameters of its steps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator

import attrs
import msgspec
from tinker_wire import models

from tinker.local.engines.protocol import LORA_ALPHA, Adam, AdapterSpec, Dimuon, Engine, EngineError
from tinker.local.errors import APIProblem
from tinker.local.state import SharedData, State
from tinker.local.storage.futures import RequestResult
from tinker.local.storage.records import RunHistory
from tinker.local.storage.sessions import ModelRecord, SessionRecord

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
    return Adam(**msgspec.structs.asdict(request.adam_params or models.AdamParams()))


@attrs.frozen(kw_only=True)
class NewModel:
    """A model to create. ``engine_model`` is the engine's name for it, ``requested_name`` the client's."""

    base_model: str
    engine_model: str
    requested_name: str | None = None
    spec: AdapterSpec
    optimizer: str
    user_metadata: models.Metadata | None

    @contextlib.contextmanager
    def add(self, state: State, shared: SharedData, session_id: str, number: int) -> Generator[ModelRecord]:
        """Yield the model of that number, the existing one or a new one, which is discarded when the block fails."""
        state.require_open()
        session = shared.store.live_session(session_id)
        before = len(session.models)
        model = shared.store.add_model(session, number, lambda model_id: self._make(state, session, model_id))
        try:
            yield model
        except Exception:
            if len(session.models) > before:
                state.discard_model(model)
            raise

    def _make(self, state: State, session: SessionRecord, model_id: str) -> ModelRecord:
        return ModelRecord(
            **attrs.asdict(self, recurse=False),
            model_id=model_id,
            session=session,
            queue=state.new_queue(self.engine_model),
            history=RunHistory(state.journal, model_id, self.base_model, self.spec.rank),
            created_at=(now := state.now()),
            last_request_at=now,
        )


def creation_step(model: ModelRecord, make: Callable[[Engine], RequestResult]) -> Callable[[Engine], RequestResult]:
    """Return a step that makes the model, or notes why that failed for the errors of its later requests."""

    def run(engine: Engine) -> RequestResult:
        try:
            return make(engine)
        except Exception as error:
            model.creation_error = str(error)
            raise

    return run


def check_spec(state: State, spec: AdapterSpec) -> None:
    """Raise APIProblem 400 for a rank or a scale that is out of range."""
    limit = state.settings.max_rank
    if not 1 <= spec.rank <= limit:
        raise APIProblem(400, f"rank is {spec.rank}; this server takes ranks from 1 to {limit}")
    if not 0 < spec.lora_alpha < math.inf:
        raise APIProblem(400, f"lora_alpha is {spec.lora_alpha}; it must be more than 0")


def adapter_spec(config: models.LoraConfig | None) -> AdapterSpec:
    """Return the engine's specification; without a configuration its defaults."""
    if config is None:
        return AdapterSpec()
    given = msgspec.structs.asdict(config)
    return AdapterSpec(**{name: value for name, value in given.items() if value is not None})  # both have the same fields


def lora_config(spec: AdapterSpec) -> models.LoraConfig:
    """Return the inverse of :func:`adapter_spec`."""
    config = models.LoraConfig(**attrs.asdict(spec))
    return msgspec.structs.replace(config, lora_alpha=None) if spec.lora_alpha == LORA_ALPHA else config
