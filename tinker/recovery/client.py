"""RecoveringTrainingClient: a training client whose run is created again from a checkpoint when it
is lost.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping

from tinker._checks import check_function, check_kind
from tinker._training import TrainingRun
from tinker.futures import APIFuture
from tinker.recovery.keeper import RecoveryNews, RunKeeper, SaveCall
from tinker.recovery.policy import Recovery, RecoveryFailedError, RecoveryPolicy, SavePoint
from tinker.recovery.steps import Steps
from tinker.training_client import TrainingClient
from tinker.types.results import SaveWeightsResponse


class RecoveringTrainingClient(TrainingClient):
    """A training client that continues from the last checkpoint in a new run if the server loses
    its run.

    It takes over a new training client, and stays the same object whatever happens to the run. A
    run counts as lost if the server was restarted, does not know the run or its session, has marked
    the run as corrupted, or failed in a way that leaves its state unknown. Nothing runs in the
    background: the next request notices the loss.

    :meth:`steps` is a training loop that repeats exactly what was lost. In your own loop, call
    :meth:`recover` with the error, and repeat what you did after the save that it names.

    Args:
        training: A training client; do not use it any more yourself.
        policy: How often to try, and from which checkpoint; None means ``RecoveryPolicy()``.
        on_recovery: Optional. A function called with each :class:`Recovery`, on the thread of the
            loop.
        on_failure: Optional. A function called with the RecoveryFailedError before it is raised.

    Raises:
        TypeError: An argument of the wrong kind.

    >>> import tinker
    >>> service = tinker.ServiceClient(base_url="local://toy")
    >>> client = RecoveringTrainingClient(
    ...     service.create_lora_training_client("tinker/toy", rank=4, seed=1)
    ... )
    >>> for step in client.steps(4, save_every=2):
    ...     with step:
    ...         done = client.optim_step(tinker.AdamParams()).result(timeout=30)
    >>> [save.step for save in client.saves]
    [2, 4]
    """

    def __init__(
        self,
        training: TrainingClient,
        policy: RecoveryPolicy | None = None,
        *,
        on_recovery: Callable[[Recovery], object] | None = None,
        on_failure: Callable[[RecoveryFailedError], object] | None = None,
    ) -> None:
        check_kind("training", training, TrainingClient)
        if isinstance(training, RecoveringTrainingClient):
            raise TypeError(
                "training must be a client that a service client made, got a "
                f"{type(training).__name__}"
            )
        chosen = RecoveryPolicy() if policy is None else policy
        check_kind("policy", chosen, RecoveryPolicy)
        check_function("on_recovery", on_recovery)
        check_function("on_failure", on_failure)
        self._keeper = RunKeeper(training._run, self._use, chosen, on_recovery, on_failure)
        super().__init__(training._run)

    def _use(self, run: TrainingRun) -> None:
        self._run, self._ready = run, run.created

    @property
    def saves(self) -> list[SavePoint]:
        """Return the checkpoints that the run can be recovered from, in the order in which they
        were saved.
        """
        return self._keeper.saves()

    def steps(
        self,
        count: int,
        *,
        save_every: int = 10,
        name: str = "step",
        ttl_seconds: int | None = None,
    ) -> Steps:
        """Iterate over the numbers of steps, 0 to ``count - 1``, and repeat the steps lost with a
        run.

        After every ``save_every`` steps, and after the last one, the loop waits for the results of
        all requests and saves. When a request says that the run is lost, the run is recovered, and
        the loop continues after the step of the save.

        Use it with ``for``, or with ``async for`` in a coroutine. A body that looks at results is a
        block of the step, ``with step:`` or ``async with step:``: an error that means a loss ends
        the block, and not the loop. The failure of a request whose future you did not look at is
        raised by the loop, no later than at the next save.

        Args:
            count: The number of steps.
            save_every: The number of steps from one save to the next, 1 or more.
            name: The checkpoints are called by it and the number of steps done: ``step-000010``.
            ttl_seconds: Seconds until a checkpoint expires, an hour to ten years; None keeps it
                forever.

        Returns:
            An iterator of steps, which are numbers.

        Raises:
            TypeError: A value is not a number.
            ValueError: A number is out of its range, or a name cannot be one.
            RecoveryFailedError: From the loop, when the run could not be recovered.
        """
        return Steps(self._keeper, super().save_state, count, save_every, name, ttl_seconds)

    def recover(self, error: BaseException) -> Recovery:
        """Put a new run in the place of a lost one, and block until it is there.

        Several threads may call it; a loss is recovered once. An error of a run that was replaced
        before changes nothing, and returns the recovery that the present run comes from.

        Args:
            error: The error of a request of this client, or of a sampler that was made of it.

        Returns:
            What was lost: repeat what you did after its ``save``.

        Raises:
            RecoveryFailedError: No attempt is left.
            BaseException: The error itself, when it does not mean that the run is lost.
        """
        future = self._keeper.start(error)
        concurrent.futures.wait([future])
        return self._end(future, error)

    async def recover_async(self, error: BaseException) -> Recovery:
        """Await what :meth:`recover` returns."""
        future = self._keeper.start(error)
        await future.wait()
        return self._end(future, error)

    def _end(self, future: APIFuture[RecoveryNews], error: BaseException) -> Recovery:
        recovery = self._keeper.finish(future)
        if recovery is None:
            raise error
        return recovery

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: Mapping[str, str] | None = None,
        *,
        keep_last: int | None = None,
    ) -> APIFuture[SaveWeightsResponse]:
        """Save the weights and the optimizer state under a name, as TrainingClient does, as
        something to recover from.

        Args:
            name: The last part of the checkpoint's path, without ``/``.
            ttl_seconds: Seconds until the checkpoint expires, an hour to ten years; None keeps it
                forever.
            overwrite: Whether to replace a checkpoint of the same name; otherwise the future fails
                with ConflictError.
            user_metadata: Text by name, stored with the checkpoint and part of its
                :class:`SavePoint`. Optional.
            keep_last: How many checkpoints of this run and kind to keep. None keeps all.

        Returns:
            A future whose result has the ``path``.

        Raises:
            ValueError: At once, for an invalid name or time.
        """
        future = super().save_state(
            name, ttl_seconds, overwrite, user_metadata, keep_last=keep_last
        )
        self._keeper.note_save(
            SaveCall(future=future, loop=None, step=None, user_metadata=dict(user_metadata or {}))
        )
        return future
