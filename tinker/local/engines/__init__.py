"""Engines train and sample. The choice of one, and where it puts its model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import attrs

from tinker._basics.installation import install_command
from tinker._tokenizers import describe_offline, find_absence
from tinker.local.engines.protocol import Engine
from tinker_records import find_closest

PACKAGED_FOLDER = Path(__file__).resolve().parent.parent / "base_model"
PACKAGED_MODEL = "tinker/babble"
TOY_MODEL = "tinker/toy"
DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
DeviceMap: TypeAlias = Literal["auto", "balanced", "balanced_low_0", "sequential"]
Recompute: TypeAlias = Literal["auto", "always", "never"]
Quantize: TypeAlias = Literal["nf4", "int8"]
_WORDS = {"dtype": DType, "device_map": DeviceMap, "recompute": Recompute, "quantize": Quantize}
REPLICA_DEVICES = ("auto", "cpu", "cuda")
_DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?|mps")


def find_ends(*sources: object) -> frozenset[int]:
    """Return the tokens that end a text by any of these: settings of a model or of its generation,
    a tokenizer.
    """
    found: list[Any] = []
    for source in sources:
        ids: Any = getattr(source, "eos_token_id", None)
        found += ids if isinstance(ids, (list, tuple)) else [ids]
    return frozenset(int(one) for one in found if one is not None)


def _check_device(placement: Placement, field: attrs.Attribute[Any], value: str) -> None:
    if not _DEVICES.fullmatch(value):
        raise ValueError(f"device is {value!r}; it must be auto, cpu, cuda, cuda:N or mps")


def _check_word(placement: Placement, field: attrs.Attribute[Any], value: str | None) -> None:
    words = get_args(_WORDS[field.name])
    if value not in (field.default, *words):
        raise ValueError(f"{field.name} is {value!r}; it must be one of {', '.join(words)}")


def _check_map(placement: Placement, field: attrs.Attribute[Any], value: DeviceMap | None) -> None:
    _check_word(placement, field, value)
    if value is not None and placement.device != "auto":
        raise ValueError(f"device {placement.device!r} and device_map {value!r} cannot be combined")


def _check_replicas(placement: Placement, field: attrs.Attribute[Any], value: int) -> None:
    if value < 1:
        raise ValueError(f"replicas is {value}; it must be at least 1")
    if value > 1 and (placement.device not in REPLICA_DEVICES or placement.device_map is not None):
        raise ValueError(
            "each replica is on one device: device must "
            f"be {', '.join(REPLICA_DEVICES)}, without device_map"
        )


def _check_fsdp(placement: Placement, field: attrs.Attribute[Any], value: bool) -> None:
    if value and placement.replicas < 2:
        raise ValueError("fsdp splits the model over replicas: there must be at least 2")
    if value and placement.quantize:
        raise ValueError("fsdp cannot split a quantized model; leave out fsdp or quantize")


@attrs.frozen(kw_only=True)
class Placement:
    """The device and dtype of the model. Adapters are always float32.

    ``device``: ``cpu``, ``cuda`` or ``cuda:1``, ``mps``, or ``auto``: the first GPU that CUDA or
    ROCm has, else the CPU. ``dtype``: of the model; ``auto`` is bfloat16 with CUDA, else float32.
    ``device_map``: how transformers spreads the model over all GPUs; None keeps it on one device.
    ``quantize``: the matrices of its layers in four bits (``nf4``) or eight (``int8``), by
    bitsandbytes; None leaves them as they are stored. ``recompute``: whether the backward pass
    computes activations again instead of keeping them, which takes less memory and more time;
    ``auto`` where they would take half of what is free. ``share_passes``: whether small losses of
    several adapters are computed in one pass, which may change their last digits. ``replicas``: how
    many processes have the whole model and train together, as actors of Ray: on this machine, or in
    the cluster at the address ``ray``. ``fsdp``: whether each has only a part of each layer. Raises
    ValueError for any other value.

    >>> Placement(device="cuda:1", dtype="bfloat16")  # doctest: +NORMALIZE_WHITESPACE
    Placement(device='cuda:1', dtype='bfloat16', device_map=None, quantize=None, recompute='auto',
    share_passes=False, replicas=1, ray=None, fsdp=False)
    """

    device: str = attrs.field(default="auto", validator=_check_device)
    dtype: DType = attrs.field(default="auto", validator=_check_word)
    device_map: DeviceMap | None = attrs.field(default=None, validator=_check_map)
    quantize: Quantize | None = attrs.field(default=None, validator=_check_word)
    recompute: Recompute = attrs.field(default="auto", validator=_check_word)
    share_passes: bool = False
    replicas: int = attrs.field(default=1, validator=_check_replicas)
    ray: str | None = None
    fsdp: bool = attrs.field(default=False, validator=_check_fsdp)

    def of_engine(self) -> dict[str, Any]:
        """Return the fields that concern each process."""
        return attrs.asdict(
            self, filter=lambda field, _: field.name not in ("replicas", "ray", "fsdp")
        )


EngineName: TypeAlias = Literal["numpy", "toy", "torch"]
DEFAULT_PLACEMENT = Placement()
#: The packages that an engine needs, besides those that the server does.
PARTS: Mapping[EngineName, Sequence[str]] = {
    "numpy": ("safetensors", "tokenizers"),
    "toy": (),
    "torch": ("torch", "transformers", "peft", "safetensors"),
}


def missing_parts(engine: EngineName = "torch") -> list[str]:
    """Return the packages that an engine needs and that are not installed; nothing is imported."""
    return [name for name in PARTS[engine] if find_spec(name) is None]


def explain_absence(model: str) -> str:
    """Return what is missing to run the packaged model; empty if nothing is, or for
    another model.
    """
    missing = ", ".join(missing_parts("numpy"))
    return (
        f"; {model} needs {missing} here: {install_command('local')}"
        if model == PACKAGED_MODEL and missing
        else ""
    )


def choose_engine(engine: EngineName | None, model: str | None) -> EngineName:
    """Return the given engine. By default that is numpy for the packaged model, the toy for the
    toy's, torch for any other.

    Without a model it is numpy, or where that is not installed the toy.
    """
    if engine is not None:
        return engine
    if model is None and (
        missing_parts("numpy") or not (PACKAGED_FOLDER / "config.json").is_file()
    ):
        return "toy"
    return "numpy" if model in (None, PACKAGED_MODEL) else "toy" if model == TOY_MODEL else "torch"


def find_source(model: str | Path) -> str:
    """Return the directory of the packaged model for its name, and any other name or directory as
    it is.
    """
    return str(PACKAGED_FOLDER) if str(model) == PACKAGED_MODEL else str(model)


def public_name(source: str) -> str:
    """Return the packaged model's own name, the last part of a directory, or any other source as it
    is.
    """
    if Path(source) == PACKAGED_FOLDER:
        return PACKAGED_MODEL
    return Path(source).resolve().name if Path(source).is_dir() else source


def directory_names(source: str) -> frozenset[str]:
    """Return the names of a directory besides its last part: the path as it was given, and the
    absolute one.
    """
    folder = Path(source)
    if not folder.is_dir() or folder == PACKAGED_FOLDER:
        return frozenset()
    return frozenset({source, str(folder), str(folder.absolute()), str(folder.resolve())})


def explain_adapter(folder: Path) -> str | None:
    """Return that a folder has an adapter and no model, and where the adapter belongs, or weights
    as GGUF only; else None.
    """
    config = folder / "adapter_config.json"
    weights = {file.suffix for file in folder.glob("*.*")} & {".gguf", ".safetensors", ".bin"}
    if weights == {".gguf"}:
        return (
            f"{folder} has its weights as GGUF only, which is not read here; give the folder that "
            "they were made from"
        )
    if not config.is_file() or (folder / "config.json").exists():
        return None
    base = json.loads(config.read_bytes()).get("base_model_name_or_path") or "another model"
    upload = f"upload it to a server of {base} with `tinker checkpoint upload {folder}`"
    return f"{folder} is an adapter of {base}, not a base model; {upload}"


def check_directory(model: str | None) -> None:
    """Raise FileNotFoundError when the model is a path and no directory is there, ValueError when
    there is an adapter.
    """
    if model is None:
        return
    # a name on the hub has one slash at most, between two words
    is_path = model.count("/") > 1 or model.startswith((".", "/", "~"))
    if is_path and not Path(model).is_dir():
        raise FileNotFoundError(f"there is no directory {model!r} to load a model from")
    if (problem := explain_adapter(Path(model))) is not None:
        raise ValueError(problem)


def check_source(engine: EngineName | None, model: str | None, meant: Mapping[str, str]) -> None:
    """Raise OSError for a model that cannot be loaded: a path without a directory, or a name
    unknown to the hub and its cache.

    This takes one request. ``meant`` has the names of models that may
    have been meant, and how the message writes them.
    """
    if model is None or model == PACKAGED_MODEL or choose_engine(engine, model) != "torch":
        return
    check_directory(model)
    if missing_parts("torch") or Path(model).is_dir():
        return
    if (absence := find_absence(model, ["config.json"], kind="model")) is not None:
        closest = find_closest(model.lower(), meant, 0.6)  # the names are short
        if closest is not None:
            raise OSError(f"cannot load {model!r}; did you mean {meant[closest]}? ({absence})")
        raise OSError(f"cannot load {model!r}: {absence}; give a directory")


@contextmanager
def explain_absence_offline(model: str | None) -> Generator[None]:
    """Raise an OSError that names the model where a block fails to load it because the hub cannot
    be reached.
    """
    try:
        yield
    except OSError as error:
        # of huggingface_hub, which need not be installed
        if type(error.__cause__).__name__ != "LocalEntryNotFoundError":
            raise
        raise OSError(f"cannot load {model!r}: {describe_offline()}; give a directory") from error


def open_engine(
    engine: EngineName | None = None,
    model: str | None = None,
    placement: Placement = DEFAULT_PLACEMENT,
) -> Engine:
    """Make an engine; loading a model may take a while.

    ``model`` is a directory or a hub name (None: the packaged model), or the name the toy goes by.
    Raises ImportError, saying what to install, when the engine is not installed; FileNotFoundError
    when ``model`` is a path and no directory is there; ValueError when this machine has no such
    device, when an engine without torch is given one, and when the model is none that the numpy
    engine runs.
    """
    chosen = choose_engine(engine, model)
    if missing := missing_parts(chosen):
        extra = "models" if chosen == "torch" else "local"
        raise ImportError(
            f"the {chosen} engine needs {', '.join(missing)}: {install_command(extra)}"
        )
    if chosen != "torch" and (
        placement.device not in ("auto", "cpu")
        or attrs.evolve(placement, device="auto") != DEFAULT_PLACEMENT
    ):
        raise ValueError(
            f"the {chosen} engine computes in numpy on the CPU: it takes no device, dtype, "
            "device_map, quantize, recompute, "
            "share_passes or replicas; the torch engine does"
        )
    if chosen == "toy":
        from tinker.local.engines.toy import ToyEngine

        return ToyEngine(base_model=model or TOY_MODEL)
    if chosen == "numpy":
        from tinker.local.engines.numpy import NumpyEngine

        check_directory(model)
        return NumpyEngine(model or PACKAGED_MODEL)
    check_directory(model)
    if placement.replicas > 1 or placement.ray is not None:
        from tinker.local.engines.replicas.engine import ReplicatedEngine

        return ReplicatedEngine(model, placement)
    from tinker.local.engines.torch import TorchEngine

    return TorchEngine(model or PACKAGED_MODEL, **placement.of_engine())


def check_distinct(engines: Sequence[Engine]) -> None:
    """Raise ValueError when two models have one name: clients could not tell them apart."""
    names = [engine.base_model for engine in engines]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"two models are called {twice[0]!r}; a folder's last part is its model's name"
        )


def read_resident() -> int | None:
    """Return the resident memory of this process in bytes; None if it is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
