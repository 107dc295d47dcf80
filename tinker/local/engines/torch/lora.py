"""LoRA over one frozen model: the weights of an adapter, where they are, and the matrices that they
change.

Weights live outside of the model, as plain parameters; ``mixture`` puts them on for a pass. So any
number of them share the base model, switching copies nothing, and a snapshot is freed with its last
reference.
"""

# pyright: reportUnknownMemberType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only)
# (torch is typed in part only)

from __future__ import annotations

import copy
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import peft
import torch
import transformers

from tinker._checkpoints import PEFT_PREFIX
from tinker.local.engines.lora import FUSED, LoraFactors, LoraTarget, LoraTargets
from tinker.local.engines.protocol import AdapterSpec, EngineError

# What of a model LoRA can adapt: its linear modules, and the stacked weights of its experts.
#
# Everything is found by its form, so that no family of models is known by name. What is found and
# cannot be adapted is named, for a log line or a refusal.

MIXES_TOKENS = re.compile(r"attn|attention|mamba|(^|[._])conv([._]|$)", re.IGNORECASE)
# of attention, whatever its module is called
KEYS = frozenset({"k_proj", "qkv_proj", "query_key_value", "kv_a_proj_with_mqa"})
ROUTERS = frozenset({"gate", "router"})
STACK_RULES = (
    "is_transposed",
    "has_bias",
    "has_gate",
)  # what transformers notes about experts that it can compute in several ways
STACKS = ("gate_up_proj", "up_proj", "down_proj")


def copy_module(model: Any) -> Any:
    """Copy a model's modules, which share their weights and other tensors with it."""
    held = [value for module in model.modules() for value in vars(module).values()]
    # of quantized modules
    held += [inner for value in held for inner in getattr(value, "__dict__", {}).values()]
    tensors = itertools.chain(model.parameters(), model.buffers(), held)
    return copy.deepcopy(model, {id(one): one for one in tensors if isinstance(one, torch.Tensor)})


def _find_all(model: Any) -> tuple[list[LoraTarget], list[str], list[str]]:
    """Find every matrix of the language model: its head, those of layers that mix tokens
    (``attn``), and others (``mlp``).

    Returned are also the names of weights that cannot be adapted, and of stacks of experts of
    unknown layout.
    """
    head, found, seen = model.get_output_embeddings(), list[LoraTarget](), set[str]()
    inside, refused = prefix_of_decoder(model), _find_refused(model)
    towers = _find_towers(model, inside)
    for name, module in model.named_modules():
        is_inside = name.startswith(inside) and not name.startswith(towers)
        if module is head or (is_inside and name.rpartition(".")[2] not in refused):
            kind = "unembed" if module is head else "attn" if _mixes_tokens(model, name) else "mlp"
            new = list(_targets_of(model, name, module, kind))
            found += new
            seen |= {f"{one.name}.{one.parameter}" for one in new}
    rest = [
        (name, p)
        for name, p in model.named_parameters()
        if name not in seen and p.dim() > 1 and not name.endswith("bias")
    ]
    left_out = [
        name
        for name, _ in rest
        if model.get_submodule(name.rpartition(".")[0]) is not model.get_input_embeddings()
    ]
    return (
        found,
        left_out,
        [
            name
            for name, p in rest
            if name.startswith(inside) and _is_stack_of_its_own(model, name, p)
        ],
    )


def prefix_of_decoder(model: Any) -> str:
    """Return the name prefix of the language model, which may stand next to a vision tower."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return next(
        (f"{name}." for name, module in model.named_modules() if name and module is decoder), ""
    )


def _find_towers(model: Any, inside: str) -> tuple[str, ...]:
    """Return the name prefixes of parts of a decoder with a model of their own, but for what holds
    its embedding.
    """
    parts = [
        (name, [*part.modules()])
        for name, part in model.get_submodule(inside.rstrip(".")).named_children()
    ]
    parts = [(name, part) for name, part in parts if model.get_input_embeddings() not in part]
    return tuple(
        f"{inside}{name}."
        for name, part in parts
        if any(isinstance(m, transformers.PreTrainedModel) for m in part)
    )


def _mixes_tokens(model: Any, name: str) -> bool:
    """Return whether a module is part of one that mixes tokens: by its name, or because it holds
    keys or a convolution.
    """
    parent = name.rpartition(".")[0]
    parts = dict(model.get_submodule(parent).named_children())
    is_mixer = not KEYS.isdisjoint(parts) or any(
        isinstance(part, torch.nn.Conv1d) for part in parts.values()
    )
    return is_mixer or MIXES_TOKENS.search(parent) is not None


def _find_refused(model: Any) -> frozenset[str]:
    """Return the last name parts of modules that PEFT adapts in no model of this kind: fast kernels
    bypass them.

    Beside stacks of experts, those with the names of experts' matrices are adapted as parameters,
    which PEFT always does.
    """
    leaves = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    if any(_stacks(module) for module in model.modules()):
        leaves -= FUSED
    return frozenset(leaf for leaf in leaves if not _can_peft_adapt(model.config.model_type, leaf))


def _can_peft_adapt(model_type: str, leaf: str) -> bool:
    config: Any = transformers.PretrainedConfig()
    # of a tied head some versions of PEFT warn
    config.model_type, config.tie_word_embeddings = model_type, False
    model: Any = torch.nn.ModuleDict({leaf: torch.nn.Linear(1, 1, device="meta")})
    model.config = config
    try:
        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=[leaf]), model)
    except ValueError:
        return False
    return True


def _targets_of(model: Any, name: str, module: torch.nn.Module, kind: str) -> Iterator[LoraTarget]:
    if isinstance(module, torch.nn.Linear):
        if not _is_router(model, name) and _is_one_product(module):
            yield LoraTarget(name, name, kind, module.in_features, module.out_features)
        return
    stacks = _stacks(module)
    for index, (parameter, stack) in enumerate(stacks):
        key = name + ".base_layer" * (len(stacks) - 1 - index)
        inputs, outputs = (
            stack.shape[1:] if getattr(module, "is_transposed", False) else stack.shape[:0:-1]
        )
        yield LoraTarget(name, key, kind, inputs, outputs, parameter, len(stack), is_stack=True)


def _stacks(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the stacked weights of experts, where they follow the rules of transformers."""
    if not all(hasattr(module, rule) for rule in STACK_RULES):
        return []
    return [
        (name, p)
        for name, p in module.named_parameters(recurse=False)
        if name in STACKS and p.dim() == 3
    ]


def _is_router(model: Any, name: str) -> bool:
    """Return whether a module chooses experts, or the tokens that attention looks at: no gradient
    comes through a choice.
    """
    parent, _, leaf = name.rpartition(".")
    is_gate = leaf in ROUTERS and any(
        "experts" in child for child, _ in model.get_submodule(parent).named_children()
    )
    return is_gate or ".indexer." in name


def _is_one_product(module: torch.nn.Linear) -> bool:
    """Return whether a module multiplies by its matrix as a whole, which some of a model's own do
    in groups.
    """
    if not type(module).__module__.startswith("transformers.models."):
        return True
    try:
        with torch.no_grad():
            return getattr(module(module.weight[:1]), "shape", None) == (1, module.out_features)
    except RuntimeError:
        return False


def _is_stack_of_its_own(model: Any, name: str, parameter: torch.nn.Parameter) -> bool:
    """Return whether this is no matrix, nor the kernel of a convolution."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return parameter.dim() == 3 and not isinstance(
        owner, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d
    )


MOST_NAMES = 8  # in a log line


@attrs.frozen(kw_only=True, eq=False)
class LoraWeights:
    """The matrices of one adapter, float32, keyed ``<module>.lora_A.weight`` and
    ``<module>.lora_B.weight``.

    ``experts`` says which modules are stacks of experts, and of how many.
    """

    spec: AdapterSpec
    tensors: Mapping[str, torch.nn.Parameter]
    experts: Mapping[str, int]

    def is_finite(self) -> bool:
        """Return whether every number is one; it is not after training has diverged."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors.values())

    def replace(self, tensors: Sequence[torch.Tensor]) -> LoraWeights:
        """Return weights of the same names with these values, which are not copied."""
        return attrs.evolve(
            self,
            tensors={name: torch.nn.Parameter(one) for name, one in zip(self.tensors, tensors)},
        )

    def freeze_copy(self) -> LoraWeights:
        copies = {
            name: torch.nn.Parameter(t.detach().clone(), requires_grad=False)
            for name, t in self.tensors.items()
        }
        return LoraWeights(spec=self.spec, tensors=copies, experts=self.experts)


class TorchTargets(LoraTargets):
    """The matrices of a frozen model that adapters change.

    A head tied to the embedding is adapted beside the shared matrix; the embedding itself never
    changes. Raises ValueError for a model without matrices that can be adapted in its attention,
    its MLP and its head.
    """

    def __init__(self, model: Any) -> None:
        self._model = model.requires_grad_(False)
        found, left_out, self._odd_experts = _find_all(model)
        names = [
            [name for name, _ in named]
            for named in (model.named_modules(), model.named_parameters())
        ]
        super().__init__(found, *names)
        odd = self._find_odd_names() if self.all else set[str]()
        lost = {target.name for target in self.all if not odd.isdisjoint(target.shapes(1))}
        super().__init__([target for target in self.all if target.name not in lost], *names)
        self.left_out: Sequence[str] = sorted({*left_out, *(f"{name}.weight" for name in lost)})
        kinds = {target.kind for target in self.all} | (
            {"mlp"} if self._odd_experts else set[str]()
        )
        if missing := {"attn", "mlp", "unembed"} - kinds:
            words = " and ".join(
                {"attn": "attention", "mlp": "MLP", "unembed": "head"}[kind]
                for kind in sorted(missing)
            )
            raise ValueError(
                f"{type(model).__name__} is not supported: LoRA needs linear modules, and there "
                f"are none in its {words}; "
                "Llama, Qwen, Gemma 3, Phi-3, gpt-oss, DeepSeek-V3 and most newer families work"
            )

    def _find_odd_names(self) -> set[str]:
        """Return the factors that PEFT does not find in a file of this model, or
        expects besides.
        """
        spec = AdapterSpec(rank=1, train_mlp=not self._odd_experts)
        file = {
            PEFT_PREFIX + name: torch.empty(shape, device="meta")
            for name, shape in self.shapes(spec).items()
        }
        config: Any = peft.LoraConfig(**self.peft_config(spec, ""))  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted: Any = peft.get_peft_model(
                copy_module(self._model), config, low_cpu_mem_usage=True
            )
            read: Any = peft.set_peft_model_state_dict(adapted, file)
        odd = [name for name in (*read.unexpected_keys, *read.missing_keys) if ".lora_" in name]
        return {name.removeprefix(PEFT_PREFIX).replace(".default.", ".") for name in odd}

    def describe_left_out(self) -> str:
        """Return the ends of the names of the matrices that no adapter changes, each once."""
        kinds = sorted({".".join(name.split(".")[-3:-1]) for name in self.left_out})
        more = f" and {len(kinds) - MOST_NAMES} more" if len(kinds) > MOST_NAMES else ""
        return ", ".join(kinds[:MOST_NAMES]) + more

    def choose(self, spec: AdapterSpec) -> list[LoraTarget]:
        """Return the targets of this specification. Raises EngineError, too, where experts cannot
        be adapted.
        """
        if spec.train_mlp and self._odd_experts and spec.rank >= 1:
            raise EngineError(
                f"the experts of {type(self._model).__name__} cannot be adapted here "
                f"({self._odd_experts[0]}); "
                "train without them: train_mlp=False"
            )
        return super().choose(spec)

    def adopt(self, spec: AdapterSpec, factors: LoraFactors) -> LoraWeights:
        """Take factors as trainable weights, each on the device of its matrix; a model may be
        spread over several.
        """
        targets = self.choose(spec)
        places = {
            target: next(self._model.get_submodule(target.name).parameters()).device
            for target in targets
        }
        devices = {
            name: place for target, place in places.items() for name in target.shapes(spec.rank)
        }
        tensors = {
            name: torch.tensor(factor, device=devices[name])
            for name, factor in self.fit(spec, factors).items()
        }
        return LoraWeights(
            spec=spec,
            tensors={name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()},
            experts={target.key: target.experts for target in targets if target.is_stack},
        )
