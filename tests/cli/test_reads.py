"""Commands that read: their JSON is the official client's, their tables can be cut."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from cli.conftest import Ask, Call
from support.tolerances import near

import tinker
from tinker.cli.clients import fetch_pages
from tinker.cli.options import GlobalOptions
from tinker.cli.output import format_metric, format_size, format_timestamp, show_table

CHECKPOINT = [
    "checkpoint_id",
    "checkpoint_type",
    "time",
    "tinker_path",
    "size_bytes",
    "public",
    "user_metadata",
    "expires_at",
    "base_model",
]
RUN = [
    "training_run_id",
    "base_model",
    "model_owner",
    "is_lora",
    "corrupted",
    "lora_rank",
    "last_request_time",
    "last_checkpoint",
    "last_sampler_checkpoint",
    "user_metadata",
]
EVENT = [
    "bucket_start",
    "bucket_end",
    "base_model",
    "user_id",
    "user_name",
    "session_id",
    "project_id",
    "estimated_cost_usd",
    "effective_rate_usd_per_million_tokens",
    "effective_rate_usd_per_gigabyte_month",
    "event_info",
]
STORED = [
    "project_id",
    "org_user_urn",
    "user_email",
    "user_name",
    "checkpoint_count",
    "size_bytes",
    "size_gigabytes",
    "estimated_monthly_cost_usd",
]


def window() -> tuple[str, str]:
    now = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    spellings = (now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1))
    start, end = (f"{time:%Y-%m-%dT%H:%M:%S}Z" for time in spellings)
    return start, end


# Training runs


def test_run_list_json(ask: Ask, run: Any) -> None:
    """A list of runs, each with all of its fields; times are in the form of RFC 3339."""
    value = ask("run list")
    assert list(value) == ["runs", "shown", "total"]
    found = next(one for one in value["runs"] if one["training_run_id"] == run.run_id)
    assert list(found) == [*RUN, "state", "steps", "metrics"]
    assert list(found["last_checkpoint"]) == CHECKPOINT
    assert datetime.datetime.strptime(found["last_request_time"], "%Y-%m-%dT%H:%M:%S.%fZ")
    assert found["user_metadata"] == {"k": "v"}


def test_run_list_table(call: Call, run: Any) -> None:
    """Each run is a line that starts with its id; how many are not shown is on the error stream."""
    result = call("run list --limit 1 -c id,lora,status,checkpoint,checkpoint_time,owner")
    heading, line = result.stdout.splitlines()
    assert heading.split("  ")[0] == "Run ID"
    assert line.split("  ")[0] == run.run_id
    assert "Rank 4" in line
    assert "ended" in line
    assert "1 training run" in result.stderr


def test_runs_are_listed_with_their_state_steps_and_loss(
    ask: Ask, call: Call, server: str, scripted: Callable[..., str]
) -> None:
    """The local server tells the state, steps and loss of runs; of others they are not known."""
    with tinker.ServiceClient(base_url=server) as service:
        training = service.create_lora_training_client("tinker/toy", rank=4)
        datum = tinker.Datum(tinker.ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})
        loss = training.forward_backward([datum], "cross_entropy").result(10).loss / 2
        training.optim_step(tinker.AdamParams(learning_rate=0.1)).result(10)
        (listed,) = ask("run list --limit 1")["runs"]
        assert (listed["state"], listed["steps"], listed["metrics"]["loss per token"]) == (
            "open",
            1,
            near(loss, 2),
        )
        line = call("run list --limit 1").stdout.splitlines()[1]
        assert re.search(rf"Rank 4 +1 +{loss:.4f} +just now +open$", line), line
    url = scripted("/overview", 404)
    with tinker.ServiceClient(base_url=url) as service:
        service.create_lora_training_client("tinker/toy", rank=4).result(10)
    heading, line = call("run list", base_url=url).stdout.splitlines()
    assert re.split(r"\s{2,}", heading) == ["Run ID", "Base Model", "LoRA", "Last Update", "Status"]
    assert re.search(r"just now +ok$", line), line


def test_lists_from_an_offset(ask: Ask, run: Any) -> None:
    """What comes first is left out; the rest is the same, of runs and of checkpoints."""
    runs = [one["training_run_id"] for one in ask("run list --limit 0")["runs"]]
    assert [one["training_run_id"] for one in ask("run list --limit 0 --offset 1")["runs"]] == runs[
        1:
    ]
    paths = [
        one["tinker_path"] for one in ask(f"checkpoint list --run-id {run.run_id}")["checkpoints"]
    ]
    found = ask(f"checkpoint list --run-id {run.run_id} --offset 2")["checkpoints"]
    assert [one["tinker_path"] for one in found] == paths[2:]
    assert len(ask("checkpoint list --limit 1 --offset 1")["checkpoints"]) == 1


def test_whose_runs_are_listed(ask: Ask, call: Call, run: Any) -> None:
    """The scope goes to the server; one that does not exist is refused."""
    assert run.run_id in {
        one["training_run_id"] for one in ask("run list --access-scope accessible")["runs"]
    }
    assert ask(f"run info {run.run_id} --access-scope accessible")["training_run_id"] == run.run_id


def test_run_info(ask: Ask, call: Call, run: Any) -> None:
    """One run, with its last checkpoints and metadata."""
    assert list(ask(f"run info {run.run_id}")) == [*RUN, "state", "steps", "metrics"]
    table = call(f"run info {run.run_id}").stdout
    for text in (run.run_id, "Yes (Rank 4)", run.training, run.sampler, "  - k"):
        assert text in table


def test_a_run_is_found_by_the_beginning_of_its_id(ask: Ask, call: Call, run: Any) -> None:
    """Commands take at least four characters of an ID where no other run's begins with them."""
    assert ask("run info", run.run_id[:4])["training_run_id"] == run.run_id
    assert call("run info", run.run_id[:3]).exit_code == 1


def test_a_run_is_found_by_its_name(ask: Ask, call: Call, server: str) -> None:
    """Commands take the name of a run for its ID, and of two runs with it the latest."""
    with tinker.ServiceClient(base_url=server) as service:
        names = ("pig latin", "again", "again")
        only, _, latest = [
            service.create_lora_training_client("tinker/toy", user_metadata={"name": name})
            .result(10)
            .model_id
            for name in names
        ]
    assert ask("run info", "pig latin")["training_run_id"] == only
    assert ask("run usage", "pig latin")["training_run_id"] == only
    assert [run["log"] for run in ask("run compare", "pig latin", only)["runs"]] == [
        "pig latin",
        only,
    ]
    assert ask("checkpoint list --run-id", "pig latin")["run_id"] == only
    advice = "`tinker checkpoint list --run-id 'pig latin'` shows those that it has.\n"
    shown = f"Error: The run pig latin has no checkpoint to sample from\n{advice}"
    assert call("sample hello -m", "pig latin").stderr.endswith(shown)
    result = call("run info again")
    assert (result.exit_code, result.stderr) == (
        0,
        "2 runs are named 'again'; this is the latest\n",
    )
    assert latest in result.stdout


# Checkpoints


def test_a_run_stands_for_its_latest_checkpoint(ask: Ask, call: Call, server: str) -> None:
    """Where a checkpoint is expected, the name or the ID of a run means its latest one."""
    with tinker.ServiceClient(base_url=server) as service:
        training = service.create_lora_training_client(
            "tinker/toy", user_metadata={"name": "two saves"}
        )
        for name in ("one", "two"):
            state, sampler = (
                training.save_state(name).result(10).path,
                training.save_weights_for_sampler(name).result(10).path,
            )
        run_id = training.model_id
    for text in ("two saves", run_id):
        assert ask("checkpoint info", text)["tinker_path"] == sampler
        sampled = call("sample 1 -m", text, "--max-tokens", "1")
        assert (sampled.exit_code, f"{text} is {sampler}\n" in sampled.stderr) == (0, True), (
            sampled.stderr
        )
        assert (
            ask("checkpoint download", text, "-o", text, "--form", "archive")["checkpoint_path"]
            == sampler
        )
        copied = call("checkpoint create --from", text)
        assert (copied.exit_code, f"{text} is {state}\n" in copied.stderr) == (0, True), (
            copied.stderr
        )


def test_checkpoint_list(ask: Ask, call: Call, run: Any) -> None:
    """Those of a run, or the newest of all."""
    value = ask(f"checkpoint list --run-id {run.run_id}")
    assert list(value) == ["run_id", "checkpoints", "shown", "total"]
    assert value["shown"] == value["total"] == 3
    assert all(list(one) == CHECKPOINT for one in value["checkpoints"])
    assert {one["checkpoint_type"] for one in value["checkpoints"]} == {
        "training",
        "sampler",
        "external",
    }
    everything = ask("checkpoint list --limit 2")
    assert list(everything) == ["checkpoints", "shown", "total"]
    assert len(everything["checkpoints"]) == everything["shown"] == 2 < everything["total"]
    result = call("checkpoint list --limit 1")
    assert "more; use --limit to see them)" in result.stderr
    assert len(result.stdout.splitlines()) == 2
    lines = call(f"checkpoint list --run-id {run.run_id}").stdout.splitlines()
    assert lines[0].split() == [
        "Checkpoint",
        "ID",
        "Type",
        "Size",
        "Public",
        "Created",
        "Expires",
        "Path",
    ]
    assert next(line for line in lines if "Never" not in line and "in 1 hour" in line).endswith(
        run.sampler
    )


def test_checkpoint_info(ask: Ask, call: Call, run: Any) -> None:
    """A checkpoint is shown with its adapter; a missing one and an invalid path exit with 1."""
    value = ask(f"checkpoint info {run.training}")
    assert list(value) == [*CHECKPOINT, "is_lora", "lora_rank"]
    assert (value["is_lora"], value["lora_rank"]) == (True, 4)
    table = call(f"checkpoint info {run.training}").stdout
    assert "Yes (Rank 4)" in table
    assert "  - step" in table
    missing = call("checkpoint info", f"{run.training}x")
    assert (missing.exit_code, missing.stderr) == (
        1,
        f"Error: Checkpoint not found: {run.training}x\n",
    )
    wrong = call("checkpoint info run/garbage", code=1)
    assert wrong.stderr.startswith("Error: Invalid checkpoint path: run/garbage\n")


# Models, bills, traces


def test_model_list(ask: Ask, call: Call) -> None:
    """Models are listed, all or those whose name has a text; no match is an error."""
    models = ask("model list")["models"]
    assert [list(one) for one in models] == [
        ["model_name", "max_context_length", "trainable", "sampleable"]
    ]
    assert ask("model list TOY")["models"] == models
    assert call("model list").stdout.splitlines()[1].split() == [
        "tinker/toy",
        "32768",
        "Yes",
        "Yes",
    ]
    assert call("model list zzz").exit_code == 1


def test_billing_usage(ask: Ask, call: Call, run: Any, tmp_path: Path) -> None:
    """JSON says all, the table has sums, and CSV the particulars of each kind of use."""
    value = ask("billing usage", *window())
    assert list(value) == ["data", "sessions", "cost_data_through"]
    assert all(list(event) == EVENT for event in value["data"])
    assert value["data"][0]["bucket_start"].endswith("Z")
    assert value["sessions"][run.session_id] == {"user_metadata": {"k": "v"}}
    assert (
        call("billing usage", *window(), "--csv", "u.csv", "--sessions-csv", "s.csv").stdout == ""
    )
    with (tmp_path / "u.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[: len(EVENT) - 1] == EVENT[:-1]
    storage = next(row for row in rows if row["type"] == "storage")
    assert (storage["estimated_cost_usd"], storage["free"]) == ("", "True")
    with (tmp_path / "s.csv").open(newline="") as file:
        assert {"session_id": run.session_id, "user_metadata": '{"k": "v"}'} in list(
            csv.DictReader(file)
        )
    sums = call("billing usage", *window())
    assert "hourly usage row" in sums.stderr
    assert re.match(
        r"storage +tinker/toy +0 +[\d.]+ +at least 0.0000",
        next(line for line in sums.stdout.splitlines() if "storage" in line),
    )
    assert sums.stdout.splitlines()[-1].startswith("Total")
    table = call("billing usage", *window(), "--rows")
    assert any("storage" in line and line.count("null") == 2 for line in table.stdout.splitlines())
    assert call("billing usage", *window(), "--csv", "-").stdout.startswith(
        "bucket_start,bucket_end,"
    )


def test_billing_usage_of_yesterday(ask: Ask) -> None:
    """Days are those of UTC, by their date or as a word."""
    now = datetime.datetime.now(datetime.UTC)
    dates = [f"{now - datetime.timedelta(days=days):%Y-%m-%d}" for days in (1, 0)]
    assert ask("billing usage yesterday today")["data"] == ask("billing usage", *dates)["data"]


def test_billing_usage_of_this_month(ask: Ask, run: Any) -> None:
    """Without dates it is the usage of this month, and a long time is asked for in parts."""
    now = datetime.datetime.now(datetime.UTC)
    month, end = f"{now:%Y-%m}-01", window()[1]

    def usage(*times: str) -> list[Any]:
        found = ask("billing usage", *times)
        assert run.session_id in found["sessions"]
        # which grows while it is asked for
        return [one for one in found["data"] if one["event_info"]["type"] != "storage"]

    assert usage() == usage(month, end)
    longer = usage(f"{now - datetime.timedelta(days=40):%Y-%m-%d}", end)
    assert usage() == [one for one in longer if one["bucket_start"] >= month]


def test_checkpoint_storage(ask: Ask, call: Call, run: Any) -> None:
    """What is stored now is CSV with the price in every row, or a table with the price above."""
    value = ask("billing checkpoint-storage")
    assert list(value) == ["effective_rate_usd_per_gigabyte_month", "data"]
    assert {tuple(one) for one in value["data"]} == {tuple(STORED)}  # a row for each project
    heading = "effective_rate_usd_per_gigabyte_month," + ",".join(STORED)
    assert call("billing checkpoint-storage --csv -").stdout.splitlines()[0] == heading
    table = call("billing checkpoint-storage")
    columns = ["Project", "User", "Checkpoints", "Size (GB)", "Cost per Month (USD)"]
    assert re.split(" {2,}", table.stdout.splitlines()[0]) == columns
    assert "Checkpoint storage now, at an unknown price" in table.stderr


def test_export_trace(
    ask: Ask, call: Call, run: Any, tmp_path: Path, scripted: Callable[..., str]
) -> None:
    """The address of the trace, or the trace as a file."""
    ready = {"status": "ready", "url": "https://store/trace?sig=1"}
    base_url = scripted("sessions/s1/trace_export", 200, ready)
    assert ask("session export-trace s1 --url-only", base_url=base_url) == {
        "session_id": "s1",
        "url": ready["url"],
    }
    assert (
        call("session export-trace s1 --url-only", base_url=base_url).stdout == f"{ready['url']}\n"
    )


def test_export_trace_to_a_file(
    ask: Ask, call: Call, refuse: Any, scripted: Callable[..., str], tmp_path: Path
) -> None:
    """The trace is saved under the session's name, or as one says."""
    files = scripted("/the/trace", 200, {"traceEvents": []})
    base_url = scripted(
        "sessions/s1/trace_export", 200, {"status": "ready", "url": f"{files}/the/trace"}
    )
    value = ask("session export-trace s1", base_url=base_url)
    assert value == {"session_id": "s1", "destination": "s1.pftrace", "file_size_bytes": 18}
    assert (tmp_path / "s1.pftrace").read_text() == '{"traceEvents":[]}'
    assert "18 B" in call("session export-trace s1 -o t", base_url=base_url).stdout
    failed = scripted("sessions/s2/trace_export", 200, {"status": "failed", "error": "no room"})
    refuse(1, "no room", "session export-trace s2", base_url=failed)


def test_sessions(ask: Ask, call: Call, run: Any, server: str) -> None:
    """Sessions are listed newest first, page by page, with how they ended and their names."""
    with tinker.ServiceClient(base_url=server, display_name="sweep") as service:
        service.create_lora_training_client("tinker/toy", rank=4).result(10)
        newest, ended = ask("session list --limit 2")["sessions"]
        assert (newest["session_id"], newest["display_name"]) == (service.session_id, "sweep")
        assert (ended["session_id"], ended["checkpoints_count"]) == (run.session_id, 3)
        lines = call("session list --limit 2").stdout.splitlines()
    assert re.split(r"\s{2,}", lines[0].strip()) == [
        "Session ID",
        "Name",
        "Created",
        "Status",
        "Checkpoints",
    ]
    assert "active" in lines[1]
    assert "success" in lines[2]
    assert len(ask("session list --limit 0")["sessions"]) >= 2


def test_session_info(ask: Ask, call: Call, refuse: Any, run: Any, server: str) -> None:
    """A session is shown with its state, its runs, the number of its samplers, and its metadata."""
    value = ask(f"session info {run.session_id}")
    assert (value["session_id"], value["training_run_ids"], value["checkpoints_count"]) == (
        run.session_id,
        [run.run_id],
        3,
    )
    shown = call(f"session info {run.session_id}").stdout
    for line in (
        "Status +success",
        "Checkpoints +3",
        f"Training Runs +{run.run_id}",
        "Samplers +0",
        "  - k +v",
    ):
        assert re.search(line, shown), shown
    refuse(1, "nobody", "session info nobody", base_url=server)


# How values are written


def test_pages() -> None:
    """Pages are fetched until the limit, the announced end, or a page that is not full."""
    asked: list[tuple[int, int]] = []

    def page(total: int | None) -> Callable[[int, int], tuple[list[int], int | None]]:
        def fetch(count: int, offset: int) -> tuple[list[int], int | None]:
            asked.append((count, offset))
            return list(range(25))[offset : offset + count], total

        return fetch

    def fetch(total: int | None, limit: int, offset: int = 0) -> Any:
        return fetch_pages(GlobalOptions(format="json"), "x", page(total), limit, 10, offset)

    assert fetch(25, 12).title("x") == "12 xs (13 more; use --limit to see them)"
    assert asked == [(10, 0), (2, 10)]
    assert len(fetch(25, 0).items) == 25
    assert fetch(None, 0).total == 25
    assert fetch(None, 1).title("x") == "1 x"
    asked.clear()
    assert fetch(25, 12, 8).title("x") == "12 xs (5 more; use --limit to see them)"
    assert asked == [(10, 8), (2, 18)]
    assert fetch(25, 0, 20).items == [20, 21, 22, 23, 24]
    assert fetch(25, 0, 30) == ([], 0)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (None, "N/A"),
        (-1, "N/A"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KB"),
        (123456789, "117.7 MB"),
        (3 * 2**50, "3.0 PB"),
    ],
)
def test_sizes(nbytes: int | None, text: str) -> None:
    """Sizes go up in steps of 1024."""
    assert format_size(nbytes) == text


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (0.00001169, "1.17e-05"),
        (-4e-5, "-4e-05"),
        (0.00005, "0.0001"),
        (0.0, "0.0000"),
        (2.5, "2.5000"),
    ],
)
def test_small_losses(loss: float, text: str) -> None:
    """A loss has four decimals, and three digits where all of these would be zero."""
    assert format_metric(loss) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (30, "just now"),
        (90, "1 minute ago"),
        (7200, "2 hours ago"),
        (86400 * 6, "6 days ago"),
        (86400 * 14, "2 weeks ago"),
        (86400 * 31, "2026-04-30"),
        (-5, "in less than a minute"),
        (-90, "in 1 minute"),
        (-86400 * 2.5, "in 2 days"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    """Near times are relative to now, others are dates; times without a zone are UTC."""
    now = datetime.datetime(2026, 5, 31, 12, tzinfo=datetime.UTC)
    time = now - datetime.timedelta(seconds=seconds)
    assert format_timestamp(time, now) == text
    assert format_timestamp(time.replace(tzinfo=None), now) == text
    assert format_timestamp(None) == "N/A"


def test_tables_on_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal a table has borders and a title, and shows markup unchanged."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_table(("Run ID", "B"), [("run:train:0", "[bold]x")], "the [title]")
    out = capsys.readouterr().out
    assert "run:train:0" in out
    assert "[bold]x" in out
    assert "the [title]" in out
    assert "━" in out


def test_tables_on_a_narrow_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a narrow terminal columns are left out and named, or rows are shown one by one."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    show_table(("ID", "B", "C"), [("x" * 12, "b" * 5, "c" * 5)], optional=("C", "B"))
    out, err = capsys.readouterr()
    assert ("x" * 12 in out, "bbbbb" in out, "ccccc" in out) == (True, True, False)
    assert err == "Not shown on a terminal of this width: C\n"
    show_table(("ID", "B", "C", "D"), [("i", "b" * 5, "c" * 5, "x" * 20)] * 2, optional=("C",))
    out, err = capsys.readouterr()
    assert click.unstyle(out).splitlines() == ["x" * 20, "  ID: i, B: bbbbb"] * 2
    assert err == "Not shown on a terminal of this width: C\n"
    show_table(("Property", "Value"), [("path", "x" * 16), ("size", "big")])
    assert click.unstyle(capsys.readouterr()[0]).splitlines() == ["path", "x" * 16, "size  big"]


def test_tables_on_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Into a pipe each row is a line, in columns; the title is not among them."""
    show_table(("A", "B"), [("x" * 300, "1"), ("two\nlines", "2")], "the title")
    out, err = capsys.readouterr()
    assert out == f"{'A'.ljust(300)}  B\n{'x' * 300}  1\n{'two lines'.ljust(300)}  2\n"
    assert err == "the title\n"


def test_conformance_in_json(ask: Ask, call: Call) -> None:
    """With -f json checks and report are JSON; a report on the output stream stands alone."""
    listed = ask("conformance --list")
    assert list(listed[0]) == ["check", "operations", "statement", "slow", "destructive"]
    report = ask("conformance --only service.health")
    assert report["counts"]["supported"] == len(report["checks"]) > 0
    assert report["checks"][0]["check"] in {one["check"] for one in listed}
    assert call("-f json conformance --only service.health --markdown -").stdout.startswith("#")
