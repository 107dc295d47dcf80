"""Run spectral and redocly over the contract, and compare what they find with what is accepted.

    python tools/linters.py FOLDER

installs both into the folder, and fails on a finding that is not in `accepted_findings.toml`, and
on an entry there that nothing is found for. Needs Node.js with npm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("openapi.yaml", "openapi.portable.yaml")
ACCEPTED = Path(__file__).with_name("accepted_findings.toml")
PACKAGES = ("@stoplight/spectral-cli@6.16.3", "@redocly/cli@2.77.0")
RULES = 'extends: ["spectral:oas"]\n'


class Finding(NamedTuple):
    """What a linter says of a place in a document; the place is a JSON pointer without its leading
    `#/`.
    """

    tool: str
    document: str
    rule: str
    place: str
    message: str


def install(folder: Path) -> None:
    """Install both linters below a folder, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yaml").write_text(RULES, encoding="utf-8")
    (folder / "package.json").write_text("{}", encoding="utf-8")
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def run_linter(folder: Path, *command: str) -> Any:
    """Run a linter and return its report; it exits with 1 where it finds something."""
    program = folder / "node_modules" / ".bin" / command[0]
    environment = {**os.environ, "REDOCLY_TELEMETRY": "off"}
    run = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return json.JSONDecoder().raw_decode(run.stdout.lstrip())[0]  # spectral adds a line of text


def read_spectral(report: Any, document: str) -> Iterator[Finding]:
    """Read the report of spectral."""
    for one in report:
        place = "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in one["path"])
        yield Finding("spectral", document, one["code"], place, one["message"])


def read_redocly(report: Any, document: str) -> Iterator[Finding]:
    """Read the report of redocly."""
    for one in report["problems"]:
        place = one["location"][0].get("pointer", "").removeprefix("#/")
        yield Finding("redocly", document, one["ruleId"], place, one["message"])


def find(folder: Path) -> Iterator[Finding]:
    """Let both linters read both documents."""
    for document in DOCUMENTS:
        path = str(ROOT / document)
        yield from read_spectral(
            run_linter(folder, "spectral", "lint", path, "-r", "rules.yaml", "-f", "json"), document
        )
        yield from read_redocly(
            run_linter(folder, "redocly", "lint", path, "--format", "json"), document
        )


def is_accepted(finding: Finding, entry: Any) -> bool:
    """Return whether an entry of the list is about a finding."""
    same = (entry["tool"], entry["document"], entry["rule"]) == (
        finding.tool,
        finding.document,
        finding.rule,
    )
    return (
        same
        and finding.place.startswith(entry["place"])
        and entry.get("message", "") in finding.message
    )


def compare(findings: list[Finding], accepted: list[Any]) -> list[str]:
    """Say what is found and not accepted, and what is accepted and not found."""
    unexpected = [one for one in findings if not any(is_accepted(one, entry) for entry in accepted)]
    stale = [entry for entry in accepted if not any(is_accepted(one, entry) for one in findings)]
    return [
        f"{one.document} {one.place}: {one.message} ({one.tool}: {one.rule})" for one in unexpected
    ] + [
        f"accepted and not found any more: {entry['tool']} {entry['rule']} at {entry['place']}"
        for entry in stale
    ]


def main(folder: Path) -> int:
    """Lint the documents; 1 when something is not as it was accepted."""
    install(folder)
    findings = list(find(folder))
    accepted = tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))["accepted"]
    problems = compare(findings, accepted)
    print(
        *problems,
        f"{len(findings)} findings, {len(accepted)} accepted entries, {len(problems)} problems",
        sep="\n",
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
