"""``tinker run watch`` and ``tinker run compare``: curves of runs, from files of metrics or from a local server."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tinker.cli.metrics import MetricsReader, RunMetrics, choose_metric, explain_lack, open_run
from tinker.cli.options import GlobalOptions, check_chart_file, pass_options

_POLL_SECONDS = 1.0
_HEIGHT = 14


@click.command()
@click.argument("run")
@click.option("--metric", help="Metric to plot. Default: a loss or a reward.")
@click.option("--once", is_flag=True, help="Show the current state and exit.")
@pass_options
def watch(options: GlobalOptions, /, run: str, metric: str | None, once: bool) -> None:
    """Follow a RUN until it ends: a JSONL file of metrics, or the ID of a run on a local server.

    The file comes from `tinker train --log` or from any script that writes one JSON object of numbers per line. The step is
    `step`, `progress/batch` or similar, else the line number. On a terminal the curve is redrawn every second; in a pipe each
    step is one line. Ctrl-C stops watching; the run continues.
    """
    read = open_run(options, run)
    if options.format == "table" and sys.stdout.isatty():
        _draw_live(read, metric, once)
    else:
        _print_steps(options, read, metric, once)


def _print_steps(options: GlobalOptions, read: MetricsReader, metric: str | None, once: bool) -> None:
    """Print what is new, a line for each step; as JSON every record."""
    shown = printed = 0
    for now in _follow(read, once):
        if options.format == "json":
            for record in now.records[shown:]:
                click.echo(json.dumps(record))
        else:
            name = choose_metric([now], metric)
            for one in now.steps[printed:]:
                click.echo(f"{_place(now, one.number)} {name} {one.metrics.get(name, float('nan')):.4f}")
        sys.stdout.flush()
        shown, printed = len(now.records), len(now.steps)


def _place(run: RunMetrics, number: float) -> str:
    return f"step {number:g}" + ("" if run.total is None else f"/{run.total:g}")


def _follow(read: MetricsReader, once: bool) -> Iterator[RunMetrics]:
    """Yield the run as it grows, until it has ended; that may take as long as the run does."""
    while True:
        now = read()
        yield now
        if now.has_ended or once:
            return
        time.sleep(_POLL_SECONDS)


def _draw_live(read: MetricsReader, metric: str | None, once: bool) -> None:
    from rich.live import Live
    from rich.text import Text

    from tinker.cli.output import is_ascii_only

    is_ascii = is_ascii_only()  # as the stream that Live puts in the place of the output does not say its encoding
    with Live(auto_refresh=False) as live:
        for now in _follow(read, once):
            name, last = choose_metric([now], metric), now.last()
            place = _place(now, now.steps[-1].number if now.steps else 0)
            title = f"{now.name}: {place}, {name} {last.get(name, float('nan')):.4f}"
            live.update(Text(f"{title}\n{_draw({name: now.curve(name)}, is_ascii)}"), refresh=True)


def _draw(curves: dict[str, list[tuple[float, float]]], is_ascii: bool) -> str:
    from tinker.cli.charts import draw_text

    return draw_text(curves, width=min(120, shutil.get_terminal_size().columns), height=_HEIGHT, ascii_only=is_ascii)


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--metric", help="Metric to compare. Default: a loss or a reward.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.svg",
    callback=check_chart_file,
    help="Save the plot in this file.",
)
@pass_options
def compare(options: GlobalOptions, /, runs: tuple[str, ...], metric: str | None, plot: Path | None) -> None:
    """Compare RUNS in a table with one row per run, and plot their curves together.

    Each run is a file or an ID, as in `tinker run watch`.
    """
    from tinker.cli.charts import draw_svg
    from tinker.cli.output import is_ascii_only, show, show_table

    read = [open_run(options, run)() for run in runs]
    name = choose_metric(read, metric)
    curves = {run.name: run.curve(name) for run in read}
    if plot is not None:
        plot.write_text(draw_svg(curves, title=name), encoding="utf-8")
    rows = [_summary(run, name) for run in read]

    def table() -> None:
        columns = ["Log", "Steps", "First", "Best", "Last", "Tokens/s"]
        show_table(columns, [["" if cell is None else str(cell) for cell in row.values()] for row in rows], name)
        for lack in filter(None, (explain_lack(run, name) for run in read)):
            click.echo(lack, err=True)
        click.echo(_draw(curves, is_ascii_only()))

    show(options, {"metric": name, "runs": rows}, table)


def _summary(run: RunMetrics, metric: str) -> dict[str, Any]:
    values = [round(value, 6) for _, value in run.curve(metric)]
    best = (max if "reward" in metric else min)(values, default=None)
    ends = {"first": values[0] if values else None, "best": best, "last": values[-1] if values else None}
    return {"log": run.name, "steps": run.count_steps(), **ends, "tokens_per_second": run.last().get("tokens_per_second")}
