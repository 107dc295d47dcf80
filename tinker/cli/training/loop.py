"""The steps of a run, in order: sent, waited for, reported; and the saves between them and where they end."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from tinker.cli.errors import INTERRUPTED, say
from tinker.cli.training.position import Position
from tinker.cli.training.stopping import watch_signals
from tinker.cli.training.supervised import mean_loss

if TYPE_CHECKING:
    from tinker.cli.training.plan import Plan
    from tinker.cli.training.position import Bookmark
    from tinker.cli.training.report import RunReport
    from tinker.cli.training.supervised import HeldOutLoss, SentBatch, StepResult
    from tinker.futures import APIFuture
    from tinker.training_client import TrainingClient
    from tinker.types import SaveWeightsResponse


class Sent(Protocol):
    """A step whose requests are sent."""

    def wait(self) -> StepResult:
        """Wait for the step."""
        ...

    def futures(self) -> Sequence[APIFuture[Any]]:
        """Return what is waited for."""
        ...


class Recipe(Protocol):
    """What the steps of a run are: their number, and how one is sent."""

    metric: str
    steps_ahead: int

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        ...

    def send(self, training: TrainingClient, step: int) -> Sent:
        """Send the requests of a step, counted from 0."""
        ...


class Cadence(NamedTuple):
    """How often, in steps, something is done; None: only at the end."""

    save: int | None = None
    evaluate: int | None = None

    def is_save_due(self, done: int) -> bool:
        """Return whether to save after so many steps."""
        return bool(self.save) and done % (self.save or 1) == 0

    def is_evaluation_due(self, done: int, steps: int) -> bool:
        """Return whether to evaluate after so many steps."""
        return done == steps or (bool(self.evaluate) and done % (self.evaluate or 1) == 0)


class _Pending(NamedTuple):
    """A step that is in flight, and what follows it."""

    step: int
    sent: Sent
    evaluation: Sequence[SentBatch] | None
    saving: APIFuture[SaveWeightsResponse] | None


class Loop:
    """One run, from its first step or from where it was left."""

    def __init__(
        self,
        plan: Plan,
        recipe: Recipe,
        training: TrainingClient,
        report: RunReport,
        bookmark: Bookmark,
        cadence: Cadence,
        evaluation: HeldOutLoss | None = None,
    ) -> None:
        self._plan, self._recipe, self._training = plan, recipe, training
        self._report, self._bookmark, self._cadence, self._evaluation = report, bookmark, cadence, evaluation
        self._ahead: deque[_Pending] = deque()
        self._done = self._saved = 0
        self._path: str | None = None  # of the last checkpoint

    def run(self, first: int) -> None:
        """Take the steps from ``first`` on. A signal or a failure ends them early, after a save; Exit, or the failure."""
        self._done = self._saved = first
        with watch_signals() as stop:
            try:
                if first == 0:
                    self._evaluate_at_first()
                for step in range(first, self._recipe.steps):
                    if stop.is_made:
                        break
                    self._send(step)
                    self._finish_all_but(self._recipe.steps_ahead)
                self._finish_all_but(0)
            except KeyboardInterrupt:
                self._tell_resume()
                raise
            except Exception as error:
                if _has_diverged(error):
                    self._receive_rest()
                    self._report.tell_diverged(self._saved, self._path)
                else:
                    self._save_after_failure()
                raise
            if stop.is_made and self._done < self._recipe.steps:
                self._save()
                self._tell_resume()
                raise click.exceptions.Exit(INTERRUPTED if stop.signal_number == signal.SIGINT else 128 + signal.SIGTERM)

    def _evaluate_at_first(self) -> None:
        if self._evaluation is not None:
            self._report.add_evaluation(0, mean_loss(self._evaluation.send(self._training)))

    def _send(self, step: int) -> None:
        sent, evaluation, saving, done = self._recipe.send(self._training, step), None, None, step + 1
        if not self._recipe.steps_ahead:  # what follows would go before the requests that such a step sends last
            self._ahead.append(_Pending(step, sent, None, None))
            return
        if self._evaluation is not None and self._cadence.is_evaluation_due(done, self._recipe.steps):
            evaluation = self._evaluation.send(self._training)
        if self._cadence.is_save_due(done) and done < self._recipe.steps:
            saving = self._training.save_state(self._name(done))
        self._ahead.append(_Pending(step, sent, evaluation, saving))

    def _finish_all_but(self, count: int) -> None:
        while len(self._ahead) > count:
            self._finish(self._ahead[0])
            self._ahead.popleft()

    def _finish(self, pending: _Pending) -> None:
        result = pending.sent.wait()
        self._done = pending.step + 1
        self._report.add_step(self._done, self._plan.learning_rate_at(pending.step, self._recipe.steps), result)
        if pending.evaluation is not None:
            self._report.add_evaluation(self._done, mean_loss(pending.evaluation))
        if pending.saving is not None:
            self._keep(self._done, pending.saving.result().path)
        elif not self._recipe.steps_ahead and self._cadence.is_save_due(self._done) and self._done < self._recipe.steps:
            self._save()

    def _name(self, done: int) -> str:
        return f"{self._plan.name}-{done:06d}"

    def _save(self) -> None:
        if self._done > self._saved:
            self._keep(self._done, self._training.save_state(self._name(self._done)).result().path)

    def _keep(self, done: int, path: str) -> None:
        self._saved, self._path = done, path
        self._bookmark.write(self._plan, Position(done, path, self._recipe.steps))
        self._report.add_save(done, path)

    def _tell_resume(self, note: str = "") -> None:
        if self._saved:
            self._report.tell_resume(self._saved, note)

    def _save_after_failure(self) -> None:
        """Receive what else failed, save what was learned, and say how to go on. A failure of the save is told, not raised."""
        from tinker.errors import TinkerError

        is_exact = not self._receive_rest()
        try:
            self._save()
        except TinkerError as error:
            click.echo(f"The weights could not be saved: {say(error)}", err=True)
        self._tell_resume("" if is_exact else " A later step is partly in the checkpoint.")

    def _receive_rest(self) -> bool:
        """Wait for what was sent after the step that failed; whether the optimizer took a step all the same."""
        was_applied = False
        for pending in self._ahead:
            rest: list[APIFuture[Any]] = [future for _, future in pending.evaluation or ()]
            rest += [pending.saving] if pending.saving else []
            failures = [future.exception() for future in (*rest, *pending.sent.futures())]
            was_applied |= bool(self._recipe.steps_ahead) and failures[-1] is None
        self._ahead.clear()
        return was_applied


def _has_diverged(error: Exception) -> bool:
    """Return whether the server says that the weights are no longer numbers to train; saving them would help nobody."""
    from tinker.errors import RequestFailedError

    return isinstance(error, RequestFailedError) and "diverged" in str(error)
