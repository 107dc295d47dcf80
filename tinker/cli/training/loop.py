"""The loop over the steps of a run: send, wait, report and save, with a clean exit on signals and
failures.

The first Ctrl-C or SIGTERM stops the loop after the steps that were sent; the second one exits at
once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import click

import tinker
from tinker.cli.errors import INTERRUPTED, read_message
from tinker.cli.output import say
from tinker.cli.training.plan import Bookmark, Plan, Position, RunOptions
from tinker.cli.training.recipes import Recipe, Sent, StepResult
from tinker.cli.training.report import RunReport

_NOTICE = b"\nWaiting for the steps already sent, then saving. Ctrl-C again stops at once.\n"


@dataclass
class _Pending:
    """A step in flight, with the evaluation and the save that follow it."""

    done: int
    sent: Sent[StepResult]
    evaluation: Sent[dict[str, float]] | None = None
    saving: tinker.APIFuture[tinker.types.SaveWeightsResponse] | None = None


@dataclass
class Loop:
    """The loop of one run, from its first step or from a checkpoint."""

    _plan: Plan
    _options: RunOptions
    _recipe: Recipe
    _training: tinker.TrainingClient
    _report: RunReport
    _bookmark: Bookmark
    _origin: str | None  # the checkpoint that the run started from
    _ahead: deque[_Pending] = field(default_factory=lambda: deque[_Pending](), init=False)
    _done: int = field(default=0, init=False)
    _saved: int = field(default=0, init=False)
    _path: str | None = field(default=None, init=False)  # of the last checkpoint

    def run(self, first: int) -> None:
        """Take the steps from ``first`` on. On a signal or a failure, save first; then raise Exit
        or the failure.
        """
        self._done = self._saved = first
        with _watch_signals() as stop:
            try:
                self._take_steps(first, stop)
            except KeyboardInterrupt:
                self._explain_resume()
                raise
            except Exception as error:
                if isinstance(error, tinker.RequestFailedError) and "diverged" in str(error):
                    self._receive_rest()
                    self._report.explain_divergence(self._saved, self._path)
                else:
                    self._save_after_failure()
                raise
            if stop.signal_number is not None and self._done < self._recipe.steps:
                self._save()
                self._explain_resume()
                raise click.exceptions.Exit(
                    INTERRUPTED if stop.signal_number == signal.SIGINT else 128 + signal.SIGTERM
                )

    def _take_steps(self, first: int, stop: _StopRequest) -> None:
        if first == 0 and (evaluation := self._recipe.evaluate(self._training)) is not None:
            self._report.add_evaluation(0, evaluation.wait())
        for step in range(first, self._recipe.steps):
            if stop.signal_number is not None:
                break
            pending = _Pending(step + 1, self._recipe.send(self._training, step))
            if self._recipe.steps_ahead:
                self._send_rest(pending)
            self._ahead.append(pending)
            self._finish_all_but(self._recipe.steps_ahead)
        self._finish_all_but(0)

    def _send_rest(self, pending: _Pending) -> None:
        """Send the evaluation and the save that are due after a step."""
        done, is_last = pending.done, pending.done == self._recipe.steps
        if is_last or _is_due(done, self._options.eval_every):
            pending.evaluation = self._recipe.evaluate(self._training)
        # the end of the run is saved anyway
        if not is_last and _is_due(done, self._options.save_every):
            pending.saving = self._save_state(done)

    def _finish_all_but(self, count: int) -> None:
        while len(self._ahead) > count:
            self._finish(self._ahead[0])
            self._ahead.popleft()

    def _finish(self, pending: _Pending) -> None:
        result = pending.sent.wait()
        self._done = pending.done
        self._report.add_step(
            self._done, self._plan.learning_rate_at(self._done - 1, self._recipe.steps), result
        )
        if not self._recipe.steps_ahead:
            self._send_rest(pending)
        if pending.evaluation is not None:
            self._report.add_evaluation(self._done, pending.evaluation.wait())
        if pending.saving is not None:
            self._keep(self._done, pending.saving.result().path)

    def _save_state(self, done: int) -> tinker.APIFuture[tinker.types.SaveWeightsResponse]:
        return self._training.save_state(
            f"{self._plan.name}-{done:06d}", keep_last=self._options.keep_last
        )

    def _save(self) -> None:
        if self._done > self._saved:
            self._keep(self._done, self._save_state(self._done).result().path)

    def _keep(self, done: int, path: str) -> None:
        self._saved, self._path = done, path
        self._bookmark.write(self._plan, Position(done, path, self._recipe.steps, self._origin))
        self._report.add_save(done, path)

    def _explain_resume(self, note: str = "") -> None:
        if self._saved:
            self._report.explain_resume(
                self._saved, note, None if self._bookmark.can_resume else self._path
            )

    def _save_after_failure(self) -> None:
        """Wait for the other requests, save the run, and explain how to continue. A failed save is
        printed, not raised.
        """
        is_exact = not self._receive_rest()
        try:
            self._save()
        except tinker.TinkerError as error:
            say(f"The weights could not be saved: {read_message(error)}")
        self._explain_resume("" if is_exact else " A later step is partly in the checkpoint.")

    def _receive_rest(self) -> bool:
        """Wait for all requests in flight; return whether the optimizer took a step after the one
        that failed.
        """
        was_applied = False
        for pending in self._ahead:
            rest = [*(pending.evaluation.futures if pending.evaluation else ())]
            rest += [pending.saving] if pending.saving else []
            failures = [future.exception() for future in (*rest, *pending.sent.futures)]
            was_applied |= bool(self._recipe.steps_ahead) and failures[-1] is None
        self._ahead.clear()
        return was_applied


def _is_due(done: int, every: int | None) -> bool:
    return every is not None and done % every == 0


class _StopRequest:
    """The first signal that was received, if any."""

    signal_number: int | None = None

    def take(self, number: int, _: FrameType | None) -> None:
        """Store the signal; raise KeyboardInterrupt for a second one."""
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number
        os.write(2, _NOTICE)  # not print: the handler may have interrupted one


@contextmanager
def _watch_signals() -> Generator[_StopRequest]:
    """Store signals during the block instead of exiting. Only the main thread receives signals."""
    request = _StopRequest()
    numbers = (
        (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is threading.main_thread()
        else ()
    )
    before = {number: signal.signal(number, request.take) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
