"""LoRA over one frozen model, several adapters in one pass, and the memory of a device."""

from __future__ import annotations

import copy
import ctypes
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import peft
import torch
import transformers
from torch.nn import functional

from tinker._checkpoints import PEFT_PREFIX
from tinker.local.engines import read_resident
from tinker.local.engines.adapters import FUSED, LoraFactors, LoraTarget, LoraTargets
from tinker.local.engines.protocol import AdapterSpec, EngineError

# pyright: reportUnknownMemberType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only)
# (torch is typed in part only)


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


# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only)


@attrs.frozen(eq=False)
class StackFactors:
    """The factors of each expert: ``down`` ``[experts, rank, in]``, ``up``
    ``[experts, out, rank]``.

    ``scale`` is ``[rows, 1, rank]``, or a number when all rows share one.
    """

    down: torch.Tensor
    up: torch.Tensor
    scale: torch.Tensor | float

    def delta(self, expert: int, inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Compute the update of one expert's outputs; ``rows`` are the batch rows of the inputs."""
        inner = functional.linear(inputs.to(self.down), self.down[expert])
        if not isinstance(self.scale, torch.Tensor):
            return functional.linear(inner, self.up[expert]) * self.scale
        scale = self.scale[rows, 0]
        return functional.linear(torch.where(scale == 0, 0.0, inner * scale), self.up[expert])


def split_stack(
    a: torch.Tensor, b: torch.Tensor, experts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take PEFT's factors of a stack apart: ``[experts, rank, in]`` and
    ``[experts, out, rank]``.
    """
    return a.reshape(experts, -1, a.shape[-1]), b.reshape(b.shape[0], -1, experts).permute(2, 0, 1)


def join_stack(down: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Undo :func:`split_stack`."""
    return down.reshape(-1, down.shape[-1]), up.permute(1, 2, 0).reshape(up.shape[1], -1)


def compute_experts(
    module: Any,
    factors: Mapping[str, StackFactors],
    rows: int,
    hidden: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Compute the experts of a layer, as transformers does, with ``factors`` by the name of the
    parameter.

    ``hidden`` is ``[tokens, size]``, row after row of the batch; ``index`` and ``weights``
    ``[tokens, chosen]`` say which experts each token is given to.
    """
    tokens, chosen = index.shape
    experts, order = index.reshape(-1).sort(stable=True)
    counts = torch.bincount(experts, minlength=module.num_experts).tolist()
    # the token of each pair of a token and an expert, sorted by the experts
    places = order // chosen
    pairs = zip(
        torch.split(hidden[places], counts),
        torch.split(places * rows // tokens, counts),
        strict=True,
    )
    parts = [
        _compute_one(module, factors, expert, *pair)
        for expert, pair in enumerate(pairs)
        if len(pair[0])
    ]
    out = torch.cat(parts) * weights.reshape(-1)[order][:, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return out[back].view(tokens, chosen, -1).sum(dim=1).to(hidden.dtype)


def _compute_one(
    module: Any,
    factors: Mapping[str, StackFactors],
    expert: int,
    inputs: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    def project(name: str, values: torch.Tensor) -> torch.Tensor:
        matrix = getattr(module, name)[expert]
        bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
        out = functional.linear(values, matrix.T if module.is_transposed else matrix, bias)
        return (
            out
            if name not in factors
            else (out + factors[name].delta(expert, values, rows)).to(out.dtype)
        )

    activate: Callable[[torch.Tensor], torch.Tensor] = (
        module._apply_gate if module.has_gate else module.act_fn
    )
    out = project(
        "down_proj", activate(project("gate_up_proj" if module.has_gate else "up_proj", inputs))
    )
    return module.post_expert_norm(out) if getattr(module, "has_post_expert_norm", False) else out


MAX_RANK = 256  # of the adapters of one pass together


class RowsApart(Exception):
    """The model mixes rows of a batch where an adapter applies, so each adapter needs its own
    batch.
    """


@attrs.frozen(eq=False)
class Factors:
    """The adapters of one module: ``scale`` is ``[rows, 1, rank]``, or a number when all rows share
    one.
    """

    down: torch.Tensor
    up: torch.Tensor
    scale: torch.Tensor | float

    def add(self, inputs: torch.Tensor, output: torch.Tensor, width: int) -> torch.Tensor:
        """Return the adapted output of a module, in a pass over ``width`` tokens of each row."""
        linear = torch.nn.functional.linear
        inner = linear(inputs.to(self.down), self.down)
        if not isinstance(self.scale, torch.Tensor):
            return (output + linear(inner, self.up) * self.scale).to(output.dtype)
        scale = _fit(self.scale, inner, width)
        # what another adapter makes of a row may be infinite
        mine = torch.where(scale == 0, 0.0, inner * scale)
        return (output + linear(mine, self.up)).to(output.dtype)


@attrs.frozen(eq=False)
class BatchedFactors:
    """The adapters of one module, ``down`` ``[adapters, rank, in]``: each is that of an equal share
    of the ``rows``.
    """

    rows: int
    down: torch.Tensor
    up: torch.Tensor
    scale: torch.Tensor

    def add(self, inputs: torch.Tensor, output: torch.Tensor, width: int) -> torch.Tensor:
        """Return the adapted output, each adapter's with the products that it has alone."""
        if not _is_in_rows(inputs, self.rows, width):
            raise RowsApart
        inner = torch.bmm(
            inputs.reshape(len(self.down), -1, inputs.shape[-1]).to(self.down),
            self.down.transpose(1, 2),
        )
        added = torch.bmm(inner, self.up.transpose(1, 2)) * self.scale
        return (output + added.view(output.shape)).to(output.dtype)


def _fit(scale: torch.Tensor, inner: torch.Tensor, width: int) -> torch.Tensor:
    """Return the scale of each row for inputs ``[rows, tokens, ...]``, or with rows and tokens in
    one dimension.
    """
    if not _is_in_rows(inner, len(scale), width):
        raise RowsApart
    if inner.dim() == 2:
        return scale[:, 0].repeat_interleave(width, dim=0)
    return scale.view(len(scale), *[1] * (inner.dim() - 2), -1)


def _is_in_rows(values: torch.Tensor, rows: int, width: int) -> bool:
    """Return whether these are values of all rows, in their order."""
    return len(values) == (rows * width if values.dim() == 2 else rows)


@attrs.frozen(eq=False)
class Mixture:
    """The factors of matrices and of stacks of experts, by the keys of their targets; ``rows`` is 1
    where all share them.
    """

    rows: int
    factors: Mapping[str, Factors | BatchedFactors]
    stacks: Mapping[str, StackFactors]

    @classmethod
    def make(cls, rows: Sequence[LoraWeights | None]) -> Mixture:
        """Put the adapters of these rows together; None is the base model. Gradients flow to their
        tensors.

        A single row stands for any number of them.
        """
        adapters = list({id(one): one for one in rows if one is not None}.values())
        names = {name.rpartition(".lora_")[0] for one in adapters for name in one.tensors}
        is_one = len(adapters) == 1 and None not in rows
        found = {name: _factors(adapters, None if is_one else rows, name) for name in names}
        return cls(
            1 if is_one else len(rows),
            {name: one for name, one in found.items() if isinstance(one, Factors)},
            {name: one for name, one in found.items() if isinstance(one, StackFactors)},
        )

    @classmethod
    def put_side_by_side(cls, adapters: Sequence[LoraWeights], rows: int) -> Mixture:
        """Put adapters with the same matrices together, each for the next ``rows``. Raises
        RowsApart for others.
        """
        shapes = [{name: tensor.shape for name, tensor in one.tensors.items()} for one in adapters]
        if any(one.experts for one in adapters) or any(one != shapes[0] for one in shapes):
            raise RowsApart
        found: dict[str, BatchedFactors] = {}
        for key in {name.rpartition(".lora_")[0] for name in shapes[0]}:
            down, up = (
                torch.stack(tensors)
                for tensors in zip(*(_pair(one, key) for one in adapters), strict=True)
            )
            scale = torch.tensor([one.spec.scale for one in adapters], device=down.device).view(
                -1, 1, 1
            )
            found[key] = BatchedFactors(rows * len(adapters), down, up, scale)
        return cls(rows * len(adapters), found, {})


def _factors(
    adapters: Sequence[LoraWeights], rows: Sequence[LoraWeights | None] | None, key: str
) -> Factors | StackFactors:
    """Put the factors of one target together; ``rows`` None means that all rows have the one
    adapter.
    """
    owners = [one for one in adapters if f"{key}.lora_A.weight" in one.tensors]
    pairs = [_pair(one, key) for one in owners]
    down, up = pairs[0]
    if len(pairs) > 1:
        down, up = (
            torch.cat([a for a, _ in pairs], dim=-2),
            torch.cat([b for _, b in pairs], dim=-1),
        )
    scale = owners[0].spec.scale if rows is None else _scale_rows(owners, rows, down.device)
    return StackFactors(down, up, scale) if key in owners[0].experts else Factors(down, up, scale)


def _scale_rows(
    owners: Sequence[LoraWeights], rows: Sequence[LoraWeights | None], device: torch.device
) -> torch.Tensor:
    """Return the scale of each adapter in each row, ``[rows, 1, rank]``: zero except for the row's
    own adapter.
    """
    scale = torch.zeros(len(rows), 1, sum(one.spec.rank for one in owners), device=device)
    start = 0
    for one in owners:
        mine = torch.tensor(
            [row for row, weights in enumerate(rows) if weights is one], device=scale.device
        )
        scale[mine, :, start : start + one.spec.rank] = one.spec.scale
        start += one.spec.rank
    return scale


def _pair(weights: LoraWeights, key: str) -> tuple[torch.Tensor, torch.Tensor]:
    down, up = weights.tensors[f"{key}.lora_A.weight"], weights.tensors[f"{key}.lora_B.weight"]
    return split_stack(down, up, weights.experts[key]) if key in weights.experts else (down, up)


def can_mix(rows: Sequence[LoraWeights | None]) -> bool:
    """Return whether the adapters of these rows together are small enough for one pass."""
    adapters = {id(one): one for one in rows if one is not None}.values()
    return len(adapters) <= 1 or sum(one.spec.rank for one in adapters) <= MAX_RANK


SMALL_PASS = 2**28  # tokens times parameters; below it a second thread costs more than it computes
# of samples, whatever their number is, because the number of threads may decide a rounding
USUAL_ROWS = 64


class Mixer:
    """Applies the adapters of a mixture to the model's targets; without a mixture it changes
    nothing.
    """

    def __init__(self, model: Any, targets: Sequence[LoraTarget]) -> None:
        self.device: torch.device = model.device
        self._mixture: Mixture | None = None
        self._width = 0
        self._threads, self._parameters = torch.get_num_threads(), int(model.num_parameters())
        model.get_input_embeddings().register_forward_hook(self._note_pass)
        stacks: dict[str, dict[str, str]] = {}
        for target in targets:
            if target.is_stack:
                stacks.setdefault(target.name, {})[target.key] = target.parameter
            else:
                model.get_submodule(target.name).register_forward_hook(self._hook(target.key))
        for name, parameters in stacks.items():
            module = model.get_submodule(name)
            module.forward = self._wrap_experts(module, module.forward, parameters)

    @contextmanager
    def activate(self, mixture: Mixture) -> Generator[None]:
        """Compute with this mixture inside the block; outside of it, the model is the base model
        exactly.
        """
        self._mixture, self._threads = mixture, torch.get_num_threads()
        try:
            yield
        finally:
            self._mixture = None
            torch.set_num_threads(self._threads)

    def _note_pass(
        self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        """Record the number of tokens of each row in this pass; a small one runs, with its
        gradient, in one thread.
        """
        self._width = inputs[0].shape[-1]
        self.choose_threads(
            inputs[0].numel() if torch.is_grad_enabled() else max(USUAL_ROWS, self._width)
        )

    def choose_threads(self, tokens: int) -> None:
        """Compute a pass of so many tokens in one thread if it is small."""
        torch.set_num_threads(1 if tokens * self._parameters < SMALL_PASS else self._threads)

    def _hook(self, key: str) -> Any:
        def add(
            module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
        ) -> torch.Tensor | None:
            factors = None if self._mixture is None else self._mixture.factors.get(key)
            if factors is None:
                return None
            # a module for each expert gets some tokens
            if ".experts." in key and isinstance(factors.scale, torch.Tensor):
                raise RowsApart
            return factors.add(inputs[0], output, self._width)

        return add

    def _wrap_experts(self, module: Any, plain: Any, parameters: Mapping[str, str]) -> Any:
        def forward(*inputs: Any, **options: Any) -> Any:
            mixture = self._mixture
            stacks = {} if mixture is None else mixture.stacks
            factors = {name: stacks[key] for key, name in parameters.items() if key in stacks}
            if mixture is None or not factors:
                return plain(*inputs, **options)
            # families call them by different names, in the same order
            values = [*inputs, *options.values()]
            # where rows have weights of their own, it must be clear which rows these are
            if mixture.rows > 1 and len(values[0]) != mixture.rows * self._width:
                raise RowsApart
            return compute_experts(module, factors, mixture.rows, *values)

        return forward


# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (torch and transformers are typed in part only)


MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if it is unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type == "cpu" and MEMINFO.is_file():
        found = [
            line.split()[1]
            for line in MEMINFO.read_text().splitlines()
            if line.startswith("MemAvailable:")
        ]
        return int(found[0]) * 1024 if found else None
    return None


def release_memory(device: torch.device) -> None:
    """Free torch's cached memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


SLACK = 128 << 20  # bytes by which the process may grow after its first step


def find_trim() -> Callable[[int], object] | None:
    """Return glibc's ``malloc_trim``; None on a system without it."""
    if not sys.platform.startswith("linux"):
        return None
    return cast("Callable[[int], object] | None", getattr(ctypes.CDLL(None), "malloc_trim", None))


class MemoryReturn:
    """Returns free memory to the system when the process has grown, so that a server does not grow
    with its steps.

    What a step has freed is kept for the next one: asking the system for it anew takes a quarter of
    a step of a small model. So the level is what the process has after the first step that follows,
    and growth beyond it is what goes back.
    """

    def __init__(
        self,
        trim: Callable[[int], object] | None,
        resident: Callable[[], int | None] = read_resident,
    ) -> None:
        self._trim, self._resident = trim, resident
        self._level: int | None = 0  # the first step gives back what loading the model left

    def count_step(self) -> None:
        """Count a step, and return free memory to the system if the process has grown."""
        if self._trim is None:
            return
        resident = self._resident() or 0
        if self._level is None:
            self._level = resident
        elif resident > self._level + SLACK:
            self._trim(0)
            self._level = None
