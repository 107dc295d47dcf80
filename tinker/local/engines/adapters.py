"""LoRA over a frozen model: what an adapter changes, and its files, as PEFT has them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tinker._checkpoints import CONFIG, PEFT_PREFIX, WEIGHTS, check_config, read_json
from tinker.local.engines import directory_names, find_source, protocol, public_name
from tinker.local.engines.protocol import (
    Adapter,
    AdapterSpec,
    EngineError,
    Float32,
    LocalEngine,
    log,
)

# of one adapter, as ``<module>.lora_A.weight`` and ``<module>.lora_B.weight``
LoraFactors = Mapping[str, Float32]
# PEFT takes these for experts, by their names
FUSED = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})


@attrs.frozen
class LoraTarget:
    """A matrix that can be adapted, or a stack of one for each expert; ``kind`` is ``attn``,
    ``mlp`` or ``unembed``.

    ``key`` is where PEFT keeps its factors. It is the name of the module, except where several
    parameters of one module are adapted: PEFT then wraps the module once for each, the last
    parameter outside.
    """

    name: str
    key: str
    kind: str
    inputs: int
    outputs: int
    parameter: str = "weight"
    experts: int = 1
    is_stack: bool = False

    @property
    def leaf(self) -> str:
        """Return the last part of the module's name."""
        return self.name.rpartition(".")[2]

    def shapes(self, rank: int) -> dict[str, tuple[int, int]]:
        """Return the factors of an adapter by their names."""
        count = rank * self.experts
        return {
            f"{self.key}.lora_A.weight": (count, self.inputs),
            f"{self.key}.lora_B.weight": (self.outputs, count),
        }


class LoraTargets:
    """The matrices of a frozen model that adapters change; ``modules`` and ``parameters`` name
    everything that it has.
    """

    def __init__(
        self,
        targets: Sequence[LoraTarget],
        modules: Sequence[str] = (),
        parameters: Sequence[str] = (),
    ) -> None:
        self.all: Sequence[LoraTarget] = targets
        self._modules = modules or [target.name for target in targets]
        self._parameters = parameters

    def choose(self, spec: AdapterSpec) -> list[LoraTarget]:
        """Return the targets of this specification."""
        if spec.rank < 1:
            raise EngineError(f"rank is {spec.rank}; it must be at least 1")
        wanted = {"attn": spec.train_attn, "mlp": spec.train_mlp, "unembed": spec.train_unembed}
        found = [target for target in self.all if wanted[target.kind]]
        if not found:
            raise EngineError(
                "nothing to train: set at least one of train_attn, train_mlp and train_unembed"
            )
        return found if spec.target_modules is None else _pick(found, spec.target_modules)

    def shapes(self, spec: AdapterSpec) -> dict[str, tuple[int, int]]:
        """Return the shapes of the factors of an adapter, in the order of the model."""
        return {
            name: shape
            for target in self.choose(spec)
            for name, shape in target.shapes(spec.rank).items()
        }

    def draw(self, spec: AdapterSpec, seed: int) -> dict[str, Float32]:
        """Draw factors that change nothing yet: A uniform within 1/sqrt(inputs), B zero.

        The numbers are those of ``torch.Tensor.uniform_`` with a ``torch.Generator`` of this seed:
        24 bits of a Mersenne twister, scaled and shifted with one rounding.
        """
        source, factors = np.random.RandomState(seed & 0xFFFFFFFF), dict[str, Float32]()
        for target in self.choose(spec):
            (down, down_shape), (up, up_shape) = target.shapes(spec.rank).items()
            high = np.float32(1 / math.sqrt(target.inputs))
            bits = source.randint(0, 2**32, down_shape, np.uint32) & np.uint32(2**24 - 1)
            factors[down] = (bits * 2.0**-24 * np.float64(high + high) - high).astype(np.float32)
            factors[up] = np.zeros(up_shape, np.float32)
        return factors

    def fit(self, spec: AdapterSpec, factors: LoraFactors) -> dict[str, Float32]:
        """Return factors in the order of the model. Raises EngineError when their names or shapes
        do not fit it.

        The order counts, whatever that of a file is: the norm of a gradient is a sum in this order.
        """
        expected, given = (
            self.shapes(spec),
            {name: factor.shape for name, factor in factors.items()},
        )
        if given != expected:
            wrong = sorted(
                name
                for name in given.keys() | expected.keys()
                if given.get(name) != expected.get(name)
            )
            raise EngineError(
                f"the adapter does not fit the base model: {len(wrong)} "
                f"tensors differ, first {wrong[0]}"
            )
        return {name: factors[name] for name in expected}

    @property
    def _beside_experts(self) -> set[LoraTarget]:
        """The dense matrices of a mixture of experts that have the names of those of experts."""
        has_experts = any(target.is_stack for target in self.all)
        return {
            target
            for target in self.all
            if has_experts and not target.is_stack and target.leaf in FUSED
        }

    def narrow(self, spec: AdapterSpec, names: Collection[str]) -> AdapterSpec:
        """Return the specification of a file with these factors, which may be older than the
        adapters of dense and shared MLPs.

        Such a file has none of them at all; it stays as it is, and the log says so.
        """
        chosen, beside = self.choose(spec), self._beside_experts
        rest = [target for target in chosen if target not in beside]
        absent = {name for target in beside for name in target.shapes(spec.rank)}
        if len(rest) in (0, len(chosen)) or not absent.isdisjoint(names):
            return spec
        log.warning(
            "the checkpoint is older than adapters of dense and shared MLPs beside experts, and "
            "continues without them"
        )
        return attrs.evolve(spec, target_modules=[target.name for target in rest])

    def peft_config(self, spec: AdapterSpec, base_model: str) -> dict[str, object]:
        """Return the configuration with which PEFT adapts the same weights with the same scale.

        Of a mixture of experts the matrices that PEFT would take for those of experts are named as
        parameters.
        """
        chosen, beside = self.choose(spec), self._beside_experts
        stacked = [one for one in chosen if one.is_stack or one in beside]
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model,
            "inference_mode": True,
            "r": spec.rank,
            # PEFT takes any number
            "lora_alpha": int(spec.lora_alpha) if spec.lora_alpha % 1 == 0 else spec.lora_alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": self._module_names([one for one in chosen if one not in stacked]),
            **({"target_parameters": self._parameter_names(stacked)} if stacked else {}),
        }

    def _module_names(self, targets: list[LoraTarget]) -> list[str]:
        """Return last name parts where they single out exactly these modules, else full names."""
        leaves, names = {target.leaf for target in targets}, [target.name for target in targets]
        return (
            sorted(leaves)
            if [name for name in self._modules if name.rpartition(".")[2] in leaves] == names
            else names
        )

    def _parameter_names(self, targets: list[LoraTarget]) -> list[str]:
        """Return the last two parts of the module's name and the parameter's where that is enough,
        else full names.
        """
        full = [f"{target.name}.{target.parameter}" for target in targets]
        short = {".".join(name.split(".")[-3:]) for name in full}
        same = {name for name in self._parameters if ".".join(name.split(".")[-3:]) in short}
        return sorted(short) if same == set(full) else full


def _pick(targets: Sequence[LoraTarget], modules: Sequence[str]) -> list[LoraTarget]:
    """Return the targets with one of these ends of names. Raises EngineError for an end that no
    target has.
    """
    ends = tuple(f".{name}" for name in modules)
    names = {
        target: (f".{target.name}", f".{target.name}.{target.parameter}") for target in targets
    }
    for module, end in zip(modules, ends):
        if not any(name.endswith(end) for pair in names.values() for name in pair):
            there = ", ".join(sorted({target.leaf for target in targets}))
            raise EngineError(
                f"target_modules: {module!r} names no module that this adapter "
                f"could change; there are {there}"
            )
    return [target for target, pair in names.items() if any(name.endswith(ends) for name in pair)]


# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (safetensors is typed in part only)


# of an optimizer, by their names and those of the factors; empty before the first step
Moments = Mapping[str, LoraFactors]
PEFT_FILES = frozenset({WEIGHTS, CONFIG})
OPTIMIZER, ABOUT = "optimizer.safetensors", "adapter.json"
A, B = ".lora_A.weight", ".lora_B.weight"
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_tensors(file: Path) -> dict[str, Float32]:
    """Return the tensors of a file as float32. Raises EngineError for one that has no
    floating-point numbers.
    """
    found: dict[str, Float32] = {}
    for name, one in safetensors.deserialize(file.read_bytes()):  # type: ignore[no-untyped-call]
        if one["dtype"] not in _FLOATS:
            raise EngineError(
                f"{file.name}: {name.removeprefix(PEFT_PREFIX)} must contain only finite numbers"
            )
        numbers: NDArray[Any] = np.frombuffer(one["data"], _FLOATS[one["dtype"]])
        if one["dtype"] == "BF16":  # the upper half of a float32, which numpy does not know
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        found[name] = numbers.astype(np.float32).reshape(one["shape"])
    return found


def write_weights(
    directory: Path, targets: LoraTargets, spec: AdapterSpec, factors: LoraFactors, base_model: str
) -> None:
    save_file(
        {PEFT_PREFIX + name: factor for name, factor in factors.items()},
        directory / WEIGHTS,
        {"format": "pt"},
    )
    about = {"format": protocol.FILE_FORMAT, "base_model": base_model, "spec": attrs.asdict(spec)}
    for name, content in ((CONFIG, targets.peft_config(spec, base_model)), (ABOUT, about)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def read_weights(
    directory: Path, targets: LoraTargets, base_model: str
) -> tuple[AdapterSpec, dict[str, Float32]]:
    """Read an adapter. Raises EngineError when the folder is incomplete or was trained over another
    base model.
    """
    try:
        about = json.loads((directory / ABOUT).read_text())
        protocol.check_format(ABOUT, int(about.get("format", protocol.FILE_FORMAT)))
        tensors = read_tensors(directory / WEIGHTS)
        spec, trained_on = AdapterSpec(**about["spec"]), about["base_model"]
    except (
        OSError,
        safetensors.SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise EngineError(
            f"the checkpoint cannot be read ({type(error).__name__}): files are missing or damaged"
        ) from error
    if trained_on != base_model:
        raise EngineError(
            f"the checkpoint belongs to the base model {trained_on!r}; "
            f"this server runs {base_model!r}"
        )
    factors = {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in tensors.items()}
    spec = targets.narrow(spec, factors)
    return spec, targets.fit(spec, factors)


def read_optimizer(directory: Path, factors: LoraFactors) -> dict[str, dict[str, Float32]]:
    """Read the moments of these weights. Raises EngineError when the folder holds none."""
    try:
        flat = read_tensors(directory / OPTIMIZER)
    except (OSError, safetensors.SafetensorError) as error:
        raise EngineError(protocol.NO_OPTIMIZER) from error
    keys = sorted({name.rpartition(":")[2] for name in flat})
    return {key: {name: flat[f"{name}:{key}"] for name in factors} for key in keys}


def read_peft_adapter(folder: Path, targets: LoraTargets, spec: AdapterSpec) -> dict[str, Float32]:
    """Read an adapter. Raises EngineError if it is damaged, or does not fit this specification and
    model.
    """
    scale = _read_scale(folder / CONFIG, spec)
    given = _read_peft_tensors(folder / WEIGHTS)
    for name in given:
        if not name.endswith((A, B)) or _partner(name) not in given:
            raise EngineError(f"{WEIGHTS}: {name} is not half of a pair of LoRA matrices")
    _check_stacks(given, targets)
    scaled = {
        name: tensor * np.float32(scale) if name.endswith(B) else tensor
        for name, tensor in given.items()
    }
    return targets.fit(spec, {**targets.draw(spec, spec.seed or 0), **scaled})


def _check_stacks(given: LoraFactors, targets: LoraTargets) -> None:
    """Raise EngineError where PEFT's names do not say which of a module's parameters they belong
    to.
    """
    keys: dict[str, set[str]] = {}
    for target in targets.all:
        if target.is_stack:
            keys.setdefault(target.name, set()).add(target.key)
    for name, all_keys in keys.items():
        found = {key for key in all_keys if f"{key}{A}" in given}
        if found and found != all_keys:
            raise EngineError(
                f"{WEIGHTS}: of {name} one parameter is adapted and another is not; "
                "adapt all or none"
            )


def _partner(name: str) -> str:
    return name.removesuffix(A) + B if name.endswith(A) else name.removesuffix(B) + A


def _read_scale(file: Path, spec: AdapterSpec) -> float:
    """Return the factor for the matrices B. Raises EngineError for a file that is damaged, or of an
    unsupported adapter.
    """
    try:
        rank, scale = check_config(read_json(file))
    except OSError as error:
        raise EngineError(f"{CONFIG} cannot be read: {type(error).__name__}") from error
    except ValueError as error:
        raise EngineError(str(error)) from error
    if rank != spec.rank:
        raise EngineError(
            f"{CONFIG}: r is {rank!r}, and the upload was announced with rank {spec.rank}"
        )
    return scale / spec.scale


def _read_peft_tensors(file: Path) -> dict[str, Float32]:
    """Return the tensors by the names they have in the model."""
    try:
        found = read_tensors(file)
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"{WEIGHTS} cannot be read ({type(error).__name__}): it is missing or damaged"
        ) from error
    if not found:
        raise EngineError(f"{WEIGHTS} contains no adapter")
    if strange := next((name for name in found if not name.startswith(PEFT_PREFIX)), None):
        raise EngineError(f"{WEIGHTS}: {strange!r} is not the name of a weight of PEFT")
    for name, tensor in found.items():
        if not np.isfinite(tensor).all():
            raise EngineError(
                f"{WEIGHTS}: {name.removeprefix(PEFT_PREFIX)} must contain only finite numbers"
            )
    return {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in found.items()}


class PeftEngine(LocalEngine[Adapter]):
    """An engine of a model of transformers, whose adapters are files that PEFT reads, too."""

    adapter_files: frozenset[str] = PEFT_FILES
    _targets: LoraTargets

    def __init__(self, model: str | Path) -> None:
        super().__init__()
        source = find_source(model)
        self.base_model: str = public_name(source)
        self.aliases: frozenset[str] = directory_names(source)
        self.tokenizer_id: str = str(Path(source).resolve()) if Path(source).is_dir() else source

    def _create(self, spec: AdapterSpec, seed: int) -> Adapter:
        return self._assemble(spec, self._targets.draw(spec, seed), {})

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write the adapter. Gradients that no optimizer step has applied yet are not saved."""
        spec, factors, moments = self._take_apart(self._adapter(adapter_id))
        write_weights(directory, self._targets, spec, factors, self.base_model)
        if optimizer:
            save_file(
                {
                    f"{name}:{key}": one
                    for key, by_name in moments.items()
                    for name, one in by_name.items()
                },
                directory / OPTIMIZER,
            )

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        spec, factors = read_weights(directory, self._targets, self.base_model)
        self._adapters[adapter_id] = self._assemble(
            spec, factors, read_optimizer(directory, factors) if optimizer else {}
        )
        return spec

    def import_adapter(self, source: Path, spec: AdapterSpec, directory: Path) -> None:
        """Take PEFT's two files."""
        factors = read_peft_adapter(source, self._targets, spec)
        write_weights(directory, self._targets, spec, factors, self.base_model)

    def _assemble(self, spec: AdapterSpec, factors: LoraFactors, moments: Moments) -> Adapter:
        """Make an adapter of its parts."""
        raise NotImplementedError

    def _take_apart(self, adapter: Adapter) -> tuple[AdapterSpec, LoraFactors, Moments]:
        """Return the parts of an adapter."""
        raise NotImplementedError
