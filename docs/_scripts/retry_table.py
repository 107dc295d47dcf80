"""The tables of docs/retries.md, from the code that decides: `python docs/_scripts/retry_table.py`
writes them again.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from pathlib import Path

import httpx

from tinker._http import retry as _retry
from tinker._http.retry import Policy, Verdict, judge
from tinker.errors import (
    APIConnectionError,
    APIResponseValidationError,
    APITimeoutError,
    status_error_type,
)

PAGE = Path(__file__).resolve().parents[1] / "retries.md"
STATUSES = sorted({status.value for status in HTTPStatus if status.value >= 400})
REQUEST = httpx.Request("POST", "http://server/api/v1/operation")

MEANINGS = {
    Verdict.RETRY: "retried after a growing, random delay",
    Verdict.COOL_DOWN: (
        "retried in the same way; after a sample, all samples under the same key slow "
        "down for a while"
    ),
    Verdict.PAUSE: f"the account is blocked: retried every {_retry.PAUSE_SECONDS:g} s",
    Verdict.MALFORMED: (
        f"the same request is sent up to {_retry.MAX_DECODE_ATTEMPTS} times in total"
    ),
    Verdict.RESUBMIT: (
        "the result is gone: a sample is submitted again, up "
        f"to {_retry.RESUBMISSIONS} times; others fail"
    ),
    Verdict.FATAL: "raised at once",
}
CALLS = {
    "START": "reading the server's settings, creating a session",
    "SUBMIT": "submitting training requests, creating models and samplers",
    "SAMPLE": "submitting a sample",
    "POLL": "failures in a row while waiting for a result; each response restarts the count",
    "ONE_SHOT": "heartbeats, refreshing settings, ending a session",
    "REST": "methods of RestClient and AdminClient",
    "DOWNLOAD": "one file of a download",
    "FILE_UPLOAD": "one file of an upload",
    "ARCHIVE": "waiting for a checkpoint's archive",
}


def verdict_of(status: int, body: object = "why") -> Verdict:
    return judge(
        status_error_type(status)("", response=httpx.Response(status, request=REQUEST), body=body)
    )


def failures(verdict: Verdict) -> str:
    """What has this verdict, in words and numbers."""
    found = [str(status) for status in STATUSES if verdict_of(status) is verdict]
    if (
        judge(APIConnectionError(request=REQUEST)) is verdict
        and judge(APITimeoutError(REQUEST)) is verdict
    ):
        found.insert(0, "no connection, timeout")
    if judge(APIResponseValidationError(httpx.Response(200, request=REQUEST), None)) is verdict:
        found.append("a response that cannot be read")
    found += [
        f"{status} without a body"
        for status in STATUSES
        if verdict_of(status, None) is verdict is not verdict_of(status)
    ]
    if verdict is Verdict.FATAL:  # most of them: say the rest by what it is not
        found = [
            (
                "every other status below 500 (such as "
                f"{', '.join(one for one in found if one in ('400', '401', '409'))})"
            )
        ] + [one for one in found if int(one) >= 500]
    return ", ".join(found)


def policies() -> dict[str, Policy]:
    return {name: value for name, value in vars(_retry).items() if isinstance(value, Policy)}


def minutes(seconds: float) -> str:
    """A time as one says it."""
    for size, word in ((3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {word}"
    return f"{seconds:g} s"


def tables() -> str:
    lines = ["| failure | verdict | what happens |", "|---|---|---|"]
    lines += [
        f"| {failures(verdict)} | {verdict.name} | {MEANINGS[verdict]} |" for verdict in Verdict
    ]
    lines += [
        "",
        (
            "| call | retried for | first delay | longest delay | rate limited "
            "(429) | blocked account (402) |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for name, policy in policies().items():
        once = policy.total_seconds == 0
        total = "once" if once else minutes(policy.total_seconds)
        first, longest = (
            ("-", "-") if once else (f"{policy.base_delay:g} s", f"{policy.max_delay:g} s")
        )
        pause = (
            "raised at once"
            if once or not policy.pause_seconds_total
            else f"waits {minutes(policy.pause_seconds_total)}"
        )
        slow = (
            "raised at once" if once else f"waits up to {minutes(policy.limit(Verdict.COOL_DOWN))}"
        )
        lines.append(f"| {CALLS[name]} | {total} | {first} | {longest} | {slow} | {pause} |")
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """The page with the tables as the code has them now."""
    marks = re.compile(
        r"(<!-- tables of retry\.py: .*? -->\n).*?(<!-- end of the tables -->)", re.DOTALL
    )
    assert marks.search(page), "docs/errors.md has lost its marks"
    return marks.sub(lambda found: f"{found[1]}\n{tables()}\n\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
