"""``tinker.progress``: wait for futures with a progress bar, in threads and asyncio."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, as_completed
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, cast, overload

from tinker._loop import get_waiting_loop

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class FutureProgress(Generic[T_co]):
    """The results of futures, with a progress bar. Iterate over it, call :meth:`results`, or await
    it.
    """

    def __init__(
        self, futures: Iterable[Future[Any] | Awaitable[Any]], description: str, file: Any = None
    ) -> None:
        self._futures: Sequence[Any] = list(futures)
        for position, one in enumerate(self._futures):
            if not _is_future(one) and not isinstance(one, Awaitable):
                got = type(one).__name__
                raise TypeError(
                    f"futures[{position}] must be a future, such as that of sample(...), got {got}"
                )
        self._description = description
        self._file = file

    def __len__(self) -> int:
        return len(self._futures)

    def __iter__(self) -> Generator[T_co]:
        """Yield each result as soon as it is available, in the order of the futures. The bar counts
        all that are done.
        """
        self._check_blocking()
        with self._bar() as step:
            for future in self._futures:
                future.add_done_callback(step)
            for future in self._futures:
                yield cast("T_co", future.result())

    def results(self, timeout: float | None = None) -> list[T_co]:
        """Block until all futures are done, and return the results in the order of the futures.

        Args:
            timeout: The longest time to wait in seconds; None waits forever.

        Returns:
            The results.

        Raises:
            TimeoutError: The timeout expired.
            TinkerError: A future failed. The first error is raised at once.
        """
        self._check_blocking()
        with self._bar() as step:
            for future in as_completed(self._futures, timeout):
                future.result()
                step()
        return [future.result() for future in self._futures]

    def __await__(self) -> Generator[Any, None, list[T_co]]:
        return self._gather().__await__()

    async def _gather(self) -> list[T_co]:
        async def wait(future: Any, step: Callable[[], object]) -> T_co:
            result: T_co = await _awaitable(future)
            step()
            return result

        get_waiting_loop()
        with self._bar() as step:
            return list(await asyncio.gather(*(wait(future, step) for future in self._futures)))

    async def __aiter__(self) -> AsyncGenerator[T_co]:
        """Yield the results in the order of the futures, as ``for`` does, without blocking the
        event loop.
        """
        own = {
            at: asyncio.ensure_future(one, loop=get_waiting_loop())
            for at, one in enumerate(self._futures)
            if not _is_future(one)
        }
        futures = [own.get(at, one) for at, one in enumerate(self._futures)]
        try:
            with self._bar() as step:
                for future in futures:
                    future.add_done_callback(step)
                for future in futures:
                    yield await _awaitable(future)
        finally:
            for task in own.values():  # of an iteration that was left early
                task.cancel()

    def _check_blocking(self) -> None:
        for position, one in enumerate(self._futures):
            if not _is_future(one):
                raise TypeError(
                    f"futures[{position}] is a {type(one).__name__}, which only "
                    "`await` and `async for` can run: pass futures, such as of sample(...) "
                    "without _async"
                )

    @contextmanager
    def _bar(self) -> Generator[Callable[..., object]]:
        with ExitStack() as stack:
            advance = _open_bar(
                stack, len(self._futures), self._description, self._file or sys.stderr
            )
            lock = threading.Lock()

            def step(*_: object) -> None:  # the loop thread calls it, and the waiting one
                with lock:
                    advance()

            yield step


def _is_future(one: object) -> bool:
    return hasattr(one, "add_done_callback")


def _awaitable(future: Any) -> Awaitable[Any]:
    return future if hasattr(future, "__await__") else asyncio.wrap_future(future)


@overload
def progress(futures: Iterable[Future[T]], description: str = "") -> FutureProgress[T]: ...
@overload
def progress(futures: Iterable[Awaitable[T]], description: str = "") -> FutureProgress[T]: ...
def progress(
    futures: Iterable[Future[T]] | Iterable[Awaitable[T]], description: str = ""
) -> FutureProgress[T]:
    """Wait for many futures with a progress bar on standard error. Without a terminal or notebook,
    no bar is shown.

    In a notebook, tqdm draws the bar if it is installed; otherwise rich does.

    Args:
        futures: The futures, of this package or any ``concurrent.futures.Future``. If you use
            ``await`` or ``async for``, they may be coroutines.
        description: The text before the bar.

    Returns:
        An object with the results in order: iterate over it with ``for`` or ``async for``, call
        ``results()``, or await it.

    Raises:
        TypeError: An item is not a future, or is a coroutine that a blocking wait cannot run. The
            message names its position.

    >>> import tinker
    >>> sampler = tinker.ServiceClient(base_url="local://toy").create_sampling_client(
    ...     base_model="tinker/toy"
    ... )
    >>> prompt, params = tinker.ModelInput.from_ints([1, 2]), tinker.SamplingParams(max_tokens=2)
    >>> futures = [sampler.sample(prompt, 1, params) for _ in range(20)]
    >>> responses = tinker.progress(futures, "Sampling").results(timeout=60)
    >>> len(responses)
    20
    """
    return FutureProgress(futures, description)


def _is_notebook() -> bool:
    """Return whether this process runs a notebook. Importing ipykernel is not enough."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__module__.startswith("ipykernel")


def _open_bar(stack: ExitStack, total: int, description: str, file: Any) -> Callable[[], object]:
    if _is_notebook() and find_spec("tqdm") is not None:
        bar = import_module("tqdm.auto").tqdm(total=total, desc=description or None)
        stack.callback(bar.close)
        return partial(bar.update, 1)
    if not file.isatty():
        return lambda: None
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    shown = stack.enter_context(Progress(*columns, console=Console(file=file)))
    return partial(shown.advance, shown.add_task(description, total=total))
