"""Data-parallel training and sampling by several processes, each of which has the whole model, or a
part of it (``shards``).

Ray runs the processes (``workers``), torch.distributed sums their gradients (``worker``), and the
engine that the server sees gives each its share of the work and gathers the results (``engine``,
``batch``). Only the workers import torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import attrs

from tinker.local.engines.protocol import SampleJob, SampleResult

Files: TypeAlias = Mapping[str, bytes]
StepMetrics: TypeAlias = dict[str, float]
Ended: TypeAlias = tuple[int, SampleResult | Exception]
# by the end of its name
MERGE: Mapping[str, Callable[[Iterable[float]], float]] = {"sum": sum, "min": min, "max": max}


class WorkersLost(Exception):
    """Workers died, or could not reach each other, during a call."""


class NoPlace(WorkersLost):
    """Ray has no place for a worker, or does not answer."""


@attrs.frozen(kw_only=True)
class WorkerHoldings:
    """What a worker has: the steps that each adapter has taken, and the numbers of weights to
    sample from.
    """

    steps: Mapping[str, int] = attrs.field(factory=lambda: dict[str, int]())
    frozen: frozenset[int] = frozenset()


@attrs.frozen(kw_only=True)
class ModelFacts:
    """The properties of the model that the workers have loaded. ``pid`` is that of the worker."""

    base_model: str
    aliases: frozenset[str]
    tokenizer_id: str
    max_context_length: int
    adapter_files: frozenset[str]
    vocabulary: int
    pid: int


@attrs.frozen(kw_only=True, eq=False)
class AdapterState:
    """An adapter with its optimizer after ``steps`` steps, the last of which
    returned ``metrics``.
    """

    files: Files
    steps: int = 0
    metrics: StepMetrics = attrs.field(factory=lambda: dict[str, float]())


@attrs.frozen
class HeardToken:
    """A token of a job for its listener."""

    number: int
    index: int
    token: int
    logprob: float
    stop_reason: str | None


@attrs.frozen(kw_only=True)
class NewJob:
    """A job that begins, with the ``weights`` by their number, None for the base model. Its own
    listener stays behind.
    """

    number: int
    job: SampleJob
    weights: int | None
    is_heard: bool


@attrs.frozen(kw_only=True)
class SampleTurn:
    """Work of the samples in ``batch``: jobs that begin, and those that are dropped."""

    batch: int
    limit: int
    new: Sequence[NewJob]
    dropped: Sequence[int]


@attrs.frozen(kw_only=True)
class SampleTurnResult:
    """The tokens that the samples hold after a turn, those drawn for listeners, and the jobs that
    ended.
    """

    tokens: int
    drawn: Sequence[HeardToken]
    ended: Sequence[Ended]


def read_files(fill: Callable[[Path], object]) -> Files:
    """Return the files that ``fill`` writes into a folder."""
    with tempfile.TemporaryDirectory(prefix="tinker-") as name:
        fill(Path(name))
        return {file.name: file.read_bytes() for file in Path(name).iterdir()}


def write_files(files: Files, folder: Path) -> Path:
    """Write files into a folder, and return it."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def split_data(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Return the places of the data of each worker, so that all have about as many tokens; some may
    have none.

    >>> split_data([3, 9, 5, 1], 2)
    [[1], [0, 2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        rank = loads.index(min(loads))
        shares[rank].append(place)
        loads[rank] += lengths[place]
    return [sorted(share) for share in shares]


def merge_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the metrics of shares of the data by the reduction that each name ends with; a mean is
    over tokens.

    >>> merge_metrics([{"loss:sum": 1.0, "ratio:max": 2.0}, {"loss:sum": 0.5}])
    {'loss:sum': 1.5, 'ratio:max': 2.0}
    >>> merge_metrics([{"gap:mean": 4.0, "tokens:sum": 1.0}, {"gap:mean": 1.0, "tokens:sum": 2.0}])
    {'gap:mean': 2.0, 'tokens:sum': 3.0}
    """
    return {
        name: _merge(name, [part for part in parts if name in part])
        for name in dict.fromkeys(chain(*parts))
    }


def _merge(name: str, parts: Sequence[Mapping[str, float]]) -> float:
    reduction = name.rpartition(":")[2]
    if reduction != "mean":
        return MERGE[reduction](part[name] for part in parts)
    tokens = sum(part["tokens:sum"] for part in parts)
    return sum(part[name] * part["tokens:sum"] for part in parts) / tokens if tokens else 0.0
