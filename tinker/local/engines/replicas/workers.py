"""Worker processes as Ray actors: where they run, calls to all of them, and new ones in the place
of those that died.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from tinker._installation import install_command
from tinker.local.engines.opening import Placement
from tinker.local.engines.replicas.messages import NoPlace, WorkersLost

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
        """WorkerCall a method of the worker."""
        if self._worker is None:
            from tinker.local.engines.replicas.worker import ReplicaWorker

            self._worker = ReplicaWorker(self._model, self._placement, self._threads)
        return getattr(self._worker, method)(*arguments)

    def address(self) -> str:
        """Return the address of its machine."""
        address: str = ray.util.get_node_ip_address()
        return address


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
        """WorkerCall all of them alike; raises the first failure."""
        return require_all(
            self.call(WorkerCall(rank, method, arguments) for rank in range(len(self)))
        )

    def call_one(self, rank: int, method: str, *arguments: Any) -> Any:
        """WorkerCall one of them; raises its failure."""
        return require_all(self.call([WorkerCall(rank, method, arguments)]))[0]

    def addresses(self) -> list[str]:
        """Return the address of the machine of each worker, once all are placed. Raises NoPlace if
        one is not.
        """
        try:
            return require_all(
                _finish([actor.address.remote() for actor in self._actors], ANSWER_SECONDS)
            )
        except WorkersLost as error:
            raise NoPlace(str(error)) from error

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
        return WorkersLost(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")


def require_all(outcomes: Sequence[Any]) -> list[Any]:
    """Return the results of calls. Raises WorkersLost if any is lost, else the first failure."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for failure in sorted(failures, key=lambda one: not isinstance(one, WorkersLost)):
        raise failure
    return list(outcomes)


def _start_ray(address: str | None) -> None:
    """Join a cluster, or start Ray on this machine. Raises OSError where there is none at the
    address.
    """
    try:
        if address is None:
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        else:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError) as error:
        raise OSError(f"Ray cannot be reached at {address or 'this machine'}: {error}") from error
