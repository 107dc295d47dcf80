"""The engine that the server sees, and its workers: Ray actors that have every adapter."""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import secrets
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import attrs

from tinker._basics.installation import install_command
from tinker.local.engines import Placement, protocol, replicas
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    BaseEngine,
    Dimuon,
    EngineError,
    SampleJob,
    SampleResult,
    log,
)

if TYPE_CHECKING:
    from tinker.local.engines.replicas.worker import ReplicaWorker

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# by name, so that the types are the same whether Ray, which is typed in part only, is installed or
# not
try:
    ray: Any = importlib.import_module("ray")
    exceptions: Any = importlib.import_module("ray.exceptions")
except ImportError as _error:
    raise ImportError(f"replicas need ray: {install_command('ray')}") from _error

CALL_SECONDS = 3600.0  # of one call; a worker that takes longer is taken for dead
READ_SECONDS = 1.0  # of a result that is there
ANSWER_SECONDS = 60.0  # of a worker that is asked whether it lives, when another one has died


class Host:
    """An actor, which loads the model in a call of its own, so that its error is
    that of the call.
    """

    def __init__(self, model: str | None, placement: Placement, threads: int) -> None:
        self._model, self._placement, self._threads = model, placement, threads
        self._worker: ReplicaWorker | None = None

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker."""
        if self._worker is None:
            from tinker.local.engines.replicas.worker import ReplicaWorker

            self._worker = ReplicaWorker(self._model, self._placement, self._threads)
        return getattr(self._worker, method)(*arguments)

    def address(self) -> str:
        """Return the address of its machine."""
        return cast("str", ray.util.get_node_ip_address())


@attrs.frozen(eq=False)
class WorkerCall:
    """A call of one worker's method."""

    rank: int
    method: str
    arguments: tuple[Any, ...] = ()


class Workers:
    """The actors by rank, and in ``processes`` how often each was started."""

    def __init__(self, model: str | None, placement: Placement) -> None:
        is_joined = ray.is_initialized()
        if not is_joined:
            _start_ray(placement.ray)
        self._owns_ray = not is_joined and placement.ray is None
        found: dict[str, float] = ray.cluster_resources()
        has_gpus = placement.device != "cpu" and found.get("GPU", 0) > 0
        threads = max(1, int(found.get("CPU", 1)) // placement.replicas)
        make: Any = ray.remote(num_cpus=0, num_gpus=int(has_gpus), scheduling_strategy="SPREAD")(
            Host
        )
        self._make: Callable[[], Any] = lambda: make.remote(model, placement, threads)
        self._actors: list[Any] = [self._make() for _ in range(placement.replicas)]
        self.processes: list[int] = [0 for _ in self._actors]

    def __len__(self) -> int:
        return len(self._actors)

    def call(self, calls: Iterable[WorkerCall], seconds: float = CALL_SECONDS) -> list[Any]:
        """Make these calls at once and return their results, an exception for each that failed or
        was lost.
        """
        return _finish(
            [self._actors[call.rank].call.remote(call.method, *call.arguments) for call in calls],
            seconds,
        )

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call all of them alike; raises the first failure."""
        return require_all(
            self.call(WorkerCall(rank, method, arguments) for rank in range(len(self)))
        )

    def call_one(self, rank: int, method: str, *arguments: Any) -> Any:
        """Call one of them; raises its failure."""
        return require_all(self.call([WorkerCall(rank, method, arguments)]))[0]

    def addresses(self) -> list[str]:
        """Return the address of the machine of each worker, once all are placed. Raises NoPlace if
        one is not.
        """
        try:
            return require_all(
                _finish([actor.address.remote() for actor in self._actors], ANSWER_SECONDS)
            )
        except replicas.WorkersLost as error:
            raise replicas.NoPlace(str(error)) from error

    def replace(self, rank: int) -> None:
        """End a worker, if it has not ended, and start another one."""
        ray.kill(self._actors[rank])
        self._actors[rank] = self._make()
        self.processes[rank] += 1

    def restart(self) -> None:
        """End all of them, with Ray where this has started it, and start them again."""
        self.close()
        if self._owns_ray:
            _start_ray(None)
        self._actors = [self._make() for _ in self._actors]
        self.processes = [count + 1 for count in self.processes]

    def close(self) -> None:
        """End them, and Ray where this has started it."""
        if self._owns_ray:
            ray.shutdown()
        for actor in self._actors if ray.is_initialized() else ():
            ray.kill(actor)


def _finish(references: list[Any], seconds: float) -> list[Any]:
    """Wait for calls, and return the result or the exception of each."""
    if references:
        ray.wait(references, num_returns=len(references), timeout=seconds)
    return [_read(reference) for reference in references]


def _read(reference: Any) -> Any:
    try:
        return ray.get(reference, timeout=READ_SECONDS)
    except exceptions.RayTaskError as error:
        return error.cause
    except exceptions.RayError as error:
        return replicas.WorkersLost(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")


def require_all(outcomes: Sequence[Any]) -> list[Any]:
    """Return the results of calls. Raises WorkersLost if any is lost, else the first failure."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for failure in sorted(failures, key=lambda one: not isinstance(one, replicas.WorkersLost)):
        raise failure
    return list(outcomes)


def _start_ray(address: str | None) -> None:
    """Join a cluster, or start Ray on this machine. Raises OSError where there is none at the
    address.
    """
    try:
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError) as error:
        raise OSError(f"Ray cannot be reached at {address or 'this machine'}: {error}") from error


# Samples that are spread over the workers: each job goes to the one that holds the fewest tokens.
#
# A job whose worker died is sampled again by the next one, with the same seed, and its listener
# hears no token twice.

MOST_DEATHS = 3  # of workers that sample one job


@attrs.frozen(eq=False)
class StoredWeights:
    """Weights to sample from, which every worker has by their number; ``files`` are for workers
    that start later.
    """

    number: int
    files: replicas.Files


@attrs.define(eq=False)
class SpreadJob:
    """A job at the worker ``rank``, if that has not started again since. ``heard`` counts tokens by
    sample.
    """

    ticket: object
    number: int
    job: SampleJob
    rank: int
    process: int = -1
    deaths: int = -1
    heard: Counter[int] = attrs.field(factory=lambda: Counter[int]())
    repeated: Counter[int] = attrs.field(factory=lambda: Counter[int]())

    def send(self, process: int) -> replicas.NewJob:
        """Return the message that begins it."""
        self.process, self.deaths, self.repeated = process, self.deaths + 1, self.heard.copy()
        weights = protocol.find_weights(self.job, StoredWeights)
        return replicas.NewJob(
            number=self.number,
            job=attrs.evolve(self.job, weights=None, listener=None),
            weights=None if weights is None else weights.number,
            is_heard=self.job.listener is not None,
        )

    def hear(self, drawn: replicas.HeardToken) -> bool:
        """Pass a token on, once; return whether more are wanted."""
        if self.repeated[drawn.index]:
            self.repeated[drawn.index] -= 1
            return True
        self.heard[drawn.index] += 1
        listener = self.job.listener
        return listener is None or listener.take(
            drawn.index, drawn.token, drawn.logprob, drawn.stop_reason
        )


class ReplicatedBatch:
    """A SampleBatch of a replicated engine."""

    def __init__(self, engine: ReplicatedEngine, number: int, limit: int) -> None:
        self._engine, self._number, self._limit = engine, number, limit
        self._jobs: dict[int, SpreadJob] = {}
        self._tokens = [0] * len(engine.workers)
        self._dropped: list[list[int]] = [[] for _ in engine.workers.processes]
        self._count = 0

    @property
    def tokens(self) -> int:
        """Return how many tokens are held by the worker that has the most room."""
        return min(self._tokens)

    def add(self, ticket: object, job: SampleJob) -> None:
        protocol.check_job(
            job, vocabulary=self._engine.vocabulary, longest=self._engine.max_context_length
        )
        protocol.find_weights(job, StoredWeights)
        rank, number = self._tokens.index(min(self._tokens)), self._count
        self._jobs[number] = SpreadJob(
            ticket, number, attrs.evolve(job, seed=protocol.noise_seed(job)), rank
        )
        self._tokens[rank] += job.num_samples * (len(job.tokens) + 1)
        self._count += 1

    def drop(self, ticket: object) -> None:
        for one in [one for one in self._jobs.values() if one.ticket is ticket]:
            self._forget(one)

    def _forget(self, one: SpreadJob) -> None:
        del self._jobs[one.number]
        self._dropped[one.rank].append(one.number)

    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        ended = self._give_up()
        ranks = sorted(
            {one.rank for one in self._jobs.values()}
            | {rank for rank, some in enumerate(self._dropped) if some}
        )
        if ranks and self._engine.is_split:
            ranks = list(range(len(self._dropped)))
        turns = {rank: self._next_turn(rank) for rank in ranks}
        outcomes = self._engine.workers.call(
            [WorkerCall(rank, "sample", (turn,)) for rank, turn in turns.items()]
        )
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, replicas.SampleTurnResult):
                ended += self._take(rank, outcome)
            elif isinstance(outcome, replicas.WorkersLost):
                self._send_again(rank, turns[rank])
        for failure in (one for one in outcomes if isinstance(one, Exception)):
            if not isinstance(failure, replicas.WorkersLost):
                raise failure
            self._engine.repair(failure)
            break
        return ended

    def _give_up(self) -> list[tuple[object, SampleResult | Exception]]:
        """End the jobs whose workers died too often."""
        left = [one for one in self._jobs.values() if one.deaths >= MOST_DEATHS - 1]
        hopeless = [one for one in left if one.process != self._engine.count_starts(one.rank)]
        for one in hopeless:
            self._forget(one)
        return [
            (
                one.ticket,
                replicas.WorkersLost(f"{MOST_DEATHS} workers died while they sampled this"),
            )
            for one in hopeless
        ]

    def _next_turn(self, rank: int) -> replicas.SampleTurn:
        process = self._engine.count_starts(rank)
        new = [
            one.send(process)
            for one in self._jobs.values()
            if one.rank == rank and one.process != process
        ]
        dropped, self._dropped[rank] = self._dropped[rank], []
        return replicas.SampleTurn(batch=self._number, limit=self._limit, new=new, dropped=dropped)

    def _send_again(self, rank: int, turn: replicas.SampleTurn) -> None:
        """Begin the jobs of a lost turn anew: its worker may live, and has them or
        has ended them.
        """
        lost = [one for one in self._jobs.values() if one.rank == rank]
        self._dropped[rank] = [*turn.dropped, *(one.number for one in lost)]
        for one in lost:
            one.process = -1

    def _take(
        self, rank: int, result: replicas.SampleTurnResult
    ) -> list[tuple[object, SampleResult | Exception]]:
        self._tokens[rank] = result.tokens
        unwanted = {
            one.number
            for one in result.drawn
            if one.number in self._jobs and not self._jobs[one.number].hear(one)
        }
        ended = [
            (self._jobs.pop(number).ticket, outcome)
            for number, outcome in result.ended
            if number in self._jobs
        ]
        for one in [self._jobs[number] for number in unwanted if number in self._jobs]:
            self._forget(one)
            ended.append((one.ticket, EngineError("its listener has ended it")))
        return ended


T = TypeVar("T")
Loss: TypeAlias = tuple[Sequence[protocol.TrainingExample], str, Mapping[str, float | str]]
ATTEMPTS = 3  # of a call during which workers die


class StepsLost(Exception):
    """Steps of a run are lost, because all workers died at once."""


@attrs.define(eq=False)
class Run:
    """One adapter. ``restore`` is the call that makes it as it was after ``kept`` steps; ``losses``
    are those of its gradient.

    ``begun`` is the number of the last step that was begun; ``lost`` counts the lost ones that its
    client does not know of.
    """

    restore: tuple[str, AdapterSpec | replicas.AdapterState]
    steps: int = 0
    begun: int = 0
    kept: int = 0
    lost: int = 0
    losses: list[Loss] = attrs.field(factory=lambda: list[Loss]())

    def go_back(self) -> None:
        """Note that no worker has it as it is now."""
        if self.steps > self.kept:
            self.lost += self.steps - self.kept
            self.losses.clear()
        self.steps = self.kept

    def require_all_steps(self) -> None:
        """Raise StepsLost, once, if it went back."""
        lost, self.lost = self.lost, 0
        if lost:
            raise StepsLost(
                "all workers died at once, and this run is as it was when it was last saved: "
                f"{lost} optimizer "
                f"step{'s are' if lost > 1 else ' is'} lost"
            )


class ReplicatedEngine(BaseEngine):
    """Trains and samples by ``placement.replicas`` workers. Takes text only.

    Raises ImportError without Ray, OSError for a cluster that cannot be reached, ValueError as the
    torch engine does.
    """

    def __init__(self, model: str | None, placement: Placement) -> None:
        self.is_split: bool = placement.fsdp
        self.workers: Workers = Workers(model, placement)
        self._runs: dict[str, Run] = {}
        self._frozen: weakref.WeakValueDictionary[int, StoredWeights] = (
            weakref.WeakValueDictionary()
        )
        self._numbers = itertools.count()
        self._released: deque[int] = deque()
        self._groups = 0
        try:
            self.workers.addresses()
            facts: replicas.ModelFacts = self.workers.call_all("describe")[0]
            self._form_group()
        except replicas.WorkersLost as error:
            self.workers.close()
            raise OSError(f"Ray could not start {placement.replicas} workers: {error}") from error
        except BaseException:
            self.workers.close()
            raise
        self.base_model: str = facts.base_model
        self.aliases: frozenset[str] = facts.aliases
        self.tokenizer_id: str = facts.tokenizer_id
        self.max_context_length: int = facts.max_context_length
        self.adapter_files: frozenset[str] = facts.adapter_files
        self.vocabulary: int = facts.vocabulary

    @property
    def restarts(self) -> Sequence[int]:
        return self.workers.processes

    def count_starts(self, rank: int) -> int:
        """Return how often a worker has started without samples: a model that is split is loaded
        again by all of them.
        """
        return self._groups if self.is_split else self.workers.processes[rank]

    def close(self) -> None:
        self.workers.close()

    # Adapters

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        seed = secrets.randbits(31) if spec.seed is None else spec.seed
        self._make(adapter_id, Run(("create_adapter", attrs.evolve(spec, seed=seed))))

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        method = "unpack" if optimizer else "unpack_weights"
        return cast(
            "AdapterSpec",
            self._make(
                adapter_id, Run((method, replicas.AdapterState(files=_read_folder(directory))))
            ),
        )

    def _make(self, adapter_id: str, run: Run) -> Any:
        """Make or replace an adapter, which is left as it was if that is refused."""
        method, argument = run.restore
        made = self._retry(lambda: self.workers.call_all(method, adapter_id, argument))[0]
        self._runs[adapter_id] = run
        return made

    def drop_adapter(self, adapter_id: str) -> None:
        if self._runs.pop(adapter_id, None) is not None:
            self._retry(lambda: self.workers.call_all("drop_adapter", adapter_id))

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        run = self._run(adapter_id)
        state: replicas.AdapterState = self._retry(
            lambda: self.workers.call_one(0, "pack", adapter_id, optimizer), run
        )
        replicas.write_files(state.files, directory)
        if optimizer:
            run.restore, run.kept = ("unpack", state), run.steps

    def import_adapter(self, source: Path, spec: AdapterSpec, directory: Path) -> None:
        files = _read_folder(source)
        replicas.write_files(
            self._retry(lambda: self.workers.call_one(0, "convert", files, spec)), directory
        )

    def _run(self, adapter_id: str) -> Run:
        if adapter_id not in self._runs:
            raise EngineError(f"no adapter {adapter_id!r} on this server")
        run = self._runs[adapter_id]
        run.require_all_steps()
        return run

    # Training

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[protocol.TrainingExample],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> protocol.LossResult:
        run, loss = self._run(adapter_id), (data, loss_fn, dict(config))
        protocol.check_data(*loss, vocabulary=self.vocabulary, longest=self.max_context_length)
        try:
            result = self._retry(lambda: self._compute(adapter_id, loss, backward), run)
        except Exception:
            if backward:  # some may have added their share
                self._retry(lambda: self._rebuild(adapter_id, run))
            raise
        if backward:
            run.losses.append(loss)
        return result

    def _compute(self, adapter_id: str, loss: Loss, backward: bool) -> protocol.LossResult:
        data, *how = loss
        shares = replicas.split_data([len(datum.tokens) for datum in data], len(self.workers))
        results: list[protocol.LossResult] = require_all(
            self.workers.call(
                WorkerCall(
                    rank,
                    "add_share",
                    (adapter_id, share, [data[place] for place in share], *how, backward),
                )
                for rank, share in enumerate(shares)
                if share or self.is_split
            )
        )
        places = [place for share in shares for place in share]
        outputs = dict(
            zip(places, itertools.chain(*(result.outputs for result in results)), strict=True)
        )
        return protocol.LossResult(
            outputs=[outputs[place] for place in range(len(data))],
            metrics=replicas.merge_metrics([one.metrics for one in results]),
        )

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        run = self._run(adapter_id)
        protocol.check_step(params)
        run.begun = number = run.begun + 1
        try:
            metrics = self._take_step(adapter_id, run, params)
        except Exception:
            self._retry(lambda: self._settle(adapter_id, run))
            if run.steps < number:
                raise
            metrics = self._take_step(adapter_id, run, params)
        run.steps = number
        run.losses.clear()
        return metrics

    def _take_step(self, adapter_id: str, run: Run, params: Adam | Dimuon) -> replicas.StepMetrics:
        return cast(
            "replicas.StepMetrics",
            self._retry(
                lambda: self.workers.call_all("take_step", adapter_id, run.begun, params), run
            )[0],
        )

    def _settle(self, adapter_id: str, run: Run) -> None:
        """Make an adapter equal on all workers after a step failed: some may have taken it, or
        summed the gradients.
        """
        held: list[replicas.WorkerHoldings] = self.workers.call_all("find_held")
        self._restore(adapter_id, run, [one.steps.get(adapter_id, -1) for one in held])

    # Samples

    def snapshot(self, adapter_id: str) -> StoredWeights:
        run = self._run(adapter_id)
        state: replicas.AdapterState = self._retry(
            lambda: self.workers.call_one(0, "pack", adapter_id, False), run
        )
        return self._freeze(state.files)

    def load_snapshot(self, directory: Path) -> StoredWeights:
        return self._freeze(_read_folder(directory))

    def _freeze(self, files: replicas.Files) -> StoredWeights:
        weights = StoredWeights(next(self._numbers), files)
        released = [self._released.popleft() for _ in range(len(self._released))]
        self._retry(
            lambda: self.workers.call_all("freeze", weights.number, weights.files, released)
        )
        self._frozen[weights.number] = weights
        weakref.finalize(weights, self._released.append, weights.number)
        return weights

    def open_batch(self, limit: int) -> ReplicatedBatch:
        """Make an empty batch; each worker has one of this size."""
        return ReplicatedBatch(self, next(self._numbers), limit)

    # Workers that die

    def _retry(self, work: Callable[[], T], run: Run | None = None) -> T:
        """Do work, again after workers were lost. Raises StepsLost when that has cost the run
        steps.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return work()
            except replicas.WorkersLost as error:
                self.repair(error)
                if run is not None:
                    run.require_all_steps()
        try:
            return work()
        except replicas.WorkersLost as error:
            self.repair(error)
            raise replicas.WorkersLost(
                f"workers died in each of {ATTEMPTS} attempts: {error}"
            ) from error

    def repair(self, error: replicas.WorkersLost) -> None:
        """Replace the workers that do not answer, and all with Ray itself if it has no place for
        them.
        """
        for _ in range(ATTEMPTS):
            log.warning("a worker was lost, and is started again: %s", error)
            try:
                return self._replace_lost(everyone=isinstance(error, replicas.NoPlace))
            except replicas.WorkersLost as again:
                error = again
        raise error

    def _replace_lost(self, *, everyone: bool) -> None:
        ranks, answers = range(len(self.workers)), list[Any]()
        if everyone:
            self.workers.restart()
            lost = list(ranks)
        else:
            answers = self.workers.call(
                [WorkerCall(rank, "leave") for rank in ranks], ANSWER_SECONDS
            )
            lost = [rank for rank in ranks if isinstance(answers[rank], Exception)]
            for rank in lost:
                self.workers.replace(rank)
        self.workers.addresses()
        self._send(ranks, "describe")  # loads the model
        self._form_group()
        held: list[replicas.WorkerHoldings] = [
            replicas.WorkerHoldings() if rank in lost else answers[rank] for rank in ranks
        ]
        for weights in list(self._frozen.values()):
            without = [rank for rank in ranks if weights.number not in held[rank].frozen]
            self._send(without, "freeze", weights.number, weights.files, [])
        for adapter_id, run in self._runs.items():
            self._restore(adapter_id, run, [one.steps.get(adapter_id, -1) for one in held])

    def _send(self, ranks: Sequence[int], method: str, *arguments: Any) -> None:
        require_all(self.workers.call([WorkerCall(rank, method, arguments) for rank in ranks]))

    def _form_group(self) -> None:
        host, size = self.workers.addresses()[0], len(self.workers)
        port: int = self.workers.call_one(0, "meet", host)
        held: list[int] = require_all(
            self.workers.call(
                WorkerCall(rank, "join", (rank, size, host, port)) for rank in range(size)
            )
        )
        self._groups += 1
        log.info("%d workers hold %d MB of weights each", size, max(held) >> 20)

    def _restore(self, adapter_id: str, run: Run, held: Sequence[int]) -> None:
        """Make an adapter equal on all workers, which have it after ``held`` steps, -1 where they
        have none.
        """
        most = max(held)
        if most > run.steps:  # some of them have taken the step that was begun
            run.steps = most
            run.losses.clear()
        if most == run.steps:
            if behind := [rank for rank, steps in enumerate(held) if steps < most]:
                self._send(
                    behind,
                    "unpack",
                    adapter_id,
                    self.workers.call_one(held.index(most), "pack", adapter_id),
                )
        else:
            run.go_back()
            method, argument = run.restore
            self.workers.call_all(method, adapter_id, argument)
        self._rebuild(adapter_id, run)

    def _rebuild(self, adapter_id: str, run: Run) -> None:
        """Compute the gradient of a run again."""
        self.workers.call_all("clear_gradient", adapter_id)
        for loss in run.losses:
            self._compute(adapter_id, loss, backward=True)


def _read_folder(folder: Path) -> replicas.Files:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
