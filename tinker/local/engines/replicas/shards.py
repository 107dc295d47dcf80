"""The layers of a model split over the workers by FSDP2: each holds a part, and all are put
together layer by layer in a pass.

So all workers have to make their passes at the same time. A worker announces each pass, and one
that has none left makes a pass of one token, whose result nobody uses, until no worker has any.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch is typed in part only)

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from tinker.local.engines.replicas import WorkersLost
from tinker.local.engines.torch.lora import LoraWeights, Mixer, Mixture
from tinker.local.engines.torch.passes import SplitModel

NONE, FORWARD, WITH_GRADIENT = 0, 1, 2  # the passes that a worker announces


def find_layers(model: Any) -> list[torch.nn.Module]:
    """Return the layers of the largest stack of layers. Raises ValueError for a model that has
    none, or is quantized.
    """
    lists: list[torch.nn.ModuleList] = [
        one for one in model.modules() if isinstance(one, torch.nn.ModuleList) and len(one)
    ]
    stacks = [
        one for one in lists if all(isinstance(layer, GradientCheckpointingLayer) for layer in one)
    ]
    if not stacks:
        raise ValueError(
            f"{type(model).__name__} cannot be split over workers: transformers does "
            "not mark its layers"
        )
    if not all(one.is_floating_point() for one in model.parameters()):
        raise ValueError(
            f"{type(model).__name__} cannot be split over workers: it is quantized; leave out fsdp"
        )
    largest = max(stacks, key=lambda stack: sum(one.numel() for one in stack.parameters()))
    return list(largest)


class Shards:
    """The split layers of ``model``, and the passes that its workers make together. The rest of it
    is whole on ``device``.
    """

    def __init__(self, model: Any, split: SplitModel, mixer: Mixer, device: torch.device) -> None:
        self._split, self._mixer, self._device = split, mixer, device
        layers = find_layers(model)
        inside = {one for layer in layers for one in layer.modules()}
        for module in (one for one in model.modules() if one not in inside):
            for tensor in chain(module.parameters(recurse=False), module.buffers(recurse=False)):
                tensor.data = tensor.data.to(device)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        mixer.device = device
        layers[0].register_forward_pre_hook(self._begin_pass, prepend=True)
        layers[-1].register_forward_hook(self._end_pass)
        self._stage: Literal["idle", "forward", "backward"] = "idle"
        self._open: torch.Tensor | None = None  # the states that have not been differentiated
        self._is_following = False

    @contextmanager
    def move_together(self, weights: LoraWeights | None = None) -> Generator[None]:
        """Let the others make a pass for each that the block makes, and make a pass for each that
        they make after it.

        ``weights`` are those that all train. Raises WorkersLost if the block failed in the middle
        of a pass.
        """
        failure: Exception | None = None
        try:
            yield
        except WorkersLost:
            raise
        except Exception as error:  # noqa: BLE001 - raised again below, when the others have finished
            failure = error
        self._check_stage(failure)
        with self._mixer.activate(Mixture.make([] if weights is None else [weights])):
            self._follow([] if weights is None else list(weights.tensors.values()))
        if failure is not None:
            raise failure

    def _check_stage(self, failure: Exception | None = None) -> None:
        if self._stage != "idle":
            cause = failure or "it ran out of memory, or another worker was lost"
            raise WorkersLost(f"a worker could not finish a pass: {cause}") from failure

    def _follow(self, parameters: list[torch.nn.Parameter]) -> None:
        if self._open is not None:  # the loss behind them failed
            self._differentiate(self._open, parameters)
        self._is_following = True
        try:
            while kind := self._agree(NONE):
                with torch.set_grad_enabled(kind == WITH_GRADIENT):
                    tokens = torch.zeros((1, 1), dtype=torch.long, device=self._device)
                    self._differentiate(
                        self._split.run(input_ids=tokens, use_cache=False).states, parameters
                    )
        finally:
            self._is_following = False

    def _differentiate(self, states: torch.Tensor, parameters: list[torch.nn.Parameter]) -> None:
        if states.requires_grad:
            torch.autograd.grad(states, parameters, torch.zeros_like(states), allow_unused=True)

    def _agree(self, kind: int) -> int:
        """Announce a pass, or none, and return the largest of what the workers announce."""
        kinds = torch.tensor([kind], device=self._device)
        try:
            dist.all_reduce(kinds, op=dist.ReduceOp.MAX)
        except RuntimeError as error:
            raise WorkersLost(str(error)) from error
        return int(kinds)

    def _begin_pass(self, module: torch.nn.Module, inputs: object) -> None:
        self._check_stage()
        if not self._is_following:
            self._agree(WITH_GRADIENT if torch.is_grad_enabled() else FORWARD)
        self._stage = "forward"

    def _end_pass(
        self,
        module: torch.nn.Module,
        inputs: object,
        output: torch.Tensor | tuple[torch.Tensor, ...],
    ) -> None:
        self._stage = "idle"
        states = output if isinstance(output, torch.Tensor) else output[0]
        if states.requires_grad:
            self._open = states
            states.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]

    def _begin_backward(self, gradient: torch.Tensor) -> None:
        self._open, self._stage = None, "backward"
        Variable._execution_engine.queue_callback(self._end_backward)  # pyright: ignore[reportPrivateUsage]

    def _end_backward(self) -> None:
        self._stage = "idle"
