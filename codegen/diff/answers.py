"""Compares the answers of an operation: statuses, headers, bodies."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.diff.bodies import compare_content
from codegen.diff.findings import CLIENTS, PYTHON, RECEIVED, SERVERS, Change, breaking, difference
from codegen.diff.nodes import child, children, follow, is_set, pairs, schema_name, value_of
from codegen.diff.schemas import SchemaComparison
from codegen.document import DocumentNode


def compare_responses(
    old: DocumentNode, new: DocumentNode, received: SchemaComparison
) -> Iterator[Change]:
    """Compare every status."""
    before, after = children(old, "responses"), children(new, "responses")
    for status, was, now in pairs(before, after):
        if was is None and now is not None:
            yield new_status(status, now, before)
        elif was is not None and now is None:
            yield status_removal(status, was, after)
        elif was is not None and now is not None:
            yield from compare_response(follow(was), follow(now), received)
    yield from compare_reply_names(old, new)


def new_status(status: str, node: DocumentNode, before: dict[str, DocumentNode]) -> Change:
    """Any other failure is what `default` says; a client knows only the successes and redirects
    that it was told of.
    """
    is_failure = status[:1] in "45d" and ("default" in before or f"{status[:1]}XX" in before)
    what = f"{status} is a new answer{' among those that default describes' if is_failure else ''}"
    return breaking("status-added", node.pointer, what, *(() if is_failure else (CLIENTS,)))


def status_removal(status: str, node: DocumentNode, after: dict[str, DocumentNode]) -> Change:
    """Report a removed status: servers of the old document still send it, and clients that act on
    it miss it.
    """
    covered = status[:1] in "45" and ("default" in after or f"{status[:1]}XX" in after)
    what = (
        f"{status} is no longer among the "
        f"answers{': clients that act on it are not told' if covered else ''}"
    )
    return breaking("status-removed", node.pointer, what, CLIENTS, SERVERS)


def compare_response(
    old: DocumentNode, new: DocumentNode, received: SchemaComparison
) -> Iterator[Change]:
    had, has = bool(children(old, "content")), bool(children(new, "content"))
    if had and has:
        yield from compare_content(old, new, received)
    elif had or has:
        what = f"the answer has {'a body now' if has else 'no body any more'}"
        yield breaking("answer-body", new.pointer, what, CLIENTS if had else SERVERS)
    yield from compare_headers(old, new, received)


def compare_headers(
    old: DocumentNode, new: DocumentNode, received: SchemaComparison
) -> Iterator[Change]:
    """Compare the headers of an answer; upper and lower case are the same. Unknown ones are ignored
    by clients.
    """
    before, after = headers_of(old), headers_of(new)
    for name, was, now in pairs(before, after):
        if was is None and now is not None:
            required = is_set(follow(now), "required")
            what = f"{name} is a new {'required' if required else 'optional'} header"
            yield breaking("header-added", now.pointer, what, *((SERVERS,) if required else ()))
        elif was is not None and now is None:
            yield breaking("header-removed", was.pointer, f"the header {name} is gone", CLIENTS)
        elif was is not None and now is not None:
            yield from compare_header(name, follow(was), follow(now), received)


def headers_of(node: DocumentNode) -> dict[str, DocumentNode]:
    return {name.lower(): header for name, header in children(node, "headers").items()}


def compare_header(
    name: str, old: DocumentNode, new: DocumentNode, received: SchemaComparison
) -> Iterator[Change]:
    was, now = is_set(old, "required"), is_set(new, "required")
    if was != now:
        what = f"the header {name} is {'required now' if now else 'no longer required'}"
        yield difference("header-required", new.pointer, what, RECEIVED, wider=was, narrower=now)
    before, after = child(old, "schema"), child(new, "schema")
    if before is not None and after is not None:
        for change in received.compare(before, after):
            yield Change(
                change.rule,
                change.pointer,
                change.what,
                change.breaks - {PYTHON},
                change.wider,
                change.narrower,
            )


def compare_reply_names(old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
    """Compare the Python result of a call: a record, or nothing."""
    before, after = reply_of(old), reply_of(new)
    if bool(before) != bool(after):
        what = (
            f"{value_of(new, 'operationId')} returned {before or 'None'}, returns {after or 'None'}"
        )
        yield breaking("reply", new.pointer, what, PYTHON)


def reply_of(node: DocumentNode) -> str | None:
    """Return the schema of the success in JSON."""
    successes = [
        response
        for status, response in children(node, "responses").items()
        if status.startswith("2")
    ]
    bodies = [
        media for response in successes for media in children(follow(response), "content").values()
    ]
    schemas = [schema for media in bodies if (schema := child(media, "schema")) is not None]
    return next((name for schema in schemas if (name := schema_name(schema))), None)
