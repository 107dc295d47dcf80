"""Progress of a run: a bar or lines on the error stream, a line of JSON for each step, a log file,
a chart.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tinker.cli.options import GlobalOptions
from tinker.cli.output import Advance, format_metric, note, say, show_chart, show_json
from tinker.cli.training.recipes import StepResult

if TYPE_CHECKING:
    from tinker._session import Telemetry


class RunReport:
    """The progress of one run. ``log`` is an open file that also gets every line of JSON."""

    def __init__(
        self, options: GlobalOptions, metric: str, steps: int, log: TextIO | None = None
    ) -> None:
        self._options, self._steps, self._log = options, steps, log
        self.metric: str = metric
        self.facts: Mapping[str, Any] = {}
        self._advance: Advance | None = None
        self._telemetry: Telemetry | None = None
        self._begun = time.monotonic()
        self._tokens = 0
        # of each step, how many answers had another reward than others to their prompt
        self._learned: list[float] = []
        self.curve: list[tuple[float, float]] = []
        self.evaluations: list[tuple[float, float]] = []

    def begin(
        self,
        advance: Advance,
        facts: Mapping[str, Any],
        first: int,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Report the start. ``first`` is the number of steps that are done already. ``telemetry``
        sends metrics.
        """
        self._telemetry, self._advance, self._begun, self.facts = (
            telemetry,
            advance,
            time.monotonic(),
            facts,
        )
        self._record("start", {**facts, "steps": self._steps, "first_step": first + 1})
        advance(first)

    def add_step(self, done: int, learning_rate: float, result: StepResult) -> None:
        """Report a step, with the average speed so far."""
        self._tokens += result.tokens
        seconds = time.monotonic() - self._begun
        rate = self._tokens / seconds if seconds else 0.0
        value = result.metrics[self.metric]
        self._learned.append(result.metrics.get("learned", 1))
        self.curve.append((done, value))
        record = {
            "step": done,
            "steps": self._steps,
            **result.metrics,
            "learning_rate": learning_rate,
            "tokens": result.tokens,
        }
        self._record(
            "step", {**record, "tokens_per_second": round(rate, 1), "seconds": round(seconds, 3)}
        )
        self._send(done, {**result.metrics, "learning_rate": learning_rate})
        text = f"{self._describe(result.metrics)}, {rate:,.0f} tokens/s"
        if self._advance is not None:
            self._advance(done, description=text)
        if not sys.stderr.isatty():
            note(self._options, f"step {done}/{self._steps} {text}")

    def add_evaluation(self, done: int, metrics: Mapping[str, float]) -> None:
        """Report the loss on the evaluation file, and what else is measured there."""
        self.evaluations.append((done, metrics["loss"]))
        self._record("evaluation", {"step": done, **metrics})
        self._send(done, {f"evaluation {name}": value for name, value in metrics.items()})
        note(self._options, f"step {done}/{self._steps} evaluation {self._describe(metrics)}")

    def _describe(self, metrics: Mapping[str, float]) -> str:
        """Return the loss or the reward, and of pairs how they compare."""
        names = [name for name in (self.metric, "margin", "accuracy") if name in metrics]
        return ", ".join(f"{name} {format_metric(metrics[name])}" for name in names)

    def summarize_evaluations(self) -> list[tuple[str, str]]:
        """Return the property with the first, last and lowest loss on the evaluation file; nothing
        if there is none.
        """
        if not self.evaluations:
            return []
        at, least = min(self.evaluations, key=lambda one: one[1])
        first, last, best = (
            format_metric(loss) for loss in (self.evaluations[0][1], self.evaluations[-1][1], least)
        )
        return [("Evaluation loss", f"{first} -> {last} (best {best} after step {at:,.0f})")]

    def add_save(self, done: int, path: str) -> None:
        """Report a checkpoint."""
        self._record("save", {"step": done, "checkpoint_path": path})
        note(self._options, f"step {done}/{self._steps} saved {path}")

    def explain_resume(self, done: int, note: str, path: str | None) -> None:
        """Explain how to continue the run: from the checkpoint, if one is given."""
        how = "run the same command with --resume" if path is None else f"use --from {path}"
        say(f"Saved after step {done} of {self._steps}.{note} To continue, {how}.")

    def explain_divergence(self, saved: int, path: str | None) -> None:
        """Explain that the weights were not saved, and how to start again."""
        say("The weights were not saved. Run the command again with a lower --learning-rate.")
        if path is not None:
            say(
                f"To start from the checkpoint after step {saved}, if it is "
                f"good, add --from {path}."
            )

    def end(self, facts: Mapping[str, Any]) -> None:
        """Report the result as JSON. The caller prints the table."""
        self._record("result", facts)
        if self._learned and not any(self._learned):
            say("Nothing was learned: in every step, all answers to a prompt had the same reward.")

    def draw(self, file: Path, name: str) -> None:
        """Draw the curves into an SVG file and, where the output is for people, as text."""
        evaluations = {"evaluation": self.evaluations} if self.evaluations else {}
        show_chart(self._options, {self.metric: self.curve, **evaluations}, name, file)

    def _send(self, done: int, metrics: Mapping[str, float]) -> None:
        """Send metrics to the server's page."""
        if self._telemetry is not None:
            about = {"training_run_id": self.facts["training_run_id"], "step": done}
            self._telemetry.log("metrics", {**about, **metrics})

    def _record(self, kind: str, value: Mapping[str, Any]) -> None:
        """Write a line of JSON to the output and the log, and flush both."""
        record = {"type": kind, **value}
        if self._options.format == "json":
            show_json(record, indent=None)
            sys.stdout.flush()
        if self._log is not None:
            self._log.write(json.dumps(record, default=str) + "\n")
            self._log.flush()
