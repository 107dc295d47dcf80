"""What the engine and its workers send each other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import attrs

from tinker.local.engines.protocol import SampleJob, SampleResult

Files: TypeAlias = Mapping[str, bytes]
StepMetrics: TypeAlias = dict[str, float]
Ended: TypeAlias = tuple[int, SampleResult | Exception]


class WorkersLost(Exception):
    """Workers died, or could not reach each other, during a call."""


class NoPlace(WorkersLost):
    """Ray has no place for a worker, or does not answer."""


@attrs.frozen(kw_only=True)
class WorkerHoldings:
    """What a worker has: the steps that each adapter has taken, and the numbers of weights to sample from."""

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
    """An adapter with its optimizer after ``steps`` steps, the last of which returned ``metrics``."""

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
    """A job that begins, with the ``weights`` by their number, None for the base model. Its own listener stays behind."""

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
    """The tokens that the samples hold after a turn, those drawn for listeners, and the jobs that ended."""

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
