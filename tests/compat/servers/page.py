"""Write docs/servers.md and docs/conformance/servers-steps.md from the recorded results.

python tests/compat/servers/page.py [--check | --notes]
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import own_tests
from servers import HERE, OFFICIAL_OF_TODAY, SERVERS, Server

RECORDED = HERE / "recorded"
DOCS = HERE.parents[2] / "docs"
SUMMARY, STEPS = DOCS / "servers.md", DOCS / "conformance" / "servers-steps.md"
BEGIN, END = (f"<!-- {end}: made by nox -s compat-servers -->" for end in ("begin", "end"))
STATUSES = ("passed", "failed", "timeout", "not reached", "not offered")
# How a server reports that it lacks a feature.
LACKING_CODES = (404, 405, 501)
LONGEST_REASON = 220
STEPS_HEAD = """# Server test results

This page lists the result of every step of `nox -s compat -- servers`. [Servers](../servers.md#which-were-run) has a summary, and says what it
means for your program.

- *works*: the step passes.
- *missing*: the server does not have the feature and says so.
- *differs*: the server responds differently from the hosted service.
- *timeout*: the server does not respond in time.
- *blocked*: the step depends on another step that failed.

The tables by feature show the results with this client. The messages are those that you get.
"""

Steps = dict[tuple[str, str], dict[str, Any]]


def write_page() -> None:
    """Write the section of the summary, and the page of the steps."""
    for path, text in made_pages().items():
        path.write_text(text)


def made_pages() -> dict[Path, str]:
    """Both pages as the records have them."""
    runs = recorded()
    return {SUMMARY: with_section(SUMMARY.read_text(), summary(runs)), STEPS: all_steps(runs)}


def stale_pages() -> list[str]:
    """Return the pages that are not as recorded."""
    made = made_pages().items()
    return [
        f"docs/{path.relative_to(DOCS)}"
        for path, text in made
        if not path.exists() or path.read_text() != text
    ]


def with_section(page: str, made: str) -> str:
    """Return the page with this between its markers."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n{END}{rest.partition(END)[2]}"


def recorded() -> dict[tuple[str, str], dict[str, Any]]:
    """Every recorded run, by server and client."""
    found = {}
    for path in sorted(RECORDED.glob("*.json")):
        run = json.loads(path.read_text())
        client = "ours" if run["client"] == "ours" else run["version"]
        found[run["server"], client] = run
    return found


def scenario_version() -> str:
    """Return a name for the scenario as it is in this tree: the same for the same files."""
    files = sorted((HERE / "scenario").glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def outdated() -> list[str]:
    """Return the runs that were made with another version of the scenario."""
    runs = recorded().items()
    return [
        f"{server} with {client}"
        for (server, client), run in runs
        if run.get("scenario") != scenario_version()
    ]


def notes() -> dict[str, dict[str, Any]]:
    """Return the handwritten notes: whether a server lacks the feature, and the reason."""
    return tomllib.loads((HERE / "notes.toml").read_text())


def steps_of(run: dict[str, Any]) -> Steps:
    """Return the steps of a run by area and title."""
    return {(one["area"], one["title"]): one for one in run["steps"]}


def titles() -> dict[str, dict[str, str]]:
    """How the page calls areas and steps whose name in the scenario is not plain."""
    return tomllib.loads((HERE / "titles.toml").read_text())


def area_title(area: str) -> str:
    return titles()["areas"].get(area, area)


def step_title(title: str) -> str:
    return titles()["steps"].get(title, title)


def summary(runs: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Return the summary for users: totals, results by area, and the limits of each server."""
    return "\n".join([*totals(runs), *areas(runs), *advice(runs)])


def all_steps(runs: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Return the page with every step."""
    parts = [
        *versions(runs),
        *counts(runs),
        *features(runs),
        *reasons(runs),
        *better(runs),
        *own_tests.section(SERVERS),
    ]
    return "\n".join([STEPS_HEAD, *parts]).rstrip("\n") + "\n"


def totals(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """One row for each server: its version, and how many steps pass with each client."""
    yield from (
        (
            f"| server | version | tested on | this client | official {OFFICIAL_OF_TODAY} | "
            "official SDK of its own age |"
        ),
        "|---|---|---|--:|--:|---|",
    )
    for server in servers_in(runs):
        ours, official, own = (
            share(runs.get((server.name, client)))
            for client in ("ours", OFFICIAL_OF_TODAY, server.own_client)
        )
        own = (
            "the same" if server.own_client == OFFICIAL_OF_TODAY else f"{server.own_client}: {own}"
        )
        day = runs[server.name, "ours"]["day"]
        yield (
            f"| {server.title} | {server.version or 'current'} | {day} | {ours} "
            f"| {official} | {own} |"
        )
    yield ""


def share(run: dict[str, Any] | None) -> str:
    """Return how many steps of a run passed, of those that its client has."""
    found = [one["status"] for one in run["steps"] if one["status"] != "not offered"] if run else []
    return f"{found.count('passed')} of {len(found)}" if found else "not run"


def areas(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """How many steps of each area pass with this client."""
    servers = servers_in(runs)
    steps = {server.name: runs[server.name, "ours"]["steps"] for server in servers}
    yield from (
        "Steps that pass with this client, by area:",
        "",
        f"| area | {' | '.join(server.title for server in servers)} |",
        "|---|" + "--:|" * len(servers),
    )
    for area in dict.fromkeys(one["area"] for found in steps.values() for one in found):
        cells = (
            share({"steps": [one for one in found if one["area"] == area]})
            for found in steps.values()
        )
        yield f"| {area_title(area)} | {' | '.join(cells)} |"
    yield ""


def advice(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """Yield the advice for users of each server, from the notes of the steps that do not pass."""
    for server in servers_in(runs):
        found = (note_on(server.name, one) for one in failed_steps(runs[server.name, "ours"]))
        lines = [f"- {note['advice']}" for note in found if "advice" in note]
        if lines:
            yield from (f"### Limits of {server.title}", "", *lines, "")


def note_on(server: str, one: dict[str, Any]) -> dict[str, Any]:
    """Return the handwritten note about a step."""
    note: dict[str, Any] = notes().get(server, {}).get(f"{one['area']}: {one['title']}", {})
    return note


def failed_steps(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a run that its client has and that do not pass."""
    return [one for one in run["steps"] if one["status"] not in ("passed", "not offered")]


def servers_in(runs: dict[tuple[str, str], dict[str, Any]]) -> list[Server]:
    """Return the servers that this client was tried with."""
    return [one for one in SERVERS if (one.name, "ours") in runs]


def versions(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    yield from (
        "## Tested versions",
        "",
        "| server | version | Python | date | changes to run it on a CPU |",
        "|---|---|---|---|---|",
    )
    for server in servers_in(runs):
        run = runs[server.name, "ours"]
        replaced = "; ".join(server.replaced) or "none"
        yield (
            f"| {server.title} | {server.version or 'current'} | {run['python']} "
            f"| {run['day']} | {replaced} |"
        )
    yield ""


def counts(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    yield from (
        "## Totals",
        "",
        "| server | client | passed | failed | timeout | blocked | not in this client |",
        "|---|---|--:|--:|--:|--:|--:|",
    )
    for server in servers_in(runs):
        for client in server.clients:
            if (run := runs.get((server.name, client))) is not None:
                found = [one["status"] for one in run["steps"]]
                numbers = " | ".join(str(found.count(status)) for status in STATUSES)
                yield f"| {server.title} | {client_name(client)} | {numbers} |"
    yield ""


def client_name(client: str) -> str:
    """Return a client as the tables call it."""
    return "this client" if client == "ours" else f"official {client}"


def features(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """One table for each area."""
    servers = servers_in(runs)
    ours = {server.name: steps_of(runs[server.name, "ours"]) for server in servers}
    titles = list(dict.fromkeys(key for steps in ours.values() for key in steps))
    for area in dict.fromkeys(area for area, _ in titles):
        yield from (
            f"## {area_title(area)}",
            "",
            f"| step | {' | '.join(server.title for server in servers)} |",
            "|---|" + "---|" * len(servers),
        )
        for title in (title for of, title in titles if of == area):
            cells = (
                verdict(server.name, ours[server.name].get((area, title))) for server in servers
            )
            yield f"| {step_title(title)} | {' | '.join(cells)} |"
        yield ""


def verdict(server: str, one: dict[str, Any] | None) -> str:
    """Return the text of a cell: works, missing, differs, or why the result is unknown."""
    if one is None:
        return ""
    plain = {"passed": "works", "not reached": "blocked", "not offered": "not in this client"}
    if one["status"] in plain:
        return plain[one["status"]]
    lacking = note_on(server, one).get("lacks", one.get("code") in LACKING_CODES)
    return "missing" if lacking else "timeout" if one["status"] == "timeout" else "differs"


def reasons(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """Yield the differences in words: those of a note, else the errors that users get."""
    for server in servers_in(runs):
        if failed := failed_steps(runs[server.name, "ours"]):
            yield from (f"## Differences on {server.title}", "")
            for one in failed:
                yield (
                    f"- *{area_title(one['area'])}: {step_title(one['title'])}*: "
                    f"{reason(server.name, one)}"
                )
            yield ""


def reason(server: str, one: dict[str, Any]) -> str:
    """Why a step did not pass."""
    note = note_on(server, one)
    if "because" in note:
        return str(note["because"])
    message = anonymous(one.get("message", "")).split("\n")[0]
    message = (
        message
        if len(message) <= LONGEST_REASON
        else message[:LONGEST_REASON].rsplit(" ", 1)[0] + " ..."
    )
    kind = {"timeout": "", "not reached": "blocked by a step that failed: "}.get(
        one["status"], f"{one.get('error', '')}: "
    )
    return (
        f"{kind}`{message.replace('`', chr(39)).strip()}`" if message.strip() else kind.strip(": ")
    )


def anonymous(message: str) -> str:
    """Return a message without what differs from run to run."""
    message = re.sub(r"http://(127\.0\.0\.1|localhost):\d+", "SERVER", message)
    message = re.sub(
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b",
        "ID",
        message,
    )
    message = re.sub(r"\bfut_[0-9a-f]{32}\b", "fut_ID", message)
    return re.sub(r"(/[\w.+-]+){3,}", "PATH", message)


def better(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """Yield what an official client passes and this one does not."""
    lines = [
        f"- {server.title}, official {client}: *{area_title(area)}: {step_title(title)}*"
        for server in servers_in(runs)
        for client, area, title in only_official(runs, server)
    ]
    yield from ("## Steps that only an official client passes", "")
    yield from lines or ["None."]
    yield ""


def only_official(
    runs: dict[tuple[str, str], dict[str, Any]], server: Server
) -> Iterator[tuple[str, str, str]]:
    """Client, area and title of each step that an official client passes and ours does not."""
    ours = steps_of(runs[server.name, "ours"])
    for client in dict.fromkeys((OFFICIAL_OF_TODAY, server.own_client)):
        for key, one in steps_of(runs.get((server.name, client), {"steps": []})).items():
            if one["status"] == "passed" and key in ours and ours[key]["status"] != "passed":
                yield client, *key


def idle_notes() -> list[str]:
    """Return notes and titles of what is not there, and notes of steps that pass."""
    runs = recorded()
    idle = []
    for server, known in notes().items():
        if (server, "ours") not in runs:
            continue
        steps = {
            f"{one['area']}: {one['title']}": one["status"] for one in runs[server, "ours"]["steps"]
        }
        idle += [f"{server}: {title}" for title in known if steps.get(title, "passed") == "passed"]
    return idle + idle_titles()


def idle_titles() -> list[str]:
    """Return the areas and steps that have another title and are not there."""
    steps = [one for run in recorded().values() for one in run["steps"]]
    found = {"areas": {one["area"] for one in steps}, "steps": {one["title"] for one in steps}}
    return [
        f"{kind}: {title}"
        for kind, named in titles().items()
        for title in named
        if title not in found[kind]
    ]


if __name__ == "__main__":
    if "--notes" in sys.argv:
        sys.exit("\n".join(f"no such failure: {note}" for note in idle_notes()) or 0)
    if "--check" in sys.argv:
        if outdated():
            sys.exit(f"made with another version of the scenario: {', '.join(outdated())}")
        sys.exit(f"not as recorded: {', '.join(stale_pages())}" if stale_pages() else 0)
    write_page()
