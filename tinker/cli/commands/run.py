"""``tinker run``: training runs, their metrics by step, and curves of them."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, cast

import click

import tinker
from tinker._basics.shown import clean
from tinker.cli import clients, output
from tinker.cli.clients import RESUMED, TRAIN, Listing
from tinker.cli.options import (
    AccessScopeOption,
    ChartFile,
    GlobalOptions,
    Natural,
    OffsetOption,
    Option,
    PricesOption,
    command,
)
from tinker.cli.output import CommandFailed
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
    runtime = clients.connect(options)
    run_id = clients.find_run(tinker.RestClient(runtime), run)
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

    from tinker._http.retry import SUBMIT, is_absent

    query = "" if run_id is None else urlencode({"run": run_id, "whole": 1})
    request = Request[LogLine](
        operation="overview", method="GET", path="/overview", reply=dict[str, Any], query=query
    )
    try:
        return clients.send(runtime, request, SUBMIT)
    except tinker.APIStatusError as error:
        if not is_absent(error):
            raise
        return {}


_POLL_SECONDS = 1.0


@command(
    "tinker run watch log.jsonl",
    "tinker run watch metrics.jsonl --metric env/all/reward/total",
    "tinker --base-url http://localhost:8000 run watch RUN_ID --once",
)
def watch(
    options: GlobalOptions,
    run: Annotated[str, click.STRING],  # or a file, whose name may be any bytes
    metric: Annotated[str | None, Option("Metric to plot. Default: a loss or a reward.")] = None,
    once: Annotated[bool, Option("Show the current state and exit.")] = False,
) -> None:
    """Follow a RUN until it ends: a JSONL file of metrics, or the ID or name of a run on a local
    server.

    The file comes from `tinker train --log` or from any script that writes one JSON object of
    numbers per line. The step is `step`, `progress/batch` or similar, else the line number. On a
    terminal the curve is redrawn every second; in a pipe each step is one line. Ctrl-C stops
    watching; the run continues.
    """
    read = open_run(options, run)
    if options.format == "table" and sys.stdout.isatty():
        _draw_live(read, metric, once)
    else:
        _print_steps(options, read, metric, once)


def _print_steps(
    options: GlobalOptions, read: MetricsReader, metric: str | None, once: bool
) -> None:
    """Print the new steps, one per line; as JSON the new records."""
    shown = printed = 0
    for now in _follow(read, once):
        if options.format == "json":
            for record in now.records[shown:]:
                click.echo(json.dumps(record))
        else:
            name = choose_metric([now], metric)
            for one in now.steps[printed:]:
                output.show_lines(_describe(now, one, name))
            if once and not now.steps:
                output.say(f"{now.name} has no steps yet")
        sys.stdout.flush()
        shown, printed = len(now.records), len(now.steps)


def _describe(run: RunMetrics, step: MetricStep, metric: str) -> str:
    total = "" if run.total is None else f"/{run.total:g}"
    value = (
        f"{metric} {output.format_metric(step.metrics[metric])}"
        if metric in step.metrics
        else f"without {metric}"
    )
    return f"step {step.number:g}{total} {value}"


def _follow(read: MetricsReader, once: bool) -> Iterator[RunMetrics]:
    """Yield the run every second until it has ended."""
    while True:
        now = read()
        yield now
        if now.has_ended or once:
            return
        time.sleep(_POLL_SECONDS)


def _draw_live(read: MetricsReader, metric: str | None, once: bool) -> None:
    from rich.live import Live
    from rich.text import Text

    is_ascii = output.is_ascii_only()  # Live replaces the output by a stream that has no encoding
    with Live(auto_refresh=False) as live:
        for now in _follow(read, once):
            name = choose_metric([now], metric)
            title = (
                f"{now.name}: "
                f"{_describe(now, now.steps[-1], name) if now.steps else 'no steps yet'}"
            )
            live.update(
                Text(f"{clean(title)}\n{output.chart_text({name: now.curve(name)}, is_ascii)}"),
                refresh=True,
            )


@command(
    "tinker run compare rank8.jsonl rank32.jsonl",
    "tinker run compare *.jsonl --metric reward --plot rewards.svg",
    "tinker --base-url http://localhost:8000 run compare RUN_ID ANOTHER_ID",
)
def compare(
    options: GlobalOptions,
    runs: Annotated[tuple[str, ...], click.STRING],
    metric: Annotated[str | None, Option("Metric to compare. Default: a loss or a reward.")] = None,
    plot: ChartFile = None,
) -> None:
    """Compare RUNS in a table with one row per run, and plot their curves together.

    Each run is a file, an ID or a name, as in `tinker run watch`.
    """
    read = [open_run(options, run)() for run in runs]
    name = choose_metric(read, metric)
    rows = [_summarize(run, name) for run in read]

    def table() -> None:
        has_speed = any(row["tokens_per_second"] is not None for row in rows)
        columns = ["Log", "Steps", "First", "Best", "Last", *(["Tokens/s"] if has_speed else [])]
        cells = [
            ["" if cell is None else cell for cell in row.values()][: len(columns)] for row in rows
        ]
        output.show_table(columns, cells, name)
        for message in filter(None, (run.explain_missing(name) for run in read)):
            output.say(message)

    output.show(options, {"metric": name, "runs": rows}, table)
    output.show_chart(options, {run.name: run.curve(name) for run in read}, name, plot)


def _summarize(run: RunMetrics, metric: str) -> dict[str, Any]:
    values = [round(value, 6) for _, value in run.curve(metric)]
    return {
        "log": run.name,
        "steps": run.taken,
        "first": values[0] if values else None,
        "best": (max if any(word in metric for word in ("reward", "margin", "accuracy")) else min)(
            values, default=None
        ),
        "last": values[-1] if values else None,
        "tokens_per_second": run.steps[-1].metrics.get("tokens_per_second") if run.steps else None,
    }


PAGE = 100


class _ListedRun(NamedTuple):
    """A run, and what the local server tells of its progress: state, steps and metrics, all missing
    elsewhere.
    """

    run: tinker.types.TrainingRun
    progress: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {**self.run.model_dump(), **self.progress}

    @property
    def name(self) -> str:
        metadata = self.run.user_metadata or {}
        return " ".join(
            [*filter(None, [metadata.get("name")]), *(["(resumed)"] if RESUMED in metadata else [])]
        )

    @property
    def rank(self) -> str:
        known = self.run.is_lora and self.run.lora_rank is not None
        return f"Rank {self.run.lora_rank}" if known else output.format_value(self.run.is_lora)

    @property
    def loss(self) -> str:
        loss = self.progress.get("metrics", {}).get("loss per token")
        return "" if loss is None else output.format_metric(loss)

    @property
    def status(self) -> str:
        return "failed" if self.run.corrupted else self.progress.get("state", "ok")


#: A title, and the cell of one run.
_Column: TypeAlias = tuple[str, Callable[[_ListedRun], object]]
COLUMNS: Mapping[str, _Column] = {
    "id": ("Run ID", lambda one: one.run.training_run_id),
    "name": ("Name", lambda one: one.name),
    "model": ("Base Model", lambda one: one.run.base_model),
    "owner": ("Owner", lambda one: one.run.model_owner),
    "lora": ("LoRA", lambda one: one.rank),
    "steps": ("Steps", lambda one: one.progress.get("steps", "")),
    "loss": ("Loss", lambda one: one.loss),
    "updated": ("Last Update", lambda one: one.run.last_request_time),
    "status": ("Status", lambda one: one.status),
    "checkpoint": (
        "Last Checkpoint",
        lambda one: one.run.last_checkpoint and one.run.last_checkpoint.checkpoint_id,
    ),
    "checkpoint_time": (
        "Checkpoint Time",
        lambda one: one.run.last_checkpoint and one.run.last_checkpoint.time,
    ),
}
DEFAULT_COLUMNS = "id, name, model, lora, steps, loss, updated, status"
_IF_KNOWN = ("name", "steps", "loss")  # of the default columns, those shown if a run has one
_OPTIONAL = ("LoRA", "Last Update", "Base Model", "Loss", "Steps")  # left out on a narrow terminal
_COLUMNS_HELP = (
    f"Comma-separated columns: {', '.join(COLUMNS)}. Default: {DEFAULT_COLUMNS}, where "
    "a run has them."
)


@command("tinker run list --limit 5 --columns id,model,updated")
def list_command(
    options: GlobalOptions,
    limit: Annotated[Natural, Option("Maximum number of runs, latest first; 0 shows all.")] = 20,
    columns: Annotated[str | None, Option(_COLUMNS_HELP, "-c", "--columns")] = None,
    offset: OffsetOption = 0,
    access_scope: AccessScopeOption = "owned",
) -> None:
    """List training runs."""
    chosen = _columns(columns or DEFAULT_COLUMNS)
    if columns is not None and options.format == "json":
        raise click.UsageError(
            "--columns cannot be used with --format json, which has every field."
        )
    runtime = clients.connect(options)
    rest = tinker.RestClient(runtime)

    def page(count: int, start: int) -> tuple[list[tinker.types.TrainingRun], int | None]:
        answer = rest.list_training_runs(count, start, access_scope).result()
        return list(answer.training_runs), answer.cursor.total_count

    found = clients.fetch_pages(options, "Fetching training runs", page, limit, PAGE, offset)
    known = fetch_progress(runtime, [run.training_run_id for run in found.items])
    listing = Listing(
        [_ListedRun(run, known[run.training_run_id]) for run in found.items], found.total
    )
    if columns is None:
        unknown = [
            COLUMNS[name] for name in _IF_KNOWN if not any(map(COLUMNS[name][1], listing.items))
        ]
        chosen = [column for column in chosen if column not in unknown]
    optional = () if columns else _OPTIONAL
    value = Listing([one.to_json() for one in listing.items], found.total).to_json("runs")
    output.show(
        options,
        value,
        lambda: output.show_items(
            listing.items, chosen, listing.title("training run"), optional=optional
        ),
    )


def _columns(names: str) -> list[_Column]:
    chosen = [name.strip().lower() for name in names.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown or not chosen:
        problem = (
            f"Unknown column{'' if len(unknown) == 1 else 's'}: "
            f"{', '.join(unknown) or 'none given'}"
        )
        raise CommandFailed(problem, f"Available: {', '.join(COLUMNS)}")
    return [COLUMNS[name] for name in chosen]


@command("tinker run info RUN")
def info(options: GlobalOptions, run_id: str, access_scope: AccessScopeOption = "owned") -> None:
    """Show one training run, given by its ID or by its name."""
    runtime = clients.connect(options)
    rest = tinker.RestClient(runtime)
    run = rest.get_training_run(clients.find_run(rest, run_id), access_scope).result()
    one = _ListedRun(run, fetch_progress(runtime, [run.training_run_id])[run.training_run_id])
    properties = [
        ("Run ID", run.training_run_id),
        ("Base Model", run.base_model),
        ("Owner", run.model_owner),
        ("LoRA", output.format_lora(run.is_lora, run.lora_rank)),
        ("Last Update", run.last_request_time),
        ("Status", one.status),
        *((title, cell(one)) for title, cell in (COLUMNS["steps"], COLUMNS["loss"]) if cell(one)),
        *_checkpoint_properties("Last Training Checkpoint", run.last_checkpoint),
        *_checkpoint_properties("Last Sampler Checkpoint", run.last_sampler_checkpoint),
        *output.list_metadata(run.user_metadata),
    ]
    output.show_properties(
        options, one.to_json(), f"Training Run: {run.training_run_id}", properties
    )


def _checkpoint_properties(
    title: str, checkpoint: tinker.types.Checkpoint | None
) -> list[tuple[str, object]]:
    if checkpoint is None:
        return []
    return [
        (title, checkpoint.checkpoint_id),
        ("  - Time", checkpoint.time),
        ("  - Path", checkpoint.tinker_path),
    ]


@command("tinker run usage RUN --prices prices.toml")
def usage(
    options: GlobalOptions,
    run_id: str,
    days: Annotated[int, click.IntRange(1, 366), Option("Number of days to look back.")] = 14,
    prices_path: PricesOption = None,
) -> None:
    """Show the tokens that a training run used, and their cost.

    Servers bill sessions, not runs, so this counts all tokens of the run's session, including its
    samples. Other runs of the same session are listed. This needs administrator rights, and the
    data can be several hours late.
    """
    prices, rest = clients.read_prices(prices_path), clients.rest_client(options)
    run_id = clients.find_run(rest, run_id)
    session_id, is_known, _ = run_id.partition(TRAIN)
    if not is_known:
        advice = f"A run's ID is <session>{TRAIN}<number>; `tinker run list` shows them."
        raise CommandFailed(f"There is no run {run_id}", advice)
    counts = _count(options, rest, session_id, days)
    others = _find_others(rest, session_id, run_id, has_usage=bool(counts))
    cost = clients.cost_of(prices, counts)
    value = {
        "training_run_id": run_id,
        "session_id": session_id,
        "other_training_run_ids": others,
        "days": days,
        "tokens": {model or "": clients.to_value(tokens) for model, tokens in counts.items()},
        "cost": cost,
    }
    properties = [
        ("Session ID", session_id),
        ("Base Model", ", ".join(model or "unknown" for model in counts) or "N/A"),
        *([("Shared with", ", ".join(others))] if others else []),
        *clients.count_properties(options, sum(counts.values(), tinker.usage.TokenCounts()), cost),
    ]
    output.show_properties(options, value, f"Usage: {run_id}", properties)


def _find_others(
    rest: tinker.RestClient, session_id: str, run_id: str, *, has_usage: bool
) -> list[str]:
    """Return the other runs of the session; none if the server has only its usage. CommandFailed
    without either.
    """
    try:
        return [
            other
            for other in rest.get_session(session_id).result().training_run_ids
            if other != run_id
        ]
    except tinker.NotFoundError as error:
        if has_usage:
            return []
        advice = (
            "Usage is counted per session, and the server does not know the session "
            "of this run, or no longer."
        )
        raise CommandFailed(f"The server has no usage of {run_id}", advice) from error


def _count(
    options: GlobalOptions, rest: tinker.RestClient, session_id: str, days: int
) -> Mapping[str | None, tinker.usage.TokenCounts]:
    """Add up the tokens of the session."""
    until = clients.next_hour()
    found: dict[str | None, tinker.usage.TokenCounts] = {}
    for answer in clients.fetch_usage(options, rest, until - datetime.timedelta(days=days), until):
        for model, tokens in tinker.usage.count_billing(answer, session_id=session_id).items():
            found[model] = found.get(model, tinker.usage.TokenCounts()) + tokens
    return found
