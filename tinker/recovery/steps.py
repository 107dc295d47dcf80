"""The loop over steps that goes back to the last save when the run is lost; for ``for`` and for
``async for``.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self, TypeAlias

from tinker._checks import check_count
from tinker._validate import check_name, read_ttl
from tinker.errors import copy_error
from tinker.futures import APIFuture, failure_of
from tinker.recovery.keeper import RunKeeper, SaveCall
from tinker.types.results import SaveWeightsResponse

# What the loop waits for: whoever drives it comes back when the future is done. It returns whether
# the run was lost.
Waits: TypeAlias = Generator[APIFuture[Any], None, bool]


class TrainingStep(int):
    """The number of a step, from 0, and the block in which the step is done.

    An error that leaves the block and means that the run is lost ends the block; after that, the
    loop continues with the first step that has to be repeated.
    """

    _loop: Steps

    @classmethod
    def of(cls, loop: Steps, number: int) -> Self:
        """Return a step of a loop.

        Args:
            loop: The loop.
            number: The number of the step.
        """
        step = cls(number)
        step._loop = loop
        return step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return isinstance(error, Exception) and _drive(self._loop.recover(error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return isinstance(error, Exception) and await _drive_async(self._loop.recover(error))


class Steps:
    """Iterator over steps; see :meth:`RecoveringTrainingClient.steps`."""

    def __init__(
        self,
        keeper: RunKeeper,
        save: Callable[[str, int | None], APIFuture[SaveWeightsResponse]],
        count: int,
        save_every: int,
        name: str,
        ttl_seconds: int | None,
    ) -> None:
        check_count("count", count, least=0)
        check_count("save_every", save_every)
        check_name(name)
        self._keeper, self._save_as = keeper, save
        self._count, self._save_every = count, save_every
        self._name, self._ttl_seconds = name, read_ttl(ttl_seconds)
        self._done = 0  # the steps whose body has run, without the lost ones
        self._offset = keeper.steps_done
        self._begun = self._rewound = False

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> TrainingStep:
        _drive(self._advance())
        if self._done >= self._count:
            raise StopIteration
        return TrainingStep.of(self, self._done)

    async def __anext__(self) -> TrainingStep:
        await _drive_async(self._advance())
        if self._done >= self._count:
            raise StopAsyncIteration
        return TrainingStep.of(self, self._done)

    def recover(self, error: BaseException) -> Waits:
        """Recover the run and go back to the first lost step, if the error means that; returns
        whether it does.

        Args:
            error: What a request failed with.
        """
        future = self._keeper.start(error, self)
        yield future
        recovery = self._keeper.finish(future)
        if recovery is None:
            return False
        self._done = recovery.step or 0
        self._rewound = True
        return True

    def _advance(self) -> Waits:
        """End the step before, and do what lies between it and the next one."""
        if not self._begun:
            return (yield from self._begin())
        if self._rewound:
            self._rewound = False
            return True
        if self._done >= self._count:
            return False
        self._done += 1
        is_boundary = self._done % self._save_every == 0 or self._done == self._count
        lost = (
            yield from self._save(f"{self._offset + self._done:06}")
            if is_boundary
            else self._look()
        )
        self._rewound = False
        return lost

    def _begin(self) -> Waits:
        """Save the state before the loop, unless it is saved. Failures of earlier calls are not the
        loop's.
        """
        self._begun = True
        if not self._keeper.adopt_last_save(self):
            save = self._call_save(f"{self._offset:06}-start")
            yield save
            save.result(0)
        for future in self._keeper.calls.tracked:
            if failure_of(future) is not None:
                self._keeper.calls.forget(future)
        return False

    def _look(self) -> Waits:
        """Recover if a failed request means that the run is lost; raise any other failure that was
        not read.
        """
        for future in self._keeper.calls.tracked:
            if (error := failure_of(future)) is None:
                continue
            if (yield from self.recover(error)):
                return True
            self._keeper.calls.forget(future)
            if not future.receipt.is_received:
                future.receipt.mark_received()
                raise copy_error(error)
        return False

    def _save(self, name: str) -> Waits:
        """Save and wait for all calls, then check for failures."""
        self._call_save(name)
        yield from self._keeper.calls.tracked
        lost = yield from self._look()
        if not lost:
            self._keeper.steps_done = self._offset + self._done
        return lost

    def _call_save(self, name: str) -> APIFuture[SaveWeightsResponse]:
        future = self._save_as(f"{self._name}-{name}", self._ttl_seconds)
        self._keeper.note_save(
            SaveCall(future=future, loop=self, step=self._done, user_metadata={})
        )
        return future


def _drive(waits: Waits) -> bool:
    try:
        while True:
            concurrent.futures.wait([next(waits)])
    except StopIteration as end:
        return bool(end.value)


async def _drive_async(waits: Waits) -> bool:
    try:
        while True:
            await next(waits).wait()
    except StopIteration as end:
        return bool(end.value)
