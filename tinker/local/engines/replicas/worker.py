"""One of several processes that train the same adapters: a torch engine, and the sum of the
gradients over all of them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch is typed in part only)

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tinker.local.engines import PACKAGED_MODEL, Placement, replicas
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    LossResult,
    TrainingExample,
)
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.engine import find_place
from tinker.local.engines.torch.lora import LoraWeights
from tinker.local.engines.torch.sampling import TorchBatch

if TYPE_CHECKING:
    from tinker.local.engines.replicas.shards import Shards

GROUP_SECONDS = 120.0  # that a worker waits for the others
TURN_SECONDS = 0.02  # of sampling between two messages


class ReplicaWorker(TorchEngine):
    """A torch engine that joins others. Equal calls keep their adapters equal, bit by bit."""

    def __init__(self, model: str | None, placement: Placement, threads: int) -> None:
        torch.set_num_threads(threads)
        self._source, self._placement = model or PACKAGED_MODEL, placement
        self._device = find_place(placement).device
        self._shards: Shards | None = None
        self._open()
        self._done: dict[str, tuple[int, replicas.StepMetrics]] = {}
        self._frozen: dict[int, LoraWeights] = {}
        self._turns: _Turns | None = None
        self._store: TCPStore | None = None

    def _open(self) -> None:
        """Load the model: on its device, or in the memory of the machine if it is going to be
        split.
        """
        options = self._placement.of_engine()
        if self._placement.fsdp:
            options |= {
                "device": "cpu",
                "dtype": str(find_place(self._placement).dtype).removeprefix("torch."),
            }
        super().__init__(self._source, **options)

    def describe(self) -> replicas.ModelFacts:
        """Return what the engine that the server sees needs to know. Loads a model again that was
        split over a group.
        """
        if self._shards is not None:
            adapters, too_much = self._adapters, self._trainer.too_much
            self._shards = self._turns = None
            self._open()
            self._adapters, self._trainer.too_much = adapters, too_much
        return replicas.ModelFacts(
            base_model=self.base_model,
            aliases=self.aliases,
            tokenizer_id=self.tokenizer_id,
            max_context_length=self.max_context_length,
            adapter_files=self.adapter_files,
            vocabulary=self._vocabulary,
            pid=os.getpid(),
        )

    # The group

    def leave(self) -> replicas.WorkerHoldings:
        """Leave the group, if there is one, and return what this worker has."""
        if dist.is_initialized():
            dist.destroy_process_group()
        return self.find_held()

    def find_held(self) -> replicas.WorkerHoldings:
        """Return what this worker has."""
        steps = {adapter_id: steps for adapter_id, (steps, _) in self._done.items()}
        return replicas.WorkerHoldings(steps=steps, frozen=frozenset(self._frozen))

    def meet(self, host: str) -> int:
        """Open the port on which a new group meets, at the worker of rank 0, and return it."""
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return self._store.port

    def join(self, rank: int, size: int, host: str, port: int) -> int:
        """Join the group that meets there. Returns, when all have, the bytes of the model that this
        worker holds.
        """
        timeout = timedelta(seconds=GROUP_SECONDS)
        store = (
            self._store
            if rank == 0 and self._store
            else TCPStore(host, port, is_master=False, timeout=timeout)
        )
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        if self._placement.fsdp:
            from tinker.local.engines.replicas.shards import Shards  # needs torch 2.6

            self._shards = Shards(self._model, self._split, self._parts.mixer, self._device)
            # a batch that turned out to mix rows would end a pass of all workers
            self._parts.is_apart = True
        parts = [
            one.to_local() if hasattr(one, "to_local") else one for one in self._model.parameters()
        ]
        return sum(part.numel() * part.element_size() for part in parts)

    def _move_together(self, weights: LoraWeights | None = None) -> AbstractContextManager[None]:
        return nullcontext() if self._shards is None else self._shards.move_together(weights)

    # Training

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        super().create_adapter(adapter_id, spec)
        self._done[adapter_id] = (0, {})

    def drop_adapter(self, adapter_id: str) -> None:
        super().drop_adapter(adapter_id)
        self._done.pop(adapter_id, None)

    def add_share(
        self,
        adapter_id: str,
        places: Sequence[int],
        data: Sequence[TrainingExample],
        loss_fn: str,
        config: Mapping[str, float | str],
        backward: bool,
    ) -> LossResult:
        """Compute the loss of some data, and add its gradient to this worker's. Errors name data by
        their ``places``.
        """
        try:
            with self._move_together(self._adapter(adapter_id).weights):
                if not data:
                    return LossResult(outputs=[], metrics={})
                return self.forward_backward(adapter_id, data, loss_fn, config, backward=backward)
        except EngineError as error:
            named = re.sub(
                r"^data\[(\d+)\]", lambda found: f"data[{places[int(found[1])]}]", str(error)
            )
            raise EngineError(named) from error

    def clear_gradient(self, adapter_id: str) -> None:
        """Forget the gradient of this worker."""
        self._adapter(adapter_id).gradient = None

    def take_step(
        self, adapter_id: str, number: int, params: Adam | Dimuon
    ) -> replicas.StepMetrics:
        """Sum the gradients of all workers and take step ``number``; one that was taken returns its
        metrics again.
        """
        if self._done[adapter_id][0] < number:
            self._sum_gradients(adapter_id)
            self._done[adapter_id] = number, self.optim_step(adapter_id, params)
        return self._done[adapter_id][1]

    def _sum_gradients(self, adapter_id: str) -> None:
        adapter = self._adapter(adapter_id)
        parts = adapter.gradient or [
            torch.zeros_like(tensor) for tensor in adapter.weights.tensors.values()
        ]
        flat = torch.cat([part.flatten() for part in parts])
        try:
            dist.all_reduce(flat)
        except RuntimeError as error:
            raise replicas.WorkersLost(str(error)) from error
        summed = torch.split(flat, [part.numel() for part in parts])
        adapter.gradient = [total.view_as(part) for total, part in zip(summed, parts, strict=True)]

    # Adapters as files

    def pack(self, adapter_id: str, optimizer: bool = True) -> replicas.AdapterState:
        """Return an adapter without its gradient."""
        steps, metrics = self._done[adapter_id]
        files = replicas.read_files(
            lambda folder: self.save(adapter_id, folder, optimizer=optimizer)
        )
        return replicas.AdapterState(files=files, steps=steps, metrics=metrics)

    def unpack_weights(self, adapter_id: str, state: replicas.AdapterState) -> AdapterSpec:
        """Make or replace an adapter, with a fresh optimizer."""
        return self.unpack(adapter_id, state, optimizer=False)

    def unpack(
        self, adapter_id: str, state: replicas.AdapterState, optimizer: bool = True
    ) -> AdapterSpec:
        """Make or replace an adapter."""
        with tempfile.TemporaryDirectory(prefix="tinker-") as folder:
            spec = self.load(
                adapter_id, replicas.write_files(state.files, Path(folder)), optimizer=optimizer
            )
        self._done[adapter_id] = state.steps, state.metrics
        return spec

    def convert(self, files: replicas.Files, spec: AdapterSpec) -> replicas.Files:
        """Return an adapter that was made elsewhere as this engine saves it."""
        with tempfile.TemporaryDirectory(prefix="tinker-") as source:
            replicas.write_files(files, Path(source))
            return replicas.read_files(
                lambda folder: self.import_adapter(Path(source), spec, folder)
            )

    # Samples

    def freeze(self, number: int, files: replicas.Files, released: Sequence[int]) -> None:
        """Read weights to sample from, and forget those that nobody samples from now."""
        for other in released:
            self._frozen.pop(other, None)
        with tempfile.TemporaryDirectory(prefix="tinker-") as folder:
            self._frozen[number] = self.load_snapshot(replicas.write_files(files, Path(folder)))

    def sample(self, turn: replicas.SampleTurn) -> replicas.SampleTurnResult:
        """Sample for a moment, or until a job ends."""
        if self._turns is None or self._turns.batch_number != turn.batch:
            self._turns = _Turns(turn.batch, self.open_batch(turn.limit))
        with self._move_together():
            return self._turns.run(turn, self._frozen)


class _TurnListener:
    """Writes down the tokens of one job."""

    def __init__(self, number: int, drawn: list[replicas.HeardToken]) -> None:
        self._number, self._drawn = number, drawn

    def take(self, index: int, token: int, logprob: float, stop_reason: str | None) -> bool:
        self._drawn.append(replicas.HeardToken(self._number, index, token, logprob, stop_reason))
        return True


class _Turns:
    """The samples of one batch."""

    def __init__(self, batch_number: int, batch: TorchBatch) -> None:
        self.batch_number = batch_number
        self._batch = batch
        self._jobs: set[int] = set()
        self._drawn: list[replicas.HeardToken] = []

    def run(
        self, turn: replicas.SampleTurn, weights: Mapping[int, LoraWeights]
    ) -> replicas.SampleTurnResult:
        """Carry out a turn."""
        until = time.monotonic() + TURN_SECONDS
        for number in turn.dropped:
            self._batch.drop(number)
            self._jobs.discard(number)
        ended: list[replicas.Ended] = self._begin(turn, weights)
        while self._jobs and not ended and time.monotonic() < until:
            ended = [
                (number, outcome)
                for number, outcome in self._batch.step()
                if isinstance(number, int)
            ]
            self._jobs -= {number for number, _ in ended}
        drawn = list(self._drawn)
        self._drawn.clear()
        return replicas.SampleTurnResult(tokens=self._batch.tokens, drawn=drawn, ended=ended)

    def _begin(
        self, turn: replicas.SampleTurn, weights: Mapping[int, LoraWeights]
    ) -> list[replicas.Ended]:
        """Add the new jobs; return those that are refused."""
        refused: list[replicas.Ended] = []
        for new in turn.new:
            listener = _TurnListener(new.number, self._drawn) if new.is_heard else None
            frozen = None if new.weights is None else weights[new.weights]
            try:
                self._batch.add(
                    new.number, attrs.evolve(new.job, weights=frozen, listener=listener)
                )
            except EngineError as error:
                refused.append((new.number, error))
            else:
                self._jobs.add(new.number)
        return refused
