"""Several adapters in one pass: each row of a batch computes with its own weights, also in a
mixture of experts.

The matrices of all adapters of a batch stand beside each other, as one adapter whose rank is the
sum of theirs, and each row counts only the part that is its own. So a pass costs two products for
each module, however many adapters there are.

transformers keeps the matrices of all experts of a layer in one tensor, and says by a few
attributes how they are laid out. PEFT adds the factors to the whole tensor; here they are applied
to the tokens that an expert is given, so that nothing of the tensor's size is made, and each token
can have the adapter of its row.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch.nn import functional

from tinker.local.engines.lora import LoraTarget
from tinker.local.engines.torch.lora import LoraWeights


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
            self._check_rows(mixture, values[0])
            return compute_experts(module, factors, mixture.rows, *values)

        return forward

    def _check_rows(self, mixture: Mixture, hidden: torch.Tensor) -> None:
        """Raise RowsApart where rows have weights of their own, and it is not clear which rows
        these are.
        """
        if mixture.rows > 1 and len(hidden) != mixture.rows * self._width:
            raise RowsApart
