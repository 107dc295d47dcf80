"""LoRA over a frozen model: the matrices that an adapter changes, how its factors begin, and what
PEFT calls them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence

import attrs
import numpy as np

from tinker.local.engines.protocol import AdapterSpec, EngineError, Float32

# of one adapter, as ``<module>.lora_A.weight`` and ``<module>.lora_B.weight``
LoraFactors = Mapping[str, Float32]
log: logging.Logger = logging.getLogger("tinker.local")
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
        whole = spec.lora_alpha % 1 == 0
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model,
            "inference_mode": True,
            "r": spec.rank,
            # PEFT takes any number
            "lora_alpha": int(spec.lora_alpha) if whole else spec.lora_alpha,
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
