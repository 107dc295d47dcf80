"""The toy engine with a list of what took effect on each run, which goes where the weights go: to
disk and back.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinker.local.engines.toy import ToyEngine

FILE = "effects.json"
LEARNING_RATE = 1e-7
Tag = tuple[str, int]


class Effects(NamedTuple):
    """What a run's weights consist of: where they come from (a checkpoint's folder, or nothing),
    and what was done since.
    """

    origin: str = ""
    tags: tuple[Tag, ...] = ()


class EffectLog:
    """What outlives every server: the inputs of each effect, with which the weights can be computed
    again.
    """

    def __init__(self) -> None:
        self.inputs: dict[tuple[str, Tag], Any] = {}
        self.specs: dict[str, Any] = {}
        self.of_adapter: dict[str, Effects] = {}
        self.engine: RecordingEngine | None = None  # of the server that runs
        self.is_disk_full = False


class RecordingEngine(ToyEngine):
    """The toy engine. A gradient has the tag ``("G", n)`` by its first two tokens, a step
    ``("S", n)`` by its learning rate.
    """

    def __init__(self, log: EffectLog) -> None:
        super().__init__(vocabulary=1024)
        self.log, log.engine = log, self
        log.of_adapter = {}

    def create_adapter(self, adapter_id: str, spec: Any) -> None:
        super().create_adapter(adapter_id, spec)
        self.log.of_adapter[adapter_id], self.log.specs[adapter_id] = Effects(), spec

    def drop_adapter(self, adapter_id: str) -> None:
        super().drop_adapter(adapter_id)
        self.log.of_adapter.pop(adapter_id, None)

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[Any],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> Any:
        result = super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)
        if backward:
            self._note(adapter_id, ("G", tag_of(data[0].tokens)), (data, loss_fn, config))
        return result

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        result = super().optim_step(adapter_id, params)
        self._note(adapter_id, ("S", round(params.learning_rate / LEARNING_RATE)), params)
        return result

    def _note(self, adapter_id: str, tag: Tag, inputs: object) -> None:
        before = self.log.of_adapter[adapter_id]
        self.log.of_adapter[adapter_id] = before._replace(tags=(*before.tags, tag))
        self.log.inputs[adapter_id, tag] = inputs

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        if self.log.is_disk_full:  # in the middle of the file
            (directory / FILE).write_text("[")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().save(adapter_id, directory, optimizer=optimizer)
        origin, tags = self.log.of_adapter[adapter_id]
        while tags and tags[-1][0] == "G":
            tags = tags[:-1]  # gradients that no step has applied are not saved
        (directory / FILE).write_text(json.dumps([origin, tags]))

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> Any:
        spec = super().load(adapter_id, directory, optimizer=optimizer)
        origin, tags = json.loads((directory / FILE).read_text())
        is_kept = ".journal" in directory.parts  # by a restarted server: the run goes on
        effects = Effects(origin, tuple((kind, number) for kind, number in tags))
        self.log.of_adapter[adapter_id] = (
            effects if is_kept else Effects(f"{int(optimizer)}{directory}")
        )
        return spec

    def tensors(self, adapter_id: str) -> Mapping[str, Any]:
        """Return the weights of a run."""
        return self._adapters[adapter_id].weights.tensors


def tag_of(tokens: Sequence[int]) -> int:
    """Return the number that the first two tokens of a datum spell."""
    return int(tokens[0]) * 1000 + int(tokens[1])


def list_tags(folder: Path) -> list[Tag]:
    """Return everything that the weights of a checkpoint consist of, in order."""
    origin, tags = json.loads((folder / FILE).read_text())
    return [
        *(list_tags(Path(origin[1:])) if origin else ()),
        *((kind, number) for kind, number in tags),
    ]


def weights_differ(log: EffectLog, adapter_id: str) -> bool:
    """Compute the weights of a run again from what took effect, in order, and compare."""
    assert log.engine is not None
    effects, again = log.of_adapter[adapter_id], ToyEngine(vocabulary=1024)
    if effects.origin:
        again.load(adapter_id, Path(effects.origin[1:]), optimizer=effects.origin[0] == "1")
    else:
        again.create_adapter(adapter_id, log.specs[adapter_id])
    return _differ(
        log, again, adapter_id, effects.tags, [adapter_id], log.engine.tensors(adapter_id)
    )


def saved_weights_differ(log: EffectLog, runs: Sequence[str], folder: Path) -> bool:
    """Compute the weights of a checkpoint again, in one run, from what took effect in several, and
    compare.
    """
    saved, again = ToyEngine(vocabulary=1024), ToyEngine(vocabulary=1024)
    saved.load(runs[0], folder, optimizer=True)
    again.create_adapter(runs[0], log.specs[runs[0]])
    return _differ(
        log, again, runs[0], list_tags(folder), runs, saved._adapters[runs[0]].weights.tensors
    )


def _differ(
    log: EffectLog,
    again: ToyEngine,
    adapter_id: str,
    tags: Sequence[Tag],
    runs: Sequence[str],
    wanted: Mapping[str, Any],
) -> bool:
    for tag in tags:
        inputs = next(log.inputs[run, tag] for run in runs if (run, tag) in log.inputs)
        if tag[0] == "G":
            again.forward_backward(adapter_id, *inputs, backward=True)
        else:
            again.optim_step(adapter_id, inputs)
    found = again._adapters[adapter_id].weights.tensors
    return any(not np.array_equal(found[name], tensor) for name, tensor in wanted.items())
