"""``tinker run watch`` and ``tinker run compare``: curves of runs, from files of metrics or from a
local server.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import click

from tinker._shown import clean
from tinker.cli.metrics import MetricsReader, MetricStep, RunMetrics, choose_metric, open_run
from tinker.cli.options import ChartFile, GlobalOptions, Option, command
from tinker.cli.output import (
    chart_text,
    format_metric,
    is_ascii_only,
    say,
    show,
    show_chart,
    show_lines,
    show_table,
)

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
                show_lines(_describe(now, one, name))
            if once and not now.steps:
                say(f"{now.name} has no steps yet")
        sys.stdout.flush()
        shown, printed = len(now.records), len(now.steps)


def _describe(run: RunMetrics, step: MetricStep, metric: str) -> str:
    total = "" if run.total is None else f"/{run.total:g}"
    value = (
        f"{metric} {format_metric(step.metrics[metric])}"
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

    is_ascii = is_ascii_only()  # Live replaces the output by a stream that has no encoding
    with Live(auto_refresh=False) as live:
        for now in _follow(read, once):
            name = choose_metric([now], metric)
            title = (
                f"{now.name}: "
                f"{_describe(now, now.steps[-1], name) if now.steps else 'no steps yet'}"
            )
            live.update(
                Text(f"{clean(title)}\n{chart_text({name: now.curve(name)}, is_ascii)}"),
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
        show_table(columns, cells, name)
        for message in filter(None, (run.explain_missing(name) for run in read)):
            say(message)

    show(options, {"metric": name, "runs": rows}, table)
    show_chart(options, {run.name: run.curve(name) for run in read}, name, plot)


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
