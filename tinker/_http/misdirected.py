"""Answers of what is no Tinker server at all: a web server, a gateway, another path of the right host. Said in one line."""

from __future__ import annotations

from tinker._http.engines import Answer, Call
from tinker._http.retry import ABSENT_STATUSES, GATEWAY_STATUSES

# Every server has these, so where they are absent the URL is wrong.
_ENTRIES = frozenset({"create_session", "get_server_capabilities"})
_PAGE_STARTS = (b"<!doctype html", b"<html")
_ADVICE = "check base_url (TINKER_BASE_URL)"


def is_web_page(answer: Answer) -> bool:
    """Whether the answer is for a browser."""
    return answer.media_type == "text/html" or answer.content[:64].lstrip().lower().startswith(_PAGE_STARTS)


def described(call: Call, answer: Answer, operation: str) -> str | None:
    """What to say of an answer that no Tinker server gives; None for any other."""
    where = f"{call.method} {call.shown_url}"
    if is_web_page(answer):
        if answer.status in GATEWAY_STATUSES:
            return f"{where} was answered with a web page, by a gateway in front of the server"
        return f"{where} was answered with a web page, so there is no Tinker API; {_ADVICE}"
    if operation in _ENTRIES and answer.status in ABSENT_STATUSES:
        return f"{where} does not exist, so there is no Tinker API; {_ADVICE}"
    return None
