"""Make the tables of docs/servers.md from what the runs have recorded.

python tests/compat/servers/page.py [--check | --notes]
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import own_tests
from servers import HERE, OFFICIAL_OF_TODAY, SERVERS, Server

RECORDED = HERE / "recorded"
PAGE = HERE.parents[2] / "docs" / "servers.md"
BEGIN, END = "<!-- begin: made by nox -s servers -->", "<!-- end: made by nox -s servers -->"
STATUSES = ("passed", "failed", "timeout", "not reached", "not offered")
# How a server says that it does not have what is asked for.
LACKING_CODES = (404, 405, 501)
LONGEST_REASON = 220

Steps = dict[tuple[str, str], dict[str, Any]]


def write_page() -> None:
    """Write the section between the markers."""
    PAGE.write_text(with_section(PAGE.read_text(), section()))


def with_section(page: str, made: str) -> str:
    """The page with this between its markers."""
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
    """A name for the scenario as it is in this tree: the same for the same files."""
    files = sorted((HERE / "scenario").glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def outdated() -> list[str]:
    """The runs that were made with another version of the scenario."""
    runs = recorded().items()
    return [f"{server} with {client}" for (server, client), run in runs if run.get("scenario") != scenario_version()]


def notes() -> dict[str, dict[str, Any]]:
    """What is known by hand of a step on a server: whether the server lacks it, and the reason in words."""
    return tomllib.loads((HERE / "notes.toml").read_text())


def steps_of(run: dict[str, Any]) -> Steps:
    """The steps of a run by area and title."""
    return {(one["area"], one["title"]): one for one in run["steps"]}


def section() -> str:
    """The whole section."""
    runs = recorded()
    parts = [*versions(runs), *counts(runs), *features(runs), *reasons(runs), *better(runs), *own_tests.section(SERVERS)]
    return "\n".join(parts) + "\n"


def servers_in(runs: dict[tuple[str, str], dict[str, Any]]) -> list[Server]:
    """The servers that this client was tried with."""
    return [one for one in SERVERS if (one.name, "ours") in runs]


def versions(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    yield from (
        "### What was run",
        "",
        "| server | version | Python | day | what was replaced, as it cannot run on a CPU |",
        "|---|---|---|---|---|",
    )
    for server in servers_in(runs):
        run = runs[server.name, "ours"]
        replaced = "; ".join(server.replaced) or "nothing"
        yield f"| {server.title} | {server.version or 'this tree'} | {run['python']} | {run['day']} | {replaced} |"
    yield ""


def counts(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    yield from (
        "### How many steps pass",
        "",
        "| server | client | passed | failed | no end in time | not reached | not in this client |",
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
    """A client as the tables call it."""
    return "this one" if client == "ours" else f"official {client}"


def features(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """One table for each area."""
    servers = servers_in(runs)
    ours = {server.name: steps_of(runs[server.name, "ours"]) for server in servers}
    titles = list(dict.fromkeys(key for steps in ours.values() for key in steps))
    for area in dict.fromkeys(area for area, _ in titles):
        yield from (
            f"### {area}",
            "",
            f"| | {' | '.join(server.title for server in servers)} |",
            "|---|" + "---|" * len(servers),
        )
        for title in (title for of, title in titles if of == area):
            cells = (verdict(server.name, ours[server.name].get((area, title)), title) for server in servers)
            yield f"| {title} | {' | '.join(cells)} |"
        yield ""


def verdict(server: str, one: dict[str, Any] | None, title: str) -> str:
    """What a cell says: works, lacks it, differs, or why nothing is known."""
    if one is None:
        return ""
    if one["status"] == "passed":
        return "works"
    if one["status"] in ("not reached", "not offered"):
        return one["status"]
    note = notes().get(server, {}).get(f"{one['area']}: {title}", {})
    lacking = note.get("lacks", one.get("code") in LACKING_CODES)
    return "lacks it" if lacking else "no end" if one["status"] == "timeout" else "differs"


def reasons(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """What is different, in words: those of a note, else those that the user of this client gets."""
    for server in servers_in(runs):
        failed = [one for one in runs[server.name, "ours"]["steps"] if one["status"] not in ("passed", "not offered")]
        if failed:
            yield from (f"### What is different on {server.title}", "")
            for one in failed:
                yield f"- *{one['area']}: {one['title']}*: {reason(server.name, one)}"
            yield ""


def reason(server: str, one: dict[str, Any]) -> str:
    """Why a step did not pass."""
    note = notes().get(server, {}).get(f"{one['area']}: {one['title']}", {})
    if "because" in note:
        return str(note["because"])
    message = anonymous(one.get("message", "")).split("\n")[0]
    message = message if len(message) <= LONGEST_REASON else message[:LONGEST_REASON].rsplit(" ", 1)[0] + " ..."
    kind = {"timeout": "", "not reached": "needs something that failed: "}.get(one["status"], f"{one.get('error', '')}: ")
    return f"{kind}`{message.replace('`', chr(39)).strip()}`" if message.strip() else kind.strip(": ")


def anonymous(message: str) -> str:
    """A message without what differs from run to run."""
    message = re.sub(r"http://(127\.0\.0\.1|localhost):\d+", "SERVER", message)
    message = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b", "ID", message)
    return re.sub(r"(/[\w.+-]+){3,}", "PATH", message)


def better(runs: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """What an official client passes and this one does not."""
    lines = [
        f"- {server.title}, official {client}: *{area}: {title}*"
        for server in servers_in(runs)
        for client, area, title in only_official(runs, server)
    ]
    yield from ("### Steps that an official client passes and this one does not", "")
    yield from lines or ["None."]
    yield ""


def only_official(runs: dict[tuple[str, str], dict[str, Any]], server: Server) -> Iterator[tuple[str, str, str]]:
    """Client, area and title of each step that one of the official clients passes and this one does not."""
    ours = steps_of(runs[server.name, "ours"])
    for client in dict.fromkeys((OFFICIAL_OF_TODAY, server.own_client)):
        for key, one in steps_of(runs.get((server.name, client), {"steps": []})).items():
            if one["status"] == "passed" and key in ours and ours[key]["status"] != "passed":
                yield client, *key


def idle_notes() -> list[str]:
    """The notes of servers or steps that are not there, or of steps that pass."""
    runs = recorded()
    idle = []
    for server, known in notes().items():
        if (server, "ours") not in runs:
            continue
        steps = {f"{one['area']}: {one['title']}": one["status"] for one in runs[server, "ours"]["steps"]}
        idle += [f"{server}: {title}" for title in known if steps.get(title, "passed") == "passed"]
    return idle


if __name__ == "__main__":
    if "--notes" in sys.argv:
        sys.exit("\n".join(f"no such failure: {note}" for note in idle_notes()) or 0)
    if "--check" in sys.argv:
        if outdated():
            sys.exit(f"made with another version of the scenario: {', '.join(outdated())}")
        sys.exit(0 if PAGE.read_text() == with_section(PAGE.read_text(), section()) else "docs/servers.md is not as recorded")
    write_page()
