"""The metrics of a run by step, from a JSONL file of any program or from a local server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import tinker
from tinker.cli.clients import TRAIN, connect, find_run, send
from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions
from tinker.cli.reading import open_data, parse_line

if TYPE_CHECKING:
    from tinker._runtime import Runtime

#: Names of the step in a line; the first match counts. A line without one is the next step.
STEP_NAMES = (
    "step",
    "global_step",
    "progress/batch",
    "progress/step",
    "batch",
    "iteration",
    "_step",
)
TOTAL_NAMES = ("steps", "total_steps", "num_steps", "max_steps")
DONE_NAMES = ("progress/done_frac", "done_frac")
#: The default metric: the first of these that a run has, else the first whose name contains one of
#: the words.
PREFERRED = (
    "loss",
    "loss per token",
    "reward",
    "env/all/reward/total",
    "train_mean_nll",
    "train/loss",
)
PREFERRED_WORDS = ("reward", "loss", "nll")

LogLine: TypeAlias = dict[str, Any]
_ADVICE = (
    "A log has a JSON object of metrics on each line; `tinker train --log FILE.jsonl` writes one."
)


class MetricStep(NamedTuple):
    """The numbers of one step."""

    number: float
    metrics: Mapping[str, float]


class RunMetrics(NamedTuple):
    """The metrics of a run so far. ``records`` are the raw lines, for JSON; ``total`` None is an
    unknown number of steps.

    ``taken`` is the number of steps that are done.
    """

    name: str
    records: Sequence[LogLine]
    steps: Sequence[MetricStep]
    total: float | None = None
    has_ended: bool = False
    taken: int = 0

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """Return a metric by step; of a step that was taken again after a resume,
        the last value.
        """
        return sorted(
            {one.number: one.metrics[metric] for one in self.steps if metric in one.metrics}.items()
        )

    def names(self) -> list[str]:
        """Return the names of all metrics, in the order in which they first appear."""
        return list(dict.fromkeys(name for one in self.steps for name in one.metrics))

    def explain_missing(self, metric: str) -> str | None:
        """Return a message if the run lacks a metric, with those that it has; None otherwise, and
        for a run without steps.
        """
        names = self.names()
        if metric in names or not names:
            return None
        similar = [name for name in names if any(word in name for word in PREFERRED_WORDS)]
        return f"{self.name}: no metric {metric!r}; it has {', '.join(similar or names)}"


#: Reads the current metrics of a run.
MetricsReader: TypeAlias = Callable[[], RunMetrics]


def open_run(options: GlobalOptions, run: str) -> MetricsReader:
    """Return a reader of a run: a file of that name, else a run of the server, by its ID or name.

    CommandFailed where there is neither.
    """
    if Path(run).is_file():
        return lambda: _read_file(Path(run))
    if run.endswith((".jsonl", ".json", ".log")) or "/" in run:
        raise CommandFailed(f"There is no file {run}")
    runtime = connect(options)
    run_id = find_run(tinker.RestClient(runtime), run)
    return lambda: _read_live(runtime, run_id)._replace(name=run)


def choose_metric(runs: Iterable[RunMetrics], metric: str | None) -> str:
    """Return the metric to draw: the one given, else a loss or a reward, one of all runs first that
    is no sum over tokens.

    CommandFailed where no run has the one given.
    """
    each = [names for run in runs if (names := run.names())]
    names = list(dict.fromkeys(name for one in each for name in one))
    if metric is None:
        similar = [name for word in PREFERRED_WORDS for name in names if word in name]
        preferred = [*(name for name in PREFERRED if name in names), *similar]
        shared = [
            name
            for name in preferred
            if not name.endswith(":sum") and all(name in one for one in each)
        ]
        return next(iter([*shared, *preferred, *names]), "loss")
    if names and metric not in names:
        raise CommandFailed(
            f"No run has the metric {metric!r}", f"There are: {', '.join(sorted(names))}"
        )
    return metric


def _read_file(file: Path) -> RunMetrics:
    """Read a JSONL file; a line that is still being written is left out. CommandFailed for
    something else.
    """
    with open_data(file) as data:
        lines = [
            (number, line)
            for number, line in enumerate(data, start=1)
            if line.endswith(b"\n") and line.strip()
        ]
    records = [parse_line(file, number, line, _ADVICE) for number, line in lines]
    steps = _read_steps(records)
    if records and not steps and records[0].get("type") is None:
        raise CommandFailed(f"{file} is not a log of a run: its lines have no numbers", _ADVICE)
    totals = [
        total for record in records if (total := _find(_flatten(record), TOTAL_NAMES)) is not None
    ]
    last = records[-1] if records else {}
    has_ended = last.get("type") == "result" or (_find(_flatten(last), DONE_NAMES) or 0) >= 1
    return RunMetrics(
        str(file),
        records,
        steps,
        totals[-1] if totals else None,
        has_ended,
        len({one.number for one in steps}),
    )


def _read_steps(records: Iterable[LogLine]) -> list[MetricStep]:
    steps: list[MetricStep] = []
    for record in records:
        metrics = _flatten(record)
        if record.get("type", "step") == "step" and metrics:
            number = _find(metrics, STEP_NAMES)
            if number is None:
                number = steps[-1].number + 1 if steps else 1
            counters = (*STEP_NAMES, *TOTAL_NAMES)
            steps.append(
                MetricStep(
                    number, {name: value for name, value in metrics.items() if name not in counters}
                )
            )
    return steps


def _flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a record; those of an object inside are named ``object/number``."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= _flatten(cast("Mapping[str, Any]", value), f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = float(str(value))  # infinite where it has too many digits
    return found


def _find(metrics: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def _read_live(runtime: Runtime, run_id: str) -> RunMetrics:
    """Read the curves of a run from a local server. CommandFailed if the server keeps no curves, or
    none of this run.
    """
    facts = _fetch_overview(runtime, run_id)
    if not {"runs", "curves"} <= facts.keys():
        raise CommandFailed(
            f"There is no file {run_id!r}, and this server keeps no curves of its runs",
            "Only the local server of this package does. Give the JSONL file of "
            "metrics that your script writes.",
        )
    is_open = {str(one["id"]): one["state"] in ("open", "idle") for one in facts["runs"]}
    if run_id not in is_open:
        raise CommandFailed(
            f"There is no file {run_id!r}, and the server keeps no curve of such a run",
            "A server keeps the curves of a run while it runs. To keep them in a file, use `tinker "
            "train --log FILE`.",
        )
    metrics: dict[float, LogLine] = {}
    for name, points in facts["curves"].items():
        for number, value in points:
            metrics.setdefault(number, {})[name] = value
    records = [{"type": "step", "step": number, **metrics[number]} for number in sorted(metrics)]
    # What is reported for step 0 comes before the first one.
    return RunMetrics(
        run_id,
        records,
        _read_steps(records),
        None,
        not is_open[run_id],
        int(max(metrics, default=0)),
    )


def fetch_progress(runtime: Runtime, runs: Sequence[str]) -> dict[str, LogLine]:
    """Fetch the state, the steps and the latest metrics of runs from a local server; of those that
    it only keeps, the state.

    Other servers report nothing.
    """
    page: LogLine = {} if runtime.config.is_hosted else _fetch_overview(runtime)
    known = {
        str(one["id"]): {name: one[name] for name in ("state", "steps", "metrics")}
        for one in page.get("runs", ())
    }
    return {
        run: known.get(
            run, {"state": "ended" if TRAIN in run else "uploaded"} if "runs" in page else {}
        )
        for run in runs
    }


def _fetch_overview(runtime: Runtime, run_id: str | None = None) -> LogLine:
    """Fetch what the page of a local server shows, with the curves of one run; nothing where there
    is no such page.
    """
    from urllib.parse import urlencode

    from tinker_wire.runtime import Request

    from tinker._http import SUBMIT, is_absent

    query = "" if run_id is None else urlencode({"run": run_id, "whole": 1})
    request = Request[LogLine](
        operation="overview", method="GET", path="/overview", reply=dict[str, Any], query=query
    )
    try:
        return send(runtime, request, SUBMIT)
    except tinker.APIStatusError as error:
        if not is_absent(error):
            raise
        return {}
